"""What the policy can call: definitions, the registry that runs calls, and ready-made tools. Names load when used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from uirl.runtime.lazy import lazy_exports

if TYPE_CHECKING:
    from uirl.tools.base import FunctionTool, Tool, ToolError
    from uirl.tools.calculator import CalculatorTool
    from uirl.tools.definition import ToolDefinition
    from uirl.tools.environment_step import EnvironmentStepTool
    from uirl.tools.lookup import LookupTool
    from uirl.tools.mcp_tools import MCPServer, MCPTool
    from uirl.tools.python_runner import PythonTool
    from uirl.tools.registry import ToolRegistry
    from uirl.tools.search import SearchTool

_EXPORTS = {
    "CalculatorTool": "uirl.tools.calculator",
    "EnvironmentStepTool": "uirl.tools.environment_step",
    "FunctionTool": "uirl.tools.base",
    "LookupTool": "uirl.tools.lookup",
    "MCPServer": "uirl.tools.mcp_tools",
    "MCPTool": "uirl.tools.mcp_tools",
    "PythonTool": "uirl.tools.python_runner",
    "SearchTool": "uirl.tools.search",
    "Tool": "uirl.tools.base",
    "ToolDefinition": "uirl.tools.definition",
    "ToolError": "uirl.tools.base",
    "ToolRegistry": "uirl.tools.registry",
}

__all__ = [
    "CalculatorTool",
    "EnvironmentStepTool",
    "FunctionTool",
    "LookupTool",
    "MCPServer",
    "MCPTool",
    "PythonTool",
    "SearchTool",
    "Tool",
    "ToolDefinition",
    "ToolError",
    "ToolRegistry",
]

__getattr__ = lazy_exports(__name__, _EXPORTS)
