"""`EnvironmentSession`: the one place where the freedom of `BaseEnvironment` becomes the strict nouns."""

from __future__ import annotations

import inspect
import math
import sysconfig
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from uirl.environments.base import BaseEnvironment
from uirl.errors import ConfigError, ContractError, EnvironmentFailure, EpisodeTimeout, RolloutFailure
from uirl.results import describe, read_reset, read_score, read_step, read_text, with_notes
from uirl.runtime.limits import in_words, shown
from uirl.runtime.time_limits import TimedOut, Worker, as_raised, contained, within
from uirl.types import Action, Observation, StepResult, Task

_Read = Callable[[Any, str], Any]
"""(what a method returned, where) -> the strict value. Raises EnvironmentFailure."""
_LIBRARIES = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
"""Folders of code that is nobody's own."""
CLOSE_SECONDS = 30.0
"""Longest that anybody waits for an environment to close, whatever its `reset_timeout`: a run that was told to end does
not have longer."""
_PARAMETERS: WeakKeyDictionary[Callable[..., Any], Mapping[str, inspect.Parameter]] = WeakKeyDictionary()
"""Function -> parameters of its bound method: `inspect.signature` takes longer than many a `reset`."""


class EnvironmentSession:
    """One environment instance, played by one caller at a time: strict values out, typed failures, time limits.

    Make one session per instance and keep it for all its episodes: the instance stays on the session's thread. After
    a failure or a time-out the session is `broken` and refuses further calls; take a fresh `spawn()` instead. An
    environment with `runs_inline` is called directly on the event loop and cannot be cut off.
    """

    def __init__(
        self, env: BaseEnvironment, step_timeout: float = 60.0, reset_timeout: float = 120.0, *, cuts: bool = False
    ) -> None:
        """Wrap `env`; `step_timeout` and `reset_timeout` in seconds. `cuts`: its `max_turns` ends an episode also where
        it leaves that to whoever plays it. Raises ContractError for what is no `BaseEnvironment`."""
        if not isinstance(env, BaseEnvironment):
            raise ContractError(
                f"an environment must be an instance of a BaseEnvironment subclass, got {shown(env, 80)}; "
                "a Gymnasium environment goes through GymnasiumEnvironment"
            )
        self._limits = {"step_timeout": step_timeout, "reset_timeout": reset_timeout}
        for name, seconds in self._limits.items():
            if not seconds > 0:
                raise ContractError(f"{name} must be positive seconds, got {seconds!r}")
        self.env, self._cuts, self._turns = env, cuts, 0
        env._step_limit = step_timeout
        self._worker = Worker(f"environment-{type(env).__name__}")
        self._broken: str | None = None
        self._state = "new"  # new -> running -> done -> running ...; abandoned: a call may still run; closed
        self.seconds = 0.0
        """That the environment itself took in all calls that returned, on its thread or in what it awaited."""

    @property
    def broken(self) -> bool:
        """Whether an earlier call failed, hung or was cancelled half-way."""
        return self._broken is not None

    @property
    def stuck(self) -> bool:
        """Whether a call that was given up still occupies the session's thread."""
        return self._worker.busy

    async def reset(self, task: Task | None = None, seed: int | None = None) -> Observation:
        """Return the first observation of a new episode, its images as screenshots.

        `seed` None takes the task's. What is None is not handed to the environment (its own default counts), except
        where its `reset` has no default. Raises `EnvironmentFailure` or `EpisodeTimeout`, and the
        environment's `ConfigError` (a missing package), which is for the person.
        """
        self._refuse_unusable("reset")
        self._state = "new"
        self.env._done = False
        if seed is None and task is not None:
            seed = task.seed
        arguments = reset_arguments(self.env, task, seed)
        observation: Observation = await self._call("reset", self._read_reset, **arguments)
        self._state, self._turns = "running", 0
        return observation

    def adopt(self) -> None:
        """Continue an episode that somebody began by resetting the environment himself."""
        self._refuse_unusable("adopt")
        self._state = "running"

    async def step(self, action: Action) -> StepResult:
        """Return the environment's answer to `action`; `info` of the tuple stands in `observation.info`.

        Raises `EnvironmentFailure`, `EpisodeTimeout`, or ContractError for a step outside of an episode.
        """
        self._refuse_unusable("step")
        if self._state != "running":
            when = "after the end of the episode" if self._state == "done" else "first"
            raise ContractError(f"{self._name}: step was called {when}; expected reset() before it")
        given: Action | str = action
        if self._takes_text:
            # what is read as calls has its thought before them, and whoever takes the text reads them himself
            given = action.text if action.tool_calls or action.parse_error else action.answer
        result: StepResult = await self._call("step", self._read_step, given)
        self._turns += 1
        if self._cuts and not result.done:
            result = self._cut(result)
        if result.done:
            self._state = "done"
        return result

    async def expert_action(self) -> Action | None:
        """Return what the environment's demonstrator would do now; None: it has none, or none for this state."""
        self._refuse_unusable("expert_action")

        def read(value: Any, where: str) -> Action | None:
            if value is None or isinstance(value, Action):
                return value
            if isinstance(value, str) and self._takes_text:
                return Action(text=value)
            expected = (
                "a str or an Action" if self._takes_text else "an Action (for example Action.of('click', x=3, y=4))"
            )
            raise EnvironmentFailure(f"{where} returned {describe(value)}; expected {expected}")

        action: Action | None = await self._call("expert_action", read)
        return action

    async def score(self) -> tuple[float, dict[str, Any]] | None:
        """End the episode here; return what its last action is worth, and what is to be noted; None: that is not known.

        Raises `EnvironmentFailure`, `EpisodeTimeout`, or ContractError outside of an episode.
        """
        self._refuse_unusable("score_now")
        if self._state != "running":
            raise ContractError(f"{self._name}: score_now was called outside of an episode; expected reset() before it")
        scored: tuple[float, dict[str, Any]] | None = await self._call("score_now", read_score)
        self._state = "done"
        return scored

    async def state_description(self) -> str:
        """Return the environment's state as text."""
        self._refuse_unusable("get_state_description")
        text: str = await self._call("get_state_description", read_text)
        return text

    async def close(self) -> None:
        """Close the environment and end its thread; a second call does nothing.

        An instance that hangs is closed by its own thread if it ever comes back. Raises `EnvironmentFailure` where
        closing fails, and `EpisodeTimeout` where it takes longer than `reset_timeout`, or `CLOSE_SECONDS`.
        """
        if self._state == "closed":
            return
        abandoned, self._state = self._state == "abandoned", "closed"
        try:
            if abandoned and self._needs_thread(self.env.close):
                self._worker.post(self.env.close)
            else:
                await self._call("close", lambda value, where: None)
        finally:
            self._worker.stop()

    def _read_reset(self, value: Any, where: str) -> Observation:
        return self._with_key(read_reset(value, where))

    def _read_step(self, value: Any, where: str) -> StepResult:
        result = read_step(value, where)
        # after the end nobody acts: there is no state to compare
        if result.done or (seen := self._with_key(result.observation)) is result.observation:
            return result
        return StepResult(seen, result.reward, result.terminated, result.truncated)

    def _with_key(self, observation: Observation) -> Observation:
        """Return the observation with the environment's `state_key`, where it has one."""
        key = self.env.state_key()
        if key is not None and not isinstance(key, str):
            raise EnvironmentFailure(f"{self._name}.state_key returned {describe(key)}; expected a str, or None")
        return observation if key is None else with_notes(observation, observation.info, key)

    def _cut(self, result: StepResult) -> StepResult:
        """Return the result, truncated if it is the last turn. What is scored at its end is not ended from outside."""
        limit = self.env.max_turns
        if limit is None or self._turns < limit or self.env.scored_at_end:
            return result
        info = {**result.observation.info, "out_of_turns": True}
        return replace(result, observation=replace(result.observation, info=info), truncated=True)

    @property
    def _name(self) -> str:
        return type(self.env).__name__

    @property
    def _takes_text(self) -> bool:
        return self.env.action_format == "text"

    def _needs_thread(self, function: Callable[..., Any]) -> bool:
        return not self.env.runs_inline and not inspect.iscoroutinefunction(function)

    def _refuse_unusable(self, method: str) -> None:
        if self._broken is not None:
            raise EnvironmentFailure(
                f"{self._name}.{method} refused: the session broke earlier ({self._broken}); start a fresh spawn()"
            )
        if self._state == "closed":
            raise ContractError(f"{self._name}.{method} was called after close(); start a fresh spawn()")

    async def _call(self, method: str, read: _Read, *args: Any, **kwargs: Any) -> Any:
        """Call the method; return what `read` makes of its answer. Failures are typed and mark the session broken."""
        where = f"{self._name}.{method}"
        option = "reset_timeout" if method in ("reset", "close", "score_now") else "step_timeout"
        limit = min(self._limits[option], CLOSE_SECONDS if method == "close" else math.inf)
        try:
            function = getattr(self.env, method)
            return await self._answer(
                partial(function, *args, **kwargs), self._needs_thread(function), read, where, limit
            )
        except TimedOut:
            self._abandon(f"{where} did not return within {limit:g} s")
            raise EpisodeTimeout(f"{self._broken}; {_late_remedy(method, option)}") from None
        except (RolloutFailure, ConfigError) as error:
            self._broken = str(error)
            raise
        except Exception as error:  # an environment must not end the run
            raised = as_raised(error)
            self._broken = f"{where} raised {in_words(raised)}{_place(raised)}"
            raise EnvironmentFailure(f"{self._broken}; {_remedy(method)}") from raised
        except BaseException:
            self._abandon(f"{where} was cancelled half-way")
            raise

    def _abandon(self, why: str) -> None:
        self._broken = why
        if self._state != "closed":
            self._state = "abandoned"

    async def _answer(self, call: Callable[[], Any], on_thread: bool, read: _Read, where: str, limit: float) -> Any:
        def work() -> tuple[bool, Any]:
            started = time.perf_counter()
            value = call()
            self.seconds += time.perf_counter() - started
            waits = inspect.isawaitable(value)
            return waits, value if waits else read(value, where)

        waits, value = await self._worker.run(work, limit) if on_thread else contained(work)
        if not waits:
            return value
        started = time.perf_counter()
        value = await within(value, limit)
        self.seconds += time.perf_counter() - started
        return read(value, where)


