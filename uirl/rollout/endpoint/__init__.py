"""The policy behind an OpenAI-compatible address, and agent programs as episodes."""

from uirl.rollout.endpoint.agents import AgentCollector, AgentProgram, run_agent
from uirl.rollout.endpoint.endpoint import ModelEndpoint
from uirl.rollout.endpoint.problems import APIProblem
from uirl.rollout.endpoint.session import AgentSession

__all__ = ["APIProblem", "AgentCollector", "AgentProgram", "AgentSession", "ModelEndpoint", "run_agent"]
