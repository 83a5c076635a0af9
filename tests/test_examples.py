"""Every example runs."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

EXAMPLES = Path(__file__).parents[1] / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_one_page_loop() -> None:
    curve = asyncio.run(load("one_page_loop").learn(updates=2))
    assert len(curve) == 2
    assert max(curve) > 0


def test_the_date_picker_on_paper_says_what_the_page_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    options = yaml.safe_load((EXAMPLES / "date_picker.yaml").read_text())["environment"]["options"]
    page = importlib.import_module("date_picker").DatePicker(options=options)
    paper = importlib.import_module("date_picker_on_paper").OnPaper(options=options)

    async def play(environment: Any, seed: int) -> list[str]:
        said = [(await environment.reset(seed=seed)).text]
        ended = False
        while not ended:
            step = await environment.step(environment.expert_action())
            said.append(step.observation.text)
            ended = step.done
        return said[:-1]  # a page that is over says nothing

    async def both() -> None:
        try:
            for seed in range(4):
                assert await play(page, seed) == await play(paper, seed)
        finally:
            await page.close()

    asyncio.run(both())


@pytest.mark.slow
def test_openai_agent() -> None:
    curve = asyncio.run(load("openai_agent").learn(updates=2))
    assert len(curve) == 2
    # the warm start taught what a guess looks like; chance then wins about every third game
    assert min(curve) > 0.2


@pytest.mark.actors
def test_train_multi_actor() -> None:
    example = load("train_multi_actor")
    with example.servers(2) as urls:
        curve = example.learn(urls, updates=2)
    assert len(curve) == 2
    # the warm start showed what a guess looks like
    assert min(curve) > 0.1


@pytest.mark.slow
def test_the_program_of_the_readme_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (EXAMPLES.parent / "README.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    example = (EXAMPLES / "ten_lines.py").read_text()
    assert example.endswith("\n\n" + program), "examples/ten_lines.py is the program of the README under a docstring"
    monkeypatch.chdir(tmp_path)
    exec(compile(program, "README.md", "exec"), {"__name__": "readme"})
    (path,) = (tmp_path / "runs").glob("*/summary.json")
    summary = json.loads(path.read_text())
    # chance is one half for whoever knows the two words
    assert summary["success_before"] < 0.7
    assert summary["success_after"] > 0.9


def test_no_example_is_forgotten() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {
        "date_picker",
        "date_picker_on_paper",
        "ten_lines",
        "one_page_loop",
        "openai_agent",
        "train_multi_actor",
    }
