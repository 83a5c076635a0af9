"""What tests of programs of PythonTool share."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import pytest

from tests.tools.python_programs import PLENTY
from uirl.tools import PythonTool, ToolRegistry
from uirl.tools.sandbox.watch import Watch


@pytest.fixture(scope="module")
def python() -> ToolRegistry:
    return ToolRegistry([PythonTool(cpu_seconds=1, wall_seconds=PLENTY, memory_mb=256)])


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where the working folders are made."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def late_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of a program starts with its first word: a busy machine may take long to come to it."""
    original = Watch._deadline

    def deadline(self: Watch) -> float:
        if self.began is not None and not self.output:
            self.began = time.monotonic()
        return original(self)

    monkeypatch.setattr(Watch, "_deadline", deadline)
