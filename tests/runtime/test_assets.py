"""Files beside the code: read as they are, and part of what is installed."""

from __future__ import annotations

import fnmatch
import tomllib
from pathlib import Path

from uirl.environments.data_entry import environment
from uirl.runtime.assets import read_asset

ROOT = Path(__file__).parents[2]


def test_a_text_is_read_as_it_was_written() -> None:
    text = read_asset(environment.__file__, "page.html")
    assert text + "\n" == (ROOT / "uirl/environments/data_entry/page.html").read_text("utf-8")
    assert text.startswith("<!doctype html>")


def test_every_file_beside_the_code_is_installed() -> None:
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["uirl"]
    beside = [
        str(path.relative_to(ROOT / "uirl"))
        for path in (ROOT / "uirl").rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc")
    ]
    assert len(beside) > 5
    left_out = [path for path in beside if not any(fnmatch.fnmatch(path, pattern) for pattern in patterns)]
    assert not left_out, f"{left_out} match no pattern of package-data in pyproject.toml: a wheel would lack them"
