"""The pages over a run that trains meanwhile."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from tests.viewer.browsing import browsing, viewer

pytestmark = pytest.mark.actors

SMALL = (
    "model.tiny.hidden_size=16",
    "model.tiny.num_layers=1",
    "training.batch_size=32",
    "training.warm_start.steps=5",
    "training.num_epochs=1",
    "training.num_iters_per_epoch=500",
    "training.eval_every=500",
    "training.stop_at_success=null",
)


async def test_a_run_is_watched_while_it_trains(tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = (
        "-m",
        "uirl",
        "train",
        "configs/guess_number.yaml",
        *SMALL,
        f"logging.runs_dir={tmp_path}",
        "logging.run_name=run",
    )
    training = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=asyncio.subprocess.DEVNULL)
    try:
        while not (run / "metrics.jsonl").exists():
            assert training.returncode is None, "the training ended before its first update"
            await asyncio.sleep(0.2)
        with viewer(run) as address:
            async with browsing(address) as tab:
                await tab.goto("#/run/run")
                points = "Number(document.querySelector('.plot')?.ariaLabel.match(/(\\d+) points/)[1])"
                await tab.until(f"{points} >= 3")
                before = await tab.ask(points)
                await tab.until(f"{points} >= {before} + 3")
                drawn = "Number(document.querySelector('.uplot').dataset.to)"
                last = await tab.ask(drawn)
                await tab.until(f"{drawn} >= {last} + 3")  # drawn, not only known
                assert "live" in await tab.text(".figures")
                await tab.goto("#/run/run/trajectories")
                await tab.until("document.querySelectorAll('tbody tr').length > 10")
        assert training.returncode is None, "the training went on beside the viewer"
    finally:
        training.terminate()
        await training.wait()
