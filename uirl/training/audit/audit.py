"""`audit`: all figures of a run that follow from its record are made again, and some of its episodes played again."""

from __future__ import annotations

import copy
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from uirl.config import ConfigStore
from uirl.config.stored import override_stored
from uirl.environments import BaseEnvironment, create_environment
from uirl.environments.instances import takes_seed
from uirl.errors import UirlError
from uirl.images import ImageStore
from uirl.inference.models.loading import load_model
from uirl.inference.models.precision import dtype_of
from uirl.learner import load_policy
from uirl.learner.checkpoint import CheckpointState, read_state
from uirl.learner.settings import LearnerSettings
from uirl.metrics import read_metrics
from uirl.rollout.attempts import attempt_of
from uirl.rollout.collector import options_of
from uirl.rollout.episode import EpisodeSpec, derive_seed
from uirl.rollout.reward import RewardFunction
from uirl.rollout.samples import samples_of
from uirl.runtime.event_loop import EventLoopThread
from uirl.runtime.folders import check_folder, finished_folders, number_of
from uirl.storage import RunDirectory, TrajectoryStore
from uirl.storage.rows import read_rows
from uirl.storage.summaries import TrajectorySummary
from uirl.training.assembly import sampling_of
from uirl.training.audit.episodes import EpisodeAudit
from uirl.training.audit.report import NEAR, AuditReport
from uirl.training.audit.updates import credit_is_seen, near_of, update_again
from uirl.training.checks.agreement import TOLERANCE, gap_of
from uirl.training.evaluation.evaluation import EvaluationReport, report_on, specs_of
from uirl.training.record.ledger import LEDGER
from uirl.training.record.record import row_of
from uirl.training.record.run_state import RunState, fold_row
from uirl.training.resume import checkpoints_of
from uirl.training.summary import members_of
from uirl.training.tasks.sources import UniformTasks
from uirl.training.tasks.task_sets import stored_tasks, task_sets
from uirl.types import Trajectory
from uirl.verification.setup import verifier_of

PER_CHECKPOINT = 8
"""Episodes whose log-probs are made again with the weights of a checkpoint."""
_EVALUATION = re.compile(r"(before|eval@\d+|after@\d+)-\d+")


def audit(
    run: str | os.PathLike[str],
    overrides: Sequence[str] = (),
    *,
    share: float = 0.01,
    seed: int = 0,
    reward_fn: RewardFunction | None = None,
) -> AuditReport:
    """Return what of a finished run follows from its record, and what does not.

    `share` of its episodes, drawn by `seed` and at least one, are played again. `reward_fn`: of a run that was begun
    with one in code. Nothing in the run is changed. Raises ConfigError and StorageError where there is no run to read,
    or its config would run code (see `override_stored`).
    """
    directory = RunDirectory.open(run)
    return _Audit(directory, overrides, share, seed, reward_fn).run()


