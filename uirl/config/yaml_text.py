"""YAML as people mean it: `1e-4` is a number, `no` is a word, a key given twice is an error."""

from __future__ import annotations

import os
import re
from typing import Any

import yaml

from uirl.errors import ConfigError
from uirl.runtime.limits import InputError, Limits, check_plain, check_size

_LIMITS = Limits(size=2**20)
"""Of a file, which somebody else may have made: aliases of aliases are few letters, and values without end."""
_CORE_SCHEMA = (
    ("tag:yaml.org,2002:bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("tag:yaml.org,2002:null", r"~|null|Null|NULL|", "~nN\0"),
    ("tag:yaml.org,2002:int", r"[-+]?[0-9][0-9_]*", "-+0123456789"),
    (
        "tag:yaml.org,2002:float",
        r"[-+]?((\.[0-9]+|[0-9][0-9_]*\.[0-9]*)([eE][-+]?[0-9]+)?|[0-9][0-9_]*[eE][-+]?[0-9]+|\.inf)|\.nan",
        "-+.0123456789",
    ),
)
"""(tag, pattern, first characters) of plain scalars, close to YAML 1.2; PyYAML's own follow 1.1, which reads `1e-4` as
text, `no` as false and `1:30` as ninety."""


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key.value!r} is given twice", key.start_mark)
            seen.add(getattr(key, "value", ""))
        return super().construct_mapping(node, deep)

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Merge nothing: merges of merges are few letters, and pairs without end."""


_Loader.yaml_implicit_resolvers = {}


def _whole_number(loader: _Loader, node: yaml.ScalarNode) -> int:
    return int(node.value.replace("_", ""))


_Loader.add_constructor("tag:yaml.org,2002:int", _whole_number)
for _tag, _pattern, _first in _CORE_SCHEMA:
    _Loader.add_implicit_resolver(_tag, re.compile(rf"(?:{_pattern})\Z"), ["" if c == "\0" else c for c in _first])


class _Dumper(yaml.SafeDumper):
    """Quotes every text that YAML 1.1 or 1.2 would read as something else."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


for _tag, _pattern, _first in _CORE_SCHEMA:
    _Dumper.add_implicit_resolver(_tag, re.compile(rf"(?:{_pattern})\Z"), ["" if c == "\0" else c for c in _first])


def _text(dumper: _Dumper, value: str) -> yaml.ScalarNode:
    """Quote a text with rarer line breaks (NEL, LS, PS), which PyYAML loses outside of double quotes."""
    style = '"' if any(mark in value for mark in "\x85\u2028\u2029") else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


def parse(text: str, source: str) -> Any:
    """Return the plain data in `text`; None for an empty document. Raises `ConfigError` that names `source` and the
    line, or the limit that it is beyond."""
    try:
        check_size(text, _LIMITS.size, source)
        data = yaml.load(text, Loader=_Loader)
        check_plain(data, _LIMITS, source)
    except InputError as error:
        raise ConfigError(str(error)) from error
    except (yaml.YAMLError, ValueError, TypeError) as error:  # too many digits, a list as a key
        raise ConfigError(f"{source} is not YAML that can be read: {error}") from error
    except RecursionError:
        raise ConfigError(f"{source} is nested too deep; expected at most {_LIMITS.depth} levels") from None
    return data


def read(path: str | os.PathLike[str]) -> Any:
    """Return the plain data in a file; None for an empty one. Raises `ConfigError` that names the file."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(_LIMITS.size + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the config {path}: {error}; expected a YAML file in UTF-8") from error
    return parse(text, str(path))


def render(data: Any) -> str:
    """Return YAML that `parse` reads back to equal data, keys in the given order."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
