"""Programs of PythonTool in tests: their limits, running one, waiting for a process."""

from __future__ import annotations

import textwrap
import time
from pathlib import Path
from typing import Any

from tests.patience import PATIENCE
from uirl.tools import ToolRegistry

PLENTY = 300.0
"""Of wall time, where another limit or none is meant: a second of computing takes a busy machine many."""


def run(registry: ToolRegistry, code: str) -> tuple[bool, Any]:
    return registry.execute_tool("python", code=textwrap.dedent(code))


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "gone"


def wait_for(condition: Any) -> Any:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError("it did not come about")
