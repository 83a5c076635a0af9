"""The numbers of a run under verl, step by step, as the local trainer writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from uirl.integrations.verl.settings import Settings
from uirl.metrics import MetricsLogger, read_metrics
from uirl.training.evaluation import report_on
from uirl.training.record import row_of
from uirl.types import Trajectory

_UPDATE = {
    "actor/pg_loss": "policy_loss",
    "actor/entropy": "entropy",
    "actor/ppo_kl": "approx_kl",
    "actor/pg_clipfrac": "clip_fraction",
    "actor/grad_norm": "grad_norm",
    "critic/vf_loss": "value_loss",
    "training/log_prob_gap_max": "log_prob_gap_max",
    "training/log_prob_gap_mean": "log_prob_gap_mean",
    "training/learned_episodes": "count/learned_episodes",
    "timing_s/gen": "time/collect",
    "timing_s/update_actor": "time/update",
    "training/optimizer_steps": "count/optimizer_steps",
    "training/padding_rows": "count/padding_rows",
    "timing_s/step": "time/step",
}
"""verl's name of a number -> ours."""


def held_out_numbers(played: Sequence[Trajectory]) -> dict[str, float | None]:
    """The numbers of an evaluation as the local trainer names them; empty without episodes."""
    if not played:
        return {}
    report = report_on(played)
    return {"eval/success": report.success, "eval/reward": report.reward, "eval/turns": report.turns}


class StepRecord:
    """`metrics.jsonl` of a run directory, and the same numbers for verl's own trackers."""

    def __init__(self, settings: Settings, resume_after: int | None) -> None:
        self._logger: MetricsLogger | None = None
        self._episodes = 0
        if settings.directory is not None:
            path = Path(settings.directory) / "metrics.jsonl"
            after = -1 if resume_after is None and path.exists() else resume_after
            self._logger = MetricsLogger(path, resume_after=after)
            rows = read_metrics(path)
            self._episodes = int(rows[-1]["episodes_total"]) if rows else 0

    def add(
        self,
        step: int,
        epoch: int,
        played: Sequence[Trajectory],
        metrics: Mapping[str, Any],
        held_out: Mapping[str, float | None],
    ) -> dict[str, float]:
        """What verl's trackers shall show of the episodes of a step; all of it is written down."""
        if not played:
            return {}
        own = row_of(played, {}, {}) | dict(held_out)
        self._episodes += len(played)
        if self._logger is not None:
            update = {ours: float(metrics[theirs]) for theirs, ours in _UPDATE.items() if theirs in metrics}
            self._logger.log(step, {**own, **update, "epoch": epoch, "episodes_total": self._episodes})
        return {f"uirl/{name}": float(value) for name, value in own.items() if value is not None}

    def add_start(self, held_out: Mapping[str, float | None]) -> None:
        """Writes down what an evaluation before the first step found."""
        if self._logger is not None:
            self._logger.log(0, {**held_out, "episodes_total": 0})

    def close(self) -> None:
        """Closes the file. Calling it twice is fine."""
        if self._logger is not None:
            self._logger.close()
