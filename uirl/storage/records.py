"""Trajectories as rows and back, digit for digit: JSON for what people read, packed numbers for token ids."""

from __future__ import annotations

import functools
import json
import sys
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from PIL import Image as PILImage

from uirl.errors import StorageError
from uirl.runtime.limits import InputError, Limits, as_plain, is_finite, shown
from uirl.types import (
    Action,
    Box,
    Failure,
    Observation,
    PictureTransform,
    Task,
    ToolCall,
    ToolResult,
    Trajectory,
    Turn,
    Verdict,
)

_PACKED = ("context_ids", "response_ids", "rollout_log_probs")
_HEADER_FIELDS = tuple(f.name for f in fields(Trajectory) if f.name not in ("turns", "final"))
_TURN_FIELDS = tuple(f.name for f in fields(Turn) if f.name not in ("observation", "action", "pictures", *_PACKED))
_FIELDS: dict[type, tuple[str, ...]] = {
    kind: tuple(f.name for f in fields(kind)) for kind in (Task, Verdict, Failure, Action, ToolCall, ToolResult)
}
_LIMITS = Limits(items=2**24, depth=200)
"""Of one field of a turn or an episode: more than any input lets through, and less than what exhausts a process."""

_AS_THEY_ARE = frozenset({str, float, bool, type(None)})
_TEXT = frozenset({str})

TurnRow = tuple[str, bytes, bytes, bytes]
"""JSON, context ids, response ids, log-probs."""
T = TypeVar("T")


def _kinds_of(hint: Any) -> tuple[type, ...]:
    """Return the classes of the values that a field of this type holds, and of those that JSON has for them."""
    if get_origin(hint) in (Union, UnionType):
        return tuple(kind for part in get_args(hint) for kind in _kinds_of(part))
    kind = get_origin(hint) or hint
    others = {Any: (object,), float: (float, int), tuple: (tuple, list), Mapping: (dict,), bool: (bool, int)}
    return others.get(kind, (kind,))


@functools.cache
def _kinds(record: type) -> dict[str, tuple[type, ...]]:
    """Return field -> the classes that a value of it may have, of a record class."""
    return {name: _kinds_of(hint) for name, hint in get_type_hints(record).items()}


def plain(value: Any, where: str) -> Any:
    """Return `value` as data that JSON has: tuples become lists, scalars of numpy and torch Python numbers, nouns
    mappings; `where` names the place in the error.

    Raises StorageError for everything else, keys that are not text included: JSON would turn them into text, and what
    is read back would not be what was stored.
    """
    kind = type(value)
    if kind in _AS_THEY_ARE or (kind is int and -(2**63) <= value < 2**63):
        return value
    # most of what is stored is flat or empty: a walk over it takes longer than to encode it
    if kind is dict and _AS_THEY_ARE.issuperset(map(type, value.values())) and _TEXT.issuperset(map(type, value)):
        return dict(value)
    if kind is tuple and not value:
        return []
    try:
        return as_plain(value, where, _LIMITS, finite=False, arrays=False, records=_FIELDS)
    except InputError as error:
        raise StorageError(f"{error}; this cannot be stored") from None


def encode_header(trajectory: Trajectory, final_images: Sequence[str] = ()) -> str:
    """Return the JSON of everything but the turns; `final_images`: hashes of the pictures of `final`."""
    where = f"trajectory {trajectory.id}"
    record = _fields(trajectory, _HEADER_FIELDS, f"{where}: ")
    if trajectory.final is not None:
        record["final"] = _encode_observation(trajectory.final, final_images, f"{where}: final")
    return json.dumps(record)


def with_verdict(header: str, verdict: Verdict) -> str:
    """Return the JSON of `encode_header` with another verdict."""
    return json.dumps({**json.loads(header), "verdict": plain(verdict, "the verdict")})


def encode_turn(turn: Turn, images: Sequence[str], where: str) -> TurnRow:
    """Return the row of one turn; `images` are the hashes that stand for the pictures of its observation."""
    record = _fields(turn, _TURN_FIELDS, f"{where}.")
    record["observation"] = _encode_observation(turn.observation, images, f"{where}.observation")
    record["action"] = _fields(turn.action, _FIELDS[Action], f"{where}.action.")
    if turn.pictures:
        record["pictures"] = [_encode_transform(one) for one in turn.pictures]
    try:
        packed = (_pack_ids(turn.context_ids), _pack_ids(turn.response_ids), _pack_floats(turn.rollout_log_probs))
    except (TypeError, OverflowError) as error:
        raise StorageError(f"{where}: token ids must be whole numbers below 2^31, log-probs floats: {error}") from error
    return (json.dumps(record), *packed)


def _fields(record: Any, names: Sequence[str], where: str) -> dict[str, Any]:
    """Return fields of a record as plain data; `where` begins the name of each in the error."""
    values = {name: getattr(record, name) for name in names}
    for name, value in values.items():
        if type(value) not in _AS_THEY_ARE:
            values[name] = plain(value, where + name)
    return values


def _encode_observation(observation: Observation, images: Sequence[str], where: str) -> dict[str, Any]:
    return {
        "text": observation.text,
        "images": list(images),
        "info": plain(observation.info, f"{where}.info"),
        "tool_results": plain(observation.tool_results, f"{where}.tool_results"),
        "state_key": observation.state_key,
    }


def _encode_transform(transform: PictureTransform | None) -> list[Any] | None:
    """Return [width, height] of the raw picture, then as much more of what was done to it as was not left out: a
    picture that was fed as it is takes two numbers."""
    if transform is None:
        return None
    values = [transform.resized, transform.source, transform.window, transform.resample, transform.fill]
    usual = [transform.raw_size, None, None, "bicubic", (0, 0, 0)]
    while values and values[-1] == usual[len(values) - 1]:
        values.pop()
    return [*transform.raw_size, *values]


