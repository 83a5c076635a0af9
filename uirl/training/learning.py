"""The learner as the loop uses it: one update at a time, beside the actors where these run ahead."""

from __future__ import annotations

import torch

from uirl.config import ConfigStore
from uirl.learner import Learner
from uirl.rollout.samples import anchors_of, samples_of_all
from uirl.runtime.worker_thread import WorkerThread
from uirl.types import Trajectory


class Learning:
    """Takes the updates of a run, on a thread of its own where actors go on meanwhile (`actors.staleness`)."""

    def __init__(self, learner: Learner, config: ConfigStore) -> None:
        self._learner, self._threads = learner, config.training.threads
        self._alone = not config.actors.run_ahead
        self._thread = WorkerThread("uirl-learner", self.use_threads)

    async def update(self, trajectories: list[Trajectory]) -> dict[str, float]:
        """Assign credit and take the steps of one update; return its metrics."""
        anchors = anchors_of(trajectories) if self._learner.settings.spec.needs_anchors else None
        samples = samples_of_all(trajectories)
        if self._alone:
            return self._learner.update(samples, anchors=anchors)
        return await self._thread.run(lambda: self._learner.update(samples, anchors=anchors))

    def use_threads(self) -> None:
        """Set the CPU threads of torch, which are those of the thread that sets them."""
        if self._threads is not None:
            torch.set_num_threads(self._threads)

    def close(self) -> None:
        """End the thread. Calling it twice is fine."""
        self._thread.close()
