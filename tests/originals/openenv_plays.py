"""What is played on OpenEnv's own servers: `python -m tests.originals.openenv_plays NAME URL` plays one.

The recorder and the tests play the same, so that a recording holds the very frames that our client sends.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from uirl.environments import EnvironmentSession
from uirl.environments.remote.client.openenv import OpenEnvEnvironment
from uirl.types import Action, Observation, StepResult, Task

PLAYS: dict[str, tuple[dict[str, Any], list[Action]]] = {
    "echo_env": (
        {},
        [
            Action.of("echo_message", message="Grüße"),
            Action.of("echo_with_length", message="four"),
            Action.of("echo_message", wrong="argument"),
            Action.of("shout", message="x"),
        ],
    ),
    "repl_env": (
        {"reset_options": {"context": "The answer is 41 plus one.", "task_prompt": "What is the answer?"}},
        [
            Action.of("run", code="words = context.split()\nprint(len(words))"),
            Action.of("run", code="print(len(words) * 7)"),
            Action.of("run", code="print('FINAL(42)')"),
        ],
    ),
    "grid_world_env": ({}, [Action.of(name) for name in ("DOWN", "RIGHT", "UP", "JUMP")]),
    "maze_env": ({}, [Action.of("move", action=1), Action.of("move", action=3), Action.of("move", action="north")]),
    "connect4_env": ({}, [Action.of("drop", column=3), Action.of("drop", column=3), Action.of("drop", column=9)]),
    "coding_env": (
        {"action_format": "text"},
        [Action("x = 20\nprint(x + 22)"), Action("print(x)"), Action("y = x + 1")],
    ),
}
"""Environment -> options of the client, and the actions."""


async def play(name: str, url: str) -> tuple[Observation, list[StepResult], list[Any]]:
    """The first observation, every result, and the tools that are listed."""
    options, actions = PLAYS[name]
    environment = OpenEnvEnvironment(url=url, **options)
    tools = list(environment.tool_schemas())
    session = EnvironmentSession(environment)
    first = await session.reset(Task("recorded"), seed=7)
    results = []
    for action in actions:
        results.append(await session.step(action))
        if results[-1].done:
            break
    await session.close()
    return first, results, tools


if __name__ == "__main__":
    first, results, tools = asyncio.run(play(*sys.argv[1:]))
    print(first)
    print(*results, *tools, sep="\n")
