"""Tools that act on the environment they stand beside: their steps are steps of the episode."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace
from typing import Any

from uirl.environments.results import read_step
from uirl.environments.session import EnvironmentSession
from uirl.tools import EnvironmentStepTool, Tool, ToolRegistry
from uirl.types import Action, Observation, StepResult, ToolCall, ToolResult


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
    step = read_step(tool.last_step, f"{type(tool.environment).__name__}.step")
    seen = step.observation
    if seen.images:
        result = replace(result, result=seen.text)
    return result, replace(step, observation=Observation("", seen.images, seen.info, seen.tool_results))
