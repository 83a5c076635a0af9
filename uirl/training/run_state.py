"""Where a run stands, as the plain data that goes into its checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from uirl.config import TrainingConfig
from uirl.training.channels.local import Group
from uirl.training.record.tally import Tally


def fresh_state() -> dict[str, Any]:
    """The state of a run that has not begun."""
    return {
        "step": 0,  # updates that are done
        "episodes": 0,
        "seconds": 0.0,  # of reinforcement learning
        "tally": Tally().to_dict(),  # of the training episodes
        "warming": None,  # the state of an unfinished warm start
        "warm": None,  # what the warm start did
        "before": None,  # the evaluation before the first update
        "held_out": None,  # success in the newest evaluation
        "counts": {},  # of the newest entry of the history: see `fold_row`
        "pending": None,  # the row of the newest update, until it is evaluated and written down
    }


def place(state: Mapping[str, Any]) -> str:
    """'step 12', 'step 0 (after 40 steps of the warm start)'."""
    warming = state["warming"]
    return f"step {state['step']}" + ("" if warming is None else f" (after {warming['step']} steps of the warm start)")


def count_groups(state: dict[str, Any], groups: Sequence[Group]) -> None:
    """Adds the episodes of an update to those of the run."""
    tally = Tally.from_dict(state["tally"])
    for group in groups:
        tally.add(group.trajectories, group.attempts)
    state["tally"] = tally.to_dict()


def stop_reason(state: Mapping[str, Any], training: TrainingConfig, goal: int) -> str | None:
    """Why the run ends here; None: it goes on. `goal`: updates in all."""
    asked, reached = training.stop_at_success, state["held_out"]
    if asked is not None and reached is not None and reached >= asked:
        return f"held-out success reached {asked}"
    if training.max_seconds is not None and state["seconds"] >= training.max_seconds:
        return f"the time limit of {training.max_seconds:g} s was reached"
    return "all epochs are done" if state["step"] >= goal else None
