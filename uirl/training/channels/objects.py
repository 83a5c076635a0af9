"""Objects of a person's own code for other processes: environments and reward functions that were handed over in code.

Beyond what messages may hold (`codec`) these are lambdas, closures, and the classes and functions of the script itself:
they go as code. What can be imported goes by its name.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import cloudpickle

from uirl.errors import ConfigError
from uirl.runtime.limits import clip

DEEPEST = 20
"""Parts of parts that are looked at for what cannot be copied."""
_WORDS = 200


def pack(objects: Mapping[str, Any]) -> bytes:
    """Return named objects as bytes; what several of them share stays shared.

    Raises ConfigError that names the part which no other process can have: a lock, an open file, a connection.
    """
    try:
        return cloudpickle.dumps(dict(objects))
    except Exception as error:
        for name, value in objects.items():
            if (reason := _refusal(value)) is not None:
                path, culprit, reason = _culprit(name, value, reason, {id(value)})
                raise ConfigError(
                    f"{path} is a {type(culprit).__module__}.{type(culprit).__qualname__}, and actors in other "
                    f"processes cannot have a copy of it ({clip(str(reason), _WORDS)}). Make it in reset(), or leave "
                    "it out in __getstate__ and make it in __setstate__; or name the environment in the config "
                    "(environment.name=package.module:Class); or play in this process (actors.processes=0, "
                    "ray.use_ray=false)"
                ) from error
        raise ConfigError(f"{' and '.join(objects)} cannot be copied for another process: {error}") from error


def unpack(data: bytes) -> dict[str, Any]:
    """Return the inverse of `pack`. Raises ConfigError where this process cannot make the objects."""
    try:
        objects: dict[str, Any] = cloudpickle.loads(data)
    except Exception as error:
        raise ConfigError(
            f"an actor cannot make what was handed over in code: {type(error).__name__}: "
            f"{clip(str(error), _WORDS)}; are the modules that it is made of on this machine too, the same ones? "
            "(`ray job submit --working-dir` brings a folder)"
        ) from error
    return objects


def _refusal(value: Any) -> Exception | None:
    try:
        cloudpickle.dumps(value)
    except Exception as error:  # whatever a `__reduce__` raises
        return error
    return None


def _culprit(path: str, value: Any, reason: Exception, seen: set[int]) -> tuple[str, Any, Exception]:
    """Return the innermost part of `value` that cannot be copied: how to get there, the part, why."""
    if len(seen) <= DEEPEST:
        for name, part in _parts(value):
            if id(part) not in seen and (why := _refusal(part)) is not None:
                return _culprit(f"{path}{name}", part, why, seen | {id(part)})
    return path, value, reason


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a copy of `value` would hold, each with what is written behind its name to get there."""
    if isinstance(value, types.MethodType):
        yield ".__self__", value.__self__
        yield ".__func__", value.__func__
    elif isinstance(value, types.FunctionType):
        yield from _parts_of_function(value)
    elif isinstance(value, functools.partial):
        yield ".func", value.func
        yield from ((f".args[{i}]", part) for i, part in enumerate(value.args))
        yield from ((f".keywords[{name!r}]", part) for name, part in value.keywords.items())
    elif isinstance(value, type):
        yield from ((f".{name}", part) for name, part in list(vars(value).items()))
    elif isinstance(value, Mapping):
        yield from ((f"[{clip(repr(key), _WORDS)}]", part) for key, part in list(value.items()))
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"[{i}]", part) for i, part in enumerate(value))
    else:
        yield ".__class__", type(value)
        yield from _state_of(value)


def _parts_of_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield what a function reads from outside itself: variables of the functions around it, globals, defaults."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f"'s variable {name}", cell.cell_contents
        except ValueError:  # not set yet
            continue
    for name in sorted(set(_names(function.__code__))):
        if name in function.__globals__:
            yield f"'s variable {name}", function.__globals__[name]
    yield from ((f"'s default {i}", part) for i, part in enumerate(function.__defaults__ or ()))
    yield from _state_of(function)


def _names(code: types.CodeType) -> Iterable[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _state_of(value: Any) -> Iterator[tuple[str, Any]]:
    try:
        state = value.__getstate__()
    except Exception:
        return
    for attributes in state if isinstance(state, tuple) else (state,):
        if isinstance(attributes, Mapping):
            yield from ((f".{name}", part) for name, part in list(attributes.items()))
