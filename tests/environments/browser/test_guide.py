"""Every Python block of docs/your_own_web_app.md runs, in order; what it says of names and options is true."""

from __future__ import annotations

import random
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import uirl
from uirl.cli.main import main
from uirl.environments import check_environment, scripted_success
from uirl.environments.browser.environment import PageOptions
from uirl.environments.browser.web import WebEnvironment

PAGE = (Path(uirl.__file__).parent.parent / "docs" / "your_own_web_app.md").read_text()


@pytest.mark.usefixtures("one_browser")
def test_the_blocks_run_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(check_environment.__kwdefaults__, "episodes", 1)
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 6
    space: dict[str, Any] = {"__name__": "guide"}
    for block in blocks:
        exec(compile(block, "docs/your_own_web_app.md", "exec"), space)


@pytest.mark.slow
def test_the_files_it_names_train_where_they_were_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a budget of seconds: that the run learns, and how fast, stands in benchmarks/history/learning.md."""
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    project.mkdir()
    elsewhere.mkdir()
    files = dict(re.findall(r"```(?:python|yaml) (shop\.\w+)\n(.*?)```", PAGE, re.DOTALL))
    assert set(files) == {"shop.py", "shop.yaml"}
    for name, text in files.items():
        (project / name).write_text(text)
    monkeypatch.chdir(elsewhere)
    monkeypatch.setattr(sys, "path", list(sys.path))
    short = [
        "training.num_epochs=1",
        "training.num_iters_per_epoch=1",
        "training.eval_episodes=2",
        "training.batch_size=8",
    ]
    warm = (
        "training.warm_start={demonstrations: 2, batch_size: 2, steps: 1, evaluate_every: null, stop_at_success: null}"
    )
    assert main(["train", str(project / "shop.yaml"), *short, warm, "logging.trackers=[]"]) == 0
    assert "stopped because" in capsys.readouterr().out
    assert main(["eval", "runs/shop", "--episodes", "2"]) == 0
    assert main(["export", "runs/shop", "--to", "hf"]) == 0


@pytest.mark.usefixtures("one_browser")
def test_its_task_is_won_by_whoever_reads_the_goal_and_by_nobody_else() -> None:
    (shop,) = re.findall(r"```python shop\.py\n(.*?)```", PAGE, re.DOTALL)
    space: dict[str, Any] = {"__name__": "shop"}
    exec(compile(shop, "docs/your_own_web_app.md", "exec"), space)

    class Reader(space["ShopEnvironment"]):  # type: ignore[misc]
        def prepare(self, rng: random.Random, task: Any) -> None:
            super().prepare(rng, task)
            self.bought = self.wanted

    class Contrarian(space["ShopEnvironment"]):  # type: ignore[misc]
        def prepare(self, rng: random.Random, task: Any) -> None:
            super().prepare(rng, task)
            self.bought = {"apple": "pear", "pear": "plum", "plum": "apple"}[self.wanted]

    assert scripted_success(Reader(), episodes=3) == 1.0
    assert scripted_success(Contrarian(), episodes=3) == 0.0


def test_an_environment_is_twenty_lines() -> None:
    first = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0]
    assert len([line for line in first.splitlines() if line.strip()]) <= 20


def test_the_options_and_attributes_it_names_exist() -> None:
    known = set(PageOptions.model_fields) | set(dir(WebEnvironment))
    rows = re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert len(named) >= 14
    assert named <= known
