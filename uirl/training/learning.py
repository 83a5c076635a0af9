"""The learner as the loop uses it: one update at a time, beside the actors where these run ahead."""

from __future__ import annotations

import torch

from uirl.learner.steps import OnLearned
from uirl.rollout.samples import anchors_of, samples_of_all
from uirl.runtime.event_loop import WorkerThread
from uirl.training.assembly import Assembly
from uirl.training.step_credit import StepCredit
from uirl.types import Trajectory


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
