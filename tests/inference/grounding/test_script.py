"""The command that makes the weights, in two processes."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE
from uirl.config import ConfigStore
from uirl.inference.models.loading import load_model

pytestmark = pytest.mark.actors
SCRIPT = Path(__file__).parents[3] / "scripts" / "train_grounded.py"


def test_the_command_writes_a_model_and_its_card(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    options = ["--out", str(folder), "--looks", "2", "--steps", "2", "--screens", "2", "--seed", "3"]
    subprocess.run([sys.executable, str(SCRIPT), *options], check=True, timeout=300, stdout=subprocess.DEVNULL)
    card = json.loads((folder / "card.json").read_text())
    assert card["sha256"] == hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert (card["recipe"]["steps"], card["recipe"]["seed"], card["processes"]) == (2, 3, 2)
    assert card["held_out"]["all"]["of"] == sum(n["of"] for kind, n in card["held_out"].items() if kind != "all")
    loaded = load_model(ConfigStore.from_dict({"model": {"local_path": str(folder)}}).model)
    assert sum(p.numel() for p in loaded.model.parameters()) == card["parameters"]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (("--processes", "3"), "--processes 3 does not divide the 16 pictures of an update"),
        (("--screens", "0"), "--screens 0: expected at least 1"),
    ],
)
def test_what_would_fail_after_an_hour_is_refused_at_once(option: tuple[str, str], message: str) -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), *option], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 1
    assert message in done.stderr