def reset_arguments(env: BaseEnvironment, task: Task | None, seed: int | None) -> dict[str, Any]:
    """Return the keyword arguments of `task` and `seed` that this environment's `reset` accepts."""
    parameters = _parameters_of(env.reset)
    catches_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    arguments: dict[str, Any] = {}
    for name, value in (("task", task), ("seed", seed)):
        parameter = parameters.get(name)
        if parameter is None or parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            wanted = catches_all and value is not None
        else:
            wanted = value is not None or parameter.default is parameter.empty
        if wanted:
            arguments[name] = value
    return arguments


def _parameters_of(method: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a method; those of one function are looked up once for all its instances."""
    function = getattr(method, "__func__", None)
    if function is None:
        return inspect.signature(method).parameters
    if function not in _PARAMETERS:
        _PARAMETERS[function] = inspect.signature(method).parameters
    return _PARAMETERS[function]


def _place(raised: BaseException) -> str:
    """Return ' (file:line)' where an environment raised: its own line where a library did it."""
    frames = traceback.extract_tb(raised.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_LIBRARIES)] or frames
    return f" ({own[-1].filename}:{own[-1].lineno})" if own else ""


def _late_remedy(method: str, option: str) -> str:
    if method == "close":
        return "find what it waits for"
    remedy = f"raise environment.{option} or find what it waits for"
    return remedy if method == "reset" else f"{remedy}. If it computes, it slows its process down: docs/failures.md"


def _remedy(method: str) -> str:
    if method == "step":
        return "a mistake of the model belongs in the observation, not in an exception"
    return "the environment, not the model, must be mended"
