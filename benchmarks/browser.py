"""Steps per second of MiniWoB++ in one Chromium, by number of sessions.

    python benchmarks/browser.py [--sessions 1 4 8 16] [--seconds 8] [--task click-checkboxes] [--image-size 56]

A step is one click, the reading of the reward and a new picture; an episode is ten steps. Clicks go to random places,
so pages that end an episode at the first wrong click are counted with more resets.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path

from uirl.environments.browser.chromium import Chromium
from uirl.environments.browser.miniwob import MiniWobEnvironment
from uirl.types import Action

TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Measured:
    """What the sessions of one run did."""

    resets: list[float] = field(default_factory=list)
    """Seconds of each reset."""
    steps: list[float] = field(default_factory=list)
    """Seconds of each step."""


async def play(env: MiniWobEnvironment, number: int, until: float, measured: Measured) -> None:
    """Random clicks until the clock says `until`."""
    rng = random.Random(number)
    width, height = env.picture_size
    episode = 0
    while time.perf_counter() < until:
        started = time.perf_counter()
        await env.reset(seed=1000 * number + episode)
        measured.resets.append(time.perf_counter() - started)
        episode += 1
        done = False
        while not done and time.perf_counter() < until:
            click = Action.of("click", x=rng.randrange(width), y=rng.randrange(height))
            started = time.perf_counter()
            done = (await env.step(click)).done
            measured.steps.append(time.perf_counter() - started)


def processes(group: int) -> list[Path]:
    """The /proc folders of a process group."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and os.getpgid(int(folder.name)) == group:
                found.append(folder)
        except ProcessLookupError:
            continue
    return found


def cpu_seconds(group: int) -> float:
    """CPU time of a process group so far."""
    fields = [(folder / "stat").read_text().rpartition(")")[2].split() for folder in processes(group)]
    return sum(int(stat[11]) + int(stat[12]) for stat in fields) / TICKS


def megabytes(group: int) -> float:
    """Memory of a process group: proportional set size, so that shared pages count once."""
    lines = [line for folder in processes(group) for line in (folder / "smaps_rollup").read_text().splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


async def measure(sessions: int, seconds: float, options: dict[str, object]) -> str:
    """One row of the table."""
    base = MiniWobEnvironment(**options)  # type: ignore[arg-type]
    await base.reset(seed=0)
    group = Chromium.shared().pid
    assert group is not None
    empty = megabytes(group)
    envs = [base.spawn() for _ in range(sessions)]
    await asyncio.gather(*(env.reset(seed=0) for env in envs))  # loading the pages is not counted
    measured = Measured()
    before, own = cpu_seconds(group), time.process_time()
    started = time.perf_counter()
    await asyncio.gather(*(play(env, i, started + seconds, measured) for i, env in enumerate(envs)))
    wall = time.perf_counter() - started
    used, own = cpu_seconds(group) - before, time.process_time() - own
    memory = (megabytes(group) - empty) / sessions
    for env in (base, *envs):
        await env.close()
    steps, resets = len(measured.steps), len(measured.resets)
    step_ms, reset_ms = (1e3 * statistics.median(times) for times in (measured.steps, measured.resets))
    return (
        f"{sessions:8d} | {steps / wall:7.1f} | {resets / wall:8.1f} | {step_ms:7.1f} | "
        f"{reset_ms:8.1f} | {1e3 * used / steps:14.1f} | {1e3 * own / steps:13.1f} | "
        f"{memory:10.0f} | {os.getloadavg()[0]:4.1f}"
    )


async def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--task", default="click-checkboxes")
    parser.add_argument("--image-size", type=int, default=None)
    given = parser.parse_args()
    options: dict[str, object] = {"task": given.task, "max_turns": 10}
    if given.image_size:
        options |= {"crop": "area", "image_size": given.image_size}
    print(f"{given.task}, {options}, {os.cpu_count()} cores")
    print("sessions | steps/s | resets/s | step ms | reset ms | browser ms/step | python ms/step | MB/session | load")
    for sessions in given.sessions:
        print(await measure(sessions, given.seconds, options), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
