"""The policy behind an OpenAI-compatible address, and agent programs as episodes."""

from uirl.serving.agents import AgentCollector, AgentProgram, run_agent
from uirl.serving.endpoint import ModelEndpoint
from uirl.serving.options import EndpointOptions
from uirl.serving.protocol.fields import APIProblem
from uirl.serving.session import AgentSession

__all__ = [
    "APIProblem",
    "AgentCollector",
    "AgentProgram",
    "AgentSession",
    "EndpointOptions",
    "ModelEndpoint",
    "run_agent",
]
