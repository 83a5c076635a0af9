"""Every extra can be installed: a resolver finds releases that go together, each extra alone and all of them locked."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytestmark = pytest.mark.real
ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def resolve(*arguments: str, folder: Path = ROOT) -> None:
    done = subprocess.run([sys.executable, "-m", "uv", *arguments], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("extra", sorted(PROJECT["project"]["optional-dependencies"]))
def test_an_extra_resolves(extra: str, tmp_path: Path) -> None:
    resolve("pip", "compile", "--quiet", "pyproject.toml", "--extra", extra, "-o", str(tmp_path / "found.txt"))
    assert "transformers==" in (tmp_path / "found.txt").read_text()


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13", "3.14"])
def test_the_core_resolves_on_a_python(version: str, tmp_path: Path) -> None:
    found = tmp_path / "found.txt"
    binary = ("--only-binary", ":all:", "--python-version", version)
    resolve("pip", "compile", "--quiet", "pyproject.toml", *binary, "-o", str(found))
    assert "torch==" in found.read_text()


def test_all_of_it_can_be_locked(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    resolve("lock", "--quiet", folder=tmp_path)
