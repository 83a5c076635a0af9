"""What of a round's episodes is learned from: solved ones and right beginnings, each once, no task too often."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from uirl.rollout.episode import derive_seed
from uirl.types import Trajectory


@dataclass(frozen=True, slots=True)
class Example:
    """Turns of an episode, from the first on."""

    id: str
    """Of the episode."""
    turns: int
    """How many of its turns, from the first on."""
    kind: Literal["solved", "beginning"]
    task: str
    instance: str
    """What episodes of one instance share."""
    beginnings: tuple[str, ...] = ()
    """After each turn the digest of all that was shown and said until then."""

    @property
    def digest(self) -> str:
        """Of the whole example."""
        return self.beginnings[-1]


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of what is kept."""

    per_instance: int = 4
    task_share: float = 2.0
    prefix_share: float = 0.5


@dataclass(slots=True)
class Selection:
    """What is kept, and why the rest is not."""

    kept: list[Example] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    """Reason -> episodes."""


def candidate_of(trajectory: Trajectory) -> Example | str:
    """Return what an episode has to learn from, or the reason why it has nothing."""
    if trajectory.failure is not None:
        return f"failed: {trajectory.failure.kind}"
    if not trajectory.turns or not all(turn.response_ids for turn in trajectory.turns):
        return "has no tokens"
    if trajectory.success is None:
        return "nobody says whether it was solved"
    right = None if trajectory.verdict is None else trajectory.verdict.correct_prefix
    turns = len(trajectory) if trajectory.success else right or 0
    if turns == 0:
        return "not solved, no right beginning is known" if right is None else "not solved, wrong from the first turn"
    return Example(
        trajectory.id,
        turns,
        "solved" if trajectory.success else "beginning",
        trajectory.task.id,
        f"{trajectory.task.id}/{trajectory.seed if trajectory.seed is not None else trajectory.group_id}",
        tuple(digests(trajectory.prefix(turns))),
    )


def digests(trajectory: Trajectory) -> Iterator[str]:
    """Yield after each turn what is equal only where the same was shown and said until then."""
    sums = hashlib.sha256(json.dumps([trajectory.task.id, trajectory.task.goal]).encode())
    for turn in trajectory.turns:
        seen = turn.observation
        pictures = [image if isinstance(image, str) else getattr(image, "hash", repr(image)) for image in seen.images]
        results = [[result.name, result.text] for result in seen.tool_results]
        sums.update(json.dumps([seen.text, pictures, results, turn.action.text]).encode())
        yield sums.hexdigest()


def select(candidates: Iterable[Example | str], limits: Limits, seed: int) -> Selection:
    """Return the examples to learn from; each episode is kept or counted under one reason.

    Solved ones come first. What is equal, and a beginning of what is kept already, is left out; so is what is more of
    one instance, of one task or of beginnings than the limits say. Which ones of too many is drawn by `seed`.
    """
    chosen, found = Selection(), []
    for candidate in candidates:
        if isinstance(candidate, str):
            chosen.left_out[candidate] += 1
        else:
            found.append(candidate)
    found.sort(key=lambda one: (one.kind != "solved", -one.turns, derive_seed(seed, one.id)))
    known: set[str] = set()
    different = []
    for one in found:
        if one.digest in known:
            chosen.left_out["the same as another" if one.kind == "solved" else "the beginning of another"] += 1
        else:
            different.append(one)
            known.update(one.beginnings)
    kept = _at_most(different, limits.per_instance, lambda one: one.instance, chosen, "more of one instance")
    tasks = len({one.task for one in kept})
    if tasks > 1:
        share = max(1, math.floor(limits.task_share * len(kept) / tasks))
        kept = _at_most(kept, share, lambda one: one.task, chosen, "more of one task")
    chosen.kept = _with_few_beginnings(kept, limits.prefix_share, chosen)
    return chosen


def _at_most(
    examples: Sequence[Example], most: int, key: Callable[[Example], str], chosen: Selection, reason: str
) -> list[Example]:
    count: dict[str, int] = defaultdict(int)
    kept = []
    for one in examples:
        if count[key(one)] < most:
            count[key(one)] += 1
            kept.append(one)
        else:
            chosen.left_out[reason] += 1
    return kept


def _with_few_beginnings(examples: Sequence[Example], share: float, chosen: Selection) -> list[Example]:
    """Return the examples without the last beginnings, so that these are at most `share` of all."""
    solved = [one for one in examples if one.kind == "solved"]
    beginnings = [one for one in examples if one.kind != "solved"]
    most = len(beginnings) if share >= 1 else math.floor(len(solved) * share / (1 - share) + 1e-9)
    if most < len(beginnings):
        chosen.left_out["more beginnings than their share"] += len(beginnings) - most
    return solved + beginnings[:most]


def to_plain(example: Example) -> dict[str, Any]:
    """Return the line of an example in `selection.json`."""
    return {"id": example.id, "turns": example.turns, "kind": example.kind, "task": example.task}


def from_plain(line: Mapping[str, Any]) -> Example:
    """Return the example of a line of `selection.json`, without what only a selection needs."""
    return Example(instance="", **line)
