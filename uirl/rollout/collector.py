"""Many episodes at once: instances of the environment are reused, failed episodes are repeated, groups stay whole."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from uirl.environments.base import BaseEnvironment
from uirl.environments.session import EnvironmentSession
from uirl.errors import PromptTooLong, RolloutFailure
from uirl.images import ImageStore
from uirl.inference.models.chat import ChatRenderer
from uirl.parsers.base import ActionParser
from uirl.rollout.conversation import ContextWindow
from uirl.rollout.episode import Agent, EpisodeLimits, EpisodeSpec, derive_seed, run_episode
from uirl.rollout.reward import RewardFunction
from uirl.types import Failure, Trajectory

MakeAgent = Callable[[EpisodeSpec], Agent]


@dataclass(slots=True)
class Collector:
    """Runs episodes of one environment with one kind of agent."""

    environment: BaseEnvironment
    """The template: episodes run on instances it spawns."""
    chat: ChatRenderer
    parser: ActionParser
    images: ImageStore
    limits: EpisodeLimits = field(default_factory=EpisodeLimits)
    window: ContextWindow = field(default_factory=ContextWindow)
    reward_fn: RewardFunction | None = None
    parallel: int = 256
    """Most episodes at a time; see `at_once`."""
    retries: int = 1
    """How often an episode that failed is run again before its group goes without it."""
    step_timeout: float = 60.0
    reset_timeout: float = 120.0
    system_prompt: str | None = None
    """Replaces the environment's own prompt prefix; None: the environment's."""
    on_finished: Callable[[Trajectory], None] | None = None
    """Hears of every episode the moment it ends, failed attempts included: the place to write it down."""
    _idle: list[EnvironmentSession] = field(default_factory=list)
    _free: asyncio.Semaphore | None = None

    @property
    def at_once(self) -> int:
        """Episodes at a time: `parallel`, or fewer where the environment has a `max_parallel`."""
        most = self.environment.max_parallel
        return self.parallel if most is None else min(self.parallel, most)

    async def collect(self, specs: Sequence[EpisodeSpec], make_agent: MakeAgent) -> list[Trajectory]:
        """The trajectories of all `specs`, in their order; then those of failed attempts that were repeated."""
        if self._free is None:
            self._free = asyncio.Semaphore(self.at_once)
        free = self._free
        attempts: list[Trajectory] = []

        async def one(spec: EpisodeSpec) -> Trajectory:
            async with free:
                return await self._with_retries(spec, make_agent, attempts)

        tasks = [asyncio.ensure_future(one(spec)) for spec in specs]
        try:
            done = await asyncio.gather(*tasks)
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise
        return done + attempts

    async def _with_retries(self, spec: EpisodeSpec, make_agent: MakeAgent, attempts: list[Trajectory]) -> Trajectory:
        attempt = 0
        while True:
            trajectory = await self._run(_attempt(spec, attempt), make_agent)
            if self.on_finished is not None:
                self.on_finished(trajectory)
            failure = trajectory.failure
            # a first prompt that is too long is so again
            if failure is None or attempt >= self.retries or failure.kind == PromptTooLong.kind:
                return trajectory
            attempts.append(trajectory)
            attempt += 1

    async def _run(self, spec: EpisodeSpec, make_agent: MakeAgent) -> Trajectory:
        try:
            session = self._idle.pop() if self._idle else self._open()
        except RolloutFailure as error:
            failure = Failure(error.kind, str(error))
            return Trajectory(spec.trajectory_id, spec.task, [], "failure", spec.group_id, failure=failure)
        try:
            trajectory = await run_episode(
                session,
                make_agent(spec),
                self.chat,
                self.parser,
                spec,
                images=self.images,
                limits=self.limits,
                window=self.window,
                reward_fn=self.reward_fn,
                system_prompt=self.system_prompt,
            )
        except BaseException:
            await session.close()
            raise
        if session.broken or trajectory.failure is not None:
            with suppress(RolloutFailure):
                await session.close()
        else:
            self._idle.append(session)
        return trajectory

    def _open(self) -> EnvironmentSession:
        return EnvironmentSession(self.environment.spawn(), self.step_timeout, self.reset_timeout)

    async def close(self) -> None:
        """Closes every idle instance."""
        sessions, self._idle = self._idle, []
        for session in sessions:
            with suppress(RolloutFailure):
                await session.close()


def _attempt(spec: EpisodeSpec, attempt: int) -> EpisodeSpec:
    """The same task and instance with other draws, under an id that tells the attempts apart."""
    if attempt == 0:
        return spec
    seed = None if spec.sampling_seed is None else derive_seed(spec.sampling_seed, "attempt", attempt)
    return replace(spec, sampling_seed=seed, trajectory_id=f"{spec.trajectory_id}-r{attempt}")
