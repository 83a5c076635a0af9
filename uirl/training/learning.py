"""The learner as the loop uses it: one update at a time, beside the actors where these run ahead.

The turns of failed episodes get credit for right beginnings first: found by fork in the groups of an update, certified
by replay.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from uirl.config import AlgorithmConfig, EnvironmentConfig
from uirl.environments import BaseEnvironment
from uirl.learner.steps import OnLearned
from uirl.rollout.replay import Certifier
from uirl.rollout.samples import anchors_of, samples_of_all
from uirl.runtime.event_loop import WorkerThread
from uirl.training.assembly import Assembly
from uirl.types import Trajectory
from uirl.verification.fork import ForkFinder
from uirl.verification.prefixes import PrefixFinding, fork_of, step_rewards, with_step_rewards
from uirl.verification.similarity import ScreenMatcher


class Learning:
    """Takes the updates of a run, on a thread of its own where actors go on meanwhile (`actors.staleness`)."""

    def __init__(self, parts: Assembly) -> None:
        config = parts.config
        self._learner, self._threads = parts.learner, config.training.threads
        self._steps = StepCredit(config.algorithm, config.environment, parts.environment, parts.images.get)
        self._alone = not config.actors.run_ahead
        self._thread = WorkerThread("uirl-learner", self.use_threads)

    async def update(self, trajectories: list[Trajectory], on_learned: OnLearned | None = None) -> dict[str, float]:
        """Assign credit and take the steps of one update; return its metrics. `on_learned`: see `Learner.update`."""
        credited = await self._steps.apply(trajectories)
        anchors = anchors_of(credited.trajectories) if self._learner.settings.spec.needs_anchors else None
        samples = samples_of_all(credited.trajectories)

        def update() -> dict[str, float]:
            return self._learner.update(samples, anchors=anchors, spared=credited.spared, on_learned=on_learned)

        return (update() if self._alone else await self._thread.run(update)) | credited.metrics

    def use_threads(self) -> None:
        """Set the CPU threads of torch, which are those of the thread that sets them."""
        if self._threads is not None:
            torch.set_num_threads(self._threads)

    def close(self) -> None:
        """End the thread. Calling it twice is fine."""
        self._thread.close()


@dataclass(slots=True)
class Credited:
    """The episodes of an update with the credit for their beginnings."""

    trajectories: list[Trajectory]
    """As they were played or, with 'reward', with the rewards of their turns."""
    spared: dict[str, int] = field(default_factory=dict)
    """'spare': id of a failed episode -> how many of its turns, from the first on, are not to blame."""
    metrics: dict[str, float] = field(default_factory=dict)


class StepCredit:
    """Gives the turns of failed episodes credit as `algorithm.step_credit` says."""

    def __init__(
        self,
        settings: AlgorithmConfig,
        limits: EnvironmentConfig,
        environment: BaseEnvironment,
        pictures: Callable[[str], Any],
    ) -> None:
        """`environment` is what the episodes were played in; `pictures` finds what they show by its hash."""
        self._settings, self._pictures = settings, pictures
        self._environment, self._matcher = environment, ScreenMatcher()
        self._timeouts = limits.timeouts

    async def apply(self, trajectories: Sequence[Trajectory]) -> Credited:
        """Return the episodes of an update with their credit. Nothing is changed in place."""
        if self._settings.step_credit == "off":
            return Credited(list(trajectories))
        counts: Counter[str] = Counter()
        certifier = Certifier(self._environment, ForkFinder(self._matcher, self._pictures), *self._timeouts)
        try:
            found = {id: finding async for id, finding in self._find(trajectories, certifier, counts)}
        finally:
            await certifier.close()
        metrics = {f"count/{name}": float(counts[name]) for name in ("beginnings_found", "beginnings_refused")}
        if self._settings.step_credit == "spare":
            return Credited(list(trajectories), {id: one.right for id, one in found.items()}, metrics)
        return Credited([self._rewarded(t, found.get(t.id)) for t in trajectories], metrics=metrics)

    async def _find(
        self, trajectories: Iterable[Trajectory], certifier: Certifier, counts: Counter[str]
    ) -> AsyncIterator[tuple[str, PrefixFinding]]:
        """Yield (id, finding) of the failed episodes that are right for at least one turn."""
        for group in _instances(trajectories):
            solved = [one for one in group if one.success]
            for failed in (one for one in group if not one.success):
                finding = await asyncio.to_thread(fork_of, failed, solved, self._matcher, self._pictures)
                if finding is None or finding.right == 0:
                    continue
                counts["beginnings_found"] += 1
                if self._settings.step_certify:
                    finding, certified = await certifier.certify(failed, finding, solved)
                    if not certified:
                        counts["beginnings_refused"] += 1
                        continue
                yield failed.id, finding

    def _rewarded(self, trajectory: Trajectory, finding: PrefixFinding | None) -> Trajectory:
        if finding is None:
            return trajectory
        more = step_rewards(trajectory, finding, right=self._settings.step_right, wrong=-self._settings.step_wrong)
        return with_step_rewards(trajectory, [a + b for a, b in zip(trajectory.rewards, more, strict=True)])


def _instances(trajectories: Iterable[Trajectory]) -> list[list[Trajectory]]:
    """Return the episodes that are evidence, by group and instance."""
    groups: dict[tuple[str, str, int | None], list[Trajectory]] = defaultdict(list)
    for one in trajectories:
        if one.failure is None and one.success is not None and one.turns:
            groups[one.group_id, one.task.id, one.seed].append(one)
    return list(groups.values())
