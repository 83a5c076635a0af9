"""What holds over every protocol of `uirl serve`, asked of our client of it."""

from __future__ import annotations

from typing import Any

import pytest
from PIL import Image

from tests.environments.remote.running import Served, serving, until
from tests.environments.remote.server.test_native import HUNG, Moody
from tests.environments.remote.server.test_security import AGENT, GRADER
from uirl.environments import BaseEnvironment, EnvironmentSession, check_environment, create_environment
from uirl.errors import ConfigError, EnvironmentFailure, EpisodeTimeout
from uirl.types import Action, Observation, StepResult, Task, ToolResult

CLICK = Action.of("click", x=1, y=1)
CLIENTS: dict[str, dict[str, Any]] = {
    "remote": {},
    "openenv": {},
    "ui_verifiers": {"width": 56, "height": 56, "delay": 0},
}
"""Client -> the options that it needs for `screen`."""
WITHOUT_GRADES = {
    "remote": "show no rewards to this token",
    "openenv": "shows no rewards to this token",
    "ui_verifiers": "needs the grader's token",
}


def session_of(name: str, served: Served, **options: Any) -> EnvironmentSession:
    return EnvironmentSession(create_environment(name, {"url": served.url, **CLIENTS[name], **options}))


class Endless(BaseEnvironment):
    """Shows the same picture, for ever, and leaves its limit of turns to whoever plays it."""

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
        return Observation("here", (Image.new("RGB", (56, 56), "red"),))


@pytest.mark.parametrize("name", CLIENTS)
async def test_a_limit_of_turns_is_told(name: str) -> None:
    with serving(Endless()) as served:
        session = session_of(name, served)
        for _ in range(2):  # and nothing of it is left in the next episode
            await session.reset(seed=1)
            assert not (await session.step(CLICK)).done
            last = await session.step(CLICK)
            assert (last.terminated, last.truncated) == (False, True)
            assert last.observation.info["out_of_turns"] is True
        await session.close()
        until(lambda: served.active == 0)


@pytest.mark.parametrize("name", CLIENTS)
async def test_rewards_need_the_graders_token(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENV_TOKEN", AGENT)
    monkeypatch.setenv("ENV_GRADER", GRADER)

    async def played(**options: Any) -> StepResult:
        session = session_of(name, served, **options)
        try:
            await session.reset(seed=3)
            return await session.step(CLICK)
        finally:
            await session.close()

    with serving("screen", token_env="ENV_TOKEN", grader_token_env="ENV_GRADER") as served:
        with pytest.raises(EnvironmentFailure, match="401"):
            await played()
        with pytest.raises((ConfigError, EnvironmentFailure), match=WITHOUT_GRADES[name]):
            await played(token_env="ENV_TOKEN")
        graded = await played(token_env="ENV_GRADER")
        if name == "ui_verifiers":  # it shows counts, and is never blind
            assert graded.observation.info["num_incorrect_submissions"] == 1
        else:
            assert graded.observation.info["success"] is False
            unseen = await played(token_env="ENV_TOKEN", blind=True)
            assert (unseen.reward, unseen.observation.info) == (0.0, {})
        until(lambda: served.active == 0)


@pytest.mark.parametrize(("name", "options"), [("remote", {}), ("openenv", {"action_format": "text"})])
async def test_tasks_results_ends_and_failures_pass_through(name: str, options: dict[str, Any]) -> None:
    with serving(Moody(), step_timeout=HUNG) as served:
        session = session_of(name, served, **options)
        first = await session.reset(Task("own", checks={"deep": [1, {"x": None}]}), seed=9)
        assert first.text.endswith("task own, seed 9")
        result = await session.step(Action(text="cut"))
        assert (result.terminated, result.truncated, result.reward) == (False, True, 0.1 + 0.2)
        seen = result.observation
        assert seen.text == "half \ud800 a pair"
        expected = ToolResult("add", {"a": 1}, False, {"sum": [1, 2.5, None, "\ud800"]}, "call-1", 0.25)
        assert seen.tool_results == (expected,)
        assert seen.info == {"success": True, "list": [1, 2]}
        await session.close()
        failures = (
            ("raise", EnvironmentFailure, "the cable was pulled"),
            ("hang", EpisodeTimeout, "did not return within 1 s"),
        )
        for word, kind, message in failures:
            session = session_of(name, served, **options)
            await session.reset()
            with pytest.raises(kind, match=message):
                await session.step(Action(text=word))
            assert session.broken
            await session.close()
        until(lambda: served.active == 0)


@pytest.mark.parametrize(("name", "options"), [("remote", {}), ("openenv", {"max_turns": 3})])
def test_the_contract_of_environments_is_kept(name: str, options: dict[str, Any]) -> None:
    with serving("screen", options={"retries": 1}, sessions=8) as served:
        report = check_environment(create_environment(name, {"url": served.url, **options}), episodes=2)
        assert report.seeded
        assert name == "openenv" or report.notes == []
        until(lambda: served.active == 0)
