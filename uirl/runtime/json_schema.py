"""What a JSON Schema says of a value, however deep it says it: through references, alternatives and parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from referencing import Registry
from referencing.jsonschema import DRAFT202012

ANY = "any"
"""The type of a schema that leaves it open."""
_DEEPEST = 32
"""Levels of references and alternatives that are followed: what stands below says no more of a type."""
_TYPES: dict[type, str] = {
    str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object", type(None): "null"
}  # fmt: skip


def types_of(schema: Any, root: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the types of the values that `schema`, a part of `root`, allows, in its order: `type`, `enum` and `const`,
    `$ref`, `allOf`, `anyOf` and `oneOf` say them. (`ANY`,): it leaves them open."""
    return _types(schema, _resolver(root), {}, _DEEPEST) or (ANY,)


def property_of(root: Mapping[str, Any], name: str) -> Any | None:
    """Return the schema of a property of objects that fit `root`, `anyOf` of several; None: it has none of its own."""
    found = [
        properties[name]
        for part in _parts(root, _resolver(root), set(), _DEEPEST)
        if isinstance(properties := part.get("properties"), Mapping) and name in properties
    ]
    others = root.get("additionalProperties")
    if not found and isinstance(others, Mapping):
        return others
    return {"anyOf": found} if len(found) > 1 else found[0] if found else None


def names_properties(root: Mapping[str, Any]) -> bool:
    """Return whether objects that fit `root` have properties of which it speaks."""
    return any(isinstance(part.get("properties"), Mapping) for part in _parts(root, _resolver(root), set(), _DEEPEST))


def without_null(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what `schema`, a part of `root`, says of a value that is not null, as far as one schema says it: the
    target of a reference, the only alternative."""
    resolver = _resolver(root)
    for _ in range(_DEEPEST):
        if not isinstance(schema, Mapping):
            return {}
        rest = {key: value for key, value in schema.items() if key not in ("$ref", "allOf", "anyOf", "oneOf")}
        if isinstance(kinds := rest.get("type"), list):
            others = [kind for kind in kinds if kind != "null"]
            rest["type"] = others[0] if len(others) == 1 else others
        found = list(_below(schema, resolver))
        other = [(part, at) for part, at in found if _types(part, at, {}, _DEEPEST) != ("null",)]
        if len(other) != 1 or not isinstance(other[0][0], Mapping):
            return schema if found else rest
        schema, resolver = {**other[0][0], **rest}, other[0][1]
    return {}


def _resolver(root: Mapping[str, Any]) -> Any:
    return Registry().resolver_with_root(DRAFT202012.create_resource(dict(root)))


def _types(schema: Any, resolver: Any, known: dict[int, tuple[str, ...]], left: int) -> tuple[str, ...]:
    """Return the types, none where nothing is said. `known`: of the schemas that were met, which may hold one
    another."""
    if not isinstance(schema, Mapping) or left == 0:
        return ()
    if id(schema) in known:
        return known[id(schema)]
    known[id(schema)] = ()
    named = schema.get("type")
    kinds = (named,) if isinstance(named, str) else tuple(map(str, named)) if isinstance(named, list) else ()
    said = [(*kinds, "null") if kinds and schema.get("nullable") is True else kinds]  # as OpenAPI 3.0 writes it
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    of_values = [_TYPES.get(type(value), ANY) for value in values] if isinstance(values, list) else []
    said.append(tuple(sorted(of_values, key=lambda kind: kind == "string")))  # a text can be any of the others too
    for key in ("$ref", "allOf"):
        said += [_types(part, at, known, left - 1) for part, at in _below(schema, resolver, key)]
    for key in ("anyOf", "oneOf"):
        options = [_types(part, at, known, left - 1) for part, at in _below(schema, resolver, key)]
        said.append(tuple(kind for option in options for kind in option or (ANY,)))
    known[id(schema)] = _common(said)
    return known[id(schema)]


def _common(said: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the types in all of `said`, where an empty one says nothing and an integer is a number."""
    common: tuple[str, ...] = ()
    for kinds in said:
        if not common or ANY in common:
            common = kinds or common
        elif kinds and ANY not in kinds:
            wide = {*kinds, *(["integer"] if "number" in kinds else [])}
            kept = [kind for kind in common if kind in wide]
            kept += ["integer" for kind in common if kind == "number" and kind not in wide and "integer" in kinds]
            common = tuple(kept) or common
    return tuple(dict.fromkeys(common))


def _below(schema: Mapping[str, Any], resolver: Any, *keys: str) -> Iterator[tuple[Any, Any]]:
    """Yield (schema, resolver of its references) of the target of a reference and of parts and alternatives."""
    for key in keys or ("$ref", "allOf", "anyOf", "oneOf"):
        given = schema.get(key)
        if key == "$ref" and isinstance(given, str):
            try:
                found = resolver.lookup(given)
            except Exception:  # whatever a reference leads to that leads nowhere: the schema is somebody else's
                continue
            yield found.contents, found.resolver
        elif isinstance(given, list):
            yield from ((part, resolver) for part in given)


def _parts(schema: Any, resolver: Any, seen: set[int], left: int) -> Iterator[Mapping[str, Any]]:
    """Yield `schema` and everything it is made of, each once."""
    if not isinstance(schema, Mapping) or id(schema) in seen or left == 0:
        return
    seen.add(id(schema))
    yield schema
    for part, at in _below(schema, resolver):
        yield from _parts(part, at, seen, left - 1)
