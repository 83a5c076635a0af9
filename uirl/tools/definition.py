"""`ToolDefinition`: what the policy is told about a tool, and the check of what it then writes."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from jsonschema import SchemaError, ValidationError
from referencing.exceptions import Unresolvable

from uirl.errors import ConfigError, ContractError, did_you_mean
from uirl.runtime.json_schema import ANY, types_of, without_null
from uirl.runtime.limits import InputError, LimitError, Limits, as_plain, check_plain, clip, sample, shown
from uirl.tools.schema import check_schema, errors_of, validator_of
from uirl.tools.signature import CallSignature

MAX_PROBLEMS = 3
"""Mistakes that one answer names; a policy that made more reads of the others when these are mended."""

_CHECKED = Limits(items=10_000, depth=64)
"""Of the arguments of one call: a validator takes some 10 microseconds for each value."""
_SCHEMA = Limits(items=4000, depth=48)
"""Of the schema of one tool: proving one takes some 100 microseconds for each value and 20 calls for each level."""
_Problem = Callable[[], str]
"""One mistake, put in words where it is told."""
_NAME = re.compile(r"[\w.:/-]{1,128}")
_ELSEWHERE = {
    "additionalProperties", "unevaluatedProperties", "patternProperties", "propertyNames", "$ref", "allOf", "anyOf",
    "oneOf", "if", "dependentSchemas",
}  # fmt: skip
"""Keywords by which a schema says itself what other arguments it takes."""
_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}


def callable_name(name: str, taken: Container[str] = ()) -> str:
    """Return a name that a policy can call, for one that somebody else chose: 'New Tool' is 'New_Tool', and
    'New_Tool_2' where that is taken."""
    base = re.sub(r"[^\w.:/-]+", "_", name)[:120] or "tool"
    numbered = (f"{base}_{number}" if number > 1 else base for number in itertools.count(1))
    return next(one for one in numbered if one not in taken)


@dataclass(frozen=True)
class ToolDefinition:
    """Name, purpose and arguments of a tool. Plain data."""

    name: str
    """Letters, digits and _ . : / -, at most 128 of them."""
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})
    """JSON Schema of the arguments, of the type 'object'."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise ConfigError(
                f"ToolDefinition.name is {shown(self.name, 80)}; expected a name of letters, digits and _ . : / -, "
                "e.g. 'calculator'"
            )
        if not isinstance(self.description, str):
            raise ConfigError(f"the description of tool {self.name!r} is {shown(self.description)}; expected a str")
        self._check_parameters()

    def __deepcopy__(self, memo: dict[int, Any]) -> ToolDefinition:
        return self  # nobody may change it, and every parallel episode has a copy of its tools

    @staticmethod
    def from_function(
        function: Callable[..., Any], name: str | None = None, description: str | None = None
    ) -> ToolDefinition:
        """Return the definition of a function: arguments from its type hints, words from its Google docstring.

        `name` None: the function's; `description` None: the docstring up to its first section. A parameter with a
        default need not be given. Raises ContractError where a hint is missing or has no JSON form.
        """
        signature = CallSignature(function)
        words = signature.description if description is None else description
        own_name: str = getattr(function, "__name__", type(function).__name__)
        return ToolDefinition(name or own_name, words, signature.parameters)

    def schema(self) -> dict[str, Any]:
        """Return the definition as chat templates (`tools=`) and servers take it."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}

    def describe(self) -> str:
        """Return the definition for a system prompt: `- name(argument: type, ...): description`."""
        properties, required = self.parameters.get("properties", {}), self.parameters.get("required", ())
        arguments = ", ".join(
            f"{name}: {_type_of(schema, self.parameters)}" + ("" if name in required else " (optional)")
            for name, schema in properties.items()
        )
        words = self.description.strip().replace("\n", "\n  ")
        lines = [f"- {self.name}({arguments})" + (f": {words}" if words else "")]
        lines += [f"    {name}: {s['description']}" for name, s in properties.items() if s.get("description")]
        return "\n".join(lines)

    def check(self, arguments: Any) -> str | None:
        """Return what is wrong with `arguments`, in words the policy can learn from; None: they fit.

        Stricter than JSON Schema in one point: an argument that `properties` does not name is wrong unless the schema
        speaks of others itself (`additionalProperties`, ...) or has no `properties` at all.

        It costs little whatever the arguments are: more than 10 000 values are refused, patterns are matched for 0.1 s
        at most, and words are found for the first mistakes alone.
        """
        if not isinstance(arguments, Mapping):
            return f"arguments must be an object, got {_shown(arguments)}"
        plain = dict(arguments)
        try:
            check_plain(plain, _CHECKED, "the object of arguments")
            problems = [*self._unexpected(plain), *self._misfits(plain)]
        except InputError as error:
            return str(error)
        words = [problem() for problem in problems[:MAX_PROBLEMS]]
        if len(problems) > MAX_PROBLEMS:
            words.append(f"and {len(problems) - MAX_PROBLEMS} more")
        return "; ".join(words) or None

    def _unexpected(self, arguments: Mapping[str, Any]) -> Iterator[_Problem]:
        properties = self.parameters.get("properties")
        if properties is None or _ELSEWHERE & set(self.parameters):
            return
        for name in arguments:
            if name not in properties:
                yield partial(_unknown, "unexpected argument", str(name), properties)

    def _misfits(self, arguments: dict[str, Any]) -> Iterator[_Problem]:
        validator = validator_of(json.dumps(self.parameters, sort_keys=True))
        try:
            errors = sorted(errors_of(validator, arguments), key=_path)
        except Unresolvable as error:
            raise ContractError(
                f"the schema of tool {self.name!r} refers to what it does not hold: {error}; inline its definitions"
            ) from error
        for misfit in errors:
            yield from _explain(misfit, self.parameters)

    def _check_parameters(self) -> None:
        what = f"the parameters of tool {self.name!r}"
        if not isinstance(self.parameters, Mapping) or self.parameters.get("type") != "object":
            raise ConfigError(
                f"{what} are {shown(self.parameters, 80)}; expected a JSON Schema "
                '{"type": "object", "properties": {...}}'
            )
        try:
            plain = as_plain(dict(self.parameters), "the schema", _SCHEMA)
            check_schema(plain)
        except InputError as error:
            why = "too much" if isinstance(error, LimitError) else "not JSON"
            raise ConfigError(f"{what} are {why}: {error}") from None
        except SchemaError as error:
            raise ConfigError(f"{what} are no JSON Schema: {clip(error.message, 200)} at {error.json_path}") from error
        object.__setattr__(self, "parameters", plain)


def _explain(error: ValidationError, root: Mapping[str, Any]) -> Iterator[_Problem]:
    """Return the mistakes in one error of the validator, to be put in words where they are told."""
    if error.validator in ("additionalProperties", "unevaluatedProperties"):
        expected = error.schema.get("properties", {}) if isinstance(error.schema, Mapping) else {}
        path = _path(error)
        where = f"argument {path!r}: unexpected" if path else "unexpected"
        for name in sorted(map(str, set(error.instance) - set(expected))):
            yield partial(_unknown, where, name, expected)
    else:
        yield partial(_in_words, error, root)


def _unknown(what: str, name: str, expected: Mapping[str, Any]) -> str:
    return f"{what} {name[:40]!r}; " + (did_you_mean(name, expected) if expected else "it takes none")


def _in_words(error: ValidationError, root: Mapping[str, Any]) -> str:
    properties = root.get("properties", {})
    path = _path(error)
    where = f"argument {path!r}: " if path else ""
    if error.validator == "required":
        # jsonschema reports every missing name by an error of its own, and the name only in its message.
        name = next(name for name in error.validator_value if error.message.startswith(repr(name)))
        kind = f" ({_expected(properties[name], root)})" if not path and name in properties else ""
        return f"{where}missing {name!r}{kind}" if path else f"missing argument {name!r}{kind}"
    if error.validator in ("type", "enum", "const", "anyOf", "oneOf"):
        return f"{where}got {_shown(error.instance)}, expected {_expected(error.schema, root)}"
    return f"{where}got {_shown(error.instance)}, expected {error.validator} {_short(error.validator_value)}"


def _path(error: ValidationError) -> str:
    path = ""
    for part in error.absolute_path:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    return path


def _expected(schema: Any, root: Mapping[str, Any]) -> str:
    """Return a schema, a part of `root`, in a few words."""
    if not isinstance(schema, Mapping):
        return "nothing"
    if "enum" in schema:
        return "one of " + ", ".join(_short(value) for value in schema["enum"][:20])
    if "const" in schema:
        return _short(schema["const"])
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return " or ".join(_expected(option, root) for option in schema[key][:8])
    kinds = types_of(schema, root)
    return "another value" if ANY in kinds else " or ".join(kinds)


def _shown(value: Any) -> str:
    """Return a value and its JSON type."""
    return "null" if value is None else f"{_short(value)} ({_TYPES.get(type(value), type(value).__name__)})"


def _short(value: Any) -> str:
    try:
        text = json.dumps(sample(value, 61), ensure_ascii=False, default=repr)
    except (ValueError, TypeError):
        return f"a {type(value).__name__} that cannot be written"
    return clip(text)


def _type_of(schema: Any, root: Mapping[str, Any]) -> str:
    one = without_null(schema, root)
    kinds = types_of(schema, root)
    if "enum" in one:
        words = [repr(value) for value in one["enum"]]
    elif "array" in kinds and isinstance(one.get("items"), Mapping):
        words = [f"list of {_type_of(one['items'], root)}"]
    else:
        words = [kind for kind in kinds if kind != "null"]
    return " | ".join([*words, *(["null"] if "null" in kinds and None not in one.get("enum", ()) else [])])
