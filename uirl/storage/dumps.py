"""What other trainers write of their rollouts: completions of TRL, generations of verl, traces of prime-rl."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from uirl.errors import ConfigError
from uirl.runtime.files import leads_out
from uirl.runtime.limits import InputError, Limits, is_finite, read_json, shown
from uirl.storage.rows import parquet_rows

LINE = Limits(size=256 * 2**20, items=2**24)
"""Of one line: a long episode with its screenshots in it."""
FORMATS = {
    "TRL": {"step", "prompt", "completion"},
    "verl": {"input", "output", "score"},
    "a trace": {"nodes"},
    "an episode of traces": {"traces"},
}
"""Format -> columns that tell it."""
EXPECTED = "; ".join(f"{name}: {', '.join(sorted(columns))}" for name, columns in FORMATS.items())
_FILES = re.compile(r"completions_\d+\.parquet|(?:train_rollouts|traces)\.jsonl|\d+\.jsonl")
_EVALUATION = re.compile(r"(?:e?val|evals|valid|validation|evaluations?)(?![a-z]).*", re.IGNORECASE)
_USER, _GLUED = re.compile(r"^[ \t]*user[ \t\r]*\n", re.MULTILINE), re.compile(r"user\n\n")
"""What stands before a question in a prompt without its special tokens; Llama 3 begins no line with it."""
_HEADER = re.compile(r"(?:assistant|model)(?:\s*<think>)?$")
_QUESTION = ("question", "prompt", "goal", "input", "problem", "query", "instruction")
Id = Annotated[int, Meta(ge=0, lt=2**31)]


class Message(Struct):
    """What was said, as verifiers has it."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    reasoning_content: str | None = None
    tool_calls: list[dict[str, Any]] | None = None

    def pictures(self) -> list[str]:
        """Return the addresses of its pictures."""
        parts = self.content if isinstance(self.content, list) else []
        return [json.dumps(part["image_url"]) for part in parts if "image_url" in part]


class Node(Struct):
    """A message, and the tokens that it adds to those of its parent."""

    message: Message
    parent: Id | None = None
    sampled: bool = False
    token_ids: list[Id] = []
    mask: list[bool] = []
    logprobs: list[float | None] = []
    trainer_logprobs: list[float | None] | None = None
    advantages: list[float | None] | None = None


class Call(Struct):
    """How one generation ended."""

    node: Id | None = None
    finish_reason: str | None = None
    sampling: dict[str, Any] | None = None


class Trace(Struct):
    """One rollout."""

    nodes: list[Node]
    calls: list[Call] = []
    rewards: dict[str, Any] = {}
    mm_token_type_id_map: dict[Annotated[str, Meta(max_length=10)], int] = {}
    task: dict[str, Any] = {}
    agent: dict[str, Any] = {}


class Reply(Struct):
    """One rollout, and what it says of its group."""

    place: str
    form: str
    group: tuple[str, ...]
    question: str
    """Empty: nobody can tell whether another is the same."""
    reward: float | None
    """None: unknown, or several of which nobody knows what each weighs."""
    advantage: float | None
    solution: str = ""
    trace: Trace | None = None


def read_dump(path: Path) -> Iterator[Reply]:
    """Yield the rollouts in a file, or in the files of a folder, evaluations left out.

    Raises ConfigError for what is no dump, or is broken.
    """
    files = [path] if path.is_file() else sorted(_files(path), key=lambda one: (len(str(one)), str(one)))
    if not files:
        raise ConfigError(
            f"{path} holds no file of a dump; expected completions_N.parquet, N.jsonl or traces.jsonl, "
            "outside of folders of evaluations"
        )
    for file in files:
        before, run = None, 0
        for place, row in read_lines(file, file.name if file == path else str(file.relative_to(path))):
            columns = set(row) if isinstance(row, dict) else set()
            form = next((name for name, wanted in FORMATS.items() if wanted <= columns), None)
            if form is None:
                got = ", ".join(sorted(map(shown, columns))) or "no columns"
                raise ConfigError(f"{place} has {got}; expected one of: {EXPECTED}")
            if form == "TRL":
                run, before = run + (row["prompt"] != before), row["prompt"]
                yield _of_trl(place, row, (str(file), str(run)))
            elif form == "verl":
                group, solution = (str(file), str(row["input"])), json.dumps(row.get("gts"), default=str)
                numbers = _number(row["score"]), _number(row.get("advantage"))
                yield Reply(place, form, group, question_of(row["input"]), *numbers, solution)
            else:
                yield from _of_traces(place, row, str(file))


