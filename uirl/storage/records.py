"""Trajectories as rows and back, digit for digit: JSON for what people read, packed numbers for token ids."""

from __future__ import annotations

import json
import sys
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from uirl.errors import StorageError
from uirl.types import Action, Failure, Observation, Task, ToolCall, ToolResult, Trajectory, Turn, Verdict

_PACKED = ("context_ids", "response_ids", "rollout_log_probs")
_HEADER_FIELDS = tuple(f.name for f in fields(Trajectory) if f.name != "turns")
_TURN_FIELDS = tuple(f.name for f in fields(Turn) if f.name not in ("observation", "action", *_PACKED))
_FIELDS = {kind: tuple(f.name for f in fields(kind)) for kind in (Task, Verdict, Failure, Action, ToolCall, ToolResult)}
_JSON_TYPES = frozenset((str, int, float, bool, type(None)))

TurnRow = tuple[str, bytes, bytes, bytes]
"""JSON, context ids, response ids, log-probs."""


def plain(value: Any, where: str) -> Any:
    """`value` as data that JSON has. Tuples become lists, scalars of numpy and torch become Python numbers,
    nouns become mappings; `where` names the place in the error.

    Raises `StorageError` for everything else, keys that are not text included: JSON would turn them into text, and what
    is read back would not be what was stored.
    """
    kind = type(value)
    if kind in _JSON_TYPES:
        return value
    if kind in _FIELDS:
        return {name: plain(getattr(value, name), f"{where}.{name}") for name in _FIELDS[kind]}
    if kind is dict or isinstance(value, Mapping):
        return {_text_key(key, where): plain(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        return plain(value.item(), where)
    for base in (bool, int, float, str):
        if isinstance(value, base):
            return base(value)
    raise StorageError(
        f"{where} holds {kind.__module__}.{kind.__qualname__}, which cannot be stored; expected text, numbers, "
        "booleans, None, lists and mappings with text keys (an array: use .tolist())"
    )


def _text_key(key: Any, where: str) -> str:
    if not isinstance(key, str):
        raise StorageError(f"{where} has the key {key!r} ({type(key).__name__}); expected text keys: use str(key)")
    return key


def encode_header(trajectory: Trajectory) -> str:
    """JSON of everything but the turns."""
    where = f"trajectory {trajectory.id}"
    return json.dumps({name: plain(getattr(trajectory, name), f"{where}: {name}") for name in _HEADER_FIELDS})


def encode_turn(turn: Turn, images: Sequence[str], where: str) -> TurnRow:
    """The row of one turn; `images` are the hashes that stand for the pictures of its observation."""
    record = {name: plain(getattr(turn, name), f"{where}.{name}") for name in _TURN_FIELDS}
    info = plain(turn.observation.info, f"{where}.observation.info")
    record["observation"] = {"text": turn.observation.text, "images": list(images), "info": info}
    record["observation"]["tool_results"] = plain(turn.observation.tool_results, f"{where}.observation.tool_results")
    record["observation"]["state_key"] = turn.observation.state_key
    record["action"] = plain(turn.action, f"{where}.action")
    try:
        packed = (_pack_ids(turn.context_ids), _pack_ids(turn.response_ids), _pack_floats(turn.rollout_log_probs))
    except (TypeError, OverflowError) as error:
        raise StorageError(f"{where}: token ids must be whole numbers below 2^31, log-probs floats: {error}") from error
    return (json.dumps(record), *packed)


def decode_header(text: str, turns: list[Turn]) -> Trajectory:
    """The inverse of `encode_header`, with `turns` put in."""
    record = json.loads(text)
    record["task"] = Task(**record["task"])
    record["verdict"] = record["verdict"] and Verdict(**record["verdict"])
    record["failure"] = record["failure"] and Failure(**record["failure"])
    return Trajectory(turns=turns, **record)


def decode_turn(row: TurnRow, picture: Callable[[str], Any]) -> Turn:
    """The inverse of `encode_turn`; `picture` gives what stands in the observation for an image hash."""
    record = json.loads(row[0])
    observation, action = record.pop("observation"), record.pop("action")
    observation["images"] = tuple(picture(hash) for hash in observation["images"])
    observation["tool_results"] = _tool_results(observation)
    record["tool_results"] = _tool_results(record)
    action["tool_calls"] = tuple(ToolCall(**call) for call in action["tool_calls"])
    record["context_images"] = tuple(record["context_images"])
    response_ids = _unpack("i", row[2])
    return Turn(
        observation=Observation(**observation),
        action=Action(**action),
        context_ids=_unpack("i", row[1]),
        response_ids=response_ids,
        rollout_log_probs=_unpack("d" if len(row[3]) == 8 * len(response_ids) else "f", row[3]),
        **record,
    )


def _tool_results(record: Mapping[str, Any]) -> tuple[ToolResult, ...]:
    return tuple(ToolResult(**result) for result in record["tool_results"])


def _pack_ids(ids: Sequence[int]) -> bytes:
    return _little_endian(array("i", ids))


def _pack_floats(values: Sequence[float]) -> bytes:
    """Four bytes each where every value is a float32, as engines give them; else eight."""
    single = array("f", values)
    return _little_endian(single if single.tolist() == list(values) else array("d", values))


def _little_endian(numbers: array[Any]) -> bytes:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def _unpack(kind: str, data: bytes) -> tuple[Any, ...]:
    numbers = array(kind, data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return tuple(numbers)
