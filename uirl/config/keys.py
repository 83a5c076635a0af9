"""Dotted keys of the config: which section has which, and the types of their values in words."""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator
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