def _decode_transform(row: Sequence[Any] | None) -> PictureTransform | None:
    if row is None:
        return None
    raw = (row[0], row[1])
    values: list[Any] = [tuple(value) if isinstance(value, list) else value for value in row[2:]]
    return PictureTransform(raw, *values) if values else PictureTransform(raw, raw)


def _decode_observation(record: Any, picture: Callable[[str], Any]) -> Observation:
    seen = made(Observation, {"tool_results": [], **expected(dict, record, "an observation")})
    images = tuple(picture(expected(str, hash, "the hash of a picture")) for hash in seen.images)
    return replace(seen, images=images, tool_results=_tool_results(seen.tool_results))


def decode_header(text: str, turns: list[Turn], picture: Callable[[str], Any] = str) -> Trajectory:
    """Return the inverse of `encode_header`, with `turns` put in; `picture`: see `decode_turn`."""
    record = expected(dict, json.loads(text), "a trajectory")
    if "final" in record:
        record["final"] = _decode_observation(record["final"], picture)
    for name, kind in (("task", Task), ("verdict", Verdict), ("failure", Failure)):
        record[name] = record[name] and made(kind, record[name])
    return made(Trajectory, {**record, "turns": turns})


def decode_turn(row: TurnRow, picture: Callable[[str], Any]) -> Turn:
    """Return the inverse of `encode_turn`; `picture` gives what stands in the observation for an image hash."""
    record = expected(dict, json.loads(row[0]), "a turn")
    action = made(Action, record["action"])
    response_ids = _unpack("i", row[2])
    return made(
        Turn,
        {
            **record,
            "observation": _decode_observation(record["observation"], picture),
            "action": replace(action, tool_calls=tuple(made(ToolCall, call) for call in action.tool_calls)),
            "tool_results": _tool_results(record["tool_results"]),
            "context_images": tuple(expected(str, hash, "a picture's hash") for hash in record["context_images"]),
            "pictures": tuple(_decode_transform(one) for one in record.get("pictures", ())),
            "context_ids": _unpack("i", row[1]),
            "response_ids": response_ids,
            "rollout_log_probs": _unpack("d" if len(row[3]) == 8 * len(response_ids) else "f", row[3]),
        },
    )


def expected(kind: type[T] | tuple[type, ...], value: Any, what: str) -> T:
    """Return the value, which has to be of this kind. Raises TypeError: a record may come from another program."""
    if not isinstance(value, kind):
        raise TypeError(f"{what} is {shown(value)}, expected {getattr(kind, '__name__', 'another kind of value')}")
    return value  # type: ignore[return-value]


def made(kind: type[T], record: Any) -> T:
    """Return the instance of a record class that plain data describe. Raises TypeError for what it cannot hold."""
    kinds = _kinds(kind)  # type: ignore[arg-type]
    for name, value in expected(dict, record, kind.__name__).items():
        wanted = kinds.get(name, ())
        if not isinstance(value, wanted) or (float in wanted and type(value) is int and not is_finite(value)):
            expects = " or ".join(one.__name__ for one in wanted) or "no such field"
            raise TypeError(f"{kind.__name__}.{name} is {shown(value)}, expected {expects}")
    return kind(**record)


def as_stored(trajectory: Trajectory) -> Trajectory:
    """Return what the store would give back for a trajectory whose pictures are hashes: plain data alone, whatever an
    environment put into it, so that it can go to another process. Raises StorageError for what cannot be stored."""
    turns = [
        encode_turn(turn, turn.observation.images, f"trajectory {trajectory.id}: turns[{index}]")
        for index, turn in enumerate(trajectory.turns)
    ]
    final = () if trajectory.final is None else trajectory.final.images
    return decode_header(encode_header(trajectory, final), [decode_turn(turn, str) for turn in turns])


def pictures_of(trajectory: Trajectory) -> list[str]:
    """Return the hashes of the pictures that a trajectory names, each once."""
    named: dict[str, None] = {}
    for turn in trajectory.turns:
        named |= dict.fromkeys((*turn.observation.images, *turn.context_images))
    if trajectory.final is not None:
        named |= dict.fromkeys(trajectory.final.images)
    return list(named)


def _tool_results(results: Any) -> tuple[ToolResult, ...]:
    return tuple(made(ToolResult, result) for result in results)


def _pack_ids(ids: Sequence[int]) -> bytes:
    return _little_endian(array("i", ids))


def _pack_floats(values: Sequence[float]) -> bytes:
    """Return four bytes each where every value is a float32, as engines give them; else eight."""
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


def fed_picture(raw: PILImage.Image, transform: PictureTransform) -> PILImage.Image:
    """Return what the model saw of the picture `raw`, in RGB, before its colours were normalised.

    Raises ValueError where `raw` has another size than the transform was recorded for.
    """
    if raw.size != transform.raw_size:
        raise ValueError(
            f"got a picture of {raw.size[0]} x {raw.size[1]} pixels, expected {transform.raw_size[0]} x "
            f"{transform.raw_size[1]}: the one that this transform was recorded for"
        )
    picture = _part(raw.convert("RGB"), transform.source, transform.fill)
    if picture.size != transform.resized:
        picture = picture.resize(transform.resized, PILImage.Resampling[transform.resample.upper()])
    return _part(picture, transform.window, (0, 0, 0))


def _part(picture: PILImage.Image, box: Box | None, fill: tuple[int, int, int]) -> PILImage.Image:
    """Return a part of the picture, `fill` where it reaches beyond; None: all of it."""
    if box is None:
        return picture
    left, top, width, height = box
    part = PILImage.new("RGB", (width, height), fill)
    part.paste(picture, (-left, -top))
    return part
