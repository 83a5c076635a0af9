"""Phones as an agent loop: under verl, and on its own against a model behind a server."""

from __future__ import annotations

from typing import Any

from verl.experimental.agent_loop.agent_loop import register

from uirl.environments import BaseEnvironment
from uirl.errors import ContractError
from uirl.integrations.verl.agent_loop import EnvironmentAgentLoop
from uirl.integrations.verl.interaction import Interaction

AGENT = "mobile_world"
"""Name under which verl knows the loop."""


@register(AGENT)
class MobileWorldAgentLoop(EnvironmentAgentLoop):
    """An `EnvironmentAgentLoop` that can also play without verl: `MobileWorldAgentLoop(env=..., llm_base_url=...)`.

    Under verl a row names the environment, as for every loop of ours; the reply format is the environment's
    (`action_format`). On its own it plays `env` with the model behind `llm_base_url`.
    """

    def __init__(self, *arguments: Any, env: BaseEnvironment | None = None, **options: Any) -> None:
        """With `env`: the options of `Interaction` (agent_type, model_name, llm_base_url, api_key, max_step,
        task_curriculum, reward_calculator, ...). Without: what verl hands an agent loop."""
        self.interaction = None if env is None else Interaction(env, *arguments, **options)
        if env is None:
            super().__init__(*arguments, **options)

    def run_full_interaction(
        self, interaction_id: str, task_name: str | None = None, *, seed: int | None = None
    ) -> dict[str, Any]:
        """How one episode went, see `Interaction.run`. Raises ContractError for a loop that verl made."""
        if self.interaction is None:
            raise ContractError("this loop was made by verl, which calls run(); for whole interactions give it env=")
        return self.interaction.run(interaction_id, task_name, seed=seed)
