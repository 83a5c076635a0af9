"""An environment of ours as functions that other frameworks call: their schemas, and one episode played by calls.

What the adapters for TRL and for verl's tools have in common. A call that goes wrong by the model's hand answers like
any other; a failure of the environment is raised, typed, and stays on record: it is never a reward.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar

from uirl.environments.base import BaseEnvironment
from uirl.environments.registry import create_environment
from uirl.environments.session import EnvironmentSession
from uirl.environments.tool_use.environment import ToolEnvironment
from uirl.environments.ui.actions import ActionSpace
from uirl.errors import ConfigError, EnvironmentFailure, RolloutFailure
from uirl.parsers import ANSWER
from uirl.runtime.event_loop import EventLoopThread
from uirl.runtime.limits import shown
from uirl.tools.definition import ToolDefinition
from uirl.types import Action, Observation, StepResult, Task, ToolCall

T = TypeVar("T")

ACT = "act"
"""The function of an environment whose actions are plain text."""
OVER = "The episode is over."


def _takes_one_text(name: str, purpose: str, argument: str, meaning: str) -> ToolDefinition:
    properties = {argument: {"type": "string", "description": meaning}}
    return ToolDefinition(name, purpose, {"type": "object", "properties": properties, "required": [argument]})


_TEXT = _takes_one_text(
    ACT,
    "Does something in the environment and returns what is seen after it.",
    "action",
    "What to do, in the words the environment asks for.",
)
_ANSWER = _takes_one_text(ANSWER, "Gives the final answer.", "text", "The answer.")


def environment_of(environment: str | BaseEnvironment, options: Mapping[str, Any] | None = None) -> BaseEnvironment:
    """Return the environment of that name with these options, or the given one itself. Raises ConfigError."""
    if isinstance(environment, BaseEnvironment):
        if options:
            raise ConfigError("options belong to a name from the table of environments; got them beside an environment")
        return environment
    return create_environment(environment, options)


def functions_of(
    env: BaseEnvironment, schemas: Sequence[Mapping[str, Any]] | None = None
) -> tuple[ToolDefinition, ...]:
    """Return the functions through which an environment is played.

    `schemas` (as chat templates take them), else the environment's own tools with `answer`, else the actions of its
    user interface, else `act(action)` for one whose actions are text. Raises ConfigError where none of these is known.
    """
    listed = list(schemas if schemas is not None else env.tool_schemas())
    space = getattr(env, "space", None)
    if listed:
        found = [_read(schema) for schema in listed]
        if isinstance(env, ToolEnvironment) and all(one.name != ANSWER for one in found):
            found.append(_ANSWER)
        return tuple(found)
    if isinstance(space, ActionSpace):
        return tuple(_read(schema) for schema in space.schemas())
    if env.action_format == "text":
        return (_TEXT,)
    raise ConfigError(
        f"{type(env).__name__} reads actions of the format {env.action_format!r} and does not say which there are; "
        "give `schemas`, one JSON schema per action"
    )


class CalledEpisode:
    """Episodes of one environment, one after the other, played by calls of its functions."""

    def __init__(
        self,
        env: BaseEnvironment,
        schemas: Sequence[Mapping[str, Any]] | None = None,
        *,
        step_timeout: float = 60.0,
        reset_timeout: float = 120.0,
        cuts: bool = False,
    ) -> None:
        """`env` is not played itself: every instance plays a `spawn()` of it. Time limits are seconds. `cuts`: see
        `EnvironmentSession`."""
        self._env, self._schemas, self._cuts = env, schemas, cuts
        self._limits = {"step_timeout": step_timeout, "reset_timeout": reset_timeout}
        self._session: EnvironmentSession | None = None
        self._busy = asyncio.Lock()
        self._forget()

    def _forget(self) -> None:
        self.running = False
        """An episode has begun and is not over."""
        self.total = self._lowest = 0.0
        """Rewards of the episode so far; and the lowest of a step, at most 0."""
        self.success: bool | None = None
        """The environment's own word; None: it said nothing, or the episode failed."""
        self.failure: RolloutFailure | None = None
        """Why the episode is no evidence; None: nothing broke."""

    @cached_property
    def functions(self) -> dict[str, ToolDefinition]:
        """Name -> definition of every function. Raises ConfigError where the environment does not say which there are;
        those who only `act` need none."""
        return {one.name: one for one in functions_of(self._env, self._schemas)}

    @property
    def env(self) -> BaseEnvironment:
        """The instance that is played; before the first `reset` the one it is spawned from."""
        return self._env if self._session is None else self._session.env

    @property
    def mistake_reward(self) -> float:
        """Reward of a call that cannot be carried out: no more than any that could."""
        return min(self.env.mistake_reward, self._lowest)

    @property
    def reward(self) -> float | None:
        """The sum of the episode's rewards; None, never 0, where it failed."""
        return None if self.failure is not None else self.total

    async def reset(self, task: Task | None = None, seed: int | None = None) -> Observation:
        """Return the first observation of a new episode. Raises `EnvironmentFailure` or `EpisodeTimeout`."""
        async with self._busy:
            self._forget()
            if self._session is None:
                self._session = EnvironmentSession(self._env.spawn(), **self._limits, cuts=self._cuts)
            try:
                first = await self._session.reset(task, seed)
            except RolloutFailure as failure:
                await self._record_failure(failure)
                raise
            self.running = True
            return first

    async def call(self, name: str, arguments: Mapping[str, Any]) -> tuple[Observation, float]:
        """Return what is seen after a call, and its reward.

        Raises ValueError with a sentence for the model where the call cannot be carried out: the episode is over, or
        there is no such function or argument, which costs `mistake_reward`. Raises `EnvironmentFailure` or
        `EpisodeTimeout` where the environment fails, and again at every call after that.
        """
        result = await self._step(lambda: self._action(name, arguments))
        return result.observation, result.reward

    async def act(self, action: Action) -> StepResult:
        """Return the answer to an action as a policy's reply is parsed into one. Raises as `call` does."""
        return await self._step(lambda: action)

    async def _step(self, action: Callable[[], Action]) -> StepResult:
        async with self._busy:  # a model may write several calls at once: they are done one after the other
            if self.failure is not None:
                raise self.failure
            if not self.running:
                raise ValueError(OVER)
            assert self._session is not None
            try:
                taken = action()
            except ValueError:
                self.total += self.mistake_reward
                raise
            try:
                result = await self._session.step(taken)
            except RolloutFailure as failure:
                await self._record_failure(failure)
                raise
            self.total += result.reward
            self._lowest = min(self._lowest, result.reward)
            self.running = not result.done
            success = result.observation.info.get("success")
            self.success = self.success if success is None else bool(success)
            return result

    async def state_description(self) -> str:
        """Return the environment's state as text; empty where no instance is there. Raises as `act` does."""
        async with self._busy:
            return await self._session.state_description() if self._session is not None else ""

    async def close(self) -> None:
        """Free the environment. Calling it twice is fine, and so is another `reset` after it."""
        async with self._busy:
            session, self._session, self.running = self._session, None, False
            if session is not None:
                await session.close()

    def _action(self, name: str, arguments: Mapping[str, Any]) -> Action:
        if name not in self.functions:
            raise ValueError(f"there is no function {shown(name, 40)}; expected {', '.join(self.functions)}")
        present = {key: value for key, value in arguments.items() if value is not None}
        if name == ACT and self._schemas is None and self._env.action_format == "text":
            problem = self.functions[name].check(present)
            if problem is not None:
                raise ValueError(problem)
            return Action(text=present["action"])
        return Action(tool_calls=(ToolCall(name, present),))

    async def _record_failure(self, failure: RolloutFailure) -> None:
        """Keep the failure, and let the instance go that it happened to."""
        self.failure, self.running, self.success = failure, False, None
        session, self._session = self._session, None
        if session is not None:
            with contextlib.suppress(EnvironmentFailure):  # that a broken one does not close in order is no news
                await session.close()


