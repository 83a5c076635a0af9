"""What makes two episodes the same instance: what they are asked to do and what they begin with, not their seeds."""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from uirl.images import screenshot
from uirl.metrics import by_instance, clustered_interval
from uirl.types import Observation, Task, Trajectory

DIGITS = 16
"""Of a fingerprint."""


def fingerprint(trajectory: Trajectory) -> str | None:
    """Return a digest of what identifies the instance of an episode: goal and checks, and the first observation (text,
    pictures, answers of tools, the environment's `state_key`). None: it began with nothing.

    What an instance hides it cannot tell apart; an environment that hides something names it in `state_key`."""
    first = trajectory.turns[0].observation if trajectory.turns else trajectory.final
    return None if first is None else fingerprint_of(trajectory.task, first)


def fingerprint_of(task: Task, first: Observation) -> str:
    """Return the digest of `fingerprint` of an episode of `task` that begins with the observation `first`."""
    pictures = [image if isinstance(image, str) else screenshot(image).hash for image in first.images]
    answers = [(result.name, result.success, result.text) for result in first.tool_results]
    seen = [task.goal, task.checks, first.text, pictures, answers, first.state_key]
    text = canonical(seen)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=DIGITS // 2).hexdigest()


def canonical(content: Any) -> str:
    """Return plain data as text that is the same for the same content: keys in order, letters in one form of Unicode
    (NFC)."""
    return unicodedata.normalize("NFC", json.dumps(content, sort_keys=True, default=repr, ensure_ascii=False))


def instances_of(episodes: Sequence[Trajectory]) -> list[str]:
    """Return of each episode of an evaluation the instance that it shares with others, for `clustered_interval`.

    That is its group, one draw of the seed: draws are independent also where they meet the same few states. Tasks with
    a goal or checks that begin alike are the same problem, however often a list of tasks comes round; where all begin
    alike nothing tells them apart but their seeds.
    """
    alike = [fingerprint(one) if one.task.goal or one.task.checks else None for one in episodes]
    told_apart = len(set(alike)) > 1
    return [
        content if told_apart and content is not None else f"group {one.group_id or one.id}"
        for one, content in zip(episodes, alike, strict=True)
    ]


def interval_by_instance(judged: Sequence[Trajectory]) -> tuple[float, float] | None:
    """Return the 95 % interval of the success of episodes of which somebody said it; None: there are none."""
    if not judged:
        return None
    outcomes = [bool(one.success) for one in judged]
    return clustered_interval(by_instance(zip(instances_of(judged), outcomes, strict=True)))


@dataclass(frozen=True, slots=True)
class HeldOut:
    """How far an evaluation is of instances that training did not play, told apart by what they show and ask for."""

    instances: int
    trained_on: int
    """Instances of the evaluation that training played too."""
    told_apart: bool
    """False: all begin alike, those of training too, so that nobody knows which were trained on."""
    unseen: int
    """Episodes of the other instances."""
    success: float | None
    """Of these episodes; None: there are none that were judged."""
    interval: tuple[float, float] | None

    @classmethod
    def of(cls, episodes: Sequence[Trajectory], trained: Collection[str]) -> HeldOut:
        """Compare the episodes of an evaluation with the fingerprints of what training played."""
        content = [fingerprint(one) for one in episodes]
        instances = instances_of(episodes)
        unseen = [one for one, print in zip(episodes, content, strict=True) if print not in trained]
        judged = [one for one in unseen if one.success is not None]
        seen = {instance for instance, print in zip(instances, content, strict=True) if print in trained}
        return cls(
            instances=len(set(instances)),
            trained_on=len(seen),
            told_apart=len({*content, *trained}) > 1,
            unseen=len(unseen),
            success=sum(bool(one.success) for one in judged) / len(judged) if judged else None,
            interval=interval_by_instance(judged),
        )

    @property
    def holds(self) -> bool | None:
        """Whether the evaluation may be called held out: at most half of it was trained on. None: nobody knows."""
        return 2 * self.trained_on <= self.instances if self.told_apart else None

    def words(self) -> str:
        """Return 'held out: none of them trained on', or how many were."""
        if self.holds is None:
            return "not known to be held out: all instances begin alike, as those of training do"
        if not self.trained_on:
            return "held out: none of them trained on"
        told = f"{self.trained_on} of {self.instances} instances were also trained on"
        return told if self.holds else f"NOT HELD OUT: {told}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "held_out": self.holds,
            "instances": self.instances,
            "trained_on": self.trained_on if self.told_apart else None,
            "unseen": {
                "episodes": self.unseen,
                "instances": self.instances - self.trained_on,
                "success": self.success,
                "interval": list(self.interval) if self.interval else None,
            },
        }


def fingerprints_of(played: Iterable[Trajectory]) -> set[str]:
    """Return the fingerprints of episodes that are evidence; the members of a group share theirs."""
    one_each = {one.group_id or one.id: one for one in played if one.failure is None}
    return {print for one in one_each.values() if (print := fingerprint(one)) is not None}


def packed(fingerprints: Collection[str]) -> str:
    """Return fingerprints as one text for a checkpoint."""
    return "".join(sorted(fingerprints))


def unpacked(text: str) -> set[str]:
    """Return the inverse of `packed`."""
    return {text[i : i + DIGITS] for i in range(0, len(text), DIGITS)}
