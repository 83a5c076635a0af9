"""Every example runs."""

from __future__ import annotations

import asyncio
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_ten_lines(tmp_path: Path) -> None:
    summary = load("ten_lines").main(updates=6, runs_dir=str(tmp_path))
    # chance is one half for whoever knows the two words
    assert summary["success_before"] > 0.3
    assert summary["success_after"] >= summary["success_before"] - 0.1


def test_one_page_loop() -> None:
    curve = asyncio.run(load("one_page_loop").learn(updates=2))
    assert len(curve) == 2
    assert max(curve) > 0


def test_openai_agent() -> None:
    curve = asyncio.run(load("openai_agent").learn(updates=2))
    assert len(curve) == 2
    # the warm start taught what a guess looks like; chance then wins about every third game
    assert min(curve) > 0.2


def test_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (EXAMPLES.parent / "README.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(program, "README.md", "exec"), {"__name__": "readme"})
    assert (tmp_path / "runs").is_dir()
    assert len(list((tmp_path / "runs").glob("*/summary.json"))) == 1


def test_no_example_is_forgotten() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {"ten_lines", "one_page_loop", "openai_agent"}
