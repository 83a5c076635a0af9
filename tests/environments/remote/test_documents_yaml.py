"""The YAML of the founding document, with its four addresses, against four servers as a person starts them."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.environments.remote.running import serve_process
from uirl.storage import TrajectoryStore

FILE = Path(__file__).parents[2] / "config" / "data" / "ui_rl.yaml"
SHORT = [
    "model.name=uirl/tiny-vlm",  # the document's has to be downloaded
    "environment.options.width=56",
    "environment.options.height=56",
    "environment.options.delay=0",
    "actor.max_steps_per_episode=2",
    "inference.max_tokens=4",
    "training.batch_size=8",
    "training.num_iterations=2",
    "training.eval_episodes=4",
    "training.eval_every=null",
    "logging.trackers=[]",
]


@pytest.mark.actors
def test_four_addresses(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        served = [stack.enter_context(serve_process("--env", "screen", "--option", "retries=3")) for _ in range(4)]
        text = FILE.read_text()
        for number, (url, _) in enumerate(served, start=1):
            text = text.replace(f"http://ui-verifier-vm-{number}:8000", url)
        assert "ui-verifier-vm" not in text
        (tmp_path / "that.yaml").write_text(text)
        command = [sys.executable, "-m", "uirl.cli.main", "train", str(tmp_path / "that.yaml"), *SHORT]
        run = subprocess.run(
            [*command, f"logging.runs_dir={tmp_path}"], capture_output=True, text=True, timeout=500, cwd=tmp_path
        )
        assert run.returncode == 0, run.stdout + run.stderr
        assert "read model.name as model.model_name" in run.stderr
        sessions = [_metrics(url) for url, _ in served]
    assert all(sessions), f"a server had nothing to do: {sessions}"
    assert sum(sessions) == 16 + 2 * 4, "two updates, and an evaluation before and after them"
    summary = json.loads((tmp_path / "that" / "summary.json").read_text())
    assert (summary["steps"], summary["episodes"], summary["ledger"]["balanced"]) == (2, 16, True)
    with TrajectoryStore(tmp_path / "that" / "trajectories.sqlite", read_only=True) as store:
        assert {t.states[0].partition("\n")[0] for t in store} == {"Complete the data entry form"}


def _metrics(url: str) -> int:
    """Return how many sessions a server has opened."""
    import urllib.request

    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    assert "uirl_sessions_active 0" in lines, "sessions leaked"
    return sum(int(float(line.split()[-1])) for line in lines if line.startswith("uirl_sessions_opened_total"))
