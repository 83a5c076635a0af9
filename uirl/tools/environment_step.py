"""`EnvironmentStepTool`: a step of an environment as a tool call."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from uirl.errors import ContractError
from uirl.results import read_step
from uirl.runtime.limits import shown
from uirl.tools.base import Tool, ToolError
from uirl.tools.definition import ToolDefinition
from uirl.types import Action, StepResult, ToolCall

_ACTION = {"type": "string", "description": "What to do."}
_ARGUMENTS = {"type": "object", "description": "Arguments of the action, by name."}


class EnvironmentStepTool(Tool):
    """Takes a step in an environment and returns what the agent then sees, as text.

    `environment` is anything with a `step` that returns (observation, reward, done, info), the five-tuple with
    terminated and truncated, or an object with `observation`, `reward`, `terminated` and `truncated`; it may be
    awaited. Who owns the environment resets it; `reset` of the tool begins a new count. A synchronous `step` runs on
    the caller's thread, where the environment was reset, and has no time limit.
    """

    def __init__(
        self, environment: Any, name: str = "environment_step", description: str = "", takes_action: bool | None = None
    ) -> None:
        """Wrap an environment.

        `takes_action`: `step` gets an `Action` with one call, made of `action` and `arguments`; False: a str. None: as
        the environment's `action_format` says ('text' or none at all: a str).
        """
        if not callable(getattr(environment, "step", None)):
            raise ContractError(f"{shown(environment)} has no step(action); EnvironmentStepTool cannot act on it")
        self.environment = environment
        self.takes_action = getattr(environment, "action_format", "text") != "text"
        if takes_action is not None:
            self.takes_action = takes_action
        properties = {"action": _ACTION} | ({"arguments": _ARGUMENTS} if self.takes_action else {})
        self.definition = ToolDefinition(
            name,
            description or "Takes one action in the environment and returns what is seen after it.",
            {"type": "object", "properties": properties, "required": ["action"]},
        )
        self.name, self.description = self.definition.name, self.definition.description
        self.runs_inline = not inspect.iscoroutinefunction(environment.step)
        self._clear()

    def execute(self, action: str, arguments: Mapping[str, Any] | None = None) -> Any:
        """Return the observation after `action`, as text. Raises `ToolError` after the end of the episode."""
        if self.done:
            raise ToolError("the episode is over; no further action is possible")
        step_input: Any = action
        if self.takes_action:
            step_input = Action(text=action, tool_calls=(ToolCall(action, dict(arguments or {})),))
        step = self.environment.step(step_input)
        return self._later(step) if inspect.isawaitable(step) else self._take(step)

    def reset(self, seed: int | None = None) -> None:
        """Forget the episode; the environment itself is reset by its owner."""
        self._clear()

    def spawn(self) -> EnvironmentStepTool:
        """Return a tool on an environment of its own: the environment's `spawn()`, else a deep copy."""
        if not callable(getattr(self.environment, "spawn", None)):
            copied = super().spawn()
            assert isinstance(copied, EnvironmentStepTool)
            copied._clear()
            return copied
        return type(self)(self.environment.spawn(), self.name, self.description, self.takes_action)

    def _clear(self) -> None:
        self.last_step: StepResult | None = None
        """The last one; None: nothing yet."""
        self.total_reward = 0.0
        self.steps = 0
        self.done = False

    async def _later(self, step: Any) -> str:
        return self._take(await step)

    def _take(self, step: Any) -> str:
        read = self.last_step = read_step(step, f"{type(self.environment).__name__}.step")
        self.total_reward += read.reward
        self.steps += 1
        self.done = read.done
        count = len(read.observation.images)
        note = f"[{count} picture{'s' if count != 1 else ''}, not shown: a tool returns text]" if count else ""
        return "\n".join(filter(None, (read.observation.text, note)))
