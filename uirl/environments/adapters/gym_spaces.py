"""Spaces of Gymnasium for what our environments show and take: any text, texts as bytes, and calls of functions.

Each way of acting is a space and a function that reads its elements. What is outside of the space is the caller's
doing and a ContractError; what a policy writes into a text is for the environment to judge.
"""

from __future__ import annotations

import json
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.error import CustomSpaceError
from gymnasium.vector.utils import create_shared_memory

from uirl.errors import ConfigError, ContractError
from uirl.runtime.json_schema import without_null
from uirl.runtime.limits import shown
from uirl.tools.definition import ToolDefinition
from uirl.types import Action, ToolCall

LARGEST = 2**31 - 1
"""The largest number of a whole number without bounds."""
Reader = Callable[[Any], Any]
"""Element of a space -> what it says."""


class _Characters(Sequence[str]):
    """Every character there is, by its code point."""

    def __len__(self) -> int:
        return 0x110000

    def __getitem__(self, code: Any) -> Any:
        return chr(code)

    def __contains__(self, character: object) -> bool:
        return isinstance(character, str) and len(character) == 1


class AnyText(spaces.Text):
    """Texts of 0 to `max_length` characters, whatever these are. Samples are made of printable ASCII."""

    def __init__(self, max_length: int, *, seed: int | np.random.Generator | None = None) -> None:
        """`max_length` in characters, of Unicode."""
        super().__init__(max_length, min_length=0, charset=string.ascii_letters + string.digits + " .,?!", seed=seed)
        self._drawn = "".join(super().character_list)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """Return a text of at most 32 characters; masks are not taken."""
        if mask is not None or probability is not None:
            raise ContractError("AnyText.sample takes neither mask nor probability: there are too many characters")
        length = int(self.np_random.integers(0, min(self.max_length, 32) + 1))
        return "".join(self._drawn[i] for i in self.np_random.integers(0, len(self._drawn), length))

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and len(x) <= self.max_length

    @property
    def character_set(self) -> Any:
        return _Characters()

    @property
    def character_list(self) -> Any:
        return _Characters()

    @property
    def characters(self) -> Any:
        return _Characters()

    def character_index(self, char: str) -> np.int32:
        return np.int32(ord(char))

    def __repr__(self) -> str:
        return f"AnyText({self.max_length})"

    def __eq__(self, other: object, /) -> bool:
        return isinstance(other, AnyText) and self.max_length == other.max_length


@create_shared_memory.register(AnyText)
def _no_shared_memory(space: AnyText, n: int = 1, ctx: Any = None) -> Any:
    """Gymnasium reads texts from shared memory once, before there are any, and shows those for ever."""
    raise CustomSpaceError("texts cannot be shared: make the vector with shared_memory=False, or show text='bytes'")


