"""Every Python block of docs/your_own_web_app.md runs, in order; what it says of names and options is true."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import uirl
from uirl.environments.browser.environment import PageEnvironment
from uirl.environments.browser.web import WebEnvironment

PAGE = (Path(uirl.__file__).parent.parent / "docs" / "your_own_web_app.md").read_text()


def test_the_blocks_run_in_order() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 5
    space: dict[str, Any] = {"__name__": "guide"}
    for block in blocks:
        exec(compile(block, "docs/your_own_web_app.md", "exec"), space)


def test_an_environment_is_twenty_lines() -> None:
    first = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0]
    assert len([line for line in first.splitlines() if line.strip()]) <= 20


def test_the_options_and_attributes_it_names_exist() -> None:
    known = set(inspect.signature(PageEnvironment).parameters) | set(dir(WebEnvironment))
    rows = re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert len(named) >= 14
    assert named <= known
