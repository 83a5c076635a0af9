"""What a viewer that somebody looks at costs the training beside it.

    python -m benchmarks.viewer_beside                   # the same job six times: alone, watched, alone, watched, ...

The job is `uirl train configs/mai_ui.yaml`, some updates of it, on one thread. Watched: `uirl view` serves its folder,
and a page in real Chromium shows the growing charts, the list and an episode in turn, a new one every two seconds. The
browser is ten steps of niceness behind, as it would run on the reader's own machine. Compared are the seconds from the
first update to the last, the processor time of the training, and what it learned, which has to be the same digit for
digit.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from uirl.environments.browser.process import Chromium

ROOT = Path(__file__).parents[1]
JOB = (
    *("training.num_epochs=1", "training.warm_start.steps=50", "training.eval_episodes=8"),
    *("training.eval_every=null", "curriculum.enabled=false"),
)
ONE_THREAD = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


def train(runs: Path, name: str, updates: int) -> tuple[float, float, list[float]]:
    """Return seconds from the first update to the last, seconds of processor time, and the loss of each update."""
    options = [*JOB, f"training.num_iters_per_epoch={updates}", f"logging.runs_dir={runs}", f"logging.run_name={name}"]
    command = [sys.executable, "-m", "uirl", "train", str(ROOT / "configs/mai_ui.yaml"), *options]
    training = subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, **ONE_THREAD})
    _, status, usage = os.wait4(training.pid, 0)
    training.returncode = os.waitstatus_to_exitcode(status)
    assert training.returncode == 0, f"the training ended with {training.returncode}"
    rows = [json.loads(line) for line in (runs / name / "metrics.jsonl").read_text().splitlines()]
    updates_of = [row for row in rows if "policy_loss" in row]
    seconds = updates_of[-1]["time"] - updates_of[0]["time"]
    return seconds, usage.ru_utime + usage.ru_stime, [row["policy_loss"] for row in updates_of]


@contextlib.contextmanager
def watched(runs: Path, name: str) -> Iterator[None]:
    """Serve the folder, and look at the run in a browser."""
    command = [sys.executable, "-m", "uirl", "view", str(runs), "--port", "0"]
    server = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "XDG_CACHE_HOME": str(runs / "cache")}
    )
    assert server.stdout is not None
    address = re.search(r"http://\S+", server.stdout.readline())
    assert address is not None, "the server did not say where it listens"
    reader = subprocess.Popen([sys.executable, "-m", "benchmarks.viewer_beside", "--look", address[0], name], cwd=ROOT)
    try:
        yield
    finally:
        for process in (reader, server):
            process.terminate()
            process.wait(20)


async def look(address: str, name: str) -> None:
    """Look at the charts, the list and the newest episode in turn until killed."""
    os.nice(10)
    browser = Chromium(allow=[address], timeout=60)
    page = await browser.new_page(1280, 1000)
    async with httpx.AsyncClient(base_url=f"{address}/api/runs/{name}", timeout=60) as client:
        while True:
            routes = ["", "/trajectories"]
            with contextlib.suppress(LookupError, httpx.HTTPError, ValueError):
                rows = (await client.get("/trajectories", params={"limit": 1})).json()["rows"]
                routes.append(f"/t/{rows[0]['id']}/0")
            for route in routes:
                await page.goto(f"{address}/#/run/{name}{route}")
                await asyncio.sleep(2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--updates", type=int, default=8)
    parser.add_argument("--look", nargs=2, metavar=("ADDRESS", "RUN"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.look:
        asyncio.run(look(*options.look))
        return
    ratios: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        for pair in range(options.pairs):
            alone = train(Path(folder), f"alone_{pair}", options.updates)
            with watched(Path(folder), f"watched_{pair}"):
                beside = train(Path(folder), f"watched_{pair}", options.updates)
            assert alone[2] == beside[2], "the watched run learned something else"
            ratios.append((beside[0] / alone[0], beside[1] / alone[1]))
            times = f"{alone[0]:.1f} and {beside[0]:.1f} s, processor time {alone[1]:.1f} and {beside[1]:.1f} s"
            print(f"{time.strftime('%H:%M:%S')}  alone and watched: {times}", flush=True)
    for what, each in zip(("seconds", "processor time"), zip(*ratios, strict=True), strict=True):
        spread = ", ".join(f"{one:.3f}" for one in sorted(each))
        print(f"{what}, watched over alone: median {statistics.median(each):.3f} ({spread})")


if __name__ == "__main__":
    main()
