"""What the policy can call: definitions, the registry that runs calls, and ready-made tools. Names load when used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from uirl.runtime.lazy import lazy_exports

if TYPE_CHECKING:
    from uirl.tools.base import FunctionTool, Tool, ToolError
    from uirl.tools.calculator import CalculatorTool, CalendarTool
    from uirl.tools.definition import ToolDefinition
    from uirl.tools.environment_step import EnvironmentStepTool
    from uirl.tools.mcp_tools import MCPServer, MCPTool
    from uirl.tools.python_runner import PythonTool
    from uirl.tools.registry import ToolRegistry
    from uirl.tools.search import LookupTool, SearchTool
    from uirl.tools.shell import ShellTool

_HOMES = {
    "uirl.tools.base": "FunctionTool Tool ToolError",
    "uirl.tools.calculator": "CalculatorTool CalendarTool",
    "uirl.tools.definition": "ToolDefinition",
    "uirl.tools.environment_step": "EnvironmentStepTool",
    "uirl.tools.mcp_tools": "MCPServer MCPTool",
    "uirl.tools.python_runner": "PythonTool",
    "uirl.tools.registry": "ToolRegistry",
    "uirl.tools.search": "LookupTool SearchTool",
    "uirl.tools.shell": "ShellTool",
}

__getattr__, __all__ = lazy_exports(__name__, _HOMES)
