"""An environment that leaves its limit of turns to whoever plays it: every protocol of `uirl serve` tells of it."""

from __future__ import annotations

from typing import Any

from PIL import Image

from tests.environments.remote.running import serving
from tests.environments.remote.server.test_openenv import ask, open_socket
from uirl.environments import BaseEnvironment, EnvironmentSession, create_environment
from uirl.types import Action, Observation, StepResult

CLICK = Action.of("click", x=3, y=4)


class Endless(BaseEnvironment):
    """Shows the same picture, for ever."""

    action_format = "json"
    runs_inline = True
    max_turns = 2

    def reset(self, seed: int | None = None) -> Any:
        return self._seen()

    def step(self, action: Action) -> Any:
        return self._seen(), 0.25, False, {"success": False}

    def get_state_description(self) -> str:
        return ""

    def _seen(self) -> Observation:
        return Observation("here", (Image.new("RGB", (64, 40), "red"),))


async def last_of(session: EnvironmentSession) -> StepResult:
    await session.reset(seed=1)
    first = await session.step(CLICK)
    assert not first.done
    return await session.step(CLICK)


def test_over_openenv() -> None:
    with serving(Endless()) as served, open_socket(served) as socket:
        ask(socket, "reset", {})
        click = {"name": "click", "arguments": {"x": 3, "y": 4}}
        assert ask(socket, "step", click)["data"]["done"] is False
        last = ask(socket, "step", click)["data"]
        assert (last["done"], last["terminated"], last["truncated"]) == (True, False, True)
        assert last["metadata"] == {"success": False, "out_of_turns": True}
        assert ask(socket, "step", click)["type"] == "error"
        assert ask(socket, "reset", {})["data"]["truncated"] is False


async def test_to_our_clients() -> None:
    with serving(Endless(), sessions=3) as served:
        options = {"url": served.url}
        for name, more in (
            ("remote", {}),
            ("ui_verifiers", {"width": 64, "height": 40}),
            ("openenv", {"action_format": "json"}),
        ):
            session = EnvironmentSession(create_environment(name, options | more))
            last = await last_of(session)
            assert (name, last.terminated, last.truncated) == (name, False, True)
            assert last.observation.info["out_of_turns"] is True
            await session.close()
