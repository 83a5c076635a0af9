"""Registers our agent loops with verl. Import it in a process that plays episodes: our dataset does; with a dataset of
your own set `actor_rollout_ref.model.external_lib` to this module."""

from uirl.integrations.verl.rollout.agent_loop import AGENT, EnvironmentAgentLoop
from uirl.integrations.verl.rollout.mobile_world import AGENT as MOBILE_WORLD
from uirl.integrations.verl.rollout.mobile_world import MobileWorldAgentLoop

AGENT_LOOPS = {AGENT: EnvironmentAgentLoop, MOBILE_WORLD: MobileWorldAgentLoop}
"""Name in a row or in `rollout.agent.default_agent_loop` -> the loop."""
