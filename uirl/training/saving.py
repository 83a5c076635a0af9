"""When a checkpoint is due by the clock, how a run is saved, and which of its checkpoints is the best."""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from uirl.config import CheckpointConfig
from uirl.errors import CheckpointError
from uirl.learner import Learner, save_checkpoint
from uirl.training.evaluation.evaluation import EvaluationReport
from uirl.training.record.progress import doing, say
from uirl.training.record.run_state import RunState
from uirl.training.resume import checkpoint_of

LARGEST_SHARE = 0.05
"""Most of the time that checkpoints by the clock may take."""
BEST = "best"
"""The link beside the checkpoints that leads to the best of them."""


class SaveClock:
    """Says when `checkpoint.save_seconds` have gone by, and longer where saving is slow.

    A checkpoint that takes c seconds is due every max(`seconds`, c / 0.05) seconds.
    """

    def __init__(self, seconds: float | None) -> None:
        """`seconds` None: never due."""
        self._seconds = seconds
        self._cost = 0.0
        self._last = time.monotonic()

    def due(self) -> bool:
        """Return whether it is time to save."""
        least = self._cost / LARGEST_SHARE
        return self._seconds is not None and time.monotonic() - self._last >= max(self._seconds, least)

    def saved(self, started: float) -> None:
        """Note a checkpoint that took from `started`, in seconds of `time.monotonic`, until now."""
        self._last = time.monotonic()
        self._cost = self._last - started


class Saver:
    """Saves a run, as its section `checkpoint` says."""

    def __init__(self, settings: CheckpointConfig) -> None:
        self._settings = settings
        self._clock = SaveClock(settings.save_seconds)
        self.newest: tuple[Path, RunState] | None = None
        """The newest checkpoint and the state in it: it holds the run as it is where that is still the state."""

    def due(self) -> bool:
        """Return whether the clock says that it is time to save."""
        return self._clock.due()

    def save(self, home: Path, learner: Learner, state: RunState, extra: Callable[[], dict[str, Any]]) -> Path:
        """Save the run among its checkpoints in `home` and return the checkpoint; where one holds it already, that.

        The best checkpoint is never deleted, whatever `checkpoint.keep_last_n` says."""
        folder = checkpoint_of(home, state.step)
        if self.newest == (folder, state):
            return folder
        settings, started = self._settings, time.monotonic()
        kept = () if state.best is None else (checkpoint_of(home, state.best["step"]),)
        with doing(f"saving {folder}"):
            save_checkpoint(
                folder, learner, extra(), settings.keep_last_n, save_optimizer=settings.save_optimizer, kept=kept
            )
            link_best(home, state)
        self._clock.saved(started)
        self.newest = (folder, copy.deepcopy(state))
        return folder

    def restored(self, folder: Path, state: RunState) -> None:
        """Note that the run is the one in the checkpoint `folder`."""
        self.newest = (folder, copy.deepcopy(state))


def note_best(state: RunState, report: EvaluationReport, metric: Literal["success", "reward"] | None) -> bool:
    """Note in `state` the evaluation `report` after its step, where by `metric` it is better than all before; return
    whether it is. `metric` None: nothing is noted. An evaluation without a number is not better."""
    value = None if metric is None else getattr(report, metric)
    if value is None or (state.best is not None and value <= state.best["value"]):
        return False
    worst = report.tally.success_if_lost if metric == "success" and report.tally.unseen else None
    state.best = {"step": state.step, "metric": metric, "value": value, "at_worst": worst}
    return True


def settle_best(home: Path, state: RunState) -> None:
    """Let a run that begins or goes on with checkpoints in `home` agree with them: its link leads to the best one, and
    a best one that is not there is forgotten (a later best took its place before the run went back, or the run goes on
    from a checkpoint of another)."""
    if state.best is not None and not checkpoint_of(home, state.best["step"]).exists():
        say(f"the best checkpoint, of step {state.best['step']}, is not in {home}; the best from here on is kept")
        state.best = None
    link_best(home, state)


def link_best(home: Path, state: RunState) -> None:
    """Let the link `best` in `home` lead to the best checkpoint; without one there is no such link. It is replaced as a
    whole, so it leads to one or the other at any time. Raises CheckpointError where links cannot be made."""
    link, fresh = home / BEST, home / f".{BEST}"
    try:
        if state.best is None:
            if link.is_symlink():
                link.unlink()
            return
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(checkpoint_of(home, state.best["step"]).name)
        os.replace(fresh, link)
    except OSError as error:
        raise CheckpointError(
            f"cannot link {link} to the best checkpoint ({error}); does this file system have symbolic links? Choose "
            "another checkpoint.output_dir, or checkpoint.keep_best=null"
        ) from error
