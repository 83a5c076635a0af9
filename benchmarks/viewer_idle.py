"""What `uirl view` and a page of it take of the processor while a run is only looked at, in real Chromium.

    python -m benchmarks.viewer_idle                     # 20 000 trajectories of one turn, in a temporary folder
    python -m benchmarks.viewer_idle --keep runs/idle    # ... kept there, and taken from there the next time

The run counts as live: its metrics file is touched every second, and no row comes. Processor time does not depend on
what else the machine does.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx

from benchmarks.viewer import make
from benchmarks.viewer_steps import processor
from uirl.environments.browser.process import Chromium

ROUTES = {"list of runs": "#/", "a run": "#/run/{key}", "its trajectories": "#/run/{key}/trajectories"}
SETTLED = 4
"""Seconds after which a page is drawn."""


def below(pid: int) -> list[int]:
    """Return the processes that `pid` has begun, and those that they have."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(words[1]) == pid:
            found += [int(entry.parent.name), *below(int(entry.parent.name))]
    return found


async def measure(address: str, key: str, server: int, metrics: Path, seconds: int) -> None:
    listed = f"{address}/api/runs/{key}/trajectories?limit=1"
    while (found := httpx.get(listed, timeout=60).json()["indexed"])["done"] < found["total"]:
        await asyncio.sleep(0.5)  # the index is built once
    browser = Chromium(allow=[address], timeout=120)
    page = await browser.new_page(1280, 1000)
    for name, route in ROUTES.items():
        await page.goto(f"{address}/static/icon.svg")
        await page.goto(f"{address}/{route.format(key=key)}")
        for _ in range(SETTLED):
            metrics.touch()
            await asyncio.sleep(1)
        others = [pid for pid in below(os.getpid()) if pid != server]
        begun, before = time.monotonic(), (processor(server), sum(map(processor, others)))
        for _ in range(seconds):
            metrics.touch()
            await asyncio.sleep(1)
        took = time.monotonic() - begun
        after = processor(server), sum(map(processor, others))
        shares = [100 * (b - a) / took for a, b in zip(before, after, strict=True)]
        print(f"{name:20} server {shares[0]:5.1f} %   Chromium {shares[1]:5.1f} % of a core")
    await browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trajectories", type=int, default=20_000)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = options.keep or Path(folder) / "idle"
        if not path.exists():
            make(path, options.trajectories, 1)
        command = [sys.executable, "-m", "uirl.cli.main", "view", str(path), "--port", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            address = re.search(r"http://\S+", server.stdout.readline())
            assert address is not None, "the server did not say where it listens"
            asyncio.run(measure(address[0], path.name, server.pid, path / "metrics.jsonl", options.seconds))
            server.terminate()


if __name__ == "__main__":
    main()
