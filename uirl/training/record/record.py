"""What a run writes down: every episode, every number, the picture and the summary."""

from __future__ import annotations

import asyncio
import importlib.util
import io
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from uirl.config import ConfigStore
from uirl.errors import ConfigError, JudgeFailure, StorageError
from uirl.images import ImageStore
from uirl.learner.steps import OnLearned
from uirl.metrics import TRACKERS, Metrics, MetricsLogger, TensorBoardTracker, Tracker, read_metrics, tracker_package
from uirl.runtime.files import write_atomically
from uirl.runtime.terminal import short
from uirl.storage import TrajectoryStore, origin_of
from uirl.success import UNSAID
from uirl.training.record.instances import interval_by_instance
from uirl.training.record.progress import forget_failures, say, tell_earlier, tell_failure
from uirl.training.record.run_state import RunState
from uirl.training.record.tally import Tally
from uirl.training.resume import checkpoints_of, open_run, set_later_aside
from uirl.types import Trajectory
from uirl.verification.client import cause_of
from uirl.verification.hybrid import ASKED, JUDGE, NO_ANSWER, NOBODY, RULE, SAVED

SERVE = "serve.json"
"""File of a run directory: the pages on which environment servers show what is played."""


class RunRecord:
    """The run directory while it is being written."""

    def __init__(self, config: ConfigStore, images: ImageStore) -> None:
        """Begin the run of `config` or, with `checkpoint.resume`, continue it; what of its config has changed is said.
        Raises StorageError, and ConfigError for a tracker that is not installed and where there is no run to
        continue."""
        try:
            for name in TRACKERS.keys() & config.logging.trackers:
                tracker_package(name)
        except ImportError as error:
            raise ConfigError(str(error)) from error
        self.directory, changes = open_run(config)
        for change in changes:
            say(f"changed since {self.directory.name} was last started: {change}")
        self._config = config
        self._images = images
        self._store: TrajectoryStore | None = None
        self._soon: WrittenTogether | None = None
        self._soon_of: tuple[int, str] | None = None
        """Step and split of what waits there."""
        self._logger: MetricsLogger | None = None
        forget_failures()

    @property
    def path(self) -> Path:
        return self.directory.path

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return checkpoints_of(self.path, self._config.checkpoint.output_dir, self._config.logging)

    @property
    def curve_path(self) -> Path:
        return self.directory.plot_path("learning_curve")

    def link(self, live_views: Sequence[str]) -> None:
        """Write down where people can watch the episodes of the run, for `uirl view`; empty: nowhere."""
        if live_views:
            self.directory.write_json(SERVE, {"url": live_views[0], "urls": list(live_views)})
        else:
            (self.path / SERVE).unlink(missing_ok=True)

    def start(self, state: RunState | None) -> None:
        """Open store and log for a run that goes on from `state` (that of a checkpoint; None: from the start).

        What steps after it left is dropped, since they are taken again; where a later checkpoint stands the run goes
        back and perhaps another way, and what it was is set aside.
        """
        phases, after, kept = {}, None, -1
        if state is None:
            # a run that was killed before its first checkpoint begins again
            after, phases = (-1, {"warm_start": 0}) if self.directory.metrics_path.exists() else (None, {})
        else:
            kept = state.step
            after = kept - (state.pending is not None)  # a pending row is written down once more
            if (warming := state.warming) is not None:
                phases = {"warm_start": warming["step"] - (warming["row"] is not None)}
            aside = set_later_aside(self.directory, self.checkpoints, kept)
            if aside is not None:
                say(f"back at step {kept}: what this run was beyond it is kept in {short(aside)}")
        self._logger = MetricsLogger(
            self.directory.metrics_path, resume_after=after, phase_after=phases, trackers=self._trackers(after, phases)
        )
        tell_earlier(self.directory.metrics_path, self._config.logging.print_every)
        if self._config.logging.store_trajectories:
            keep = self._config.logging.store_images
            self._store = TrajectoryStore(
                self.directory.trajectories_path,
                keep_images=keep,
                origin=origin_of(self._config.model, self._config.inference),
            )
            self._store.truncate_after(kept)  # without a checkpoint even the evaluation of step 0 is played again

    def add(self, trajectories: Sequence[Trajectory], *, step: int, split: str) -> None:
        """Write episodes down; on return they survive a kill."""
        if self._store is not None:
            self._store.add_many(trajectories, step=step, split=split, images=self._images)

    def add_soon(self, trajectory: Trajectory, *, step: int, split: str) -> None:
        """Write an episode down with those that end in the same turn of the event loop; see `WrittenTogether`. Why it
        failed is said too, now and then."""
        if trajectory.failure is not None:
            tell_failure(trajectory.failure)
        if self._store is None:
            return
        if self._soon is None or self._soon_of != (step, split):
            self.flush()
            self._soon, self._soon_of = WrittenTogether(partial(self.add, step=step, split=split)), (step, split)
        self._soon.add(trajectory)

    def flush(self) -> None:
        """Write down what `add_soon` was given; on return it survives a kill."""
        if self._soon is not None:
            self._soon.flush()

    def keeper(self, step: int) -> OnLearned | None:
        """Return who writes down what update `step` makes of every token; None: nobody does. It may be called on
        another thread."""
        store = self._store if self._config.logging.store_learner_figures else None
        if store is None:
            return None
        return lambda learned, version: store.add_learned(learned, step=step, version=version)

    def forget_after(self, step: int) -> None:
        """Drop the episodes of later steps: they are played again."""
        self.flush()
        if self._store is not None:
            self._store.truncate_after(step)

    def holds(self, label: str) -> bool:
        """Return whether the evaluation `label` is on the record: a finished run that is continued ends where it
        ended."""
        return self._store is not None and bool(self._store.list(group_id=f"{label}-000000", limit=1))

    def log(self, step: int, row: Mapping[str, Any], phase: str | None = None) -> dict[str, Any]:
        """Write the numbers of one step (of a phase before the first update); as written."""
        assert self._logger is not None
        return self._logger.log(step, row, phase)

    def rows(self) -> list[dict[str, Any]]:
        """Return the numbers of all updates so far."""
        return read_metrics(self.directory.metrics_path)

    def summary(self) -> dict[str, Any] | None:
        """Return what `finish` wrote; None: the run has not ended."""
        if not self.directory.summary_path.is_file():
            return None
        summary: dict[str, Any] = self.directory.read_json("summary.json")
        return summary

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Write the picture and the summary."""
        environment = self._config.environment.label
        title = f"{summary['model']} in {environment}, {summary['algorithm']}, seed {summary['seed']}"
        rows = self.rows()
        before, after = (
            {"episodes_total": episodes} | {f"eval/{name}": summary[f"{name}_{when}"] for name in ("success", "reward")}
            for episodes, when in ((0, "before"), (summary["episodes"], "after"))
        )
        draw_curve(self.curve_path, [before, *rows, after], title=title, controls=summary["controls"])
        self.directory.write_json("summary.json", summary)

    def close(self) -> None:
        """Close every file. Calling it twice is fine."""
        try:
            self.flush()
        finally:
            self._soon = None
            if self._logger is not None:
                self._logger.close()
            if self._store is not None:
                self._store.close()
            self.directory.close()

    def _trackers(self, resume_after: int | None, phases: Mapping[str, int]) -> list[Tracker]:
        logging = self._config.logging
        trackers: list[Tracker] = []
        if "tensorboard" in logging.trackers:
            if importlib.util.find_spec("tensorboard") is None:
                say("tensorboard is not installed, so there are no event files (metrics.jsonl has everything)")
            else:
                folder = self.directory.tensorboard
                trackers.append(TensorBoardTracker(folder, resume_after=resume_after, phase_after=phases))
        name, values = self.directory.name, self._config.to_dict()
        for tracker in (TRACKERS[kind] for kind in logging.trackers if kind in TRACKERS):
            trackers.append(tracker(logging.project, name, values, resume=resume_after is not None))
        return trackers


def row_of(
    played: Sequence[Trajectory],
    update: Mapping[str, Any],
    engine: Mapping[str, float],
    attempts: Sequence[Trajectory] | None = None,
    given_up: Mapping[str, int] | None = None,
    members: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the numbers of one step: how the episodes went, what the update did, how fast the engine was. `attempts`
    failed and were repeated; None: nobody counted them. `given_up`: see `Tally.add`. `members`: the environments of a
    mixture, each of which has its own success."""
    metrics = Metrics()
    usable = [t for t in played if t.failure is None]
    for trajectory in usable:
        metrics.add("success", trajectory.success)
        metrics.add("reward", trajectory.total_reward())
        metrics.add("reward_max", trajectory.total_reward())
        metrics.add("reward_min", trajectory.total_reward())
        metrics.add("turns", len(trajectory))
        metrics.add("response_tokens", trajectory.metrics.get("response_tokens"))
        metrics.add("parse_error_rate", trajectory.metrics.get("parse_errors", 0.0) / max(1, len(trajectory)))
        metrics.add("time/environment", trajectory.metrics.get("environment_seconds"))
    for member in members:
        metrics.add(f"success/{member}", None, reduction="mean")  # None where no episode of it was played
        metrics.add(f"count/episodes/{member}", sum(t.task.environment == member for t in usable), reduction="sum")
    for trajectory in usable if members else ():
        metrics.add(f"success/{trajectory.task.environment}", trajectory.success)
    _add_tools(metrics, usable)
    row: dict[str, Any] = dict(metrics.reduce())
    stops = Counter(t.stop_reason for t in played)
    row |= {f"stop/{reason}": count / len(played) for reason, count in sorted(stops.items(), key=str)}
    row["count/evidence_episodes"] = len(usable)
    judged = [t for t in usable if t.success is not None]
    row["count/judged_episodes"] = len(judged)
    row["count/unsaid_episodes"] = sum(UNSAID in t.metrics for t in usable)
    row |= dict(zip(("success_low", "success_high"), interval_by_instance(judged) or (), strict=False))
    tally = Tally()
    tally.add(played, attempts or (), given_up)
    row |= {"success_at_worst": tally.success_if_lost, "count/unseen_attempts": tally.unseen}
    row["count/failed_episodes"] = sum(t.failure is not None for t in played)
    if attempts is not None:
        row["count/failed_attempts"] = len(attempts)
    broken = Counter(t.failure.kind for t in (*played, *(attempts or ())) if t.failure is not None)
    row |= {f"count/failures/{kind}": count for kind, count in sorted(broken.items())}
    row |= _verification([*played, *(attempts or ())])
    row |= update
    seconds = engine.get("prefill_seconds", 0.0) + engine.get("decode_seconds", 0.0)
    if seconds:
        row["tokens_per_second"] = engine.get("generated_tokens", 0.0) / seconds
        prompt = engine.get("prefill_tokens", 0.0) + engine.get("reused_tokens", 0.0)
        row["cache_hit_rate"] = engine.get("reused_tokens", 0.0) / prompt if prompt else None
    row |= {f"count/{key}": engine[key] for key in ("engines_out", "engine_moves", "early_swaps") if key in engine}
    row |= {f"time/engine_{key}": engine.get(f"{key}_seconds", 0.0) for key in ("prefill", "decode")}
    row |= {f"time/engine_{key}": engine[f"{key}_seconds"] for key in ("sleep", "update") if f"{key}_seconds" in engine}
    return row