class EpisodeThread:
    """Plays episodes for plain code, on an event loop thread that begins with the first call.

    `close` frees all episodes. An owner that is dropped without it (Gymnasium's users often do) takes thread and
    environments with it.
    """

    def __init__(self, *episodes: CalledEpisode) -> None:
        self.episodes = list(episodes)
        self._loop: EventLoopThread | None = None
        self._finalizer: weakref.finalize[Any, Any] | None = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what `work` returns or raises."""
        if self._loop is None:
            self._loop = EventLoopThread()
            self._finalizer = weakref.finalize(self, _abandon, self._loop, self.episodes)
            self._finalizer.atexit = False  # the process ends its threads itself
        return self._loop.run(work)

    def close(self) -> None:
        """Free all episodes; another `run` begins anew. Calling it twice is fine.

        Raises EnvironmentFailure, once all were asked, where one does not close in order.
        """
        loop, self._loop = self._loop, None
        if loop is None:
            return
        assert self._finalizer is not None
        self._finalizer.detach()
        try:
            loop.run(_close_all(self.episodes))
        finally:
            loop.close()


def _abandon(loop: EventLoopThread, episodes: Sequence[CalledEpisode]) -> None:
    loop.close_after(_close_all(episodes))


async def _close_all(episodes: Sequence[CalledEpisode]) -> None:
    problems = []
    for episode in episodes:
        try:
            await episode.close()
        except RolloutFailure as problem:
            problems.append(problem)
    if problems:
        raise problems[0]


def words_of(observation: Observation, over: bool = False) -> str:
    """Return the text of an observation, answers to calls first; `over` adds that the episode has ended."""
    answers = [result.text for result in observation.tool_results]
    return "\n".join(part for part in (*answers, observation.text, OVER if over else "") if part)


def _read(schema: Mapping[str, Any]) -> ToolDefinition:
    function = schema.get("function", schema)
    try:
        parameters = function.get("parameters", {"type": "object", "properties": {}})
        return ToolDefinition(function["name"], function.get("description", ""), parameters)
    except (KeyError, AttributeError) as error:
        raise ConfigError(
            f"a function has no name: {shown(schema, 80)}; expected {{'name': ..., 'parameters': ...}}"
        ) from error
