"""Environments around tools, and calls for them."""

from __future__ import annotations

import random
import threading
from typing import Any

from tests.inference.pictures import picture
from uirl.environments import BaseEnvironment, EnvironmentSession, ToolEnvironment
from uirl.types import Action, Observation, Task, ToolCall


def calls(*named: tuple[str, dict[str, Any]]) -> Action:
    return Action(tool_calls=tuple(ToolCall(name, arguments) for name, arguments in named))


def compute(expression: str) -> tuple[str, dict[str, Any]]:
    return "calculator", {"expression": expression}


async def begin(
    env: BaseEnvironment, seed: int = 0, task: Task | None = None, limit: float = 20.0
) -> EnvironmentSession:
    session = EnvironmentSession(env, 60.0, 60.0)
    await session.reset(task, seed)
    return session


class Counter(BaseEnvironment):
    """Counts its steps and pays 1 for each; over after `length`; shows a picture."""

    def __init__(self, length: int = 2, pictures: bool = False) -> None:
        super().__init__()
        self.length, self.pictures = length, pictures
        self.threads: set[int] = set()

    def reset(self, seed: int | None = None) -> Any:
        self.count, self.said = 0, []
        self.threads.add(threading.get_ident())
        return "begin"

    def step(self, action: str) -> Any:
        self.count += 1
        self.said.append(action)
        self.threads.add(threading.get_ident())
        seen = Observation(f"count {self.count}", (picture(self.count),) if self.pictures else ())
        return seen, 1.0, self.count == self.length, {"success": self.count == self.length}

    def get_state_description(self) -> str:
        self.threads.add(threading.get_ident())
        return f"count {self.count}"

    def get_prompt_prefix(self) -> str:
        return "Count."


class Quiz(ToolEnvironment):
    """Asks for twice a number; the right one pays 1."""

    def ask(self, rng: random.Random, task: Task | None) -> str:
        self.number = rng.randint(1, 9)
        return f"twice {self.number}"

    def judge(self, answer: str) -> Any:
        hit = answer == str(2 * self.number)
        return "", float(hit), True, {"success": hit}
