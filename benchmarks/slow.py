"""Screens behind a slow machine: every call waits for as long as a heavy-tailed draw says, which costs no CPU.

The environments of `benchmarks/asynchrony.py`, as 'benchmarks.slow:SlowScreen' (drawn) and 'benchmarks.slow:SlowPages'
(Chromium).
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from typing import Literal

from uirl.config.section import NonNegative
from uirl.environments.browser.miniwob import MiniWobEnvironment, MiniWobOptions
from uirl.environments.options import EnvironmentOptions
from uirl.environments.screen.environment import ScreenEnvironment
from uirl.environments.screen.options import ScreenOptions
from uirl.types import Action, Observation, StepResult, Task


class SlowOptions(EnvironmentOptions):
    """How slow."""

    latency: NonNegative = 0.0
    """Mean seconds of a call (`reset` or `step`)."""
    tail: Literal["lognormal", "pareto"] = "lognormal"
    """Lognormal with sigma 1.4 (one call in a hundred takes 10 means), or Pareto with the shape 1.5."""
    busy_log: str = ""
    """File to which the beginning and the end of every call are appended, in seconds since 1970; empty: none."""


class Latency:
    """How long the calls of an episode take: it follows from its seed, so an instance is as slow in every run."""

    def __init__(self, seed: int | None) -> None:
        self._draw = random.Random(f"latency/{seed}")

    async def wait(self, options: SlowOptions, begun: float) -> None:
        """Wait, and note the call that began at `begun`."""
        if not options.latency:
            return
        await asyncio.sleep(options.latency * heavy(options.tail, self._draw))
        if options.busy_log:
            line = f"{begun:.4f} {time.time():.4f}\n".encode()
            handle = os.open(options.busy_log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                os.write(handle, line)
            finally:
                os.close(handle)


class SlowScreenOptions(SlowOptions, ScreenOptions):
    """A drawn form on a machine that takes its time."""

    key = "slow_screen"


class SlowScreen(ScreenEnvironment):
    """`ScreenEnvironment` whose calls take as long as those of a remote machine."""

    options_class = SlowScreenOptions
    options: SlowScreenOptions
    _latency = Latency(0)

    async def reset(self, *, seed: int | None = None) -> Observation:  # type: ignore[override]
        begun, self._latency = time.time(), Latency(seed)
        first = super().reset(seed=seed)
        await self._latency.wait(self.options, begun)
        return first

    async def step(self, action: Action) -> StepResult:  # type: ignore[override]
        begun = time.time()
        result = super().step(action)
        await self._latency.wait(self.options, begun)
        return result


class SlowPagesOptions(SlowOptions, MiniWobOptions):
    """Pages of MiniWoB++ on a machine that takes its time."""

    key = "slow_pages"


class SlowPages(MiniWobEnvironment):
    """`MiniWobEnvironment` whose calls take as long as those of a remote machine, and Chromium's time besides."""

    options_class = SlowPagesOptions
    options: SlowPagesOptions
    _latency = Latency(0)

    async def reset(self, task: Task | None = None, seed: int | None = None) -> Observation:
        begun, self._latency = time.time(), Latency(seed)
        first = await super().reset(task, seed)
        await self._latency.wait(self.options, begun)
        return first

    async def step(self, action: Action) -> StepResult:
        begun = time.time()
        result = await super().step(action)
        await self._latency.wait(self.options, begun)
        return result


def heavy(tail: str, draw: random.Random) -> float:
    """Return a draw with the mean 1."""
    if tail == "pareto":
        return draw.paretovariate(1.5) / 3
    return draw.lognormvariate(-0.98, 1.4)