def _verification(episodes: Sequence[Trajectory]) -> dict[str, float]:
    """Return how often the judge was asked, was not because its answer could change nothing, gave no answer, disagreed
    with the rules, how many episodes are unsolved because nobody said yes or no, and how many failed for want of an
    answer, by cause; nothing where none was verified."""
    counts: Counter[str] = Counter()
    for trajectory in episodes:
        numbers = trajectory.metrics
        counts["asked"] += numbers.get(ASKED) == 1.0
        counts["no_answer"] += numbers.get(NO_ANSWER) == 1.0
        counts["nobody"] += numbers.get(NOBODY) == 1.0
        counts["saved"] += numbers.get(SAVED) == 1.0
        counts["disagreed"] += {numbers.get(RULE), numbers.get(JUDGE)} == {0.0, 1.0}
        if trajectory.failure is not None and trajectory.failure.kind == JudgeFailure.kind:
            counts[f"failed/{cause_of(trajectory.failure.message)}"] += 1
    seen = any({RULE, ASKED, NOBODY} & t.metrics.keys() for t in episodes)
    return {f"count/judge/{name}": float(count) for name, count in sorted(counts.items())} if seen else {}


def _add_tools(metrics: Metrics, usable: Sequence[Trajectory]) -> None:
    """Add the statistics of tools: calls per episode, the share that succeeded, seconds per call.

    Nothing is added where none was called. A tool has rows of its own once a call of it succeeded: the policy may
    invent any number of names.
    """
    calls = [[result for turn in t.turns for result in turn.tool_results] for t in usable]
    names = sorted({result.name for results in calls for result in results if result.success})
    for results in calls if any(calls) else ():
        metrics.add("tools/calls", len(results))
        for result in results:
            metrics.add("tools/success_rate", result.success)
            metrics.add("tools/seconds", result.seconds)
        for name in names:
            named = [result for result in results if result.name == name]
            metrics.add(f"tools/{name}/calls", len(named))
            for result in named:
                metrics.add(f"tools/{name}/success_rate", result.success)