class _Audit:
    """The audit of one run."""

    def __init__(
        self,
        directory: RunDirectory,
        overrides: Sequence[str],
        share: float,
        seed: int,
        reward_fn: RewardFunction | None,
    ) -> None:
        config = override_stored(ConfigStore.from_yaml(directory.config_path), overrides, directory.path)
        self.directory, self.config, self.share, self.seed = directory, config, share, seed
        self.report = AuditReport(str(directory.path))
        self.reward_fn = reward_fn
        if reward_fn is None and config.verification.enabled:
            if config.verification.judge is None:
                self.reward_fn = verifier_of(config.verification, config.logging, "")
            else:
                self.report.unseen["rewards"] = "the judge is not asked again; each is compared with its verdict"
        self.rows: list[dict[str, Any]] = []
        self.evaluations: dict[str, EvaluationReport] = {}
        self.state = RunState()
        """What the checkpoint of each step should hold, as far as it follows from the record."""
        self.trained = self.failed = 0
        home = checkpoints_of(directory.path, config.checkpoint.output_dir, config.logging)
        self.checkpoints = {number_of(one) or 0: one for one in finished_folders(home)} if home.is_dir() else {}
        self.history: list[dict[str, Any]] = []
        self.counts: dict[str, int] = {}

    def run(self) -> AuditReport:
        report = self.report
        with report.part("metrics.jsonl"):
            self.rows = read_metrics(self.directory.metrics_path)
            report.same(
                "rows", "metrics.jsonl, its steps", [r["step"] for r in self.rows], [*range(1, len(self.rows) + 1)]
            )
        report.unseen["clocks"] = "seconds, rates and engine figures of rows are compared with checkpoints alone"
        report.unseen["controls, demonstrations"] = "they are not stored"
        with (
            report.part("trajectories.sqlite"),
            TrajectoryStore(self.directory.trajectories_path, read_only=True) as store,
        ):
            self._episodes(store)
            self._evaluations(store)
            self._checkpoint(store, 0)
            for row in self.rows:
                with report.part(f"update {row['step']}"):
                    self._update(store, row)
                self._checkpoint(store, int(row["step"]))
        with report.part("summary.json"):
            self._summary()
        return report

    # -- episodes ----------------------------------------------------------------------------------------------

    def _episodes(self, store: TrajectoryStore) -> None:
        """Look at every episode by itself; play some again."""
        lines = store.list()
        environments = self._environments()
        if environments is None:
            self.report.unseen["prompts, replies, replays"] = "there is no environment to make them with"
            return
        with self.report.part("the model of config.yaml"):
            config, loaded = self.config, load_model(self.config.model)
            options = options_of(config.turn_limit, config.rollout, config.inference, self.reward_fn)
            judged = config.verification.enabled and self.reward_fn is None
            temperatures = (None, config.training.eval_temperature)
            waits = config.environment.step_timeout or 60.0, config.environment.reset_timeout or 120.0
            looks = {
                split: EpisodeAudit(
                    self.report,
                    one,
                    loaded,
                    options,
                    sampling_of(config.inference, temperature),
                    judged=judged,
                    waits=waits,
                )
                for split, one, temperature in zip(("train", "eval"), environments, temperatures, strict=True)
            }
            specs = self._specs(environments, lines)
            loop = EventLoopThread()
            try:
                for line in lines:
                    with self.report.part(f"episode {line.id}"):
                        look = looks["train" if line.split == "train" else "eval"]
                        self._episode(store, line, look, specs, loop)
            finally:
                loop.close()

    def _episode(
        self,
        store: TrajectoryStore,
        line: TrajectorySummary,
        look: EpisodeAudit,
        specs: dict[str, EpisodeSpec],
        loop: EventLoopThread,
    ) -> None:
        one = store.get(line.id)
        look.agrees_with_itself(line, one, store.speakers)
        base, _, attempt = line.id.rpartition("-r")
        spec = specs.get(base if base in specs else line.id)
        if specs and (spec is not None or line.split in ("train", "eval", "test")):
            ordered = None if spec is None else attempt_of(spec, int(attempt) if base in specs else 0)
            drawn = None if one.sampling is None else one.sampling.get("seed")
            stored = (one.task, one.seed, drawn, one.group_id)
            again = ordered and (ordered.task, ordered.environment_seed, ordered.sampling_seed, ordered.group_id)
            self.report.same("orders", f"episode {line.id}, its task, seeds and group", stored, again)
        if one.failure is not None or not one.turns:
            return
        look.prompts(one)
        environment = look.environment
        repeatable = environment.fixed_start or (takes_seed(environment) and one.seed is not None)
        drawn_here = derive_seed(self.seed, line.id) % 10**6 < self.share * 10**6 or line.id.endswith("-000000-0")
        if repeatable and drawn_here:
            loop.run(look.replay(one))

    def _environments(self) -> tuple[BaseEnvironment, BaseEnvironment] | None:
        settings = self.config.environment
        try:
            settings.require_named()
            made = [
                create_environment(settings.name, settings.options_for(split), settings) for split in ("train", "eval")
            ]
            file = stored_tasks(self.directory.path)
            held_out = None if file is None else read_rows(str(file))
            self.tasks = task_sets(settings, made[0], made[1], None, held_out)
        except UirlError as error:
            self.report.unseen["environment"] = str(error)
            return None
        return made[0], made[1]

    def _specs(
        self, environments: tuple[BaseEnvironment, BaseEnvironment], lines: Sequence[TrajectorySummary]
    ) -> dict[str, EpisodeSpec]:
        """Return id -> the episode that was ordered under it; nothing where others chose the tasks."""
        config = self.config
        if config.curriculum.enabled:
            self.report.unseen["orders"] = "a curriculum chose the tasks"
            return {}
        training = config.training
        members = training.episodes_per_group + config.actors.spare_members
        ids = {line.id for line in lines}
        source = UniformTasks(self.tasks.train, seed=config.draws_seed, instance_seed=training.seed)
        groups = source.groups(
            1 + max([int(m[1]) for id in ids if (m := re.match(r"train-(\d{6})-", id))], default=0), members
        )
        found = [spec for group in groups for spec in group]
        for label in sorted({m[1] for id in ids if (m := _EVALUATION.match(id))}):
            split = "eval" if label.startswith("eval") else "test"
            found += specs_of(
                self.tasks.evaluation, training.eval_episodes, split=split, seed=training.seed, label=label
            )
        specs = {spec.trajectory_id: spec for spec in found}
        if not specs.keys() & ids:
            self.report.unseen["orders"] = "other code chose the tasks"
            return {}
        return specs

    # -- updates -----------------------------------------------------------------------------------------------

    def _update(self, store: TrajectoryStore, row: dict[str, Any]) -> None:
        """Make the row of one update again."""
        step, report = int(row["step"]), self.report
        settings = LearnerSettings.of(self.config)
        played, attempts = _last_attempts(
            store.get(line.id, pictures=False) for line in store.list(step=step, split="train")
        )
        behind = self.config.actors.run_ahead
        learned = {} if behind else {one.id: figures for one in played if (figures := store.learned(one.id))}
        why = credit_is_seen(settings)
        again: dict[str, Any] = {}
        if behind:
            report.unseen["rows of updates"] = (
                "actors ran ahead: the record does not say which episodes came back for which"
            )
        elif not learned:
            report.unseen["credit"] = "the learner's figures were not stored (logging.store_learner_figures)"
        elif why is not None:
            report.unseen["credit"] = why
        else:
            again = update_again(report, settings, step, [one for one in played if one.id in learned], learned)
        self.state.add(played, attempts)
        if behind:
            return
        # what the engine did is not in the record
        made = {k: v for k, v in row_of(played, {}, {}, attempts).items() if not k.startswith("time/engine")} | again
        for name, value in made.items():
            report.same(
                "figures of rows",
                f"update {step}, {name}",
                row.get(name),
                value,
                near_of(name) if name in again else NEAR,
            )
        passed = [id for id, turns in learned.items() if all(one.log_probs is not None for one in turns.values())]
        self.trained += len(passed)
        self.failed += sum(one.failure is not None for one in played)
        ledger = {"ledger/failed": self.failed} | ({"ledger/trained": self.trained} if learned else {})
        if settings.spec.loss == "policy" and not self.config.actors.spare_members:
            ledger["ledger/ordered"] = self.state.episodes
        for name, value in (ledger | {"episodes_total": self.state.episodes}).items():
            report.same("figures of rows", f"update {step}, {name}", row.get(name), value)
        settled = sum(row.get(f"ledger/{name}") or 0 for name in ("trained", "dropped", "failed", "in_flight"))
        report.same("figures of rows", f"update {step}, the sum of its ledger", row.get("ledger/ordered"), settled)

    def _evaluations(self, store: TrajectoryStore) -> None:
        """Make the evaluations again, and compare those between updates with their rows."""
        by_label = defaultdict(list)
        for line in store.list():
            if match := _EVALUATION.match(line.id):
                by_label[match[1]].append(store.get(line.id, pictures=False, tokens=False))
        newest = max(self.checkpoints, default=None)
        trained = None
        if newest is not None:
            with self.report.part(f"checkpoint of step {newest}"):
                trained = RunState.from_dict(read_state(self.checkpoints[newest]).extra["state"]).trained
        for label, episodes in by_label.items():
            self.evaluations[label] = report_on(episodes, (), store.speakers, trained)
            versions = Counter(turn.policy_version for one in episodes for turn in one.turns)
            for one in episodes:
                found = {turn.policy_version for turn in one.turns} or {*versions}
                again = {max(versions, key=versions.__getitem__)} if versions else found
                self.report.same("evaluations", f"episode {one.id}, version of its policy", found, again)
        for row in self.rows:
            evaluation = self.evaluations.get(f"eval@{row['step']}")
            stored = {name: value for name, value in row.items() if name.startswith("eval/")}
            made = {} if evaluation is None else evaluation.row()
            self.report.same("evaluations", f"update {row['step']}, its evaluation", stored, made)

    # -- checkpoints and summary -------------------------------------------------------------------------------

    def _states(self, step: int) -> Iterator[CheckpointState]:
        folder = self.checkpoints.get(step)
        if folder is not None:
            with self.report.part(f"checkpoint {folder.name}"):
                check_folder(folder)
            with self.report.part(f"state of checkpoint {folder.name}"):
                yield read_state(folder)

    def _checkpoint(self, store: TrajectoryStore, step: int) -> None:
        """Compare a checkpoint with what the record says of the run until then."""
        for row in self.rows[step - 1 : step] if step else ():
            self.counts = fold_row(
                self.history, self.counts, {k: v for k, v in row.items() if k not in ("step", "time")}
            )
        for state in self._states(step):
            folder, report, stored = self.checkpoints[step], self.report, state.extra["state"]
            where = f"checkpoint {folder.name}"
            with report.part(where):
                report.same("states", f"{where}, updates", state.updates, step)
                report.same("states", f"{where}, history", state.extra["history"], copy.deepcopy(self.history))
                self._state(where, stored, step)
                configs = {path.read_text() for path in self.directory.path.glob("config*.yaml")}
                report.same(
                    "states",
                    f"{where}, its config is one of the run",
                    (folder / "config.yaml").read_text() in configs,
                    True,
                )
                self._weights(store, folder, state, step)

    def _state(self, where: str, stored: dict[str, Any], step: int) -> None:
        report, before = self.report, self.evaluations.get("before")
        again: dict[str, Any] = {"step": step, "counts": self.counts, "pending": None}
        if not self.config.actors.run_ahead:
            again |= {"episodes": self.state.episodes, "tally": self.state.tally.to_dict()}
            again["trained"] = None
        if before is not None:
            again |= {"before": before.tally.to_dict(), "reward_before": before.reward}
            again |= {"interval_before": before.interval, "members_before": before.members}
        evaluated = [e for e in (self.evaluations.get(f"eval@{n}") for n in range(1, step + 1)) if e is not None]
        again |= {"held_out": evaluated[-1].success if evaluated else None, "evaluations": len(evaluated)}
        trained = again.pop("trained", 0)
        for name, value in again.items():
            report.same("states", f"{where}, {name}", stored.get(name), value)
        if trained is None:
            kept = RunState.from_dict(stored).trained
            report.same("states", f"{where}, instances that it does not know", sorted(self.state.trained - kept), [])
            if stored.get("warm") is None:
                report.same("states", f"{where}, instances that were not played", sorted(kept - self.state.trained), [])
        elapsed = self.rows[step - 1].get("time/elapsed") if step else 0.0
        report.same("states", f"{where}, seconds", stored["seconds"], elapsed, near=0.5)
        if step:
            row, ledger = self.rows[step - 1], stored["ledger"]
            told = {"ordered": ledger["ordered"], "trained": ledger["trained"], "in_flight": len(ledger["in_flight"])}
            told |= {name: sum(ledger[name].values()) for name in ("dropped", "failed")}
            last = step == len(self.rows)
            for name, value in told.items():
                if not (last and self.config.actors.run_ahead):
                    report.same("states", f"{where}, ledger, {name}", value, row.get(f"ledger/{name}"))

    def _weights(self, store: TrajectoryStore, folder: Path, state: CheckpointState, step: int) -> None:
        """Make the log-probs of some episodes again, which the weights of this checkpoint have sampled."""
        lines = [*store.list(step=step, limit=10**4), *store.list(step=step + 1, split="train", limit=PER_CHECKPOINT)]
        chosen: list[Trajectory] = []
        for line in sorted(lines, key=lambda line: derive_seed(self.seed, line.id)):
            if line.failure is None and len(chosen) < PER_CHECKPOINT:
                one = store.get(line.id)
                plain = one.sampling is not None and one.sampling["top_p"] == 1.0 and not one.sampling["top_k"]
                fresh = bool(one.turns) and {turn.policy_version for turn in one.turns} == {state.version}
                if plain and fresh and one.sampling["temperature"] > 0:  # type: ignore[index]
                    chosen.append(one)
        if not chosen:
            self.report.unseen[f"weights of {folder.name}"] = "no stored episode was sampled by them, unfiltered"
            return
        policy = load_policy(folder, model=self.config.model)
        images = ImageStore()
        for one in chosen:
            for turn in one.turns:
                for picture in turn.observation.images:
                    images.put(picture)
            temperature = float((one.sampling or {})["temperature"])
            gap, turn_number = gap_of(policy, images, samples_of(one), temperature)
            where = f"{folder.name}, log-probs of turn {turn_number} of episode {one.id} with its weights, off by"
            self.report.same("log-probs made again", where, max(0.0, gap - TOLERANCE[dtype_of(self.config.model)]), 0.0)

    def _summary(self) -> None:
        """Compare the summary with the evaluations, the rows and the newest checkpoint."""
        summary, report = self.directory.read_json("summary.json"), self.report
        steps = len(self.rows)
        before, after = self.evaluations.get("before"), self.evaluations.get(f"after@{steps}")
        again: dict[str, Any] = {"steps": steps, "seed": self.config.training.seed}
        again["algorithm"] = self.config.training.adv_estimator
        excluded = {}
        for name, found in (("before", before), ("after", after)):
            if found is not None:
                again |= {f"success_{name}": found.success, f"success_{name}_interval": found.interval}
                again |= {f"judged_{name}": found.judged, f"reward_{name}": found.reward}
                excluded[name] = found.tally.report()
        if after is not None:
            again["evaluated"] = {"episodes": after.episodes, "instances": after.instances}
            again["held_out"] = None if after.held_out is None else after.held_out.to_dict()
            members = members_of({} if before is None else before.members, after)
            again["members"] = members or None  # only a mixture has them
            again |= {"success_after_corrected": after.corrected, "controls_metric": after.measured_by}
        if not self.config.actors.run_ahead:
            again["episodes"] = self.state.episodes
            excluded["training"] = self.state.tally.report()
        for name, value in again.items():
            report.same("summary", f"summary, {name}", summary.get(name), value)
        for name, value in excluded.items():
            report.same("summary", f"summary, excluded, {name}", summary["excluded"].get(name), value)
        ledger = self.directory.read_json(LEDGER)
        report.same("summary", "summary, ledger, and ledger.json", summary["ledger"], ledger)
        for state in self._states(steps):
            stored = RunState.from_dict(state.extra["state"])
            again = {"ledger": stored.ledger.report(), "warm_start": stored.warm}
            again["best"] = None if stored.best is None else stored.best | {"evaluations": stored.evaluations}
            again["train_seconds"] = stored.seconds + (stored.warm or {}).get("seconds", 0.0)
            training = self.config.training
            reason = stored.stop_reason(training, training.num_epochs * training.num_iters_per_epoch)
            policy = load_policy(self.checkpoints[steps], model=self.config.model)
            if reason is not None:  # else a callback ended it, or `fit` was told how far to go
                again["stopped_because"] = reason
            again |= {"model": self.config.model.source}
            again["parameters"] = sum(p.numel() for p in policy.loaded.model.parameters())
            for name, value in again.items():
                report.same("summary", f"summary, {name}", summary.get(name), value)


def _last_attempts(episodes: Iterable[Trajectory]) -> tuple[list[Trajectory], list[Trajectory]]:
    """Return the episodes as they ended, and the failed attempts before."""
    by_order: dict[str, list[Trajectory]] = defaultdict(list)
    for one in episodes:
        by_order[re.sub(r"-r\d+$", "", one.id)].append(one)
    # in the order of the groups and their members, as updates learn from them
    in_order = sorted(by_order, key=lambda id: [int(part) for part in re.findall(r"\d+", id)])
    ordered = [sorted(by_order[id], key=lambda one: len(one.id)) for id in in_order]
    return [attempts[-1] for attempts in ordered], [one for attempts in ordered for one in attempts[:-1]]