def text_bytes(text: str, length: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the text as `length` numbers: its UTF-8 bytes, then zeros. Half characters are '?'; of a longer text it is
    the beginning, with dots."""
    whole = text.encode("utf-8", "replace")
    if len(whole) > length:
        kept = whole[: max(length - 3, 0)].decode("utf-8", "ignore").encode()  # no character is cut in two
        whole = (kept + b"...")[:length]
    padded = np.zeros(length, np.uint8)
    padded[: len(whole)] = np.frombuffer(whole, np.uint8)
    return padded


def menu(actions: Sequence[Action | str]) -> tuple[spaces.Space[Any], Reader]:
    """Return one of these actions, by its number."""
    listed = [one if isinstance(one, Action) else Action(text=str(one)) for one in actions]
    if not listed:
        raise ConfigError("actions is an empty list; expected at least one action")
    return spaces.Discrete(len(listed)), lambda chosen: listed[int(chosen)]


def texts(max_length: int, read: Callable[[str], Action]) -> tuple[spaces.Space[Any], Reader]:
    """Return what a policy writes."""
    return AnyText(max_length), read


def calls(functions: Sequence[ToolDefinition], max_length: int) -> tuple[spaces.Space[Any], Reader]:
    """Return the number of a function, and its arguments: `OneOf` of a `Dict` each, in the order of `functions`."""
    argument_spaces = [_function(one, max_length) for one in functions]

    def read(chosen: Any) -> Action:
        index, given = chosen
        return Action(tool_calls=(ToolCall(functions[int(index)].name, argument_spaces[int(index)][1](given)),))

    return spaces.OneOf([space for space, _ in argument_spaces]), read


def numbers(functions: Sequence[ToolDefinition], words: Sequence[str]) -> tuple[spaces.Space[Any], Reader]:
    """Return the space as `MultiDiscrete`, for learners that know no other: the number of the function where there are
    several, then the arguments of each function in order. `words` are the texts there are. An argument that may be left
    out is left out at 0, and always where it is a text or has no such form."""
    sizes = [len(functions)] if len(functions) > 1 else []
    slots: list[list[tuple[str, int, bool, Sequence[Any]]]] = []
    for function in functions:
        slots.append([])
        for name, schema, required in _arguments(function):
            if not required and not _is_countable(schema):
                continue
            values = _values(function.name, name, schema, words)
            slots[-1].append((name, len(sizes), required, values))
            sizes.append(len(values) + (not required))

    def read(chosen: Any) -> Action:
        index = int(chosen[0]) if len(functions) > 1 else 0
        given = {}
        for name, slot, required, values in slots[index]:
            at = int(chosen[slot]) - (not required)
            if at >= 0:
                given[name] = values[at]
        return Action(tool_calls=(ToolCall(functions[index].name, given),))

    if not sizes:
        raise ConfigError(f"there is nothing to choose: {functions[0].name} takes no arguments and is alone")
    return spaces.MultiDiscrete(sizes), read


def _arguments(function: ToolDefinition) -> list[tuple[str, Mapping[str, Any], bool]]:
    """(Name, schema, whether it has to be given) of every argument."""
    required = set(function.parameters.get("required", ()))
    properties = function.parameters.get("properties", {})
    return [(name, without_null(schema, function.parameters), name in required) for name, schema in properties.items()]


def _function(function: ToolDefinition, max_length: int) -> tuple[spaces.Space[Any], Reader]:
    """Return the arguments of one function. One that may be left out is (0, 0) without, (1, value) with it."""
    fields: dict[str, spaces.Space[Any]] = {}
    readers: dict[str, Reader] = {}
    for name, schema, required in _arguments(function):
        space, reader = _argument(function.name, name, schema, max_length)
        fields[name] = space if required else spaces.OneOf([spaces.Discrete(1), space])
        readers[name] = reader if required else _optional(reader)

    def read(given: Any) -> dict[str, Any]:
        found = {name: reader(given[name]) for name, reader in readers.items()}
        return {name: value for name, value in found.items() if value is not None}

    # an empty Dict is no space to many; what takes nothing has one choice
    return (spaces.Dict(fields), read) if fields else (spaces.Discrete(1), lambda _: {})


def _optional(reader: Reader) -> Reader:
    return lambda given: reader(given[1]) if int(given[0]) else None


def _argument(function: str, name: str, schema: Mapping[str, Any], max_length: int) -> tuple[spaces.Space[Any], Reader]:
    kind = schema.get("type")
    if "enum" in schema or "const" in schema:
        values = list(schema.get("enum", [schema.get("const")]))
        return spaces.Discrete(len(values)), lambda at: values[int(at)]
    if kind == "boolean":
        return spaces.Discrete(2), bool
    if kind == "integer":
        low, high = _bounds(schema)
        if high - low < LARGEST:
            return spaces.Discrete(high - low + 1, start=low), int
        return spaces.Box(low, high, (), np.int64), int
    if kind == "number":
        lower, upper = float(schema.get("minimum", -np.inf)), float(schema.get("maximum", np.inf))
        return spaces.Box(lower, upper, (), np.float64), float
    if kind == "string":
        return AnyText(min(int(schema.get("maxLength", max_length)), max_length)), str
    raise _no_form(function, name, schema)


def _is_countable(schema: Mapping[str, Any]) -> bool:
    """Return whether an argument has so many values and no more, whatever texts there are."""
    kind = schema.get("type")
    bounded = kind == "integer" and {"minimum", "maximum"} <= set(schema)
    return bounded or kind == "boolean" or "enum" in schema or "const" in schema


def _values(function: str, name: str, schema: Mapping[str, Any], words: Sequence[str]) -> Sequence[Any]:
    """Return all values of an argument."""
    kind = schema.get("type")
    if "enum" in schema or "const" in schema:
        return list(schema.get("enum", [schema.get("const")]))
    if kind == "boolean":
        return [False, True]
    if _is_countable(schema):
        low, high = _bounds(schema)
        return range(low, high + 1)
    if kind == "string" and words:
        return list(words)
    if kind == "string":
        raise ConfigError(
            f"{function} takes a text {name}, and numbers alone write none; say which texts there are (words=[...]), "
            "or give the actions as a list"
        )
    raise _no_form(function, name, schema)


def _bounds(schema: Mapping[str, Any]) -> tuple[int, int]:
    low = int(schema.get("minimum", int(schema.get("exclusiveMinimum", -LARGEST - 1)) + 1))
    high = int(schema.get("maximum", int(schema.get("exclusiveMaximum", LARGEST + 1)) - 1))
    return low, high


def _no_form(function: str, name: str, schema: Mapping[str, Any]) -> ConfigError:
    return ConfigError(
        f"{function} takes {name} as {shown(json.dumps(schema, default=str), 120)}, for which this way of acting has "
        "no form; give the actions as a list, or functions of your own (schemas=[...])"
    )
