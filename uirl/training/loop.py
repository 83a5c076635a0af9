"""The run: warm start, then the cycle of collect, update (with credit), publish; evaluated, recorded, resumable."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from uirl.config import ConfigStore
from uirl.environments import BaseEnvironment
from uirl.errors import CheckpointError, ConfigError
from uirl.learner import Learner, Policy, load_checkpoint, save_checkpoint
from uirl.learner.data_parallel import Ranks, require_sliceable
from uirl.metrics import plain_row
from uirl.rollout.players import Order
from uirl.rollout.reward import RewardFunction
from uirl.runtime.event_loop import EventLoopThread, stops_as_ctrl_c
from uirl.runtime.memory import set_aside
from uirl.runtime.terminal import short
from uirl.success import settle_outcomes
from uirl.training.assembly import Assembly, assemble
from uirl.training.channels.base import Channel
from uirl.training.channels.choose import channel_of, open_channel
from uirl.training.evaluation.evaluation import EvaluationReport, evaluate_episodes, play_controls
from uirl.training.flow import Collection, Flow
from uirl.training.interrupt import Interrupt, Interrupted
from uirl.training.learning import Learning
from uirl.training.plan import require_room, settle
from uirl.training.record.ledger import LEDGER
from uirl.training.record.meter import Meter
from uirl.training.record.progress import doing, say, tell_step
from uirl.training.record.record import RunRecord, row_of
from uirl.training.record.run_state import RunState, fold_row
from uirl.training.resume import checkpoint_to_continue, naming_the_way_back
from uirl.training.saving import Saver, note_best, settle_best
from uirl.training.summary import summary_of, summary_of_finished, tell
from uirl.training.tasks.curriculum import source_of
from uirl.training.tasks.sources import TaskSource
from uirl.training.tasks.task_sets import EVAL_TASKS
from uirl.training.warm_start import WarmStart
from uirl.types import Trajectory


class Callback:
    """Hears what happens in a run; override what you need.

    The run waits for each call, and what a call raises ends it like any error: `fit` or --resume goes on from there.
    """

    def on_step(self, trainer: RLTrainer, step: int, row: Mapping[str, float | None]) -> str | None:
        """Hear that update `step` is done, evaluated and saved where it was time to; `row` is its line in
        metrics.jsonl. Return why the run shall end here, in words for its summary; None: it goes on."""

    def on_evaluate(self, trainer: RLTrainer, label: str, report: EvaluationReport) -> None:
        """Hear how an evaluation of the run went. `label`: of its stored episodes, 'before', 'eval@3' or 'after@9'."""

    def on_save(self, trainer: RLTrainer, folder: Path) -> None:
        """Hear that a checkpoint was written to `folder`."""


class RLTrainer:
    """Trains a policy in an environment, as the config says; the algorithm is `training.adv_estimator`.

    `environment` None: the one the config names. `reward_fn(trajectory)` or `reward_fn(trajectory, environment)` gives
    the total reward of an episode; None: the environment's rewards. `dataset`: the tasks; None: those the config names,
    else the environment's own. `eval_dataset`: the tasks of every evaluation; None: those the config names or chooses
    (`environment.eval_tasks`, `eval_options`), else the training tasks on instances of other seeds. `callbacks` are
    told of updates, evaluations and checkpoints, and may end the run. `ranks`: the processes that learn together, of
    which this one leads; None: it is alone.
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
        callbacks: Iterable[Callback] = (),
        ranks: Ranks | None = None,
    ) -> None:
        if not isinstance(config, ConfigStore):
            raise ConfigError(
                f"got {type(config).__name__} as the config; expected a ConfigStore, as load_config returns"
            )
        if environment is not None:
            config = config.model_copy(deep=True)
            config.environment.note_object(environment)
        config.check(training=True)
        if config.training.threads is not None:
            torch.set_num_threads(config.training.threads)
        if ranks is not None:
            require_sliceable(config.model, config.training)
        self._settled = settle(config, policy=policy, learners=1 if ranks is None else ranks.count)
        require_room(self._settled)
        self.config = config = self._settled.config.check(training=True)
        self._parts: Assembly = assemble(
            config, environment, reward_fn, dataset, policy, eval_dataset, for_training=True, ranks=ranks
        )
        if tasks is not None and config.curriculum.enabled:
            raise ConfigError("got a task source and curriculum.enabled=true, which each choose tasks; leave one out")
        self.tasks: TaskSource = tasks or source_of(config, self._parts.tasks.train)
        self._loop = EventLoopThread()
        self._record: RunRecord | None = None
        self._interrupt = Interrupt()
        self._saver = Saver(config.checkpoint)
        self._callbacks = tuple(callbacks)
        self._asked_to_end: str | None = None
        """By a callback, and why."""
        self._state = RunState()
        self._restored = False
        self._closed = False
        self._channel: Channel | None = None
        """Of the `fit` under way."""
        self._learning = Learning(self._parts)
        self.metrics_history: list[dict[str, Any]] = []
        """A row per epoch: its number, and means over those updates that have a metric; `policy_loss` may be None."""

    @property
    def learner(self) -> Learner:
        """The learner: policy, optimiser, version."""
        return self._parts.learner

    @property
    def run_path(self) -> Path | None:
        """The run directory; None before the first `fit`."""
        return self._record.path if self._record else None

    def fit(self, num_epochs: int | None = None, num_iters_per_epoch: int | None = None) -> dict[str, Any]:
        """Train until `num_epochs` epochs of `num_iters_per_epoch` updates are done (counted from the start of the
        run), the success asked for is reached, or time is up; return the summary that is also written to the run.

        Ctrl-C, SIGTERM and SIGHUP give up episodes under way, or wait for an update, save and raise KeyboardInterrupt,
        a second one at once; `fit` or --resume then goes on. Raises ContractError while another call is under way.
        """
        training = self.config.training
        epochs = num_epochs if num_epochs is not None else training.num_epochs
        per_epoch = num_iters_per_epoch if num_iters_per_epoch is not None else training.num_iters_per_epoch
        with stops_as_ctrl_c(), set_aside():
            return self._loop.run(self._fit(epochs, per_epoch), on_interrupt=self._interrupt.ask, alone=True)

    def evaluate(self, episodes: int | None = None, *, tries: int = 1, split: str = "eval") -> EvaluationReport:
        """Play and report how the current policy does on the instances of an evaluation split."""
        return self._loop.run(self._evaluate(episodes or self.config.training.eval_episodes, split, tries=tries))

    def save_checkpoint(self, path: str | Path) -> Path:
        """Write everything a resumed run needs to `path`."""
        return save_checkpoint(path, self.learner, self._extra())

    def load_checkpoint(self, path: str | Path) -> None:
        """Continue from a checkpoint: weights, optimiser, random states, position in the data, history."""
        extra = load_checkpoint(Path(path), self.learner)
        if "tasks" not in extra or "state" not in extra:
            raise CheckpointError(f"{path} holds no state of a run; expected one that a trainer saved")
        try:
            self.tasks.load_state_dict(extra["tasks"])
            self._state = RunState.from_dict(extra["state"])
            self.metrics_history = list(extra["history"])
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{path} holds no valid state of a run: {error!r}") from error
        self._restored = True
        self._saver.restored(Path(path), self._state)

    @property
    def busy(self) -> bool:
        """Whether a call is under way: on another thread, or a `fit` that a second Ctrl-C left at once."""
        return self._loop.busy

    def cleanup(self) -> None:
        """Close environments, engine and files. Calling it twice is fine."""
        if self._closed:
            return
        self._closed = True
        try:
            self._loop.run(self._parts.close())
        finally:
            self._learning.close()
            self._loop.close()
            if self._record is not None:
                self._record.close()

    # -- the run -----------------------------------------------------------------------------------------------

    async def _fit(self, epochs: int, per_epoch: int) -> dict[str, Any]:
        self._interrupt.clear()
        self._asked_to_end = None
        channel = channel_of(self._parts)
        channel.on_finished = self._write_down
        try:
            if not self._parts.engine.takes_weights:
                await self._parts.publish(channel.publish)  # the engine says why not, before there is a run directory
            record = self._open_record()
            goal = self.learner.run_length = epochs * per_epoch
            channel.keep_table(record.path)
            say(f"run directory {short(record.path)}")
            if self.learner.ranks is not None:
                say(f"{self.learner.ranks.count} processes learn together; this one plays")
            if self._settled.chosen:
                say(str(self._settled))
            say(self._parts.tasks.summary)
            if self._parts.unused_demonstrator:
                say(
                    "no warm start: a checkpoint has none by itself (training.warm_start.enabled=null). This "
                    "environment has a demonstrator; training.warm_start.enabled=true imitates him first"
                )
            if self._restored and self._saver.newest is not None:
                say(f"resumed at {self._state.place()}, from {short(self._saver.newest[0])}")
            reason = self._state.stop_reason(self.config.training, goal)
            if (summary := summary_of_finished(self._state, record, reason)) is not None:
                return summary
            record.directory.summary_path.unlink(missing_ok=True)  # of an end that was not the last
            self._channel = channel
            # an engine may load its model for minutes
            await self._interrupt.give_up(self._parts.publish(channel.publish))
            return await self._train(channel, goal, per_epoch)
        except Interrupted:
            await channel.give_up()  # nobody writes episodes down any more; actors may take long to stop
            self._keep_interrupted()
            return {}
        finally:
            self._channel = None
            await channel.close()

    async def _train(self, channel: Channel, goal: int, per_epoch: int) -> dict[str, Any]:
        """Take the run to its end. Wherever it raises Interrupted, state, learner and tasks are those of a boundary."""
        actors, backend = self.config.actors, self.config.inference.backend
        here = backend == "transformers" and not (actors.engines or actors.processes or self.config.ray.use_ray)
        loaded, environment = self.learner.policy.loaded, self._parts.environment
        self._meter = Meter(loaded, environment, here=here, ahead=actors.run_ahead)  # nobody plays or learns yet
        await self._begin(channel)
        state, started, earlier = self._state, time.perf_counter(), self._state.seconds
        reason = None
        state.ledger.drop(list(state.ledger.in_flight), "interrupted")  # by the run that this one continues
        flow = Flow(channel, self.tasks, self.config.actors, self.learner.settings, state)
        with self._parts.images.holding():  # pictures go with the update that learned from them
            while state.pending is not None or (reason := self._stop_reason(goal)) is None:
                if state.pending is None:
                    row = await self._step(flow, per_epoch, earlier + time.perf_counter() - started)
                    state.pending = plain_row(row)
                    state.seconds = earlier + time.perf_counter() - started
                await self._after_step(goal, per_epoch)
            await flow.give_up("run ended")
        return await self._finish(channel, reason)

    def _stop_reason(self, goal: int) -> str | None:
        return self._state.stop_reason(self.config.training, goal) or self._asked_to_end

    async def _step(self, flow: Flow, per_epoch: int, elapsed: float) -> dict[str, Any]:
        """Collect, update, publish: one turn of the cycle; return the row of metrics that it left."""
        begun = time.perf_counter()
        collection = await self._collect(flow)
        record, collected = self._open_record(), time.perf_counter()
        self.learner.room.read.take()  # of what came before, such as a warm start
        with doing(f"update {self._state.step + 1}"):
            await self._parts.engine.sleep()  # where it is on the learner's GPU; the new weights wake it
            update = await self._learning.update(collection.learned, record.keeper(self._state.step + 1))
            updated = time.perf_counter()
            await self._parts.publish(flow.channel.publish)
        flow.book(collection, update)
        flow.adapt(update)
        self._parts.forget_pictures(flow.channel.oldest_order or time.time())
        played, attempts = collection.played, collection.attempts
        self._state.add(played, attempts, collection.given_up)
        members = self._parts.tasks.members
        engine = self._parts.engine.stats()
        row = row_of(played, update, engine, attempts, collection.given_up, members)
        row |= flow.row() | self._parts.judge_row()
        row |= self.tasks.take_metrics() if hasattr(self.tasks, "take_metrics") else {}
        row |= {"epoch": (self._state.step - 1) // per_epoch, "episodes_total": self._state.episodes}
        row |= {"count/replaced_groups": collection.replaced, "time/record": time.perf_counter() - updated}
        row["time/collect"], row["time/update"] = collected - begun, updated - collected
        recompute = self.learner.policy.gradient_checkpointing
        row |= self._meter.row(played, row, engine | self.learner.room.read.take(), recompute=recompute)
        row["time/elapsed"] = elapsed + time.perf_counter() - begun
        return row

    async def _collect(self, flow: Flow) -> Collection:
        """Play the episodes of one update. Interrupted, it leaves tasks and ledger where they were."""
        position, ledger = copy.deepcopy(self.tasks.state_dict()), copy.deepcopy(self._state.ledger)
        try:
            with doing(f"episodes of update {self._state.step + 1}", self.config.training.batch_size) as activity:
                activity.waits_for = flow.channel.waits_for
                playing = flow.collect(self._state.step, self.learner.version, activity)
                collection = await self._interrupt.give_up(playing)
        except Interrupted:
            self.tasks.load_state_dict(position)
            self._state.ledger = ledger
            raise
        self._open_record().flush()
        settle_outcomes(collection.played, self._state.speakers)
        self.tasks.report(collection.played, self._state.step + 1)
        return collection

    async def _begin(self, channel: Channel) -> None:
        """Run the warm start and the evaluation before reinforcement learning, as far as no checkpoint holds them."""
        state = self._state
        if state.before is not None:
            return
        if state.warm is None and state.warming is None:
            torch.manual_seed(self.config.training.seed)
        if self._parts.warm_starts and state.warm is None:
            await self._warm_start(channel)
        episodes = self.config.training.eval_episodes
        before = await self._interrupt.give_up(self._evaluate(episodes, "test", label="before"))
        state.before, state.interval_before, state.reward_before = before.tally, before.interval, before.reward
        state.members_before = before.members
        say(f"before reinforcement learning: success {before.words()}, reward {before.reward}")
        if before.failures:
            say(f"{before.failures} of these episodes failed. The first, {before.first_failure}")
        self._save()

    async def _warm_start(self, channel: Channel) -> None:
        record, state = self._open_record(), self._state
        warm = WarmStart(
            self._parts, channel, self._interrupt, lambda step, row: record.log(step, row, "warm_start"), state.speakers
        )
        if state.warming is not None:
            warm.load_state_dict(state.warming)

        def keep() -> None:
            state.warming = warm.state_dict()
            if self._saver.due():
                self._save()

        try:
            state.warm = await warm.run(keep)
        except Interrupted:
            state.warming = warm.state_dict()
            raise
        state.warming = None
        state.trained |= warm.trained

    async def _after_step(self, goal: int, per_epoch: int) -> None:
        """Evaluate, log and save where it is time to."""
        training, state = self.config.training, self._state
        step, row, better = state.step, state.pending, False
        assert row is not None
        if training.eval_every is not None and (step % training.eval_every == 0 or step == goal):
            clock = time.perf_counter()
            report = await self._interrupt.give_up(self._evaluate(training.eval_episodes, "eval", label=f"eval@{step}"))
            row |= report.row()
            row["time/evaluate"] = time.perf_counter() - clock
            state.held_out, state.evaluations = report.success, state.evaluations + 1
            better = note_best(state, report, self.config.checkpoint.keep_best)
        written = self._open_record().log(step, row)
        self._open_record().directory.write_json(LEDGER, state.ledger.report())
        state.counts, state.pending = fold_row(self.metrics_history, state.counts, written), None
        line = step % self.config.logging.print_every == 0 or state.stop_reason(training, goal) is not None
        tell_step(step, goal, written, line=line, limit=training.max_seconds)
        interval = self.config.checkpoint.save_interval
        if better or (interval is not None and step % (interval * per_epoch) == 0) or self._saver.due():
            self._save()
        for callback in self._callbacks:
            self._asked_to_end = callback.on_step(self, step, written) or self._asked_to_end

    async def _finish(self, channel: Channel, reason: str) -> dict[str, Any]:
        """Play the last evaluation and the controls; write picture, checkpoint and summary."""
        record, state, episodes = self._open_record(), self._state, self.config.training.eval_episodes
        after = await self._interrupt.give_up(self._evaluate(episodes, "test", label=f"after@{self._state.step}"))
        with doing("the controls"):
            metric = after.measured_by
            playing = play_controls(self._parts, channel, state.speakers, episodes=episodes, metric=metric)
            controls = await self._interrupt.give_up(playing)
        state.settle()
        self._save()
        record.directory.write_json(LEDGER, self._state.ledger.report())
        policy, training = self.learner.policy, self.config.training
        summary = summary_of(state, after, controls, reason=reason, training=training, policy=policy)
        summary |= self.tasks.summary() if hasattr(self.tasks, "summary") else {}
        summary["meter"] = self._meter.summary(record.rows())
        record.finish(summary)
        tell(summary, state, after, record)
        return summary

    # -- parts of it -------------------------------------------------------------------------------------------

    async def _evaluate(
        self, episodes: int, split: str, *, label: str | None = None, tries: int = 1
    ) -> EvaluationReport:
        """Return the report on episodes of an evaluation split; with a `label` they are part of the record."""
        parts, seed = self._parts, self.config.training.seed
        order = Order("eval", self.config.training.eval_temperature)
        async with open_channel(parts, self._channel) as channel:
            report = await evaluate_episodes(
                channel.player(order),
                parts.tasks.evaluation,
                episodes=episodes,
                tries=tries,
                split=split,
                seed=seed,
                label=label,
                speakers=self._state.speakers,
                trained=self._state.trained,
            )
            parts.engine.stats()
            if label is None:
                return report
            if not self._open_record().holds(label):
                self._open_record().add(report.trajectories, step=self._state.step, split=split)
        for callback in self._callbacks:
            callback.on_evaluate(self, label, report)
        return report

    def _write_down(self, trajectory: Trajectory) -> None:
        """Write a training episode to the disk when it ends."""
        self._open_record().add_soon(trajectory, step=self._state.step + 1, split="train")

    def _open_record(self) -> RunRecord:
        """Return the run directory, made or continued at first use."""
        if self._record is None:
            record = RunRecord(self.config, self._parts.images)
            try:
                settings = self.config.checkpoint
                if settings.resume and not self._restored:
                    source = checkpoint_to_continue(record.checkpoints, settings.from_step)
                    if source is not None:
                        with naming_the_way_back(source):
                            self.load_checkpoint(source)
                    elif record.directory.metrics_path.exists():
                        say(f"run {record.path.name} ended before its first checkpoint, so it begins again")
                settle_best(record.checkpoints, self._state)
                record.start(self._state if self._restored else None)
                record.link(self._parts.environment.live_views())
                if not self._parts.tasks.of_environment:
                    tasks = [asdict(task) for task in self._parts.tasks.evaluation]
                    record.directory.write_json(EVAL_TASKS, tasks)
            except BaseException:
                record.close()
                raise
            self._record = record
        return self._record

    def _extra(self) -> dict[str, Any]:
        state, tasks = copy.deepcopy(self._state.to_dict()), self.tasks.state_dict()
        return {"state": state, "tasks": tasks, "history": self.metrics_history}

    def _save(self) -> Path:
        """Save the run as it is and return the checkpoint; where one holds that already, that."""
        newest = self._saver.newest
        folder = self._saver.save(self._open_record().checkpoints, self.learner, self._state, self._extra)
        for callback in self._callbacks if self._saver.newest is not newest else ():
            callback.on_save(self, folder)
        return folder

    def _keep_interrupted(self) -> None:
        """Save the run at the boundary where it was interrupted, and forget the episodes that came after it."""
        record, folder = self._open_record(), self._save()
        record.forget_after(self._state.step)
        say(f"interrupted at {self._state.place()}, saved in {short(folder)}")


RayPPOTrainer = RLTrainer
"""The class under its public name."""