def _files(folder: Path) -> list[Path]:
    """Return the files of a run: of prime-rl's two records what is learned from, and what was evaluated never."""
    found = [one for one in folder.rglob("*") if _FILES.fullmatch(one.name) and not leads_out(one, folder)]
    played = [one for one in found if not any(map(_EVALUATION.fullmatch, one.relative_to(folder).parts[:-1]))]
    found = [one for one in played if one.is_file()]
    return [one for one in found if one.parent.name == "effective"] or found


def read_lines(file: Path, name: str) -> Iterator[tuple[str, Any]]:
    """Yield (place, row) of a file of JSON lines or Parquet. Raises ConfigError."""
    try:
        if file.suffix.lower() == ".parquet":
            yield from ((f"{name} row {i}", row) for i, row in enumerate(parquet_rows(str(file))))
            return
        with file.open("rb") as lines:
            for number, line in enumerate(iter(lambda: lines.readline(LINE.size + 2), b""), start=1):
                where = f"{name} line {number}"
                if line.strip():
                    yield where, read_json(line, LINE, where, constants=True)
    except (OSError, ValueError) as error:
        problem = str(error) if isinstance(error, InputError) else f"cannot read {file}: {error}"
        raise ConfigError(f"{problem}; expected JSON lines or Parquet, whole; take out what is broken") from error


def _of_trl(place: str, row: dict[str, Any], group: tuple[str, ...]) -> Reply:
    prompt, names = row["prompt"], list(row)
    pictures = isinstance(prompt, list) and '"type": "image"' in json.dumps(prompt, default=str)
    behind = [row[name] for name in names[names.index("completion") + 1 :] if name != "advantage"]
    # of reward functions, and, where they are numbers too, what these have logged
    numbers = [one for one in behind if one is None or type(one) in (int, float)]
    reward = _number(numbers[0]) if len(numbers) == 1 else None
    return Reply(place, "TRL", group, "" if pictures else question_of(prompt), reward, _number(row.get("advantage")))


def _number(value: Any) -> float | None:
    return float(value) if is_finite(value) else None


def _paid(reward: Any) -> float | None:
    """Return what one reward of a trace pays: its score times its weight."""
    score, weight = (reward.get("score"), reward.get("weight", 1.0)) if isinstance(reward, dict) else (reward, 1.0)
    value, share = _number(score), _number(weight)
    return None if value is None or share is None else value * share


def _of_traces(place: str, row: dict[str, Any], file: str) -> Iterator[Reply]:
    try:
        traces = msgspec.convert(row.get("traces", [row]), list[Trace])
    except (msgspec.ValidationError, UnicodeError) as error:
        raise ConfigError(f"{place}: {error}; expected a trace as verifiers v1 writes it") from None
    for trace in traces:
        if any(node.parent is not None and node.parent >= i for i, node in enumerate(trace.nodes)):
            raise ConfigError(f"{place} has a node before its parent; expected a trace as verifiers v1 writes it")
        if trace.agent.get("trainable") is False:
            continue
        first = [node.message for node in trace.nodes[:8]]
        first = first[: next((i for i, one in enumerate(first) if one.role == "assistant"), len(first))]
        asked = question_of([msgspec.to_builtins(one) for one in first])
        asked += "".join(url for one in first for url in one.pictures())
        told = row.get("group") or trace.task.get("key") or trace.task.get("hash") or asked
        paid = [_paid(one) for one in trace.rewards.values()]
        reward = sum(one for one in paid if one is not None) if paid and None not in paid else None
        credit = {one for node in trace.nodes for one in node.advantages or ()}
        advantage = credit.pop() if len(credit) == 1 else None
        group = (file, json.dumps(told, sort_keys=True), str(trace.agent.get("name")))
        yield Reply(place, "a trace", group, asked, reward, advantage, trace=trace)


def question_of(value: Any) -> str:
    """Return the question in a text, in messages (the last of a user), or in a row; empty: there is none.

    In a prompt that was decoded without special tokens it stands between the last line that says 'user' and the word
    that opens the reply.
    """
    if isinstance(value, dict):
        return next((found for name in _QUESTION if (found := question_of(value.get(name)))), "")
    if isinstance(value, list):
        asked = [one.get("content") for one in value if isinstance(one, dict) and one.get("role") == "user"]
        value = asked[-1] if asked else ""
        parts = value if isinstance(value, list) else []
        value = "\n".join(str(part.get("text") or "") for part in parts if isinstance(part, dict)) or value
    elif isinstance(value, str) and (parts := _USER.split(value)[1:] or _GLUED.split(value)[1:]):
        value = _HEADER.sub("", parts[-1].rstrip())
    return " ".join(value.split()) if isinstance(value, str) else ""