def draw_curve(
    path: Path, rows: Sequence[Mapping[str, Any]], *, title: str, controls: Mapping[str, float] | None = None
) -> bool:
    """Draw success, or the reward where nobody says it, over episodes to `path`: sampled in training, and in
    evaluations. False where the rows hold nothing to draw. `controls` are horizontal lines: what a policy scores that
    does not do what it should."""
    said = any(row.get(name) is not None for row in rows for name in ("success", "eval/success"))
    label = "success" if said else "reward"
    trained = [(row["episodes_total"], row[label]) for row in rows if row.get(label) is not None]
    held_out = [(row["episodes_total"], row[key]) for row in rows if row.get(key := f"eval/{label}") is not None]
    if not trained and not held_out:
        return False
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 3.6), dpi=130, layout="constrained")
    axes = figure.add_subplot()
    if trained:
        axes.plot(*zip(*trained, strict=True), color="#9db7d5", linewidth=1.4, label=f"{label} while training")
    if held_out:
        points = list(zip(*held_out, strict=True))
        axes.plot(*points, color="#1f4e8c", marker="o", markersize=4, linewidth=2, label=f"{label} in evaluations")
    for style, (name, value) in zip(("--", ":", "-."), (controls or {}).items(), strict=False):
        axes.axhline(value, color="#b5651d", linestyle=style, linewidth=1, label=f"control: {name} ({value:.2f})")
    axes.set_ylabel(label)
    axes.set_title(title, fontsize=10)
    axes.legend(fontsize=8, frameon=False, loc="center right")
    save_plot(path, figure, axes, success=label == "success")
    return True


