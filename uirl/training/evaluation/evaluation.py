"""How good a policy is: success with its uncertainty, per task, and within k tries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from uirl.environments import BaseEnvironment
from uirl.errors import RolloutFailure
from uirl.metrics import mean_pass_at_k
from uirl.rollout.collector import EpisodePlayer
from uirl.rollout.episode import EpisodeSpec
from uirl.rollout.players import Order
from uirl.success import settle_outcomes
from uirl.training.assembly import Assembly
from uirl.training.channels.base import Channel
from uirl.training.record.instances import HeldOut, instances_of, interval_by_instance
from uirl.training.record.progress import counted, percent, playing, say
from uirl.training.record.tally import Tally, tally_of
from uirl.training.tasks.sources import UniformTasks
from uirl.types import Task, Trajectory

HELD_OUT_SEED = 20_250_101
"""Makes tasks and instances of evaluation splits: the same for every run, from other seeds than those of training."""
LOOKED_AT = 4
"""Instances by which it is told whether a control hides anything."""


@dataclass(frozen=True, slots=True)
class EvaluationReport:
    """What an evaluation found. Episodes that failed (environment, engine, judge) are counted and left out."""

    episodes: int
    """Episodes that are evidence."""
    failures: int
    success: float | None
    """Share of solved episodes; None: neither environment nor verifier says what success is."""
    interval: tuple[float, float] | None
    """Of `success`, 95 %, by instance (`clustered_interval`)."""
    reward: float | None
    """Mean total reward; None without episodes."""
    turns: float | None
    pass_at_k: dict[int, float] = field(default_factory=dict)
    """k -> chance that one of k tries at the same instance succeeds, averaged over instances."""
    tasks: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Task id -> episodes, judged, success, reward."""
    members: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Environment of a mixture -> the same; empty: the tasks are of one."""
    judged: int = 0
    """Episodes of which is known whether they succeeded (docs/verification.md)."""
    instances: int = 0
    """Instances that the episodes are of: tries of one are not independent."""
    trajectories: tuple[Trajectory, ...] = ()
    corrected: float | None = None
    """Mean score of the judged episodes where a judge's word is corrected for its errors: an unbiased estimate of the
    success, of which `success` is what rules and judge accept. None: nothing is corrected."""
    held_out: HeldOut | None = None
    """How far it is of instances that training did not play; None: nobody says what training played."""
    tally: Tally = field(default_factory=Tally)
    """How many episodes are excluded and how many attempts were repeated, by kind of failure."""

    @property
    def first_failure(self) -> str | None:
        """Kind and message of the first failure; None: no episode failed."""
        return next((f"{t.failure.kind}: {t.failure.message}" for t in self.trajectories if t.failure), None)

    @property
    def measured_by(self) -> Literal["success", "reward"]:
        """What a policy is measured by: success, or the reward where nobody says what success is."""
        return "reward" if self.success is None else "success"

    def words(self) -> str:
        """Return '93.0 % (95 %: 89.1 to 95.6), 256 of 256 judged, 256 episodes of 64 instances; held out: none of them
        trained on'."""
        told = (percent(self.success, self.interval), self.tally.judged_words(), counted(self.episodes, self.instances))
        words = ", ".join(told)
        if self.corrected is not None:
            words += f"; as accepted, {percent(self.corrected)} corrected for the judge's errors"
        return words if self.held_out is None else f"{words}; {self.held_out.words()}"

    def unseen_rows(self) -> dict[str, str]:
        """Return a line of a table: the success on the instances that training did not play, where it played some."""
        found = self.held_out
        if found is None or not found.told_apart or not found.trained_on:
            return {}
        counts = counted(found.unseen, found.instances - found.trained_on)
        return {"success on unseen instances": f"{percent(found.success, found.interval)}, {counts}"}

    def row(self) -> dict[str, float | None]:
        """Return what the metrics of an update say of an evaluation after it."""
        low, high = self.interval or (None, None)
        numbers = {"success": self.success, "success_low": low, "success_high": high}
        numbers |= {"reward": self.reward, "turns": self.turns}
        numbers |= {"judged_episodes": self.judged, "evidence_episodes": self.episodes}
        numbers |= {"success_at_worst": self.tally.success_if_lost, "unseen_attempts": self.tally.unseen}
        numbers |= {f"success/{name}": one["success"] for name, one in self.members.items()}
        return {f"eval/{name}": value for name, value in numbers.items()}

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, without the trajectories."""
        return {
            "result": self.words(),
            "episodes": self.episodes,
            "judged": self.judged,
            "failures": self.failures,
            "instances": self.instances,
            "first_failure": self.first_failure,
            "excluded": self.tally.report(),
            "held_out": None if self.held_out is None else self.held_out.to_dict(),
            "success": self.success,
            "interval": list(self.interval) if self.interval else None,
            "corrected": self.corrected,
            "reward": self.reward,
            "turns": self.turns,
            "pass_at_k": {str(k): v for k, v in self.pass_at_k.items()},
            "tasks": self.tasks,
            **({"members": self.members} if self.members else {}),
        }


async def evaluate_episodes(
    player: EpisodePlayer,
    tasks: Sequence[Task],
    *,
    episodes: int,
    tries: int = 1,
    split: str = "eval",
    seed: int = 0,
    label: str | None = None,
    speakers: set[str] | None = None,
    trained: Collection[str] | None = None,
) -> EvaluationReport:
    """Play `episodes` episodes of an evaluation split, `tries` per instance, and report on them. The same split has the
    same instances in every run; `label` begins the ids of the trajectories; `speakers`, `trained`: see `report_on`."""
    specs = specs_of(tasks, episodes, tries, split=split, seed=seed, label=label)
    with playing(f"evaluation {label or split}", player, len(specs)):
        played = await player.collect(specs)
    return report_on(played[: len(specs)], played[len(specs) :], speakers, trained)


def specs_of(
    tasks: Sequence[Task], episodes: int, tries: int = 1, *, split: str, seed: int, label: str | None = None
) -> list[EpisodeSpec]:
    """Return `episodes` episodes of an evaluation split, `tries` per instance."""
    source = UniformTasks(tasks, seed=seed, split=split, instance_seed=HELD_OUT_SEED, label=label)
    return [spec for group in source.groups(max(1, episodes // tries), tries) for spec in group]


def require_evidence(played: Sequence[Trajectory], purpose: str) -> None:
    """Raise RolloutFailure with the first reason where every episode failed; `purpose` says what they were for."""
    failures = [t.failure for t in played if t.failure is not None]
    if len(failures) == len(played):
        first = failures[0]
        raise RolloutFailure(f"all {len(played)} episodes {purpose} failed. The first, {first.kind}: {first.message}")


async def play_controls(
    parts: Assembly, channel: Channel, speakers: set[str], *, episodes: int, metric: Literal["success", "reward"]
) -> dict[str, float]:
    """Return name -> `metric` of each control of the environment, played by the actors of `channel`; a control of which
    nobody says it is left out, and so is one that hides nothing, as where a subclass forgets it. `speakers`: see
    `report_on`."""
    results: dict[str, float] = {}
    training, tasks = parts.config.training, parts.tasks.evaluation
    found = parts.eval_environment.controls()
    seen = await _seen(parts, channel, None) if any(isinstance(one, BaseEnvironment) for one in found.values()) else []
    for name, control in found.items():
        if seen and isinstance(control, BaseEnvironment) and await _seen(parts, channel, name) == seen:
            say(f"control {name}: left out, the policy saw in it what it sees without; does `reset` or `step` heed it?")
            continue
        player = channel.player(Order("eval", training.eval_temperature, control=name))
        report = await evaluate_episodes(
            player, tasks, episodes=episodes, split="test", seed=training.seed, speakers=speakers
        )
        value: float | None = getattr(report, metric)
        if value is not None:
            results[name] = value
    parts.engine.stats()
    return results


async def _seen(parts: Assembly, channel: Channel, control: str | None) -> list[object]:
    """Return all that the policy is shown while it plays greedily some instances of a control; None: those of the
    environment itself. Empty where an episode failed."""
    specs = specs_of(parts.tasks.evaluation, LOOKED_AT, split="test", seed=parts.config.training.seed)
    played = (await channel.player(Order("eval", 0.0, control=control)).collect(specs))[: len(specs)]
    if any(episode.failure is not None for episode in played):
        return []
    return [[(turn.context_ids, turn.context_images) for turn in episode.turns] for episode in played]


def report_on(
    trajectories: Sequence[Trajectory],
    attempts: Sequence[Trajectory] = (),
    speakers: set[str] | None = None,
    trained: Collection[str] | None = None,
) -> EvaluationReport:
    """Return the report of trajectories that were already played; `attempts` failed and were repeated. `speakers`: the
    environments known to say what success is, to which those are added that do so here; None: none yet. `trained`: the
    fingerprints of what training played; None: nobody says."""
    settle_outcomes(trajectories, set() if speakers is None else speakers)
    usable = [t for t in trajectories if t.failure is None]
    judged = [t for t in usable if t.success is not None]
    wins = sum(bool(t.success) for t in judged)
    return EvaluationReport(
        episodes=len(usable),
        judged=len(judged),
        failures=len(trajectories) - len(usable),
        instances=len(set(instances_of(usable))),
        success=wins / len(judged) if judged else None,
        interval=interval_by_instance(judged),
        corrected=_corrected(judged),
        reward=_mean([t.total_reward() for t in usable]),
        turns=_mean([float(len(t)) for t in usable]),
        pass_at_k=_pass_at_k(judged),
        tasks=_table(usable, lambda one: one.task.id),
        members=_table(usable, lambda one: one.task.environment) if _mixed(usable) else {},
        trajectories=tuple(trajectories),
        held_out=None if trained is None else HeldOut.of(usable, trained),
        tally=tally_of(trajectories, attempts),
    )


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _corrected(judged: Sequence[Trajectory]) -> float | None:
    verdicts = [t.verdict for t in judged if t.verdict is not None]
    if all(verdict.verifier != "judge" or verdict.score in (0.0, 1.0) for verdict in verdicts):
        return None
    return _mean([verdict.score for verdict in verdicts])


def _pass_at_k(judged: list[Trajectory]) -> dict[int, float]:
    groups: dict[str, list[bool]] = defaultdict(list)
    for trajectory in judged:
        groups[trajectory.group_id].append(bool(trajectory.success))
    return mean_pass_at_k(groups.values())


def _mixed(usable: list[Trajectory]) -> bool:
    return len({trajectory.task.environment for trajectory in usable}) > 1


def _table(usable: list[Trajectory], kind: Callable[[Trajectory], str]) -> dict[str, dict[str, Any]]:
    """Return kind of an episode -> how those of it went."""
    by_kind: dict[str, list[Trajectory]] = defaultdict(list)
    for trajectory in usable:
        by_kind[kind(trajectory)].append(trajectory)
    table = {}
    for name in sorted(by_kind):
        played = by_kind[name]
        successes = [bool(t.success) for t in played if t.success is not None]
        table[name] = {
            "episodes": len(played),
            "judged": len(successes),
            "success": sum(successes) / len(successes) if successes else None,
            "reward": _mean([t.total_reward() for t in played]),
        }
    return table
