"""Where a run stands: what its checkpoints hold beside weights and data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self

from uirl.algorithms import at_most
from uirl.config import TrainingConfig
from uirl.training.record.instances import fingerprints_of, packed, unpacked
from uirl.training.record.ledger import Ledger
from uirl.training.record.tally import Tally
from uirl.types import Trajectory

Row = dict[str, float | None]
"""Metric -> its value; None is no evidence."""


@dataclass(slots=True)
class RunState:
    """The progress of a run. A fresh one is that of a run that has not begun."""

    step: int = 0
    """Updates that are done."""
    episodes: int = 0
    seconds: float = 0.0
    """Of reinforcement learning."""
    tally: Tally = field(default_factory=Tally)
    """Of the training episodes."""
    ledger: Ledger = field(default_factory=Ledger)
    """The account of every training episode that was ordered."""
    pace: dict[str, Any] = field(default_factory=dict)
    """How far ahead episodes are ordered, where that adapts."""
    warming: dict[str, Any] | None = None
    """The state of an unfinished warm start."""
    warm: dict[str, Any] | None = None
    """What the warm start did."""
    before: Tally | None = None
    """Of the evaluation before the first update; None: it is still to come."""
    interval_before: Sequence[float] | None = None
    """Of its success: see `EvaluationReport.interval`; None too where a word that came later changed that success."""
    reward_before: float | None = None
    """The mean reward of its episodes."""
    members_before: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Environment of a mixture -> its success in that evaluation: see `EvaluationReport.members`."""
    speakers: set[str] = field(default_factory=set)
    """The environments that were heard to say what success is: see `uirl.success`."""
    held_out: float | None = None
    """Success in the newest evaluation."""
    best: dict[str, Any] | None = None
    """`step`, `metric` and `value` of the best evaluation between updates; None: none yet, or nobody asked."""
    evaluations: int = 0
    """Evaluations between updates, of which `best` is the best."""
    trained: set[str] = field(default_factory=set)
    """What the instances that were trained on look like (`fingerprint`)."""
    counts: dict[str, int] = field(default_factory=dict)
    """Of the newest entry of the history: see `fold_row`."""
    pending: Row | None = None
    """The row of the newest update, until it is evaluated and written down."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, from which `from_dict` makes an equal state."""
        return {one.name: getattr(self, one.name) for one in fields(self)} | {
            "tally": self.tally.to_dict(),
            "before": None if self.before is None else self.before.to_dict(),
            "trained": packed(self.trained),
            "ledger": self.ledger.to_dict(),
            "speakers": sorted(self.speakers),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the inverse of `to_dict`. What `values` lack is as in a fresh state."""
        fields_of_state = {one.name: values[one.name] for one in fields(cls) if one.name in values}
        for name in ("tally", "before"):
            if fields_of_state.get(name) is not None:
                fields_of_state[name] = Tally.from_dict(fields_of_state[name])
        if "ledger" in fields_of_state:
            fields_of_state["ledger"] = Ledger.from_dict(fields_of_state["ledger"])
        if "speakers" in fields_of_state:
            fields_of_state["speakers"] = set(fields_of_state["speakers"])
        if "trained" in fields_of_state:
            fields_of_state["trained"] = unpacked(fields_of_state["trained"])
        return cls(**fields_of_state)

    def add(
        self, played: Sequence[Trajectory], attempts: Sequence[Trajectory], given_up: Mapping[str, int] | None = None
    ) -> None:
        """Count an update that is done, its episodes, the attempts at them that failed and were repeated, and reason ->
        episodes that were given up."""
        self.step += 1
        self.episodes += len(played)
        self.tally.add(played, attempts, given_up)
        self.trained |= fingerprints_of(played)

    def settle(self) -> None:
        """Count the episodes that ended without a word, before their environment was first heard, as unsolved."""
        self.tally.settle(self.speakers)
        if self.before is not None:
            told = self.before.success
            self.before.settle(self.speakers)
            if self.before.success != told:
                self.interval_before = None

    def place(self) -> str:
        """Return 'step 12', 'step 0 (after 40 steps of the warm start)'."""
        if self.warming is None:
            return f"step {self.step}"
        return f"step {self.step} (after {self.warming['step']} steps of the warm start)"

    def stop_reason(self, training: TrainingConfig, goal: int) -> str | None:
        """Return why the run ends here; None: it goes on. `goal`: updates in all."""
        wanted, reached = training.stop_at_success, self.held_out
        if wanted is not None and reached is not None and at_most(wanted, reached, 1.0):
            return f"the success of an evaluation reached {wanted}"
        if training.max_seconds is not None and self.seconds >= training.max_seconds:
            return f"the time limit of {training.max_seconds:g} s was reached"
        return "all epochs are done" if self.step >= goal else None


def fold_row(history: list[dict[str, Any]], counts: Mapping[str, int], row: Mapping[str, Any]) -> dict[str, int]:
    """Fold `row` into the newest entry of `history`, or begin one where its epoch is new.

    An entry holds the epoch, the number of its `updates`, and of every metric the mean over those rows that have it:
    None is no evidence. `counts`: metric -> rows of the newest epoch that have it; returned is the count with `row`.
    """
    epoch = int(row["epoch"])
    if not history or history[-1]["epoch"] != epoch:
        history.append({"epoch": epoch, "updates": 0, "policy_loss": None})
        counts = {}
    entry, rows = history[-1], dict(counts)
    entry["updates"] += 1
    for name, value in row.items():
        if name != "epoch" and value is not None:
            rows[name] = rows.get(name, 0) + 1
            so_far = entry.get(name)
            entry[name] = value if so_far is None else so_far + (value - so_far) / rows[name]
    return rows
