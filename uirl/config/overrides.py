"""`section.key=value` assignments on the plain form of a config."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from uirl.config import yaml_text
from uirl.config.aliases import ALIASES
from uirl.config.keys import KeyedModel, nested_section
from uirl.config.problems import unknown_key
from uirl.errors import ConfigError


def apply_overrides(tree: type[KeyedModel], values: dict[str, Any], assignments: Iterable[str]) -> None:
    """Change `values`, the whole plain form of a `tree`, as the assignments say, in order.

    Raises `ConfigError` for text that is no assignment and for keys that `tree` does not have. Values are read as YAML
    and not checked.
    """
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        key = key.strip()
        if not equals or not key:
            raise ConfigError(f"got {assignment!r}, expected section.key=value, as in training.learning_rate=1e-4")
        value = yaml_text.parse(text, f"the value of {key}")
        if key in ALIASES:
            for our_key, our_value in ALIASES[key].translate(value, values["environment"]["name"]).items():
                _assign(tree, values, our_key, our_value)
        else:
            _assign(tree, values, key, value)


def _assign(tree: type[KeyedModel], values: dict[str, Any], key: str, value: Any) -> None:
    parts = key.split(".")
    for depth, part in enumerate(parts):
        if part not in tree.model_fields:
            raise ConfigError(unknown_key(tree, ".".join(parts[depth:])))
        inner = nested_section(tree.model_fields[part])
        below = parts[depth + 1 :]
        if not below:
            values[part] = _merged(inner, values[part], value)
        elif inner is None:
            _assign_free(values[part], key, below, value)
        if not below or inner is None:
            return
        tree, values = inner, values[part]


def _merged(section: type[KeyedModel] | None, old: Any, new: Any) -> Any:
    """Return the new value; a mapping for a section changes the keys it names alone."""
    if section is None or not isinstance(new, dict):
        return new
    fields = section.model_fields
    return old | {
        name: _merged(nested_section(fields[name]) if name in fields else None, old.get(name), value)
        for name, value in new.items()
    }


def _assign_free(values: Any, key: str, below: list[str], value: Any) -> None:
    *path, last = below
    for part in path:
        values = values.setdefault(part, {}) if isinstance(values, dict) else values
    if not isinstance(values, dict):
        raise ConfigError(f"{key} is not a config key; {key.removesuffix('.' + '.'.join(below))} holds {values!r:.80}")
    values[last] = value
