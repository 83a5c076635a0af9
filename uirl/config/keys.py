"""Dotted keys of the config: which section has which, and the types of their values in words."""

from __future__ import annotations

import re
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from uirl.errors import did_you_mean


class KeyedModel(BaseModel):
    """A model that knows its place in the config."""

    key: ClassVar[str] = ""
    """Dotted name of the section in the tree; empty: the tree itself."""
    config_tree: ClassVar[type[KeyedModel] | None] = None
    """The whole config (`ConfigTree`), whose keys an error may suggest; None before that class exists."""

    @classmethod
    def unknown_key(cls, name: str) -> str:
        """Write the message for a key that this model does not have."""
        return f"{dotted(cls.key, name)} does not exist; {did_you_mean(name, cls.model_fields)}"


@dataclass(frozen=True, slots=True)
class Reach:
    """Beside the type of a key: what its value reaches outside of the run, for a config of somebody else (`stored`).

    Every key that can hold text has one; numbers and choices reach nothing.
    """

    what: str
    """'an address', 'a file', 'a variable', 'code'; empty: nothing, it is only words."""
    unless: str = ""
    """Text that matches this whole reaches nothing."""

    def harmless(self, value: Any) -> bool:
        """Whether this value, or each of a list, reaches nothing: numbers never do."""
        if not self.what or value is None or value is False or (isinstance(value, int | float) and value is not True):
            return True
        if isinstance(value, list | tuple):
            return all(map(self.harmless, value))
        return bool(self.unless) and isinstance(value, str) and re.fullmatch(self.unless, value) is not None


def reach_of(field: FieldInfo) -> Reach | None:
    """Return what stands beside the type of a key, also where it may be null; None: nothing does."""
    return next((m for m in _beside(field.annotation, field.metadata) if isinstance(m, Reach)), None)


def _beside(annotation: Any, metadata: Iterable[Any] = ()) -> Iterator[Any]:
    yield from metadata
    for inner in get_args(annotation):
        yield from [inner] if isinstance(inner, Reach) else _beside(inner)


def reaching(tree: type[KeyedModel], values: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Yield (dotted key, what it reaches, value) of all in the plain form of a config that is not the default and not
    harmless; of free mappings each value."""
    for key, field in walk(tree):
        reach, value = reach_of(field), at(values, key)
        if reach is not None and value != field.get_default(call_default_factory=True):
            yield from ((name, reach.what, leaf) for name, leaf in _leaves(key, value) if not reach.harmless(leaf))


def at(values: Any, key: str) -> Any:
    """Return what stands at a dotted key of nested mappings; None: nothing does."""
    for part in key.split("."):
        values = values.get(part) if isinstance(values, Mapping) else None
    return values


def _leaves(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _leaves(f"{key}.{name}", inner)
    else:
        yield key, value


def dotted(*parts: str) -> str:
    """Join the parts that are not empty by dots."""
    return ".".join(part for part in parts if part)


def nested_section(field: FieldInfo) -> type[KeyedModel] | None:
    """Return the section class of a field; None: the field is a value."""
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, KeyedModel) else None


def walk(section: type[KeyedModel]) -> Iterator[tuple[str, FieldInfo]]:
    """Yield (dotted key, field) of every key below `section`, nested sections included, in the order of the tree."""
    for name, field in section.model_fields.items():
        yield dotted(section.key, name), field
        inner = nested_section(field)
        if inner is not None:
            yield from walk(inner)


def describe(annotation: Any, metadata: Iterable[Any] = ()) -> str:
    """Describe a type to a person who writes YAML: 'number > 0', "'a' or 'b'", 'list of text'."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        bounds = [m for extra in args[1:] for m in (extra.metadata if isinstance(extra, FieldInfo) else [extra])]
        return describe(args[0], [*bounds, *metadata])
    if origin is Literal:
        return " or ".join(repr(choice) for choice in args)
    if origin in (Union, types.UnionType):
        return " or ".join(describe(arg) for arg in args)
    if origin is tuple and args[1:] == (...,):
        return f"list of {describe(args[0])}"
    if origin is tuple:
        return "[" + ", ".join(describe(arg) for arg in args) + "]"
    if origin is list:
        return f"list of {describe(args[0])}"
    return _TYPE_NAMES.get(origin or annotation, "mapping of keys") + _bounds(metadata)


_TYPE_NAMES = {
    float: "number",
    int: "whole number",
    bool: "true or false",
    str: "text",
    type(None): "null",
    Any: "anything",
    dict: "mapping of plain data (text keys; text, finite numbers, true/false, null, lists, mappings)",
}
_SIGNS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}


def _bounds(metadata: Iterable[Any]) -> str:
    limits = [f" {sign} {getattr(m, name)}" for m in metadata for name, sign in _SIGNS.items() if hasattr(m, name)]
    patterns = [f" like {m.pattern}" for m in metadata if getattr(m, "pattern", None)]
    return " and".join(limits) + "".join(patterns)


def leaves(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of everything in nested mappings; an empty mapping is a value."""
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value
