"""Registers our agent loops with verl. Import it in a process that plays episodes: our dataset does; with a dataset of
your own set `actor_rollout_ref.model.external_lib` to this module."""

from uirl.integrations.verl.agent_loop import AGENT, EnvironmentAgentLoop

AGENT_LOOPS = {AGENT: EnvironmentAgentLoop}
"""Name in a row or in `rollout.agent.default_agent_loop` -> the loop."""
