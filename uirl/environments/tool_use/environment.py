"""`ToolEnvironment`: tools, and what there is to do with them."""

from __future__ import annotations

import copy
import inspect
import json
import math
import random
from collections.abc import Container, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

from uirl.environments.base import BaseEnvironment
from uirl.environments.session import EnvironmentSession
from uirl.errors import ConfigError
from uirl.parsers import ANSWER, ActionParser, create_parser
from uirl.results import read_step
from uirl.tools import EnvironmentStepTool, Tool, ToolRegistry
from uirl.tools.registry import run_at_once
from uirl.types import Action, Observation, StepResult, Task, ToolCall, ToolResult


class _Door:
    """The environment of a session, as `EnvironmentStepTool` wants it: it acts on the thread of the environment."""

    def __init__(self, session: EnvironmentSession) -> None:
        self._session = session
        self.action_format = session.env.action_format

    async def step(self, action: Action | str) -> StepResult:
        return await self._session.step(action if isinstance(action, Action) else Action(text=action))


def acting_on(environment: Any, registry: ToolRegistry) -> frozenset[str]:
    """Return the names of the tools that take steps in `environment`."""
    steps = (tool for tool in registry if isinstance(tool, EnvironmentStepTool))
    return frozenset(tool.name for tool in steps if tool.environment is environment)


def bind(registry: ToolRegistry, session: EnvironmentSession | None, names: Container[str]) -> ToolRegistry:
    """Return the registry in which the tools called `names` act through `session`; itself where there are none."""
    if session is None or not any(tool.name in names for tool in registry):
        return registry
    return ToolRegistry(_bound(tool, session) if tool.name in names else tool for tool in registry)


class _StepThroughSession(EnvironmentStepTool):
    """Awaited on the event loop; no thread of its own."""

    async def execute(self, action: str, arguments: Mapping[str, Any] | None = None) -> Any:
        return await super().execute(action, arguments)


def _bound(tool: Tool, session: EnvironmentSession) -> Tool:
    assert isinstance(tool, EnvironmentStepTool)
    made = _StepThroughSession(_Door(session), tool.name, tool.description, tool.takes_action)
    made.timeout, made.max_result_chars = tool.timeout, tool.max_result_chars
    return made


async def run(registry: ToolRegistry, call: ToolCall) -> tuple[ToolResult, StepResult | None]:
    """Return (result of the call, the step that it took in an environment). Raises what `ToolRegistry.call` raises.

    The text of the step stands in the result; its observation keeps the pictures, which a tool cannot return.
    """
    tool = next((tool for tool in registry if tool.name == call.name), None)
    before = tool.steps if isinstance(tool, EnvironmentStepTool) else 0
    result = await registry.call(call)
    if not isinstance(tool, EnvironmentStepTool) or tool.steps == before:
        return result, None
    step = tool.last_step
    assert step is not None
    seen = step.observation
    if seen.images:
        result = replace(result, result=seen.text)
    return result, replace(step, observation=Observation("", seen.images, seen.info, seen.tool_results))


Describe = Literal["template", "prompt", "none"]


