"""Environments in which the policy calls tools."""

from uirl.environments.tool_use.environment import ToolEnvironment

__all__ = ["ToolEnvironment"]
