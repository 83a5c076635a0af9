"""What a viewer that somebody looks at costs the training beside it.

    python -m benchmarks.viewer_beside              # one run, in turn alone and watched, eight times each
    python -m benchmarks.viewer_beside --browser    # ... the reader's browser on this machine, too

The run is `uirl train configs/mai_ui.yaml` on one thread. Watched: `uirl view` serves its folder, and a reader looks at
the growing charts, the list and the newest episode in turn, a new one every two seconds: what a page on another machine
asks for, or with `--browser` real Chromium here, which takes processor time of its own. Alone: nobody asks, and the
server is stopped (SIGSTOP). Compared are updates per second and per second of the training's own processor time, of
each watched stretch with the mean of the alone ones before and behind it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from benchmarks.viewer_steps import processor
from uirl.environments.browser.process import Chromium

ROOT = Path(__file__).parents[1]
NAME = "watched"
JOB = (
    *("training.num_epochs=100", "training.num_iters_per_epoch=100", "training.warm_start.steps=50"),
    *("training.eval_episodes=8", "training.eval_every=null", "training.stop_at_success=null"),
    *("curriculum.enabled=false", "logging.print_every=1000", f"logging.run_name={NAME}"),
)
ONE_THREAD = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


@contextlib.contextmanager
def started(*command: str, **more: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, **more},
    )
    try:
        yield process
    finally:
        for blow in (signal.SIGCONT, signal.SIGTERM):
            process.send_signal(blow)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        process.kill()


class Tab:
    """A page in Chromium, on this machine."""

    def __init__(self, address: str) -> None:
        self._address, self._browser = address, Chromium(allow=[address], timeout=60)
        self._page: Any = None

    async def show(self, route: str) -> None:
        self._page = self._page or await self._browser.new_page(1280, 1000)
        await self._page.goto(f"{self._address}/#/run/{NAME}{route}")

    async def close(self) -> None:
        if self._page is not None:
            await self._page.close()
        self._page = None


class Remote:
    """What a page on another machine asks for: the stream of news, and what it draws."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client
        self._news: asyncio.Task[None] | None = None

    async def show(self, route: str) -> None:
        self._news = self._news or asyncio.create_task(self._listen())
        if route.startswith("/t/"):
            one = f"/trajectories{route[2:]}"
            await self._client.get(one)
            turn = (await self._client.get(f"{one}/turns/0")).json()
            pictures = [f"/images/{hash}" for hash in turn["observation"]["images"]]
            for part in (f"{one}/tokens?turn=0", *pictures, *[f"{picture}/small" for picture in pictures]):
                await self._client.get(part)
        else:
            for part in ("/trajectories?limit=100", "/facets") if route else ("", "/metrics?since=0"):
                await self._client.get(part)

    async def _listen(self) -> None:
        news = self._client.base_url.copy_with(path="/api/events", query=f"run={NAME},0,0".encode())
        async with self._client.stream("GET", news, timeout=None) as answer:
            async for _ in answer.aiter_bytes():
                pass

    async def close(self) -> None:
        if self._news is not None:
            self._news.cancel()
        self._news = None


async def look(address: str, browser: bool) -> None:
    """Look at the run while the newest line of stdin is 'look'; at 'rest' the page is closed."""
    routes = itertools.cycle(("", "/trajectories", "/t/"))
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    word = "rest"
    async with httpx.AsyncClient(base_url=f"{address}/api/runs/{NAME}", timeout=60) as client:
        reader: Tab | Remote = Tab(address) if browser else Remote(client)
        while word:
            with contextlib.suppress(TimeoutError):
                word = (await asyncio.wait_for(lines.readline(), 2)).decode().strip()
            if word != "look":
                await reader.close()
                continue
            route = next(routes)
            if route == "/t/":
                rows = (await client.get("/trajectories", params={"limit": 1})).json()["rows"]
                route = f"/t/{rows[0]['id']}" if rows else "/trajectories"
            await reader.show(route)


def rates(metrics: Path, training: int, seconds: float) -> tuple[float, float]:
    """Return updates per second, and per second of the training's processor time, of the next seconds."""
    begun, used, rows = time.perf_counter(), processor(training), metrics.read_bytes().count(b"\n")
    time.sleep(seconds)
    count = metrics.read_bytes().count(b"\n") - rows
    return count / (time.perf_counter() - begun), count / (processor(training) - used)


def measure(runs: Path, stretches: int, seconds: float, browser: bool) -> list[tuple[float, float]]:
    """Return the rates of stretches, alone and watched in turn."""
    metrics = runs / NAME / "metrics.jsonl"
    train = ("uirl", "train", "configs/mai_ui.yaml", *JOB, f"logging.runs_dir={runs}")
    view = ("uirl", "view", str(runs), "--port", "0")
    with started(*train, **ONE_THREAD) as training, started(*view) as server:
        assert server.stdout is not None
        address = re.search(r"http://\S+", server.stdout.readline())
        assert address is not None, "the server did not say where it listens"
        how = ("--browser",) if browser else ()
        with started("benchmarks.viewer_beside", "--look", address[0], *how) as reader:
            assert reader.stdin is not None
            while not metrics.exists() or metrics.read_bytes().count(b"\n") < 4:
                assert training.poll() is None, "the training ended early"
                time.sleep(0.5)
            found = []
            for number in range(stretches):
                watched = number % 2 == 1
                if watched:
                    server.send_signal(signal.SIGCONT)
                print("look" if watched else "rest", file=reader.stdin, flush=True)
                time.sleep(3)  # pages open and close
                if not watched:
                    server.send_signal(signal.SIGSTOP)
                found.append(rates(metrics, training.pid, seconds))
                shown = f"{found[-1][0]:.2f} updates/s, {found[-1][1]:.2f} per second of its processor time"
                print(f"{'watched' if watched else 'alone':8} {shown}", flush=True)
            server.send_signal(signal.SIGCONT)
            reader.stdin.close()
            return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=12.0, help="of a stretch")
    parser.add_argument("--browser", action="store_true", help="run the reader's browser on this machine too")
    parser.add_argument("--look", metavar="ADDRESS", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.look:
        asyncio.run(look(options.look, options.browser))
        return
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), 2 * options.times + 1, options.seconds, options.browser)
    for name, which in (("updates per second", 0), ("updates per second of its processor time", 1)):
        each = [one[which] for one in found]
        ratios = sorted(2 * each[i] / (each[i - 1] + each[i + 1]) for i in range(1, len(each), 2))
        print(f"{name}, watched over alone: {statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})")


if __name__ == "__main__":
    main()
