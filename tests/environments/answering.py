"""Environments that answer as they are told to, threaded, inline and async, and one turn of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
from PIL import Image

from uirl.environments import BaseEnvironment, EnvironmentSession
from uirl.images import screenshot
from uirl.types import Action, Observation, StepResult

RED = Image.new("RGB", (4, 3), (255, 0, 0))
RED_HASH = screenshot(RED).hash
ACTION = Action(text="go")
NEXT: Any = ("next", 0.5, False, {})


class Answers(BaseEnvironment):
    """Returns (or raises, or calls) what it is told to."""

    def __init__(
        self, on_reset: Any = "start", on_step: Any = ("next", 0.5, False, {}), *, inline: bool = False
    ) -> None:
        super().__init__()
        self.on_reset, self.on_step = on_reset, on_step
        self.runs_inline = inline  # type: ignore[misc]
        self.closed = 0

    def reset(self) -> Any:
        return self._say(self.on_reset)

    def step(self, action: Any) -> Any:
        self.action, self.thread = action, threading.get_ident()
        return self._say(self.on_step)

    def get_state_description(self) -> str:
        return "somewhere"

    def close(self) -> None:
        self.closed += 1
        self.closed_by = threading.get_ident()

    @staticmethod
    def _say(answer: Any) -> Any:
        if isinstance(answer, BaseException):
            raise answer
        return answer() if callable(answer) else answer


class AsyncAnswers(Answers):
    """The same, with async methods."""

    async def reset(self) -> Any:
        return await self._later(self.on_reset)

    async def step(self, action: Any) -> Any:
        return await self._later(self.on_step)

    async def _later(self, answer: Any) -> Any:
        await asyncio.sleep(0)
        said = self._say(answer)
        return await said if isinstance(said, Awaitable) else said


KINDS = [
    pytest.param(Answers, id="threaded"),
    pytest.param(partial(Answers, inline=True), id="inline"),
    pytest.param(AsyncAnswers, id="async"),
]
Make = Callable[..., Answers]


async def reset_and_step(session: EnvironmentSession) -> tuple[Observation, StepResult]:
    return await session.reset(), await session.step(ACTION)


def first_turn(env: BaseEnvironment, **limits: float) -> tuple[Observation, StepResult]:
    async def run() -> tuple[Observation, StepResult]:
        session = EnvironmentSession(env, **limits)
        try:
            return await reset_and_step(session)
        finally:
            await session.close()

    return asyncio.run(run())