class ToolEnvironment(BaseEnvironment):
    """Tools, and optionally an environment that the answers go to.

    Every call of a reply is executed in order; the results stand in `Observation.tool_results` of what the policy sees
    next. Calls that cannot be read, unknown tools and wrong arguments are observations; a reply of which nothing could
    be done pays `mistake_reward`, 0 where steps cost nothing. A reply without a call (or with the call `answer`) is
    the answer: it goes to the inner environment as its action, else to `judge`. Rewards and the
    end of the inner environment pass through, also where a tool acted on it; what a reply calls after the end is not
    executed.

    For a task of your own write `ask` and `judge`, and `expert_action` for a warm start.
    """

    runs_inline = True  # nothing here blocks: what may take long is awaited

    def __init__(
        self,
        config: Any = None,
        *,
        registry: ToolRegistry | Iterable[Any] = (),
        environment: BaseEnvironment | None = None,
        action_format: str | ActionParser = "qwen",
        describe: Describe = "template",
        instructions: str = "",
        max_turns: int | None = None,
    ) -> None:
        """Raise ConfigError for an option that does not fit.

        `registry`: a ToolRegistry, or tools and functions. Registry and environment are used as they are; parallel
        episodes get a `spawn()` of both. `action_format`: the parser by name, or the object where the caller parses
        himself. `describe`: how the policy hears of its tools: from the chat template ('template'), in the system
        prompt together with how a call is written ('prompt'), or not at all ('none'), for tiny models that pay for
        every token and learn the calls from demonstrations. `instructions` open the system prompt.
        """
        super().__init__(config)
        if describe not in get_args(Describe):
            raise ConfigError(f"describe must be one of {get_args(Describe)}, got {describe!r}")
        if max_turns is not None and (isinstance(max_turns, bool) or not isinstance(max_turns, int) or max_turns < 1):
            raise ConfigError(f"max_turns must be a positive int, or None for the run's limit alone; got {max_turns!r}")
        self.registry = registry if isinstance(registry, ToolRegistry) else ToolRegistry(registry)
        """The tools of the current episode; `ask` may put others in their place."""
        self.max_turns = max_turns
        self._format = action_format
        self.action_format = _name_of(action_format)  # type: ignore[misc]
        self._describe, self._instructions = describe, instructions
        self._inner = None if environment is None else _unlimited(environment)
        self._acting = acting_on(environment, self.registry)
        self._running = bind(self.registry, self._inner, self._acting)
        self._question = ""
        self._results: list[ToolResult] = []
        self._lowest = 0.0  # reward of a step of the inner environment in this episode, at most 0

    def ask(self, rng: random.Random, task: Task | None) -> Any:
        """Return the first observation of an episode, where there is no inner environment. Default: the task's goal."""
        return task.goal if task is not None else ""

    def judge(self, answer: str) -> Any:
        """Return what a `step` returns, for an answer where there is no inner environment; may be awaitable.

        Default: the episode ends, nothing is paid and nothing is said about success. A subclass that judges says
        `info['success']`; episodes that end without an answer are then unsolved.
        """
        return "", 0.0, True, {}

    def note(self, results: Sequence[ToolResult]) -> None:
        """Take the results of every turn, also where there are none: for a demonstrator that goes by them."""

    def reset(self, task: Task | None = None, seed: int | None = None) -> Any:
        """Return the first observation: of the inner environment, else of `ask`; awaitable where something waits."""
        self._results, self._lowest = [], 0.0
        if self._inner is not None:
            self._running.reset(seed)
            return self._at_once(self._inner.reset(task, seed))
        first = self.ask(random.Random(seed), task)
        self._running = self.registry
        self._running.reset(seed)
        self._question = first.text if isinstance(first, Observation) else str(first)
        return first

    def adopt(self) -> None:
        """Continue an episode that somebody began by resetting the inner environment himself."""
        self._results, self._lowest = [], 0.0
        if self._inner is not None:
            self._inner.adopt()

    def step(self, action: Action) -> Any:
        """Return a StepResult: what the calls returned, or what the answer led to; awaitable where something waits."""
        return self._at_once(self._step(action))

    async def _step(self, action: Action) -> StepResult:
        if action.parse_error is not None:
            result = self._nothing_happened(Observation(action.parse_error), self.mistake_reward)
        elif action.tool_calls:
            result = await self._execute(action.tool_calls)
        else:
            result = await self._answer(Action(text=action.answer, thought=action.thought))
        self._lowest = min(self._lowest, result.reward)
        self.note(result.observation.tool_results)
        return result

    async def _execute(self, calls: Sequence[ToolCall]) -> StepResult:
        """Execute all calls in order, up to the end of the episode, as one step."""
        results: list[ToolResult] = []
        taken: list[StepResult] = []
        for call in calls:
            if self._is_answer(call):
                taken.append(await self._answer(Action(text=str(call.arguments.get("text", "")))))
            else:
                result, step = await run(self._running, call)
                results.append(result)
                taken += [] if step is None else [step]
            if taken and taken[-1].done:
                break
        self._results += results
        return self._together(results, taken)

    async def get_state_description(self) -> str:  # type: ignore[override]
        """Return the inner environment's description; else the question and every call so far."""
        if self._inner is not None:
            return await self._inner.state_description()
        calls = [f"{r.name}({json.dumps(dict(r.arguments))}) -> {r.text}" for r in self._results]
        return "\n".join([self._question, *calls])

    def get_prompt_prefix(self) -> str:
        parts = [self._instructions, "" if self._inner is None else self._inner.env.get_prompt_prefix()]
        if self._describe == "prompt":
            parser = create_parser(self._format) if isinstance(self._format, str) else self._format
            parts += [self.registry.describe(), parser.describe()]
        return "\n\n".join(filter(None, parts))

    def tool_schemas(self) -> Sequence[Mapping[str, Any]]:
        return self.registry.schemas() if self._describe == "template" else ()

    def callable_tools(self) -> Sequence[Mapping[str, Any]]:
        return self.registry.schemas()

    def tasks(self) -> Sequence[Task] | None:
        return None if self._inner is None else self._inner.env.tasks()

    def controls(self) -> Mapping[str, BaseEnvironment | Action | str]:
        """Return the controls of the inner environment: its variants with the same tools, and its constant texts."""
        inner = {} if self._inner is None else self._inner.env.controls()
        found: dict[str, BaseEnvironment | Action | str] = {}
        for name, control in inner.items():
            if isinstance(control, BaseEnvironment):
                found[name] = self._around(control)
            elif isinstance(control, str):
                found[name] = control
        return found

    def spawn(self) -> ToolEnvironment:
        """Return another instance, with a `spawn()` of every tool and of the inner environment."""
        return self._around(None if self._inner is None else self._inner.env.spawn())

    async def close(self) -> None:  # type: ignore[override]
        """Close the inner environment and every tool."""
        try:
            if self._inner is not None:
                await self._inner.close()
        finally:
            await self._running.close()

    def _around(self, environment: BaseEnvironment | None) -> ToolEnvironment:
        """Return a copy of this one with fresh tools around `environment`."""
        if self._acting:  # these act through the session of the copy: their own environments stay unused
            registry = ToolRegistry(t if t.name in self._acting else t.spawn() for t in self.registry)
        else:
            registry = self.registry.spawn()
        inner = None if environment is None else _unlimited(environment)
        replaced = [
            (self.registry, registry),
            (self._inner, inner),
            (self._running, bind(registry, inner, self._acting)),
        ]
        return copy.deepcopy(self, {id(old): new for old, new in replaced if old is not None})

    def _at_once(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Return what `work` returns, where nothing in it waits, else `work` itself: what is awaited comes back only
        after other episodes had their turn, which takes a batch of quick ones apart."""
        if self.may_wait():
            return work
        return run_at_once(
            work,
            f"{type(self).__name__}: a tool, an environment or a judge that is said to be quick waited; make it "
            "`async def`, or set runs_inline to False",
        )

    def may_wait(self) -> bool:
        """Return whether a step may have to be awaited: else what it returns is there at once."""
        if not all(tool.never_waits for tool in self._running):
            return True
        if self._inner is None:
            return inspect.iscoroutinefunction(self.judge)
        env = self._inner.env
        waits = inspect.iscoroutinefunction(env.reset) or inspect.iscoroutinefunction(env.step)
        return waits or not env.runs_inline or isinstance(env, ToolEnvironment)

    def _is_answer(self, call: ToolCall) -> bool:
        return call.name == ANSWER and ANSWER not in self.registry

    async def _answer(self, action: Action) -> StepResult:
        if self._inner is not None:
            return await self._inner.step(action)
        value = self.judge(action.text)
        return read_step(await value if inspect.isawaitable(value) else value, f"{type(self).__name__}.judge")

    def _together(self, results: list[ToolResult], taken: list[StepResult]) -> StepResult:
        """Return one step made of tool results and of what the inner environment went through."""
        if not taken:
            done = any(result.success for result in results)
            return self._nothing_happened(
                Observation(tool_results=tuple(results)), 0.0 if done else self.mistake_reward
            )
        last = taken[-1]
        seen = last.observation
        words = [one.observation.info["success"] for one in taken if "success" in one.observation.info]
        info = {**seen.info, "success": words[-1]} if words else seen.info  # the last word, though not of the last step
        observation = Observation(seen.text, seen.images, info, (*results, *seen.tool_results))
        return StepResult(observation, sum(t.reward for t in taken), last.terminated, last.truncated)

    @property
    def mistake_reward(self) -> float:  # type: ignore[override]
        """Reward of a reply of which nothing could be done: that of the inner environment, no more than its lowest one
        of the episode."""
        return min(0.0 if self._inner is None else self._inner.env.mistake_reward, self._lowest)

    def _nothing_happened(self, observation: Observation, reward: float) -> StepResult:
        judged = self._inner is None and type(self).judge is not ToolEnvironment.judge
        info = {"success": False} if judged else {}
        return StepResult(Observation(observation.text, (), info, observation.tool_results), reward)


def _unlimited(environment: BaseEnvironment) -> EnvironmentSession:
    # the session around the ToolEnvironment has the time limits; when it gives up, this one is cancelled with it
    return EnvironmentSession(environment, math.inf, math.inf)


def _name_of(action_format: str | ActionParser) -> str:
    if isinstance(action_format, str):
        if action_format == "text":
            raise ConfigError("action_format 'text' knows no calls; expected 'qwen', 'json', 'react', ... or a parser")
        return action_format
    if not isinstance(action_format, ActionParser):
        raise ConfigError(f"action_format must be the name of a parser or a parser, got {action_format!r:.60}")
    return f"<{type(action_format).__name__}>"
