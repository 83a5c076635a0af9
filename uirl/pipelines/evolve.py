"""`Evolution`: play, judge, keep what was right, fine-tune, evaluate; round after round, each in its own folder."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter, defaultdict
from collections.abc import Container, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from uirl.config import ConfigStore, EvolveConfig
from uirl.environments import BaseEnvironment
from uirl.errors import ConfigError
from uirl.images import ImageStore, Screenshot
from uirl.learner import Learner, latest_checkpoint, load_checkpoint, save_checkpoint
from uirl.metrics import Metrics
from uirl.pipelines.selection import (
    SELECTION,
    STEPS,
    RoundFolder,
    Selection,
    as_markdown,
    candidate_of,
    data_card,
    hash_of_weights,
    judged_by,
    select,
    to_plain,
)
from uirl.rollout.episode import EpisodeSpec, derive_seed
from uirl.rollout.players import Order
from uirl.rollout.replay import Certifier
from uirl.rollout.samples import samples_of
from uirl.runtime.event_loop import EventLoopThread
from uirl.runtime.terminal import short
from uirl.storage import RunDirectory, TrajectoryStore, TrajectorySummary, export_sft, origin_of
from uirl.training.assembly import Assembly, assemble
from uirl.training.channels.base import Channel
from uirl.training.channels.choose import open_channel
from uirl.training.evaluation.evaluation import EvaluationReport, evaluate_episodes, require_evidence
from uirl.training.evaluation.measure import trained_by
from uirl.training.interrupt import Interrupt
from uirl.training.plan import settle
from uirl.training.record.instances import fingerprints_of, packed
from uirl.training.record.progress import doing, playing, say, tell_progress
from uirl.training.resume import checkpoint_of, open_run, run_name_for
from uirl.training.saving import SaveClock
from uirl.training.summary import warn_of_excluded
from uirl.training.tasks.curriculum import source_of
from uirl.training.tasks.sources import TaskSource
from uirl.training.warm_start import WarmStart
from uirl.types import Sample, Trajectory, Turn
from uirl.verification.evidence import Evidence
from uirl.verification.fork import ForkFinder
from uirl.verification.prefixes import BEGINNING, FineGrainedTrajectoryAnalyzer
from uirl.verification.setup import judge_of

AT_ONCE = 4
"""Groups that are looked at at the same time; each holds an instance of the environment, and in memory its solved
episodes and a failed one."""


async def find_beginnings(
    store: TrajectoryStore,
    analyzer: FineGrainedTrajectoryAnalyzer,
    environment: BaseEnvironment,
    *,
    certify: bool,
    timeouts: tuple[float, float],
) -> Counter[str]:
    """Write into the verdict of every failed episode of the store how far it was right; return how many were found by
    whom, and what became of them. Episodes that have it are left alone, so that it can be killed and goes on."""
    groups: dict[tuple[str, str], list[TrajectorySummary]] = defaultdict(list)
    for one in store.list(split="train"):
        if one.failure is None and one.success is not None and one.turns > 0:
            groups[one.task_id, one.group_id].append(one)
    counts: Counter[str] = Counter()
    waiting = list(groups.values())
    pictures = ForkFinder(analyzer.matcher)

    async def work() -> None:
        certifier = Certifier(environment, pictures, *timeouts)
        try:
            while waiting:
                await _of_group(store, waiting.pop(), analyzer, certifier if certify else None, counts)
        finally:
            await certifier.close()

    limit = environment.max_parallel or AT_ONCE
    await asyncio.gather(*(work() for _ in range(min(AT_ONCE, limit, max(1, len(waiting))))))
    return counts


async def _of_group(
    store: TrajectoryStore,
    group: Sequence[TrajectorySummary],
    analyzer: FineGrainedTrajectoryAnalyzer,
    certifier: Certifier | None,
    counts: Counter[str],
) -> None:
    successes = [store.get(one.id) for one in group if one.success]
    for one in group:
        if one.success:
            continue
        failed = store.get(one.id)
        if failed.verdict is not None and BEGINNING in failed.verdict.reason:
            counts["known before"] += 1
            continue
        found = await analyzer.analyze(Evidence(failed), successes)
        counts[f"found by {found.by}"] += 1
        certified = True
        if certifier is not None and found.right > 0:
            found, certified = await certifier.certify(failed, found, successes)
            counts["certified" if certified else "not certified"] += 1
        verdict = found.verdict_on(failed)
        store.set_verdict(failed.id, verdict if certified else replace(verdict, correct_prefix=None))


SPLIT = "train"
AHEAD = 4
"""So many times as many episodes as run at a time are in memory with their pictures."""


def specs_of_round(source: TaskSource, groups: int, size: int, starts: Sequence[Trajectory] = ()) -> list[EpisodeSpec]:
    """Return the next episodes of `source`: the first groups begin behind `starts`, one each, in the instance of
    theirs; all others where the environment begins."""
    specs = []
    for index, group in enumerate(source.groups(groups, size)):
        if index < len(starts):
            start = starts[index]
            turns = tuple(_by_hash(turn) for turn in start.turns)
            group = [replace(spec, task=start.task, environment_seed=start.seed, start=turns) for spec in group]
        specs += group
    return specs


async def collect(
    parts: Assembly, channel: Channel, specs: Sequence[EpisodeSpec], store: TrajectoryStore, step: int
) -> int:
    """Play the episodes that the store does not have yet; return how many were played now."""
    stored = {one.id: one.failure for one in store.list()}
    retries = channel.rules.retries

    def is_over(spec: EpisodeSpec) -> bool:
        attempts = [spec.trajectory_id] + [f"{spec.trajectory_id}-r{n}" for n in range(1, retries + 1)]
        return any(stored.get(id, "missing") is None for id in attempts) or attempts[-1] in stored

    missing = [spec for spec in specs if not is_over(spec)]
    player = channel.player(Order(SPLIT))

    def keep(trajectory: Trajectory) -> None:
        if trajectory.id not in stored:  # an attempt that failed before the kill failed again
            store.add(trajectory, step=step, split=SPLIT, images=parts.images)
            stored[trajectory.id] = None

    player.on_finished = keep
    at_once = max(1, AHEAD * channel.at_once)
    with playing(f"episodes of round {step}", player, len(missing)):
        for start in range(0, len(missing), at_once):
            with parts.images.holding():
                await player.collect(missing[start : start + at_once])
            parts.images.forget_before(time.time())  # what was played is on disk
    return len(missing)


def report_to(source: TaskSource, store: TrajectoryStore, step: int, behind: Container[str] = ()) -> None:
    """Tell the source how the episodes of a round went; of a long one only what counts is in memory. Those of the
    groups `behind` are left out: begun behind a beginning, they say nothing of how hard a task is."""
    played = []
    for summary in store.list(split=SPLIT):
        if summary.group_id in behind:
            continue
        record = store.get(summary.id)
        played.append(replace(record, turns=[_by_hash(turn) for turn in record.turns], final=None))
    source.report(played, step)


def _by_hash(turn: Turn) -> Turn:
    """Return the turn without what was seen: an actor that plays it again needs its reply, a source its reward."""
    return replace(turn, observation=replace(turn.observation, images=(), info={}), info={})


Data = Sequence[tuple[TrajectoryStore, Sample]]
"""Sequences to learn from, each with the store that has its pictures."""


def batches_of(count: int, settings: EvolveConfig, seed: int) -> list[list[int]]:
    """Return the indexes of each step: every pass over `count` sequences in an order of its own."""
    found = []
    for epoch in range(settings.epochs):
        order = list(range(count))
        random.Random(derive_seed(seed, "epoch", epoch)).shuffle(order)
        found += [order[i : i + settings.batch_size] for i in range(0, count, settings.batch_size)]
    return found


def fine_tune(
    learner: Learner, images: ImageStore, data: Data, batches: Sequence[list[int]], folder: Path, clock: SaveClock
) -> dict[str, float]:
    """Take the steps `batches`, or those that are left after the newest checkpoint in `folder`; return the mean loss
    of those taken now and how many steps, sequences and learned tokens there are. A checkpoint is written where
    `clock` says so."""
    done = 0
    newest = latest_checkpoint(folder)
    if newest is not None:
        done = int(load_checkpoint(newest, learner)["step"])
    metrics = Metrics()
    with doing(f"fine-tuning on {len(data)} sequences"):
        for step, batch in enumerate(batches[done:], done + 1):
            started = time.monotonic()
            with images.holding():
                for store, sample in (data[i] for i in batch):
                    _bring(images, store, sample)
                metrics.add_all(learner.supervised([data[i][1] for i in batch]))
            images.forget_before(time.time())
            if clock.due():
                save_checkpoint(checkpoint_of(folder, step), learner, {"step": step}, keep_last_n=1)
                clock.saved(started)
    loss = metrics.reduce().get("loss")
    tokens = sum(sum(sample.response_mask) for _, sample in data)
    found: dict[str, float] = {"steps": len(batches), "sequences": len(data), "learned_tokens": tokens}
    return found if loss is None else found | {"loss": loss}


def _bring(images: ImageStore, store: TrajectoryStore, sample: Sample) -> None:
    for name in sample.images:
        try:
            images.get(name)
        except KeyError:
            images.put(Screenshot(store.image(name), name))


SUMMARY = "summary.json"
KINDS = ("solved", "beginnings")
"""What of a round is learned from, in its facts."""


class Evolution:
    """Rounds of rejection sampling on whole episodes and certified beginnings.

    A round has five steps (`selection.STEPS`). A finished one is never repeated: after a kill the run goes on with
    the first that is not, and plays only the episodes that are missing. Rounds are functions of config and seed.
    """

    def __init__(self, config: ConfigStore, environment: BaseEnvironment | None = None) -> None:
        """Set up; nothing is written yet.

        Args:
            config: Section `evolve`, and what says who plays what and how it is judged.
            environment: None: the one the config names.
        """
        self.config = config.model_copy(deep=True)
        if environment is not None:
            self.config.environment.note_object(environment)
        training = self.config.training
        # fine-tuning has no critic, and one optimiser for warm start and rounds alike
        training.adv_estimator = "rejection_sampling"
        self._settled = settle(self.config.check(), phases=("warm_start", "evolve"))
        self.config = self._settled.config
        if (best := self.config.checkpoint.keep_best) is not None:
            raise ConfigError(f"checkpoint.keep_best={best} does nothing in `uirl evolve`; expected null")
        if training.threads is not None:
            torch.set_num_threads(training.threads)
        self._parts: Assembly = assemble(self.config, environment)
        self._judge = None
        if self.config.evolve.prefixes == "judge":
            run = self.config.logging.run_name = run_name_for(self.config)  # on which the judge's calls are booked
            self._judge = judge_of(self.config.verification, self.config.logging, run)
        self._analyzer = FineGrainedTrajectoryAnalyzer(self._judge)
        self._loop = EventLoopThread("uirl-evolve")
        self._directory: RunDirectory | None = None
        self._closed = False
        self._speakers: set[str] = set()
        """The environments that were heard to say what success is: see `uirl.success`."""
        self._demonstrated: set[str] = set()
        """Fingerprints of the instances of the warm start."""

    def run(self) -> dict[str, Any]:
        """Play all rounds, or those that are left; return the summary. Ctrl-C stops at once, and another call, or
        `checkpoint.resume`, goes on."""
        return self._loop.run(self._run())

    def close(self) -> None:
        """Close environments, engine and files. Calling it twice is fine."""
        if self._closed:
            return
        self._closed = True
        try:
            self._loop.run(self._close())
        finally:
            self._loop.close()
            if self._directory is not None:
                self._directory.close()

    @property
    def path(self) -> Path:
        """The run directory. Raises ConfigError before the run has one."""
        if self._directory is None:
            raise ConfigError("the run has no directory yet; expected a call of run() before")
        return self._directory.path

    # -- the rounds --------------------------------------------------------------------------------------------

    async def _run(self) -> dict[str, Any]:
        self._open()
        for line in (f"run directory {short(self.path)}", str(self._settled), self._parts.tasks.summary):
            say(line)
        for number in range(self.config.evolve.rounds + 1):
            await self._round(number)
        return self._summary()

    async def _round(self, number: int) -> None:
        """Take the steps of a round that are not finished. Round 0 has the last two alone."""
        folder = self._folder(number)
        steps = {
            "collect": self._collect,
            "verify": self._verify,
            "select": self._select,
            "fine_tune": self._fine_tune if number else self._begin,
            "evaluate": self._evaluate,
        }
        for step in STEPS if number else STEPS[3:]:
            if not folder.has(step):
                started = time.monotonic()
                with doing(f"round {number}, {step.replace('_', '-')}"):
                    facts = await steps[step](folder)
                folder.finish(step, started, **facts, speakers=sorted(self._speakers))
            self._speakers.update(folder.facts()[step].get("speakers", ()))
        tell_progress("round", number, self.config.evolve.rounds)
        say(_line(folder, self.config.evolve.rounds))

    async def _begin(self, folder: RoundFolder) -> dict[str, Any]:
        """Warm-start where the environment has a demonstrator."""
        torch.manual_seed(self.config.training.seed)
        facts = await self._warm_start(folder) if self._parts.warm_starts else {}
        return facts | self._save(folder)

    async def _warm_start(self, folder: RoundFolder) -> dict[str, Any]:
        parts, clock = self._parts, SaveClock(self.config.checkpoint.save_seconds)
        async with open_channel(parts) as channel:
            warm = WarmStart(parts, channel, Interrupt(), lambda step, row: None, self._speakers)
            newest = latest_checkpoint(folder.checkpoints)
            if newest is not None:
                known = load_checkpoint(newest, parts.learner)
                self._speakers.update(known.get("speakers", ()))
                warm.load_state_dict(known)

            def keep() -> None:
                if clock.due():
                    started, state = time.monotonic(), warm.state_dict() | {"speakers": sorted(self._speakers)}
                    place = checkpoint_of(folder.checkpoints, state["step"])
                    save_checkpoint(place, parts.learner, state, keep_last_n=1)
                    clock.saved(started)

            facts = await warm.run(keep)
        self._demonstrated = warm.trained
        return facts

    async def _collect(self, folder: RoundFolder) -> dict[str, Any]:
        """Play the episodes of the round with the policy of the round before it."""
        settings = self.config.evolve
        self._load(folder.number - 1)
        groups = settings.episodes // settings.group_size
        starts = self._starts(folder.number - 1, round(groups * settings.restarts))
        source = source_of(self.config, self._parts.tasks.train)
        before = self._folder(folder.number - 1).facts().get("collect")
        if before is not None:
            source.load_state_dict(before["tasks"])
        specs = specs_of_round(source, groups, settings.group_size, starts)
        with self._episodes(folder) as store:
            async with open_channel(self._parts) as channel:
                played = await collect(self._parts, channel, specs, store, folder.number)
            first = store.list(split="train")[:1]
            if first and all(one.failure is not None for one in store.list(split="train")):
                require_evidence([store.get(first[0].id)], "of this round, which leave nothing to learn from,")
            solved = store.count(split="train", success=True)
            behind = {spec.group_id for spec in specs if spec.start}
            report_to(source, store, folder.number, behind)
            of_these = sum(one.group_id in behind for one in store.list(split="train", success=True))
            self._speakers |= store.speakers
        facts: dict[str, Any] = {"episodes": len(specs), "solved": solved, "played_now": played}
        facts |= {"started_behind": {"episodes": len(behind) * settings.group_size, "solved": of_these}}
        return facts | {"tasks": source.state_dict()}

    async def _verify(self, folder: RoundFolder) -> dict[str, Any]:
        """Find out how far the failed episodes were right."""
        settings = self.config.evolve
        if settings.prefixes == "off":
            return {"beginnings": {}}
        with self._episodes(folder) as store:
            found = await find_beginnings(
                store,
                self._analyzer,
                self._parts.environment,
                certify=settings.certify,
                timeouts=self.config.environment.timeouts,
            )
        return {"beginnings": dict(found)}

    async def _select(self, folder: RoundFolder) -> dict[str, Any]:
        """Choose what is learned from, export it, and write its card."""
        settings = self.config.evolve
        with TrajectoryStore(folder.episodes, read_only=True) as store:
            found = (candidate_of(store.get(one.id)) for one in store.list(split="train"))
            chosen = select(found, settings, derive_seed(self.config.training.seed, "select", folder.number))
            folder.write_json(SELECTION, [to_plain(one) for one in chosen.kept])
            self._export(folder, store, chosen)
            self._write_card(folder, store, chosen)
        kept = [one.kind for one in chosen.kept]
        counts = {"solved": kept.count("solved"), "beginnings": kept.count("beginning")}
        return {**counts, "left_out": dict(chosen.left_out)}

    async def _fine_tune(self, folder: RoundFolder) -> dict[str, Any]:
        """Learn from the data of this round and of those before it."""
        settings, training, learner = self.config.evolve, self.config.training, self._parts.learner
        self._load(0 if settings.from_base else folder.number - 1)
        warm = learner.settings.training.warm_start
        warm.learning_rate, warm.warmup_steps = settings.learning_rate, settings.warmup_steps
        first = 1 if settings.rounds_kept is None else max(1, folder.number - settings.rounds_kept + 1)
        await self._parts.engine.sleep()  # whoever plays next pushes weights
        with self._data(range(first, folder.number + 1)) as data:
            batches = batches_of(len(data), settings, derive_seed(training.seed, "fine-tune", folder.number))
            clock = SaveClock(self.config.checkpoint.save_seconds)
            facts: dict[str, Any] = fine_tune(learner, self._parts.images, data, batches, folder.checkpoints, clock)
        if not facts["sequences"]:
            say(
                f"round {folder.number} has nothing to learn from: no episode was solved, and no beginning is certified"
            )
        return facts | self._save(folder)

    async def _evaluate(self, folder: RoundFolder) -> dict[str, Any]:
        """Measure the policy on the same episodes in every round."""
        self._load(folder.number)
        async with open_channel(self._parts) as channel:
            report = await self._measure(channel, folder.number)
        require_evidence(report.trajectories, "of the evaluation")
        warn_of_excluded({f"evaluation of round {folder.number}": report.tally})
        with self._episodes(folder) as store:
            known = {one.id for one in store.list(split="test")}
            fresh = [one for one in report.trajectories if one.id not in known]
            store.add_many(fresh, step=folder.number, split="test", images=self._parts.images)
        return report.to_dict()

    # -- parts of it -------------------------------------------------------------------------------------------

    def _episodes(self, folder: RoundFolder) -> TrajectoryStore:
        """Return the episodes of a round, to be added to."""
        store = TrajectoryStore(folder.episodes, origin=origin_of(self.config.model, self.config.inference))
        store.hear(self._speakers)
        return store

    async def _measure(self, channel: Channel, number: int) -> EvaluationReport:
        training = self.config.training
        return await evaluate_episodes(
            channel.player(Order("eval", training.eval_temperature)),
            self._parts.tasks.evaluation,
            episodes=training.eval_episodes,
            split="test",
            seed=training.seed,
            label=f"after-round-{number}",
            speakers=self._speakers,
            trained=trained_by(self._checkpoint(number)),
        )

    def _export(self, folder: RoundFolder, store: TrajectoryStore, chosen: Selection) -> None:
        kept = {one.id: one for one in chosen.kept}
        environment, prompt = self._parts.environment, self.config.inference.system_prompt
        export_sft(
            store,
            folder.examples,
            lambda summary: summary.id in kept,
            system_prompt=environment.prompt_prefix_of if prompt is None else prompt,
            tools=environment.tool_schemas(),
            view=lambda trajectory: trajectory.prefix(kept[trajectory.id].turns),
            order=lambda summary: summary.id,  # which one ended first differs after a kill
        )
        if self.config.evolve.parquet:
            from uirl.storage.export import to_parquet

            to_parquet(folder.examples, folder.parquet)

    def _write_card(self, folder: RoundFolder, store: TrajectoryStore, chosen: Selection) -> None:
        found = folder.facts()["verify"]["beginnings"]
        policy = hash_of_weights(self._checkpoint(folder.number - 1))
        hashes = folder.hashes()
        behind = folder.facts()["collect"]["started_behind"]
        config = self.config
        about = {
            "environment": {"name": config.environment.name, "options": config.environment.options},
            "policy": {"model": config.model.source, "sha256": policy},
            "verifier": judged_by(config.verification, config.evolve),
            "seed": config.training.seed,
        }
        card = data_card(about, folder.number, store, chosen, found, behind, hashes=hashes)
        folder.write_json("data_card.json", card)
        folder.write_text("README.md", as_markdown(card))

    def _starts(self, number: int, count: int) -> list[Trajectory]:
        """Return at most `count` certified beginnings that a round has kept."""
        if number < 1 or count == 0:
            return []
        folder = self._folder(number)
        kept = [one for one in folder.chosen() if one.kind != "solved"]
        with TrajectoryStore(folder.episodes, read_only=True) as store:
            return [store.get(one.id).prefix(one.turns) for one in kept[:count]]

    @contextmanager
    def _data(self, rounds: range) -> Iterator[Data]:
        """Yield the sequences of every example of the rounds: a mask ends where its example ends."""
        with ExitStack() as opened:
            found = []
            for folder in map(self._folder, rounds):
                store = opened.enter_context(TrajectoryStore(folder.episodes, read_only=True))
                for one in folder.chosen():
                    found += [(store, sample) for sample in samples_of(store.get(one.id).prefix(one.turns))]
            yield found

    def _folder(self, number: int) -> RoundFolder:
        return RoundFolder(self.path, number)

    def _checkpoint(self, number: int) -> Path:
        return checkpoint_of(self.path / "checkpoints", number)

    def _save(self, folder: RoundFolder) -> dict[str, Any]:
        state = {"state": {"trained": packed(self._trained_on(folder))}}  # as a training run says it
        place = save_checkpoint(self._checkpoint(folder.number), self._parts.learner, state, save_optimizer=False)
        return {"policy": hash_of_weights(place)}

    def _trained_on(self, folder: RoundFolder) -> set[str]:
        """Return the fingerprints of what the policy of a round was trained on: what was played for it and before."""
        if not folder.number:
            return self._demonstrated
        with TrajectoryStore(folder.episodes, read_only=True) as store:
            of_group = {one.group_id or one.id: one.id for one in store.list(split="train") if one.failure is None}
            played = fingerprints_of(store.get(id) for id in of_group.values())
        return played | (trained_by(self._checkpoint(folder.number - 1)) or set())

    def _load(self, number: int) -> None:
        """Make the policy of a round the one that plays and learns."""
        learner = self._parts.learner
        if learner.optimizer is not None:
            learner.optimizer.detach()
        learner.optimizer, learner.phase = None, None
        load_checkpoint(self._checkpoint(number), learner)

    def _open(self) -> None:
        if self._directory is None:
            self._directory, _ = open_run(self.config, checkpoints=False)

    def _summary(self) -> dict[str, Any]:
        rounds = []
        for number in range(self.config.evolve.rounds + 1):
            facts = self._folder(number).facts()
            found, kept = facts["evaluate"], facts.get("select", {})
            told = ("result", "success", "interval", "judged", "episodes", "excluded", "held_out")
            row = {name: found[name] for name in told} | {"round": number}
            rounds.append(row | {name: kept[name] for name in KINDS if name in kept})
        summary = {"rounds": rounds, "checkpoint": str(short(self._checkpoint(self.config.evolve.rounds)))}
        assert self._directory is not None
        self._directory.write_json(SUMMARY, summary)
        return summary

    async def _close(self) -> None:
        await self._parts.close()
        if self._judge is not None:
            await self._judge.close()


def _line(folder: RoundFolder, rounds: int) -> str:
    facts = folder.facts()
    found, kept = facts["evaluate"], facts.get("select")
    told = f"round {folder.number}/{rounds}  success {found['result']}"
    if kept is None:
        return told
    played, behind = facts["collect"], facts["collect"]["started_behind"]
    solved, episodes = played["solved"] - behind["solved"], played["episodes"] - behind["episodes"]
    told += f"  solved {solved} of {episodes}"
    if behind["episodes"]:
        told += f" from the start, {behind['solved']} of {behind['episodes']} behind a beginning"
    return f"{told}, kept {kept['solved']} and {kept['beginnings']} beginnings"
