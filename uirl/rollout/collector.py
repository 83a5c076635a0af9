"""Many episodes at once: instances of the environment are reused, failed episodes are repeated, groups stay whole."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from uirl.config import EnvironmentConfig, InferenceConfig, RolloutConfig
from uirl.environments.base import BaseEnvironment
from uirl.environments.session import EnvironmentSession
from uirl.errors import RolloutFailure, is_round
from uirl.images import ImageStore
from uirl.inference.models.chat import ChatRenderer
from uirl.inference.models.loading import LoadedModel
from uirl.parsers import create_parser
from uirl.parsers.base import ActionParser
from uirl.rollout.attempts import play_all
from uirl.rollout.conversation import ContextWindow
from uirl.rollout.episode import Agent, EpisodeLimits, EpisodeOptions, EpisodeSpec, run_episode
from uirl.rollout.reward import RewardFunction
from uirl.types import Failure, Trajectory

_LOG = logging.getLogger(__name__)

MakeAgent = Callable[[EpisodeSpec], Agent]


class EpisodePlayer(Protocol):
    """Plays episodes that no update learns from: what `Channel.player` returns."""

    on_finished: Callable[[Trajectory], None] | None
    """Callback: called with every episode as it ends."""

    async def collect(self, specs: Sequence[EpisodeSpec]) -> list[Trajectory]:
        """Return the trajectories of all `specs`, in their order; then those of failed attempts that were repeated."""
        ...


def chat_for(loaded: LoadedModel, environment: BaseEnvironment) -> ChatRenderer:
    """Return the chat template of a model with the tools that the policy of this environment may call. Raises
    ContractError for a template that leaves out part of the messages."""
    return ChatRenderer(loaded, environment.tool_schemas(), calls=create_parser(environment.action_format))


@dataclass(slots=True)
class Collector:
    """Runs episodes of one environment with one kind of agent."""

    environment: BaseEnvironment
    """The template: episodes run on instances it spawns."""
    chat: ChatRenderer
    parser: ActionParser
    images: ImageStore
    options: EpisodeOptions = field(default_factory=EpisodeOptions)
    parallel: int = 256
    """Most episodes at a time; see `at_once`."""
    retries: int = 1
    """How often an episode that failed is run again before its group goes without it."""
    step_timeout: float = 60.0
    reset_timeout: float = 120.0
    on_finished: Callable[[Trajectory], None] | None = None
    """Callback: called with every episode as it ends, failed attempts included."""
    _idle: list[EnvironmentSession] = field(default_factory=list)
    _slots: asyncio.Semaphore | None = None
    _unclosed: Counter[str] = field(default_factory=Counter)
    """Of copies of this collector too, as is the next."""
    _given_up: list[EnvironmentSession] = field(default_factory=list)

    @classmethod
    def from_config(
        cls,
        rollout: RolloutConfig,
        settings: EnvironmentConfig,
        environment: BaseEnvironment,
        chat: ChatRenderer,
        images: ImageStore,
        options: EpisodeOptions,
        *,
        workers: int = 1,
    ) -> Collector:
        """Return the collector of a run's episodes in `environment`; `workers` processes share `rollout.parallel`."""
        return cls(
            environment=environment,
            chat=chat,
            parser=create_parser(environment.action_format),
            images=images,
            options=options,
            parallel=math.ceil(rollout.parallel_limit / workers),
            retries=rollout.repeats,
            step_timeout=settings.timeouts[0],
            reset_timeout=settings.timeouts[1],
        )

    @property
    def at_once(self) -> int:
        """Episodes at a time: `parallel`, or fewer where the environment has a `max_parallel`."""
        limit = self.environment.max_parallel
        return self.parallel if limit is None else min(self.parallel, limit)

    @property
    def stuck(self) -> int:
        """Instances of which a call that was given up has not come back: each occupies a thread, and maybe computes."""
        self._given_up[:] = [session for session in self._given_up if session.stuck]
        return len(self._given_up)

    async def collect(self, specs: Sequence[EpisodeSpec], make_agent: MakeAgent) -> list[Trajectory]:
        """Return the trajectories of all `specs`, in their order; then those of failed attempts that were repeated."""
        return await play_all(
            specs,
            lambda spec: self.play_once(spec, make_agent(spec)),
            slots=self.slots,
            retries=self.retries,
            on_finished=self.on_finished,
        )

    @property
    def slots(self) -> asyncio.Semaphore:
        """The places for `at_once` episodes."""
        if self._slots is None:
            self._slots = asyncio.Semaphore(self.at_once)
        return self._slots

    async def play_once(self, spec: EpisodeSpec, agent: Agent) -> Trajectory:
        """Play one attempt at one episode, on an instance that is idle or on a new one."""
        try:
            session = self._idle.pop() if self._idle else self._open()
        except RolloutFailure as error:
            return not_begun(spec, error)
        try:
            trajectory = await run_episode(
                session, agent, self.chat, self.parser, spec, images=self.images, options=self.options
            )
        except BaseException:
            await self._close_broken(session)
            raise
        if session.broken or trajectory.failure is not None:
            await self._close_broken(session)
        else:
            self._idle.append(session)
        return trajectory

    def for_variant(self, environment: BaseEnvironment) -> Collector:
        """Return a collector like this one, with instances of its own, for a variant of the environment."""
        parser = create_parser(environment.action_format)
        return replace(self, environment=environment, parser=parser, _idle=[])

    def _open(self) -> EnvironmentSession:
        return EnvironmentSession(self.environment.spawn(), self.step_timeout, self.reset_timeout)

    async def _close_broken(self, session: EnvironmentSession) -> None:
        if session.stuck:
            self._given_up.append(session)
        error = await _failure_to_close(session)
        if error is None:
            return
        self._unclosed[error.kind] += 1
        if is_round(count := self._unclosed[error.kind]):
            _LOG.warning("environments that could not be closed after a failure: %d so far; the last: %s", count, error)

    async def close(self) -> None:
        """Close every idle instance, all at once. What cannot be closed is left, and logged."""
        sessions, self._idle = self._idle, []
        failures = [error for error in await asyncio.gather(*map(_failure_to_close, sessions)) if error is not None]
        if failures:
            _LOG.warning("of %d environments %d could not be closed: %s", len(sessions), len(failures), failures[0])


async def _failure_to_close(session: EnvironmentSession) -> RolloutFailure | None:
    try:
        await session.close()
    except RolloutFailure as error:
        return error
    return None


def not_begun(spec: EpisodeSpec, error: RolloutFailure) -> Trajectory:
    """Return the record of an attempt at an episode of which nothing was played."""
    failure = Failure(error.kind, str(error))
    return Trajectory(spec.trajectory_id, spec.task, [], "failure", spec.group_id, failure=failure, level=spec.level)


def options_of(
    turns: int, rollout: RolloutConfig, inference: InferenceConfig, reward_fn: RewardFunction | None
) -> EpisodeOptions:
    """Return how the config says that episodes are played, with at most `turns` turns."""
    return EpisodeOptions(
        limits=EpisodeLimits(turns, rollout.max_tokens, rollout.max_seconds),
        window=ContextWindow(rollout.max_images, rollout.token_budget, rollout.keep_images),
        reward_fn=reward_fn,
        system_prompt=inference.system_prompt,
        fed_as_learner=inference.backend != "openai",
    )
