"""Supervised learning on demonstrations, until the policy succeeds often enough for reinforcement learning to start."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

from uirl.config.training import WarmStartConfig
from uirl.errors import EnvironmentFailure
from uirl.images import Screenshot
from uirl.rollout.episode import ExpertPlayer, derive_seed
from uirl.rollout.samples import samples_of_all
from uirl.training.assembly import Assembly
from uirl.training.evaluation import evaluate_episodes, require_evidence
from uirl.training.tasks import UniformTasks
from uirl.types import Sample


class Demonstrations:
    """Episodes of the environment's demonstrator as samples, made when they are needed.

    The first `size` are new; from then on batches are drawn from those that were made.
    """

    def __init__(self, parts: Assembly, size: int, seed: int) -> None:
        self._parts, self._size, self._seed = parts, size, seed
        self._tasks = UniformTasks(parts.tasks.train, seed=seed, split="demonstration")
        self._made: list[Sample] = []
        self._pictures: dict[str, Screenshot] = {}  # of what was made: held, the store may not lose them
        self._rng = random.Random(derive_seed(seed, "demonstrations"))
        self.episodes = 0
        self.successes = 0

    async def batch(self, count: int) -> list[Sample]:
        """`count` demonstrations. Raises EnvironmentFailure where the demonstrator or the environment fails."""
        if self.episodes >= self._size:
            return self._rng.sample(self._made, min(count, len(self._made)))
        parts = self._parts
        player = ExpertPlayer(parts.chat, parts.collector.parser)
        specs = [group[0] for group in self._tasks.groups(min(count, self._size - self.episodes), 1)]
        with parts.images.holding():
            played = (await parts.collector.collect(specs, lambda spec: player))[: len(specs)]
            shown = {hash for t in played for turn in t.turns for hash in turn.context_images}
            self._pictures |= {hash: parts.images.get(hash) for hash in shown}
        failed = next((t.failure for t in played if t.failure is not None), None)
        if failed is not None:
            raise EnvironmentFailure(f"a demonstration failed: {failed.message}")
        self.episodes += len(played)
        self.successes += sum(bool(t.success) for t in played)
        samples = samples_of_all(played)
        self._made += samples
        return samples


async def warm_start(parts: Assembly, say: Callable[[str], None]) -> dict[str, Any]:
    """Runs the warm start of the config; what it did: steps, seconds, demonstrations, the success that ended it."""
    settings: WarmStartConfig = parts.config.training.warm_start
    seed = parts.config.training.seed
    hook, parts.collector.on_finished = parts.collector.on_finished, None
    started = time.perf_counter()
    demonstrations = Demonstrations(parts, settings.demonstrations, seed)
    success = None
    step = 0
    for step in range(1, settings.steps + 1):
        metrics = parts.learner.supervised(await demonstrations.batch(settings.batch_size))
        if settings.evaluate_every is not None and step % settings.evaluate_every == 0:
            await parts.publish()
            report = await evaluate_episodes(
                parts.eval_collector,
                parts.player(),
                parts.tasks.evaluation,
                episodes=settings.evaluate_episodes,
                split="warm-start",
                seed=derive_seed(seed, step),
            )
            require_evidence(report.trajectories, "of an evaluation in the warm start")
            success = report.success if report.success is not None else report.reward
            say(f"warm start  step {step:>4}/{settings.steps}  loss {metrics['loss']:.3f}  success {success:.3f}")
            if settings.stop_at_success is not None and success is not None and success >= settings.stop_at_success:
                break
    await parts.publish()
    parts.engine.stats()
    parts.collector.on_finished = hook
    return {
        "steps": step,
        "seconds": time.perf_counter() - started,
        "demonstrations": demonstrations.episodes,
        "demonstrations_success": demonstrations.successes / max(1, demonstrations.episodes),
        "stopped_at_success": success,
    }
