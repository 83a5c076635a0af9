"""What is played on the server of ui-verifiers: `python -m tests.originals.ui_verifiers_plays URL` plays it."""

from __future__ import annotations

import asyncio
import sys

from uirl.environments import EnvironmentSession
from uirl.environments.remote.client.ui_verifiers import UIVerifiersEnvironment
from uirl.types import Action, Observation, StepResult

ACTIONS = [
    Action.of("click", x=640, y=400),
    Action.of("double_click", x=10, y=20),
    Action.of("type", text="zoe62[at]yahoo.com"),
    Action.of("keys", keys="ctrl+a"),
    Action.of("scroll", direction="down"),
    Action.of("type", text="a row"),
    Action.of("terminate", status="success"),
]


async def play(url: str) -> tuple[Observation, list[StepResult]]:
    """The first observation and every result."""
    session = EnvironmentSession(UIVerifiersEnvironment(url=url, delay=0, rows=2))
    first = await session.reset()
    results = []
    for action in ACTIONS:
        results.append(await session.step(action))
        if results[-1].done:
            break
    await session.close()
    return first, results


if __name__ == "__main__":
    first, results = asyncio.run(play(sys.argv[1]))
    print(first, *results, sep="\n")
