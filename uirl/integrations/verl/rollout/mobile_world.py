"""Phones as an agent loop that verl drives, or that plays on its own against a model behind a server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from verl.experimental.agent_loop.agent_loop import register

from uirl.environments import BaseEnvironment
from uirl.errors import ContractError
from uirl.integrations.mobile_world import MobileWorldAgentLoop as AgentLoopAlone
from uirl.integrations.verl.rollout.agent_loop import EnvironmentAgentLoop

AGENT = "mobile_world"
"""Name under which verl knows the loop."""


@register(AGENT)
class MobileWorldAgentLoop(EnvironmentAgentLoop):
    """An `EnvironmentAgentLoop` that can also play without verl's trainer: `MobileWorldAgentLoop(env=...)`.

    Under verl a row names the environment ('mobile_world'), as for every loop of ours; the reply format is the
    environment's (`action_format`). On its own it is `uirl.MobileWorldAgentLoop`.
    """

    def __init__(
        self, *arguments: Any, env: BaseEnvironment | str | Sequence[str] | None = None, **options: Any
    ) -> None:
        """Take the options of `uirl.MobileWorldAgentLoop` with `env`, and without it what verl passes to an agent
        loop."""
        self.alone = None if env is None else AgentLoopAlone(env, *arguments, **options)
        if env is None:
            super().__init__(*arguments, **options)

    def run_full_interaction(
        self, interaction_id: str, task_name: str | None = None, *, seed: int | None = None
    ) -> dict[str, Any]:
        """Play one task and return how it went, see `uirl.MobileWorldAgentLoop`. Raises ContractError for a loop that
        verl made."""
        if self.alone is None:
            raise ContractError("this loop was made by verl, which calls run(); for whole interactions give it env=")
        return self.alone.run_full_interaction(interaction_id, task_name, seed=seed)