def save_plot(path: Path, figure: Any, axes: Any, *, success: bool) -> None:
    """Write a figure of something over episodes to `path` as PNG. `success`: it is a rate."""
    if success:
        axes.set_ylim(-0.02, 1.02)
    axes.set_xlim(left=0)
    axes.set_xlabel("episodes of reinforcement learning")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    write_atomically(path, buffer.getvalue())


class WrittenTogether:
    """Writes all episodes that end in one turn of the event loop at once, in the next turn, some milliseconds later.

    An engine answers many episodes in one step, so they end together. An error of such a write is raised by the next
    `add` or `flush`.
    """

    def __init__(self, write: Callable[[Sequence[Trajectory]], None]) -> None:
        """`write` puts episodes on the disk, all or none. Raises StorageError where it cannot."""
        self._write = write
        self._waiting: list[Trajectory] = []
        self._failure: StorageError | None = None

    def add(self, trajectory: Trajectory) -> None:
        """Have an episode written down. Call it on the event loop. Raises StorageError where an earlier one could not
        be."""
        self._raise()
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._write_waiting)
        self._waiting.append(trajectory)

    def flush(self) -> None:
        """Write down what waits; on return it survives a kill. Raises StorageError where something could not be
        written."""
        self._write_waiting()
        self._raise()

    def _write_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        try:
            self._write(waiting)
        except StorageError as error:
            self._failure = error
            if len(waiting) > 1:
                self._write_each(waiting)

    def _write_each(self, trajectories: Sequence[Trajectory]) -> None:
        """Write them one by one: what cannot be stored takes no other with it."""
        failures = []
        for trajectory in trajectories:
            try:
                self._write([trajectory])
            except StorageError as error:
                failures.append(error)
        self._failure = failures[0] if failures else None

    def _raise(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
