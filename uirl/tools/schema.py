"""JSON Schema whose checks cannot take long: a policy chooses what they are given.

Patterns are matched by `regex`, which knows a time limit, and not by `re`, in which a common pattern for e-mail
addresses takes seconds for 24 characters; a linear engine would refuse the look-aheads that schemas are full of. Items
are told to be unique by hashing, not by comparing all with all. A schema that refers to itself may take a value into
two alternatives at every level, and those double with each: so the steps of a check are counted.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import regex
from jsonschema import SchemaError, ValidationError
from jsonschema.protocols import Validator
from jsonschema.validators import Draft202012Validator, extend, validator_for
from referencing import Registry

from uirl.runtime.limits import LimitError, clip, shown

PATTERN_SECONDS = 0.1
"""For all patterns of one check together."""
MAX_PATTERN = 1000
"""Characters of one pattern: compiling takes some 10 microseconds for each."""
MAX_STEPS = 10_000
"""Values held against a part of the schema, in one check. Each takes some 20 microseconds."""


@dataclass(slots=True)
class _Left:
    """What a check may still take."""

    deadline: float
    """Of the patterns."""
    steps: int


_left: ContextVar[_Left] = ContextVar("what the check may still take")


def check_schema(schema: Mapping[str, Any]) -> None:
    """Raise SchemaError for what is no JSON Schema, patterns that cannot be compiled included, and for
    `unevaluatedProperties` beside `patternProperties`, which jsonschema matches without a time limit."""
    for pattern in _patterns(schema):
        if len(pattern) > MAX_PATTERN:
            raise SchemaError(f"a pattern has {len(pattern)} characters; expected at most {MAX_PATTERN}")
        try:
            _compiled(pattern)
        except (regex.error, RecursionError) as error:
            raise SchemaError(f"the pattern {shown(pattern)} cannot be read: {clip(str(error))}") from None
    _class_of(schema).check_schema(schema)
    written = json.dumps(schema)
    if '"unevaluatedProperties"' in written and '"patternProperties"' in written:
        raise SchemaError("unevaluatedProperties beside patternProperties is not supported; use additionalProperties")


@lru_cache(maxsize=1024)
def validator_of(schema: str) -> Validator:
    """Return the validator of a schema in JSON."""
    read = json.loads(schema)
    kind: Any = extend(_class_of(read), _KEYWORDS)
    kind.evolve = _evolved
    # An empty registry: a reference to another document is an error, never a download.
    validator: Validator = kind(read, registry=Registry())
    return validator


def errors_of(validator: Validator, value: Any) -> list[ValidationError]:
    """Return what is wrong with `value`. Raises LimitError where that takes too long to tell."""
    token = _left.set(_Left(time.monotonic() + PATTERN_SECONDS, MAX_STEPS))
    try:
        return list(validator.iter_errors(value))
    except RecursionError:
        raise LimitError(
            "the arguments are nested too deep to compare with the schema; expected flatter ones"
        ) from None
    finally:
        _left.reset(token)


def _class_of(schema: Mapping[str, Any]) -> Any:
    return validator_for(schema, default=Draft202012Validator)


def _evolved(self: Any, **changes: Any) -> Any:
    """Return the validator of a part of a schema: jsonschema's `evolve`, which comes before every comparison.

    It stays of its class: jsonschema's own follows `$schema`, and forgets `_KEYWORDS` where a reference leads back to
    the root. Raises LimitError where the steps are used up.
    """
    left = _left.get()
    left.steps -= 1
    if left.steps < 0:
        raise LimitError(
            f"the arguments take more than {MAX_STEPS} steps to compare with the schema; expected fewer or flatter ones"
        )
    kept = {
        "schema": self.schema,
        "resolver": self._ref_resolver,
        "format_checker": self.format_checker,
        "registry": self._registry,
        "_resolver": self._resolver,
    }
    return type(self)(**(kept | changes))


def _patterns(schema: Any) -> Iterator[str]:
    """Return every pattern of a schema, also those that only look like one."""
    left = [schema]
    while left:
        value = left.pop()
        if isinstance(value, Mapping):
            if isinstance(value.get("pattern"), str):
                yield value["pattern"]
            if isinstance(value.get("patternProperties"), Mapping):
                yield from value["patternProperties"]
            left += value.values()
        elif isinstance(value, list):
            left += value


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> Any:
    return regex.compile(pattern)


def _found(pattern: str, text: str) -> bool:
    left = _left.get().deadline - time.monotonic()
    try:
        if left > 0:
            return _compiled(pattern).search(text, timeout=left) is not None
    except TimeoutError:
        pass
    raise LimitError(
        f"the arguments take more than {PATTERN_SECONDS:g} s to compare with the pattern {pattern[:60]!r}; expected "
        "plainer or shorter texts"
    )


def _type(validator: Any, kinds: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
    if value is not None or schema.get("nullable") is not True:  # OpenAPI 3.0's way to allow null
        yield from Draft202012Validator.VALIDATORS["type"](validator, kinds, value, schema)


def _pattern(validator: Any, pattern: str, value: Any, schema: Any) -> Iterator[ValidationError]:
    if validator.is_type(value, "string") and not _found(pattern, value):
        yield ValidationError("does not match the pattern")


def _properties(validator: Any, patterns: Mapping[str, Any], value: Any, schema: Any) -> Iterator[ValidationError]:
    if not validator.is_type(value, "object"):
        return
    for pattern, inner in patterns.items():
        for name, item in value.items():
            if _found(pattern, name):
                yield from validator.descend(item, inner, path=name, schema_path=pattern)


def _additional(validator: Any, allowed: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
    if not validator.is_type(value, "object"):
        return
    properties, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    extra = [
        name for name in value if name not in properties and not any(_found(pattern, name) for pattern in patterns)
    ]
    if validator.is_type(allowed, "object"):
        for name in extra:
            yield from validator.descend(value[name], allowed, path=name)
    elif extra and not allowed:
        yield ValidationError("holds what the schema does not name")


def _unique(validator: Any, unique: bool, value: Any, schema: Any) -> Iterator[ValidationError]:
    if unique and validator.is_type(value, "array") and len(set(map(_hashable, value))) < len(value):
        yield ValidationError("holds an item twice")


def _hashable(value: Any) -> Any:
    """Return a key that is equal for what JSON Schema calls equal: 1 and 1.0, but not 1 and true.

    Numbers become text: theirs are hashes that anybody can make collide, and a set of such is quadratic.
    """
    if isinstance(value, dict):
        return ("object", frozenset((key, _hashable(item)) for key, item in value.items()))
    if isinstance(value, list):
        return ("array", tuple(map(_hashable, value)))
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return value
    return ("number", f"{int(value):x}" if value == int(value) else float(value).hex())


_KEYWORDS = {
    "type": _type,
    "pattern": _pattern,
    "patternProperties": _properties,
    "additionalProperties": _additional,
    "uniqueItems": _unique,
}
