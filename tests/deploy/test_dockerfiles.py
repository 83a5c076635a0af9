"""The images for containers. No Docker runs here: what they copy is installed and started, and hadolint reads them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "deploy").glob("Dockerfile*"))


def instructions(file: Path) -> list[tuple[str, str]]:
    """(instruction, what follows), with continued lines joined."""
    lines = [line for line in file.read_text().splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines()
    return [(line.partition(" ")[0], line.partition(" ")[2]) for line in joined if line]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_what_an_image_copies_is_what_the_package_needs(file: Path, tmp_path: Path) -> None:
    context, target = tmp_path / "context", tmp_path / "installed"
    context.mkdir()
    for name, words in instructions(file):
        if name == "COPY":
            *sources, _ = words.split()
            for source in sources:
                copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
                copy(ROOT / source, context / source)
    install = ["pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-compile", "--target"]
    subprocess.run([sys.executable, "-m", *install, str(target), "."], cwd=context, check=True)
    code = (
        f"import sys; sys.path.insert(0, {str(target)!r}); from uirl.cli.main import main; sys.exit(main(['configs']))"
    )
    said = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert "screen" in said


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_what_an_image_pins_stands_in_the_lock(file: Path) -> None:
    text = file.read_text()
    locked = {line.partition("==")[0] for line in (ROOT / "requirements.lock").read_text().splitlines()}
    for pinned in re.findall(r"\^\(([\w|-]+)\)==", text):
        assert set(pinned.split("|")) <= locked
    (version,) = re.findall(r"^FROM python:(\S+)-slim-bookworm$", text, re.MULTILINE)
    assert tuple(map(int, version.split("."))) >= (3, 11)


def test_every_pin_but_that_of_torch_has_hashes() -> None:
    pins = re.findall(r"^([\w.-]+==\S+)$", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    hashed = re.findall(
        r"^([\w.-]+==\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$",
        (ROOT / "requirements.hashes").read_text(),
        re.MULTILINE,
    )
    same = {pin.lower().replace("_", "-") for pin in pins}
    assert {pin for pin in same if not pin.startswith("torch==")} == {pin for pin, _ in hashed}


@pytest.mark.clients
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_hadolint_finds_nothing(file: Path) -> None:
    found = subprocess.run([Path(sys.executable).with_name("hadolint"), file], capture_output=True, text=True)
    assert (found.returncode, found.stdout) == (0, "")
