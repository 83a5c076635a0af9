"""Stored trajectories as chat messages, for supervised fine-tuning with any tool that reads JSON lines."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from uirl.errors import ConfigError, StorageError
from uirl.images import Screenshot
from uirl.runtime.files import storage_errors, write_atomically
from uirl.runtime.limits import in_column, whole_characters
from uirl.storage.trajectories import TrajectoryStore, TrajectorySummary
from uirl.types import Task, Trajectory, Turn

_SIGNATURES = ((b"\x89PNG", ".png"), (b"\xff\xd8\xff", ".jpg"), (b"RIFF", ".webp"), (b"GIF8", ".gif"))


def solved(summary: TrajectorySummary) -> bool:
    """Return whether an episode is evidence and its task was solved."""
    return summary.success is True and summary.failure is None


def export_sft(
    store: TrajectoryStore,
    path: str | os.PathLike[str],
    where: Callable[[TrajectorySummary], bool] = solved,
    *,
    system_prompt: str | Callable[[Task], str] | None = None,
    tools: Sequence[Mapping[str, Any]] = (),
    each_reply: bool = False,
    view: Callable[[Trajectory], Trajectory] | None = None,
    order: Callable[[TrajectorySummary], Any] | None = None,
) -> int:
    """Write examples to `path`, one JSON object per line, each with the same fields of the same types; return how many.

    A line holds `messages` (role and content), `id`, `task` and `reward`. Where no chosen trajectory has a picture,
    content is a str. Where one has, content is everywhere a list of `{"type": "image"}` and `{"type": "text",
    "text": ...}`, and `images` names the picture of each `{"type": "image"}`, in order; trajectories without a picture
    then come last. Pictures lie in the folder `<name>_images` beside the file, each once, and paths are relative to the
    file's folder. What tools answered is a message of the role 'tool'; calls are part of the reply, as the policy wrote
    them. An agent that the endpoint recorded, and that branched or rewrote its history, is an example per segment, each
    with the messages that its calls held. Half of a surrogate pair, which no tokenizer takes, is written as U+FFFD.

    Args:
        store: The trajectories of a run.
        path: The file, replaced in one step after its pictures are there.
        where: Which trajectories; the default takes the solved ones.
        system_prompt: First message of each, or what returns it for a task; None or empty: no system message. (The
            environment's prompt is in the token ids of a trajectory, not in its messages.)
        tools: JSON schemas of the functions that the chat template shows (`BaseEnvironment.tool_schemas`), as one JSON
            text in the field `tools`; empty: no such field.
        each_reply: False: one example per trajectory. True: one per reply, with `prompt` (all messages before it) and
            `completion` (the reply) in place of `messages`: trainers put the loss on the completion.
        view: What of a chosen trajectory is written, `Trajectory.prefix` of it for instance; None: the whole.
        order: By what the chosen ones are sorted; None: as they were stored, which is as they ended.

    Raises:
        StorageError: A chosen trajectory was stored without its screenshots, or has a turn with tool calls but no
            text, from which nothing can be learned; or the disk is full.
    """
    target = Path(path)
    folder = target.with_name(f"{target.stem}_images")
    shown = view or (lambda trajectory: trajectory)
    found = [summary for summary in store.list() if where(summary)]
    chosen = [summary.id for summary in (found if order is None else sorted(found, key=order))]
    episodes = [one for name in chosen for one in _conversations(shown(store.get(name)), folder, system_prompt)]
    # loaders take the types of the fields from the first lines: a list of nothing would have none
    episodes.sort(key=lambda episode: not _images(episode.messages))
    with_pictures = any(_images(episode.messages) for episode in episodes[:1])
    beside = {"tools": json.dumps(list(tools))} if tools else {}
    written = 0

    def lines() -> Iterator[str]:
        nonlocal written
        for episode in episodes:
            for example in _per_reply(episode) if each_reply else [{"messages": episode.messages}]:
                written += 1
                yield json.dumps(_line(episode, example, with_pictures) | beside) + "\n"

    write_atomically(target, lines())
    return written


@dataclass(frozen=True, slots=True)
class _Message:
    """One message: who, the paths of its pictures, and its text."""

    role: str
    text: str
    images: tuple[str, ...] = ()


@dataclass(slots=True)
class _Conversation:
    """The messages of a conversation, which grows turn by turn, and what stands beside them in the file."""

    head: Mapping[str, Any]
    messages: list[_Message]
    replies: list[int] = field(default_factory=list)
    """Where the replies stand that are to be learned: those of a branch, not of what it goes on from."""


_Example = Mapping[str, Sequence[_Message]]
"""Field of a line -> its messages, in the order in which they were said."""


def _conversations(
    trajectory: Trajectory, folder: Path, system_prompt: str | Callable[[Task], str] | None
) -> list[_Conversation]:
    """Return the conversations of a trajectory: one, or one per segment of a recorded agent (`info["call"]`), which may
    have branched or rewritten what was said; a reply that its client never saw is in none."""
    names = {"id": in_column(trajectory.id), "task": in_column(trajectory.task.id)}
    head = {**names, "reward": trajectory.total_reward()}
    told = system_prompt(trajectory.task) if callable(system_prompt) else system_prompt
    begin = [_Message("system", told)] if told else []
    turns = trajectory.turns
    recorded = all("call" in turn.info for turn in turns)
    # segments stand in the order in which they ended: what a branch goes on from may stand behind it
    order = sorted(range(len(turns)), key=lambda i: turns[i].info["call"] if recorded else i)
    conversations: dict[int, _Conversation] = {}  # by index of a turn
    until: dict[Any, list[_Message]] = {}  # number of a call -> the conversation up to its reply
    for index in order:
        turn, where = turns[index], f"trajectory {trajectory.id}: turns[{index}]"
        if turn.info.get("sent") is False:
            continue
        goes_on = index > 0 and not (recorded and turn.starts_segment)
        earlier = list(until.get(turn.info.get("after"), begin))
        conversation = conversations[index - 1] if goes_on else _Conversation(head, earlier)
        conversation.messages += _seen(turn, folder, where)
        conversation.replies.append(len(conversation.messages))
        conversation.messages.append(_Message("assistant", _reply(turn, where)))
        conversations[index], until[turn.info.get("call")] = conversation, conversation.messages[:]
    distinct = {id(conversations[index]): conversations[index] for index in sorted(conversations)}
    return list(distinct.values()) or [_Conversation(head, begin)]


def _seen(turn: Turn, folder: Path, where: str) -> list[_Message]:
    """Return what stands before the reply of a turn."""
    seen = turn.observation
    paths = tuple(_save(picture, folder, where) for picture in seen.images)
    if "messages" in turn.info:
        rest = iter(paths)
        return [
            _Message(one["role"], one["text"], tuple(islice(rest, one["images"]))) for one in turn.info["messages"]
        ]  # fmt: skip
    results = [_Message("tool", result.text) for result in seen.tool_results]
    return results + ([_Message("user", seen.text, paths)] if seen.text or paths or not results else [])


def _per_reply(episode: _Conversation) -> Iterator[_Example]:
    for i in episode.replies:
        yield {"prompt": episode.messages[:i], "completion": episode.messages[i : i + 1]}


def _line(episode: _Conversation, example: _Example, with_pictures: bool) -> dict[str, Any]:
    line = dict(episode.head)
    for name, messages in example.items():
        line[name] = [{"role": one.role, "content": _content(one, with_pictures)} for one in messages]
    if with_pictures:
        line["images"] = [path for messages in example.values() for path in _images(messages)]
    return line


def _content(message: _Message, with_pictures: bool) -> str | list[dict[str, str]]:
    """Return content of one type in the whole file: loaders of tables make something else of a column that has two."""
    # half of a surrogate pair has no UTF-8: of a file with one, datasets makes other rows without a word
    text = whole_characters(message.text)
    if not with_pictures:
        return text
    parts = [{"type": "image"} for _ in message.images]
    return parts + ([{"type": "text", "text": text}] if text or not parts else [])


def _images(messages: Iterable[_Message]) -> list[str]:
    return [path for message in messages for path in message.images]


def _reply(turn: Turn, where: str) -> str:
    if not turn.action.text and turn.action.tool_calls:
        raise StorageError(
            f"{where} has tool calls but no text; expected the reply as the policy wrote it: render the action with "
            "the environment's parser before it is stored"
        )
    return turn.action.text


def _save(picture: Any, folder: Path, where: str) -> str:
    """Return the path of a picture, relative to the folder of the export; written where it is not there yet."""
    if not isinstance(picture, Screenshot):
        raise StorageError(f"{where}: the image {picture} was not kept; store runs with logging.store_images=true")
    ending = next((end for start, end in _SIGNATURES if picture.data.startswith(start)), ".bin")
    file = folder / f"{picture.hash}{ending}"
    if not file.exists():
        write_atomically(file, picture.data)
    return f"{folder.name}/{file.name}"


ROWS = 64
"""Examples in memory at a time, and in a row group: a long one of large screenshots takes tens of megabytes."""
_TEXT = {"dtype": "string", "_type": "Value"}


def to_parquet(examples: str | os.PathLike[str], path: str | os.PathLike[str]) -> int:
    """Write the examples of a file that `export_sft` wrote to `path`, each picture with its bytes; return how many.

    Columns are the fields of the lines. Where there are pictures, `images` holds {bytes, path}, and the file says in
    the way of datasets that they are of the type Image. Raises StorageError where the file is empty or a picture is
    missing, and ConfigError without pyarrow.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ConfigError("Parquet needs pyarrow: pip install pyarrow (or uirl[parquet])") from error
    source, target = Path(examples), Path(path)
    with storage_errors(f"cannot read {source}"), source.open(encoding="utf-8") as lines:
        first = lines.readline()
        if not first:
            return _none(target)
        schema = _schema(pa, json.loads(first))
        lines.seek(0)
        rows = (_with_pictures(json.loads(line), source.parent) for line in lines)
        written, aside = 0, target.with_name(f".{target.name}.writing")
        with storage_errors(f"cannot write {target}"):
            with pq.ParquetWriter(aside, schema) as writer:
                while chunk := list(islice(rows, ROWS)):
                    writer.write_table(pa.Table.from_pylist(chunk, schema=schema))
                    written += len(chunk)
            os.replace(aside, target)
    return written


def _none(target: Path) -> int:
    """Leave no file of an earlier export where there is nothing to write: an empty one would have no columns."""
    with storage_errors(f"cannot remove {target}"):
        target.unlink(missing_ok=True)
    return 0


def _schema(pa: Any, line: dict[str, Any]) -> Any:
    """Return the schema of lines like this one; in all lines of an export a field has the same type."""
    fields, features = [], {}
    for name, value in line.items():
        kind, features[name] = _type_of(pa, name, value)
        fields.append(pa.field(name, kind))
    return pa.schema(fields, metadata={"huggingface": json.dumps({"info": {"features": features}})})


def _type_of(pa: Any, name: str, value: Any) -> tuple[Any, Any]:
    if name == "images":
        return pa.list_(pa.struct([("bytes", pa.binary()), ("path", pa.string())])), [{"_type": "Image"}]
    if isinstance(value, list):  # of messages
        if value and isinstance(value[0]["content"], list):
            part = pa.struct([("type", pa.string()), ("text", pa.string())])
            content, feature = pa.list_(part), [{"type": _TEXT, "text": _TEXT}]
        else:
            content, feature = pa.string(), _TEXT  # type: ignore[assignment]
        return pa.list_(pa.struct([("role", pa.string()), ("content", content)])), [{"role": _TEXT, "content": feature}]
    if isinstance(value, float):
        return pa.float64(), {"dtype": "float64", "_type": "Value"}
    return pa.string(), _TEXT


def _with_pictures(line: dict[str, Any], folder: Path) -> dict[str, Any]:
    if "images" not in line:
        return line
    return line | {"images": list(_pictures(line["images"], folder))}


def _pictures(paths: list[str], folder: Path) -> Iterator[dict[str, Any]]:
    for path in paths:
        try:
            yield {"bytes": (folder / path).read_bytes(), "path": Path(path).name}
        except OSError as error:
            raise StorageError(f"{folder / path} is missing: {error}; export the episodes again") from error
