"""Tools that the tests of the registry call."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from uirl.tools import Tool, ToolRegistry
from uirl.types import ToolCall, ToolResult


class Waiter(Tool):
    """Waits, awaited."""

    async def execute(self) -> str:
        await asyncio.sleep(0)
        return threading.current_thread().name


def add(a: int, b: int = 1) -> int:
    """Adds two numbers.

    Args:
        a: The first.
    """
    return a + b


def where() -> str:
    """On which thread."""
    return threading.current_thread().name


async def ask(registry: ToolRegistry, name: str, **arguments: Any) -> ToolResult:
    return await registry.call(ToolCall(name, arguments))
