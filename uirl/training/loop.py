"""The run: warm start, then collect, verify, credit, update, publish; evaluated, recorded, resumable."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from uirl.config import ConfigStore
from uirl.environments import BaseEnvironment
from uirl.errors import CheckpointError, ConfigError
from uirl.event_loop import EventLoopThread
from uirl.learner import Policy, latest_checkpoint, load_checkpoint, save_checkpoint
from uirl.rollout.episode import RewardFunction
from uirl.rollout.samples import anchors_of, samples_of_all
from uirl.training.assembly import Assembly, assemble, sampling_of
from uirl.training.channel import Channel, Group, LocalChannel
from uirl.training.controls import play_controls
from uirl.training.evaluation import EvaluationReport, evaluate_episodes, require_evidence
from uirl.training.gates import live_groups
from uirl.training.history import fold_row
from uirl.training.progress import percent, report_table, say, step_line
from uirl.training.record import RunRecord, row_of
from uirl.training.task_sets import EVAL_TASKS
from uirl.training.tasks import TaskSource, UniformTasks
from uirl.training.warm_start import warm_start
from uirl.types import Trajectory


class RayPPOTrainer:
    """Trains a policy in an environment, as the config says; the algorithm is `training.adv_estimator`.

    `environment` None: the one the config names. `reward_fn(trajectory)` or `reward_fn(trajectory, environment)` gives
    the total reward of an episode; None: the environment's rewards. `dataset`: the tasks; None: those the config names,
    else the environment's own. `eval_dataset`: the tasks of every evaluation; None: those the config names or chooses
    (`environment.eval_tasks`, `eval_options`), else the training tasks on held-out instances.
    """

    def __init__(
        self,
        config: ConfigStore,
        environment: BaseEnvironment | None = None,
        reward_fn: RewardFunction | None = None,
        dataset: Iterable[Any] | None = None,
        *,
        policy: Policy | None = None,
        tasks: TaskSource | None = None,
        eval_dataset: Iterable[Any] | None = None,
    ) -> None:
        if not isinstance(config, ConfigStore):
            raise ConfigError(
                f"got {type(config).__name__} as the config; expected a ConfigStore, as load_config returns"
            )
        if environment is not None:
            config = config.model_copy(deep=True)
            config.environment.note_object(environment)
        self.config = config.check(training=True)
        if config.training.threads is not None:
            torch.set_num_threads(config.training.threads)
        self._parts: Assembly = assemble(
            config, environment, reward_fn, dataset, policy, eval_dataset, for_training=True
        )
        draws = config.training.seed if config.inference.seed is None else config.inference.seed
        own = UniformTasks(self._parts.tasks.train, seed=draws, instance_seed=config.training.seed)
        self.tasks: TaskSource = tasks or own
        self._loop = EventLoopThread()
        self._record: RunRecord | None = None
        self._state: dict[str, Any] = {"step": 0, "episodes": 0, "seconds": 0.0, "warm": None, "before": None}
        self._state["counts"] = {}  # of the newest entry of the history: see `fold_row`
        self._restored = False
        self._closed = False
        self._parts.collector.on_finished = self._write_down
        self.metrics_history: list[dict[str, Any]] = []
        """One row per epoch: its number and of every metric the mean over those of its updates that have it.
        `policy_loss` is None where no update of the epoch took a step."""

    @property
    def learner(self) -> Any:
        """The learner: policy, optimiser, version."""
        return self._parts.learner

    @property
    def run_path(self) -> Path | None:
        """The run directory; None before the first `fit`."""
        return self._record.path if self._record else None

    def fit(self, num_epochs: int | None = None, num_iters_per_epoch: int | None = None) -> dict[str, Any]:
        """Trains until `num_epochs` epochs of `num_iters_per_epoch` updates are done (counted from the start of the
        run), the success asked for is reached, or time is up; returns the summary that is also written to the run."""
        training = self.config.training
        epochs = num_epochs if num_epochs is not None else training.num_epochs
        per_epoch = num_iters_per_epoch if num_iters_per_epoch is not None else training.num_iters_per_epoch
        return self._loop.run(self._fit(epochs, per_epoch))

    def evaluate(self, episodes: int | None = None, *, tries: int = 1, split: str = "eval") -> EvaluationReport:
        """How the current policy does on held-out instances."""
        return self._loop.run(self._evaluate(episodes or self.config.training.eval_episodes, split, tries=tries))

    def save_checkpoint(self, path: str | Path) -> Path:
        """Writes everything a resumed run needs to `path`."""
        return save_checkpoint(path, self.learner, self._extra())

    def load_checkpoint(self, path: str | Path) -> None:
        """Continues from a checkpoint: weights, optimiser, random states, position in the data, history."""
        extra = load_checkpoint(Path(path), self.learner)
        if "tasks" not in extra or "state" not in extra:
            raise CheckpointError(f"{path} holds no state of a run; expected one that a trainer saved")
        self.tasks.load_state_dict(extra["tasks"])
        self._state = {"counts": {}} | extra["state"]
        self.metrics_history = list(extra["history"])
        self._restored = True

    def cleanup(self) -> None:
        """Closes environments, engine and files. Calling it twice is fine."""
        if self._closed:
            return
        self._closed = True
        try:
            self._loop.run(self._parts.close())
        finally:
            self._loop.close()
            if self._record is not None:
                self._record.close()

    # -- the run -----------------------------------------------------------------------------------------------

    async def _fit(self, epochs: int, per_epoch: int) -> dict[str, Any]:
        parts = self._parts
        channel = LocalChannel(parts.collector, parts.engine, sampling_of(self.config))
        if not parts.engine.takes_weights:
            await self._publish(channel)  # the engine says why not, before there is a run directory
        say(f"run directory {self._open_record().path}")
        say(parts.tasks.told)
        await self._publish(channel)
        try:
            await self._begin()
            started = time.perf_counter()
            earlier = self._state["seconds"]
            stop = None
            while self._state["step"] < epochs * per_epoch and stop is None:
                with parts.images.holding():  # from the first episode of an update to its last gradient
                    row = await self._step(channel, per_epoch, earlier + time.perf_counter() - started)
                self._state["seconds"] = earlier + time.perf_counter() - started
                stop = await self._after_step(row, epochs * per_epoch, per_epoch)
            return await self._finish(stop or "all epochs are done")
        finally:
            await channel.close()

    async def _step(self, channel: Channel, per_epoch: int, elapsed: float) -> dict[str, Any]:
        """One update, and the row of metrics it left."""
        clock = time.perf_counter()
        groups, replaced = await self._collect(channel)
        played = [t for group in groups for t in group.trajectories]
        everything = played + [t for group in replaced for t in group.trajectories]
        require_evidence(played, "of this update, which leave nothing to learn from,")
        self.tasks.report(everything)
        collected = time.perf_counter()
        anchors = anchors_of(played) if self.learner.settings.spec.needs_anchors else None
        update = self.learner.update(samples_of_all(played), anchors=anchors)
        updated = time.perf_counter()
        await self._publish(channel)
        self._state["step"] += 1
        self._state["episodes"] += len(everything)
        row = row_of(everything, update, self._parts.engine.stats())
        row["epoch"] = (self._state["step"] - 1) // per_epoch
        row["episodes_total"] = self._state["episodes"]
        attempts = [t for group in groups + replaced for t in group.attempts]
        row["count/failed_episodes"] = sum(t.failure is not None for t in everything + attempts)
        row["count/replaced_groups"] = len(replaced)
        row["time/collect"], row["time/update"] = collected - clock, updated - collected
        row["time/record"] = time.perf_counter() - updated
        row["time/elapsed"] = elapsed + time.perf_counter() - clock
        return row

    async def _collect(self, channel: Channel) -> tuple[list[Group], list[Group]]:
        """(the groups of one update, the dead ones that fresh ones replaced).

        The update keeps its size. Where no fresh group lives either, the last dead ones stay in it. Replaced groups are
        on the record and in the metrics like all others: left out, a success rate would be that of a selection.
        """
        training, spec = self.config.training, self.learner.settings.spec
        size, gamma = training.episodes_per_group, training.gamma if spec.needs_turns else None
        groups = await channel.exchange(self.tasks.groups(training.batch_size // size, size))
        replaced: list[Group] = []
        for _ in range(self.config.algorithm.max_resamples if spec.needs_group else 0):
            alive = {group.id for group in live_groups(groups, turn_gamma=gamma)}
            dead = [i for i, group in enumerate(groups) if group.id not in alive]
            if not dead:
                break
            fresh = await channel.exchange(self.tasks.groups(len(dead), size))
            for i, group in zip(dead, fresh, strict=True):
                replaced.append(groups[i])
                groups[i] = group
        return groups, replaced

    async def _publish(self, channel: Channel) -> None:
        weights, adapter = self.learner.policy.update_for(self._parts.engine)
        await channel.publish(weights, self.learner.version, adapter=adapter)

    async def _begin(self) -> None:
        """The warm start and the evaluation before reinforcement learning, unless a checkpoint holds them."""
        if self._restored:
            say(f"resumed at step {self._state['step']}")
        if self._state["before"] is not None:
            return
        seed = self.config.training.seed
        torch.manual_seed(seed)
        if self.config.training.warm_start.enabled and self._has_demonstrator():
            self._state["warm"] = await warm_start(self._parts, say)
        before = await self._evaluate(self.config.training.eval_episodes, "test", label="before")
        self._state["before"] = before.to_dict()
        say(
            f"before reinforcement learning: success {percent(before.success, before.interval)}, reward {before.reward}"
        )
        if before.failures:
            say(f"{before.failures} of these episodes failed. The first, {before.first_failure}")
        self._save(0)

    async def _after_step(self, row: dict[str, Any], steps: int, per_epoch: int) -> str | None:
        """Evaluates, logs and saves where it is time to; why to stop, or None."""
        training, step = self.config.training, self._state["step"]
        stop = None
        if training.eval_every is not None and (step % training.eval_every == 0 or step == steps):
            clock = time.perf_counter()
            report = await self._evaluate(training.eval_episodes, "eval", label=f"eval@{step}")
            row |= {"eval/success": report.success, "eval/reward": report.reward, "eval/turns": report.turns}
            row["time/evaluate"] = time.perf_counter() - clock
            if training.stop_at_success is not None and (report.success or 0.0) >= training.stop_at_success:
                stop = f"held-out success reached {training.stop_at_success}"
        if training.max_seconds is not None and self._state["seconds"] >= training.max_seconds:
            stop = stop or f"the time limit of {training.max_seconds:g} s was reached"
        written = self._open_record().log(step, row)
        self._state["counts"] = fold_row(self.metrics_history, self._state["counts"], written)
        if step % self.config.logging.print_every == 0 or stop or step == steps:
            say(step_line(step, steps, written))
        interval = self.config.checkpoint.save_interval
        if interval is not None and step % (interval * per_epoch) == 0:
            self._save(step)
        return stop

    async def _finish(self, reason: str) -> dict[str, Any]:
        """The last evaluation, the controls, the picture, the checkpoint and the summary."""
        record, training = self._open_record(), self.config.training
        after = await self._evaluate(training.eval_episodes, "test", label=f"after@{self._state['step']}")
        controls = await play_controls(self._parts, episodes=training.eval_episodes)
        checkpoint = self._save(self._state["step"])
        before = self._state["before"] or {}
        summary = {
            "success_before": before.get("success"),
            "success_after": after.success,
            "success_after_interval": after.interval,
            "reward_before": before.get("reward"),
            "reward_after": after.reward,
            "controls": controls,
            "episodes": self._state["episodes"],
            "steps": self._state["step"],
            "train_seconds": self._state["seconds"] + (self._state["warm"] or {}).get("seconds", 0.0),
            "warm_start": self._state["warm"],
            "stopped_because": reason,
            "seed": training.seed,
            "algorithm": training.adv_estimator,
            "model": self._parts.learner.policy.loaded.name,
            "parameters": sum(p.numel() for p in self._parts.learner.policy.loaded.model.parameters()),
        }
        record.finish(summary)
        self._tell(summary, after, checkpoint)
        return summary

    def _tell(self, summary: Mapping[str, Any], after: EvaluationReport, checkpoint: Path) -> None:
        record = self._open_record()
        rows = {
            "success before": percent(summary["success_before"]),
            "success after": percent(after.success, after.interval),
            **{f"control: {name}": percent(value) for name, value in summary["controls"].items()},
            "reward": f"{summary['reward_before']} -> {summary['reward_after']}",
            "episodes": f"{summary['episodes']} in {summary['steps']} steps, {summary['train_seconds']:.0f} s",
            "stopped because": summary["stopped_because"],
            "learning curve": record.curve_path,
            "trajectories": record.directory.trajectories_path,
            "metrics": record.directory.metrics_path,
            "summary": record.directory.summary_path,
            "checkpoint": checkpoint,
        }
        report_table(f"run {record.path.name}", rows)

    # -- parts of it -------------------------------------------------------------------------------------------

    async def _evaluate(
        self, episodes: int, split: str, *, label: str | None = None, tries: int = 1
    ) -> EvaluationReport:
        """The report on held-out episodes; with a `label` they are part of the record."""
        parts, seed = self._parts, self.config.training.seed
        player = parts.player(temperature=self.config.training.eval_temperature)
        with parts.images.holding():
            report = await evaluate_episodes(
                parts.eval_collector,
                player,
                parts.tasks.evaluation,
                episodes=episodes,
                tries=tries,
                split=split,
                seed=seed,
                label=label,
            )
            parts.engine.stats()
            if label is not None and not self._open_record().holds(label):
                self._open_record().add(report.trajectories, step=self._state["step"], split=split)
        return report

    def _write_down(self, trajectory: Trajectory) -> None:
        """Every training episode is on the disk the moment it ends."""
        self._open_record().add([trajectory], step=self._state["step"] + 1, split="train")

    def _has_demonstrator(self) -> bool:
        return type(self._parts.environment).expert_action is not BaseEnvironment.expert_action

    def _open_record(self) -> RunRecord:
        """The run directory, made or continued at first use."""
        if self._record is None:
            resume = self.config.checkpoint.resume
            self._record = RunRecord.open(self.config, self._parts.images, resume=resume)
            newest = latest_checkpoint(self._record.checkpoints) if resume and not self._restored else None
            if newest is not None:
                self.load_checkpoint(newest)
            self._record.start(resume_after=self._state["step"] if self._restored else None)
            if not self._parts.tasks.own:
                tasks = [asdict(task) for task in self._parts.tasks.evaluation]
                self._record.directory.write_json(EVAL_TASKS, tasks)
        return self._record

    def _extra(self) -> dict[str, Any]:
        return {"state": dict(self._state), "tasks": self.tasks.state_dict(), "history": self.metrics_history}

    def _save(self, step: int) -> Path:
        folder = self._open_record().checkpoints / f"step_{step:06d}"
        settings = self.config.checkpoint
        return save_checkpoint(
            folder, self.learner, self._extra(), settings.keep_last_n, save_optimizer=settings.save_optimizer
        )
