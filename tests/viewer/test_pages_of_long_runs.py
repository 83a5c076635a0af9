"""A long run in the browser: a sample at once, all peaks when the server has read every row."""

from __future__ import annotations

import json
import threading

from tests.viewer.browsing import browsing, viewer
from tests.viewer.runs import make_run
from uirl.viewer import curves

POINTS = "Number(document.querySelector('[aria-label^=\"Reward,\"]')?.ariaLabel.match(/(\\d+) points/)[1])"


async def test_a_sample_is_replaced_by_the_whole_run(tmp_path, monkeypatch) -> None:
    run = make_run(tmp_path / "run")
    with (run / "metrics.jsonl").open("a") as file:
        for step in range(4, 3001):
            file.write(json.dumps({"step": step, "time": float(step), "reward": 1.0 + 5000.0 * (step == 1234)}) + "\n")
    may_read = threading.Event()
    read = curves.Curves.catch_up

    def catch_up(self, seconds=0.0):
        self.begun = True
        return read(self, 60.0) if may_read.is_set() else True

    monkeypatch.setattr(curves, "SHORT", 100)
    monkeypatch.setattr(curves, "SAMPLE", 50)
    monkeypatch.setattr(curves.Curves, "catch_up", catch_up)
    with viewer(run) as address:
        async with browsing(address) as tab:
            await tab.goto("#/run/run")
            await tab.until(f"{POINTS} > 40")
            assert await tab.ask(POINTS) < 60
            may_read.set()
            await tab.until(f"{POINTS} > 500")
