"""Phones to play on, and replies in the words of MAI-UI."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tests.environments.mobile_world.double import Double, create_app
from tests.environments.mobile_world.phone import FIELD, FIRST, HEIGHT, ICONS, LINE, SEND, WIDTH
from tests.environments.remote.running import running
from uirl.environments.mobile_world.environment import MobileWorldEnvironment
from uirl.environments.scripted import Play
from uirl.environments.session import EnvironmentSession
from uirl.types import Action, Observation, StepResult, Task


@contextlib.contextmanager
def phones(count: int = 1, wrap: Callable[[Any], Any] = lambda app: app, **options: Any) -> Iterator[list[Served]]:
    """Servers on threads."""
    with contextlib.ExitStack() as stack:
        doubles = [Double(**options) for _ in range(count)]
        apps = [wrap(create_app(double)) for double in doubles]
        yield [
            Served(stack.enter_context(running(app)), double, app) for app, double in zip(apps, doubles, strict=True)
        ]


@dataclass
class Served:
    url: str
    double: Double
    app: Any = None

    @property
    def idle(self) -> bool:
        """Every task that was begun was torn down."""
        return self.double.task is None and self.double.begun == self.double.ended


def environment(*served: Served, **options: Any) -> MobileWorldEnvironment:
    """A quick one on these phones."""
    options = {
        "step_wait_time": 0,
        "acquire_timeout": 60.0,
        "retry_backoff": 0.05,
        "tear_down_timeout": 60.0,
        **options,
    }
    return MobileWorldEnvironment(urls=[one.url for one in served], **options)


def at(x: int, y: int) -> list[int]:
    """The place on the grid of a pixel."""
    return [round((x + 0.5) * 999 / WIDTH), round((y + 0.5) * 999 / HEIGHT)]


def act(name: str, **arguments: Any) -> Action:
    return Action.of(name, **arguments)


def tap(x: int, y: int) -> Action:
    return act("click", coordinate=at(x, y))


def reply(action: Action, thought: str = "so it goes") -> str:
    """The action as a model of MAI-UI writes it."""
    call = action.tool_calls[0]
    body = {"name": "mobile_use", "arguments": {"action": call.name, **call.arguments}}
    call_text = json.dumps(body, separators=(",", ":"))
    return f"<thinking>\n{thought}\n</thinking>\n<tool_call>\n{call_text}\n</tool_call>"


def _middle(box: tuple[int, int, int, int]) -> tuple[int, int]:
    return (box[0] + box[2]) // 2, (box[1] + box[3]) // 2


DONE = act("terminate", status="success")
SOLUTIONS: dict[str, list[Action]] = {
    "OpenSettingsTask": [tap(*ICONS["Settings"]), DONE],
    "SendMessageTask": [
        act("open", text="sms"),
        tap(*_middle(FIELD)),
        act("type", text="on my way"),
        tap(*_middle(SEND)),
        DONE,
    ],
    "ReadClockTask": [act("open", text="Clock"), act("answer", text="It is 7:45.")],
    "FindZoeTask": [tap(*ICONS["Contacts"]), act("swipe", direction="up"), tap(300, FIRST + 4 * LINE + 50), DONE],
    "AskColourTask": [act("ask_user", text="Which colour is it?"), act("answer", text="teal")],
    "AddTask": [act("add", a=19, b=23), act("answer", text="42")],
}


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


TOOLS = {"Adder": [add]}


async def play(
    session: EnvironmentSession, actions: Sequence[Action], task: str | None = None, seed: int | None = None
) -> Play:
    """These actions in an episode, until it is over."""
    first: Observation = await session.reset(None if task is None else Task(task), seed)
    results: list[StepResult] = []
    for action in actions:
        results.append(await session.step(action))
        if results[-1].done:
            break
    return Play(first, tuple(actions[: len(results)]), tuple(results))


def play_alone(env: MobileWorldEnvironment, actions: Sequence[Action], task: str | None = None) -> Play:
    """One episode on an instance of its own, which is closed."""

    async def run() -> Play:
        session = EnvironmentSession(env.spawn())
        try:
            return await play(session, actions, task)
        finally:
            await session.close()

    return asyncio.run(run())
