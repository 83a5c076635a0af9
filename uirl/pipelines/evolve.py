"""`Evolution`: play, judge, keep what was right, fine-tune, evaluate; round after round, each in its own folder."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from uirl.config import ConfigStore
from uirl.environments import BaseEnvironment
from uirl.errors import ConfigError
from uirl.learner import latest_checkpoint, load_checkpoint, save_checkpoint
from uirl.pipelines.beginnings import find_beginnings
from uirl.pipelines.collection import collect, report_to, specs_of_round
from uirl.pipelines.corrections import candidates, view_of
from uirl.pipelines.data_card import as_markdown, data_card
from uirl.pipelines.fine_tuning import Plan, Source, fine_tune
from uirl.pipelines.round_folder import STEPS, RoundFolder, hash_of_weights
from uirl.pipelines.selection import Limits, Selection, from_plain, select, to_plain
from uirl.pipelines.variations import Failed, ModelProposer, Propose, Validate, validate_variations
from uirl.rollout.episode import derive_seed
from uirl.rollout.players import Order
from uirl.runtime.event_loop import EventLoopThread
from uirl.runtime.files import write_atomically
from uirl.runtime.terminal import short
from uirl.storage import RunDirectory, TrajectoryStore, export_sft, origin_of
from uirl.training.assembly import Assembly, assemble
from uirl.training.channels.base import Channel
from uirl.training.channels.choose import open_channel
from uirl.training.evaluation.evaluation import EvaluationReport, evaluate_episodes, require_evidence
from uirl.training.evaluation.measure import trained_by
from uirl.training.interrupt import Interrupt
from uirl.training.plan import settle
from uirl.training.record.instances import fingerprints_of, packed
from uirl.training.record.progress import doing, say, tell_progress
from uirl.training.resume import open_run, run_name_for
from uirl.training.saving import SaveClock
from uirl.training.summary import warn_of_excluded
from uirl.training.tasks.curriculum import source_of
from uirl.training.warm_start import WarmStart
from uirl.types import Task, Trajectory
from uirl.verification.prefixes import FineGrainedTrajectoryAnalyzer
from uirl.verification.setup import judge_of

SUMMARY = "summary.json"
KINDS = ("solved", "beginnings", "corrections")
"""What of a round is learned from, in its facts."""


class Evolution:
    """Rounds of rejection sampling on whole episodes and certified beginnings.

    A round has five steps (`round_folder.STEPS`). A finished one is never repeated: after a kill the run goes on with
    the first that is not, and plays only the episodes that are missing. Rounds are functions of config and seed.
    """

    def __init__(
        self,
        config: ConfigStore,
        environment: BaseEnvironment | None = None,
        *,
        propose: Propose | None = None,
        validate: Validate | None = None,
    ) -> None:
        """Set up; nothing is written yet.

        Args:
            config: Section `evolve`, and what says who plays what and how it is judged.
            environment: None: the one the config names.
            propose: Makes `evolve.variations` new tasks a round from failed ones; None: the judge's model does.
            validate: Says why a proposed task is not taken, after the checks that all have to pass.
        """
        self.config = config.model_copy(deep=True)
        if environment is not None:
            self.config.environment.note_object(environment)
        settings, training = self.config.evolve, self.config.training
        # fine-tuning has no critic, and one optimiser for warm start and rounds alike
        training.adv_estimator = "rejection_sampling"
        self._settled = settle(self.config.check(), phases=("warm_start", "evolve"))
        self.config = self._settled.config
        if (best := self.config.checkpoint.keep_best) is not None:
            raise ConfigError(f"checkpoint.keep_best={best} does nothing in `uirl evolve`; expected null")
        if training.threads is not None:
            torch.set_num_threads(training.threads)
        self._parts: Assembly = assemble(self.config, environment)
        judged = settings.prefixes == "judge"
        if judged or settings.variations:
            self.config.logging.run_name = run_name_for(self.config)  # on which the judge's calls are booked
        self._judge = judge_of(self.config) if judged or settings.variations else None
        self._analyzer = FineGrainedTrajectoryAnalyzer(self._judge if judged else None)
        self._propose = propose or (ModelProposer(self._judge.client) if self._judge and settings.variations else None)
        self._validate = validate
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
                    place = folder.checkpoints / f"step_{state['step']:06d}"
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
        source = source_of(self.config, self._tasks(folder.number))
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
        settings, limits = self.config.evolve, self.config.environment
        if settings.prefixes == "off":
            return {"beginnings": {}}
        timeouts = (limits.step_timeout or float("inf"), limits.reset_timeout or float("inf"))
        with self._episodes(folder) as store:
            found = await find_beginnings(
                store, self._analyzer, self._parts.environment, certify=settings.certify, timeouts=timeouts
            )
        return {"beginnings": dict(found)}

    async def _select(self, folder: RoundFolder) -> dict[str, Any]:
        """Choose what is learned from, export it, and write its card."""
        settings = self.config.evolve
        with TrajectoryStore(folder.episodes, read_only=True) as store:
            found = candidates(store, self._analyzer.matcher, corrections=settings.corrections)
            limits = Limits(settings.per_instance, settings.task_share, settings.prefix_share)
            chosen = select(found, limits, derive_seed(self.config.training.seed, "select", folder.number))
            folder.write(folder.selection, [to_plain(one) for one in chosen.kept])
            self._export(folder, store, chosen)
            self._write_card(folder, store, chosen)
            await self._vary(folder, store)
        kept = [one.kind for one in chosen.kept]
        return {
            "solved": kept.count("solved"),
            "beginnings": kept.count("beginning"),
            "corrections": kept.count("correction"),
            "left_out": dict(chosen.left_out),
        }

    async def _fine_tune(self, folder: RoundFolder) -> dict[str, Any]:
        """Learn from the data of this round and of those before it."""
        settings, training, learner = self.config.evolve, self.config.training, self._parts.learner
        self._load(0 if settings.from_base else folder.number - 1)
        warm = learner.settings.training.warm_start
        warm.learning_rate, warm.warmup_steps = settings.learning_rate, settings.warmup_steps
        first = 1 if settings.rounds_kept is None else max(1, folder.number - settings.rounds_kept + 1)
        plan = Plan(settings.epochs, settings.batch_size, derive_seed(training.seed, "fine-tune", folder.number))
        await self._parts.engine.sleep()  # whoever plays next pushes weights
        with self._sources(range(first, folder.number + 1)) as sources:
            clock = SaveClock(self.config.checkpoint.save_seconds)
            facts: dict[str, Any] = fine_tune(learner, self._parts.images, sources, plan, folder.checkpoints, clock)
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
        store = TrajectoryStore(folder.episodes, origin=origin_of(self.config))
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
        told = environment.get_prompt_prefix() if prompt is None else prompt
        export_sft(
            store,
            folder.examples,
            lambda summary: summary.id in kept,
            system_prompt=told or None,
            tools=environment.tool_schemas(),
            view=lambda trajectory: view_of(store, kept[trajectory.id], trajectory),
            order=lambda summary: summary.id,  # which one ended first differs after a kill
        )
        if self.config.evolve.parquet:
            from uirl.storage.parquet import to_parquet

            to_parquet(folder.examples, folder.parquet)

    def _write_card(self, folder: RoundFolder, store: TrajectoryStore, chosen: Selection) -> None:
        found = folder.facts()["verify"]["beginnings"]
        policy = hash_of_weights(self._checkpoint(folder.number - 1))
        hashes = folder.hashes()
        behind = folder.facts()["collect"]["started_behind"]
        card = data_card(self.config, folder.number, store, chosen, found, behind, policy=policy, hashes=hashes)
        folder.write(folder.card, card)
        write_atomically(folder.path / "README.md", as_markdown(card))

    async def _vary(self, folder: RoundFolder, store: TrajectoryStore) -> None:
        """Have new tasks proposed from the failed ones, for the rounds after this one."""
        wanted = self.config.evolve.variations
        if not wanted or self._propose is None or folder.tasks.is_file():
            return
        failed: dict[str, Failed] = {}
        for one in store.list(split="train", success=False):
            record = store.get(one.id)
            failed[one.task_id] = Failed(record.task, "" if record.verdict is None else record.verdict.reason)
        proposed = await self._propose(list(failed.values()), wanted) if failed else []
        known = [*self._tasks(folder.number), *self._parts.tasks.evaluation]
        found = await validate_variations(
            proposed, known, self._parts.environment, self._validate, prefix=f"round-{folder.number}/"
        )
        folder.write(folder.tasks, found.to_plain())
        say(f"{len(found.accepted)} of {len(proposed)} proposed tasks are taken, see {folder.tasks}")

    def _tasks(self, number: int) -> list[Task]:
        """Return the tasks of a round: those of the config, and those proposed in the rounds before it."""
        tasks = list(self._parts.tasks.train)
        for earlier in range(1, number):
            folder = self._folder(earlier)
            said = folder.read(folder.tasks)
            tasks += [Task(**{**task, "tags": tuple(task["tags"])}) for task in (said or {"accepted": []})["accepted"]]
        return tasks

    def _starts(self, number: int, count: int) -> list[Trajectory]:
        """Return at most `count` certified beginnings that a round has kept; of a correction, what comes before it."""
        if number < 1 or count == 0:
            return []
        folder = self._folder(number)
        kept = [one for one in map(from_plain, folder.read(folder.selection)) if one.kind != "solved"]
        with TrajectoryStore(folder.episodes, read_only=True) as store:
            return [store.get(one.id).prefix(one.turns - (one.kind == "correction")) for one in kept[:count]]

    @contextmanager
    def _sources(self, rounds: range) -> Iterator[list[Source]]:
        with ExitStack() as opened:
            found = []
            for number in rounds:
                folder = self._folder(number)
                examples = [from_plain(line) for line in folder.read(folder.selection) or []]
                store = opened.enter_context(TrajectoryStore(folder.episodes, read_only=True))
                found.append(Source(store, examples))
            yield found

    def _folder(self, number: int) -> RoundFolder:
        return RoundFolder(self.path, number)

    def _checkpoint(self, number: int) -> Path:
        return self.path / "checkpoints" / f"step_{number:06d}"

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
    return f"{told}, kept {kept['solved']} and {kept['beginnings']} beginnings" + (
        f", {kept['corrections']} corrections" * (kept.get("corrections", 0) > 0)
    )
