"""The drawn screen of the default job behind a slow machine: every call waits for as long as a heavy-tailed draw says.

Waiting costs no CPU. The environment of `benchmarks/asynchrony.py`, as 'benchmarks.slow_screen:SlowScreen'.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from typing import Any, Literal

from uirl.config.section import NonNegative
from uirl.environments.options import OptionsLike
from uirl.environments.screen.environment import ScreenEnvironment
from uirl.environments.screen.options import ScreenOptions
from uirl.types import Action, Observation, StepResult


class SlowScreenOptions(ScreenOptions):
    """A drawn form on a machine that takes its time."""

    key = "slow_screen"

    latency: NonNegative = 0.0
    """Mean seconds of a call (`reset` or `step`)."""
    tail: Literal["lognormal", "pareto"] = "lognormal"
    """Lognormal with sigma 1.4 (one call in a hundred takes 10 means), or Pareto with the shape 1.5."""
    busy_log: str = ""
    """File to which the beginning and the end of every call are appended, in seconds since 1970; empty: none."""


class SlowScreen(ScreenEnvironment):
    """`ScreenEnvironment` whose calls take as long as those of a remote machine.

    How long follows from the seed of the episode: the same instance is as slow in every run.
    """

    options_class = SlowScreenOptions
    options: SlowScreenOptions

    def __init__(self, config: Any = None, options: OptionsLike = None, **keys: Any) -> None:
        super().__init__(config, options, **keys)
        self._draw = random.Random(0)

    async def reset(self, *, seed: int | None = None) -> Observation:  # type: ignore[override]
        self._draw = random.Random(f"latency/{seed}")
        first = super().reset(seed=seed)
        await self._wait()
        return first

    async def step(self, action: Action) -> StepResult:  # type: ignore[override]
        result = super().step(action)
        await self._wait()
        return result

    async def _wait(self) -> None:
        if not self.options.latency:
            return
        begun = time.time()
        await asyncio.sleep(self.options.latency * heavy(self.options.tail, self._draw))
        if self.options.busy_log:
            line = f"{begun:.4f} {time.time():.4f}\n".encode()
            handle = os.open(self.options.busy_log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                os.write(handle, line)
            finally:
                os.close(handle)


def heavy(tail: str, draw: random.Random) -> float:
    """Return a draw with the mean 1."""
    if tail == "pareto":
        return draw.paretovariate(1.5) / 3
    return draw.lognormvariate(-0.98, 1.4)
