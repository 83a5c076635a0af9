"""The numbers of a run under verl, step by step, as the local trainer writes them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from uirl.integrations.verl.config.settings import Settings
from uirl.integrations.verl.rollout.coordinator import EndedEpisodes
from uirl.metrics import MetricsLogger, read_metrics
from uirl.storage import RunDirectory
from uirl.training.evaluation.evaluation import report_on
from uirl.training.record.record import row_of
from uirl.training.record.tally import Tally

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
    "training/optimizer_steps": "count/optimizer_steps",
    "training/padding_rows": "count/padding_rows",
    "timing_s/gen": "time/collect",
    "timing_s/update_actor": "time/update",
    "timing_s/step": "time/step",
}
"""verl's name of a number -> ours."""


class StepRecord:
    """`metrics.jsonl` and `summary.json` of a run directory, and the same numbers for verl's own trackers."""

    def __init__(self, settings: Settings, resume_after: int | None, tally: Mapping[str, Any] | None = None) -> None:
        """Open the files of the record. `tally`: what `self.tally` was when the run was saved; None: it begins."""
        self._settings = settings
        self._logger: MetricsLogger | None = None
        self._episodes = self._steps = 0
        self._held_out: dict[str, float | None] = {}
        self.tally = Tally() if tally is None else Tally.from_dict(tally)
        """Of the training episodes: how many are no evidence, and why."""
        self.held_out = Tally()
        """Of the newest evaluation."""
        if settings.directory is not None:
            path = Path(settings.directory) / "metrics.jsonl"
            RunDirectory(settings.directory).summary_path.unlink(missing_ok=True)  # it has not ended
            after = -1 if resume_after is None and path.exists() else resume_after
            self._logger = MetricsLogger(path, resume_after=after)
            rows = read_metrics(path)
            self._episodes = int(rows[-1]["episodes_total"]) if rows else 0
            self._steps = int(rows[-1]["step"]) if rows else 0

    def count(self, played: EndedEpisodes) -> None:
        """Count the training episodes of a step, before its checkpoint is written."""
        self.tally.add(played.episodes, played.attempts)

    def count_held_out(self, played: EndedEpisodes) -> None:
        """Keep the numbers of an evaluation for the next row, named as the local trainer names them."""
        if not played.episodes:
            return
        report = report_on(played.episodes, played.attempts)
        self.held_out = report.tally
        self._held_out = report.row()

    def forget_held_out(self) -> None:
        """Leave the newest evaluation out of the rows to come."""
        self._held_out = {}

    def add(
        self, step: int, epoch: int, played: EndedEpisodes, metrics: Mapping[str, Any], of_tasks: Mapping[str, Any]
    ) -> dict[str, float]:
        """Write down all of a step's numbers, and return what verl's trackers shall show of its episodes. `of_tasks`:
        what the curriculum says."""
        held_out, self._held_out = self._held_out, {}
        if not played.episodes:
            return {}
        row = row_of(played.episodes, {}, {}, played.attempts) | dict(of_tasks) | held_out
        self._episodes += len(played.episodes)
        self._steps = step
        if self._logger is not None:
            update = {ours: float(metrics[theirs]) for theirs, ours in _UPDATE.items() if theirs in metrics}
            self._logger.log(step, {**row, **update, "epoch": epoch, "episodes_total": self._episodes})
        return {f"uirl/{name}": float(value) for name, value in row.items() if value is not None}

    def add_start(self) -> None:
        """Write down what an evaluation before the first step found."""
        if self._logger is not None:
            self._logger.log(0, {**self._held_out, "episodes_total": 0})

    def finish(self) -> None:
        """Write the summary of a run that has come to its end."""
        if self._settings.directory is None:
            return
        config = self._settings.store()
        summary = {
            "steps": self._steps,
            "episodes": self._episodes,
            "excluded": {"training": self.tally.to_dict(), "after": self.held_out.to_dict()},
            "stopped_because": "all updates are done",
            "seed": config.training.seed,
            "algorithm": config.training.adv_estimator,
        }
        RunDirectory(self._settings.directory).write_json("summary.json", summary)

    def close(self) -> None:
        """Close the file. Calling it twice is fine."""
        if self._logger is not None:
            self._logger.close()
