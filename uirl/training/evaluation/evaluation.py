"""How good a policy is: success with its uncertainty, per task, and within k tries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from uirl.errors import RolloutFailure
from uirl.metrics import mean_pass_at_k, success_interval
from uirl.rollout.collector import EpisodePlayer
from uirl.success import settle_outcomes
from uirl.training.record.progress import percent, playing
from uirl.training.record.tally import Tally, tally_of
from uirl.training.tasks.sources import UniformTasks
from uirl.types import Task, Trajectory

HELD_OUT_SEED = 20_250_101
"""Makes tasks and instances of evaluation splits: the same for every run, and none of the training instances."""


@dataclass(frozen=True, slots=True)
class EvaluationReport:
    """What an evaluation found. Episodes that failed (environment, engine, judge) are counted and left out."""

    episodes: int
    """Episodes that are evidence."""
    failures: int
    success: float | None
    """Share of solved episodes; None: neither environment nor verifier says what success is."""
    interval: tuple[float, float] | None
    """95 % Wilson interval of `success`."""
    reward: float | None
    """Mean total reward; None without episodes."""
    turns: float | None
    pass_at_k: dict[int, float] = field(default_factory=dict)
    """k -> chance that one of k tries at the same instance succeeds, averaged over instances."""
    tasks: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Task id -> episodes, judged, success, reward."""
    judged: int = 0
    """Episodes of which is known whether they succeeded (docs/success.md)."""
    trajectories: tuple[Trajectory, ...] = ()
    tally: Tally = field(default_factory=Tally)
    """How many episodes are excluded and how many attempts were repeated, by kind of failure."""

    @property
    def first_failure(self) -> str | None:
        """Kind and message of the first failure; None: no episode failed."""
        return next((f"{t.failure.kind}: {t.failure.message}" for t in self.trajectories if t.failure), None)

    def words(self) -> str:
        """Return '93.0 % (95 %: 89.1 to 95.6), 128 of 128 judged'."""
        return f"{percent(self.success, self.interval)}, {self.judged} of {self.episodes} judged"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, without the trajectories."""
        return {
            "episodes": self.episodes,
            "judged": self.judged,
            "failures": self.failures,
            "first_failure": self.first_failure,
            "excluded": self.tally.report(),
            "success": self.success,
            "interval": list(self.interval) if self.interval else None,
            "reward": self.reward,
            "turns": self.turns,
            "pass_at_k": {str(k): v for k, v in self.pass_at_k.items()},
            "tasks": self.tasks,
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
) -> EvaluationReport:
    """Play `episodes` held-out episodes, `tries` per instance, and report on them. The same split has the same
    instances in every run; `label` begins the ids of the trajectories; `speakers`: see `report_on`."""
    source = UniformTasks(tasks, seed=seed, split=split, instance_seed=HELD_OUT_SEED, label=label)
    groups = source.groups(max(1, episodes // tries), tries)
    specs = [spec for group in groups for spec in group]
    with playing(f"evaluation {label or split}", player, len(specs)):
        played = await player.collect(specs)
    return report_on(played[: len(specs)], played[len(specs) :], speakers)


def require_evidence(played: Sequence[Trajectory], purpose: str) -> None:
    """Raise RolloutFailure with the first reason where every episode failed; `purpose` says what they were for."""
    failures = [t.failure for t in played if t.failure is not None]
    if len(failures) == len(played):
        first = failures[0]
        raise RolloutFailure(f"all {len(played)} episodes {purpose} failed. The first, {first.kind}: {first.message}")


def report_on(
    trajectories: Sequence[Trajectory], attempts: Sequence[Trajectory] = (), speakers: set[str] | None = None
) -> EvaluationReport:
    """Return the report of trajectories that were already played; `attempts` failed and were repeated. `speakers`: the
    environments known to say what success is, to which those are added that do so here; None: none yet."""
    settle_outcomes(trajectories, set() if speakers is None else speakers)
    usable = [t for t in trajectories if t.failure is None]
    judged = [t for t in usable if t.success is not None]
    wins = sum(bool(t.success) for t in judged)
    return EvaluationReport(
        episodes=len(usable),
        judged=len(judged),
        failures=len(trajectories) - len(usable),
        success=wins / len(judged) if judged else None,
        interval=success_interval(wins, len(judged)) if judged else None,
        reward=_mean([t.total_reward() for t in usable]),
        turns=_mean([float(len(t)) for t in usable]),
        pass_at_k=_pass_at_k(judged),
        tasks=_per_task(usable),
        trajectories=tuple(trajectories),
        tally=tally_of(trajectories, attempts),
    )


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _pass_at_k(judged: list[Trajectory]) -> dict[int, float]:
    groups: dict[str, list[bool]] = defaultdict(list)
    for trajectory in judged:
        groups[trajectory.group_id].append(bool(trajectory.success))
    return mean_pass_at_k(groups.values())


def _per_task(usable: list[Trajectory]) -> dict[str, dict[str, Any]]:
    by_task: dict[str, list[Trajectory]] = defaultdict(list)
    for trajectory in usable:
        by_task[trajectory.task.id].append(trajectory)
    table = {}
    for name in sorted(by_task):
        played = by_task[name]
        successes = [bool(t.success) for t in played if t.success is not None]
        table[name] = {
            "episodes": len(played),
            "judged": len(successes),
            "success": sum(successes) / len(successes) if successes else None,
            "reward": _mean([t.total_reward() for t in played]),
        }
    return table
