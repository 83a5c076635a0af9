"""`OpenEnvEnvironment` against a stand-in of openenv-core's server and against `uirl serve`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tests.environments.remote.openenv_stand_in import stand_in
from tests.environments.remote.running import running, serving, until
from tests.patience import PATIENCE
from uirl.environments import EnvironmentSession, ScreenEnvironment, play_episode
from uirl.environments.remote.client.openenv import OpenEnvEnvironment
from uirl.environments.remote.protocol.openenv import action_fields, read_frame
from uirl.errors import ConfigError, EnvironmentFailure, EpisodeTimeout
from uirl.types import Action, Task, ToolCall


@pytest.fixture
def toy() -> Iterator[tuple[str, Any]]:
    app = stand_in()
    with running(app) as url:
        yield url, app
        until(lambda: not app.state.open, "the end of all connections")


async def test_an_episode_of_a_foreign_environment(toy: tuple[str, Any]) -> None:
    session = EnvironmentSession(OpenEnvEnvironment(url=toy[0], reset_options={"hard": True}))
    first = await session.reset(Task("click-test"), seed=5)
    assert first.text == "{'hard': True, 'seed': 5, 'task_id': 'click-test', 'task_name': 'click-test'}"
    assert first.images[0].open().size == (8, 6)
    clicked = await session.step(Action.of("click", x=1, y=2))
    assert (clicked.reward, clicked.terminated) == (1.0, False)
    shown = await session.step(Action.of("numbers"))
    assert (shown.reward, shown.observation.images[0].open().size) == (0.0, (5, 4))
    assert shown.observation.images[0].open().getpixel((0, 0)) == (2, 2, 3)
    ended = await session.step(Action.of("list"))
    assert [image.open().getpixel((0, 0)) for image in ended.observation.images] == [(3, 0, 0), (0, 3, 0)]
    assert (ended.terminated, ended.truncated) == (True, False)
    again = await session.reset()
    assert again.text == "{'hard': True}"
    await session.close()


async def test_actions_that_the_server_does_not_know_are_the_models_mistake(toy: tuple[str, Any]) -> None:
    session = EnvironmentSession(OpenEnvEnvironment(url=toy[0]))
    first = await session.reset()
    for action, words in (
        (Action.of("click", z=1), "z: Extra inputs are not permitted"),
        (Action.of("click", x="left"), "x: Input should be a valid integer"),
        (Action(parse_error="no JSON"), "no JSON"),
        (Action(), "no actions in the reply"),
        (Action(tool_calls=(ToolCall("click"), ToolCall("click"))), "2 actions in the reply; expected one"),
    ):
        result = await session.step(action)
        assert words in result.observation.text
        assert (result.reward, result.done) == (0.0, False)
        assert result.observation.images == first.images
    assert (await session.step(Action.of("click"))).reward == 1.0
    await session.close()


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("boom", "EXECUTION_ERROR: boom"),
        ("nonsense", "expected an observation"),
        ("broken", "a picture that cannot be used"),
    ],
)
async def test_failures_of_the_server_are_typed(toy: tuple[str, Any], word: str, message: str) -> None:
    session = EnvironmentSession(OpenEnvEnvironment(url=toy[0]))
    await session.reset()
    with pytest.raises(EnvironmentFailure, match=message):
        await session.step(Action.of(word))
    await session.close()


async def test_a_full_server_is_waited_for(toy: tuple[str, Any]) -> None:
    base = OpenEnvEnvironment(url=toy[0], acquire_timeout=0.5)
    sessions = [EnvironmentSession(base.spawn()) for _ in range(3)]
    for session in sessions[:2]:
        await session.reset()
    with pytest.raises(EnvironmentFailure, match="CAPACITY_REACHED"):
        await sessions[2].reset()
    assert [server.active for server in base.pool.servers] == [2]
    patient = OpenEnvEnvironment(url=toy[0], acquire_timeout=60.0)
    waiting = asyncio.create_task(patient.reset())
    await asyncio.sleep(0.3)
    assert not waiting.done()
    await sessions[0].close()
    await waiting
    await patient.close()
    for session in sessions[1:]:
        await session.close()


@pytest.mark.parametrize("gives_up", ["the client", "whoever waits for it"])
async def test_an_answer_that_comes_late_is_no_answer_to_the_next_question(toy: tuple[str, Any], gives_up: str) -> None:
    url, app = toy
    environment = OpenEnvEnvironment(
        url=url, step_timeout=1.0 if gives_up == "the client" else 60.0, retry_backoff=0.01
    )
    await environment.reset(seed=1)
    step = asyncio.create_task(environment.step(Action.of("slow")))
    if gives_up == "the client":
        with pytest.raises(EpisodeTimeout, match="no answer to step within 1 s"):
            await step
    else:
        await asyncio.sleep(0.05)
        step.cancel()
        with pytest.raises(asyncio.CancelledError):
            await step
    app.state.go_on.set()
    assert "'seed': 2" in (await environment.reset(seed=2)).text
    await environment.close()


async def test_ends_and_texts_of_other_servers() -> None:
    with running(stand_in(ends=True, says=True)) as url:
        environment = OpenEnvEnvironment(url=url, action_format="text")
        session = EnvironmentSession(environment)
        await session.reset()
        result = await session.step(Action(text="cut"))
        assert (result.terminated, result.truncated) == (False, True)
        await session.close()


# -- against our own server ----------------------------------------------------------------------------------------


async def test_episodes_over_openenv_equal_those_played_here() -> None:
    with serving("screen", options={"level": 3, "retries": 2}) as served:
        local, remote = EnvironmentSession(ScreenEnvironment(level=3, retries=2)), EnvironmentSession(
            OpenEnvEnvironment(url=served.url)
        )  # fmt: skip
        for seed in range(3):
            solved = await play_episode(local, seed=seed)
            actions = (*solved.actions[:1], Action.of("click", x=1, y=1), *solved.actions[1:])
            plays = [await play_episode(s, lambda turn: actions[turn], seed=seed) for s in (local, remote)]  # noqa: B023
            assert plays[0] == plays[1]
            assert plays[0].success is True
        await remote.close()
        until(lambda: served.active == 0)


async def test_a_reaped_session_is_a_failure_in_an_episode_and_none_between() -> None:
    with serving("screen", idle=0.3) as served:
        environment = OpenEnvEnvironment(url=served.url)
        await environment.reset(seed=1)
        served.pass_time(0.4)
        until(lambda: served.active == 0)
        with pytest.raises(EnvironmentFailure, match="idle: not played"):
            await environment.step(Action.of("click", x=1, y=1))
        await environment.close()
        environment = OpenEnvEnvironment(url=served.url)
        await environment.reset(seed=1)
        served.pass_time(0.4)
        until(lambda: served.active == 0)  # in which its loop does not hear of the end of the connection
        assert (await environment.reset(seed=1)).images
        served.pass_time(0.4)
        until(lambda: served.active == 0)
        async with asyncio.timeout(PATIENCE):
            await environment._socket.wait_closed()  # now it does
        assert (await environment.reset(seed=1)).images
        assert environment.pool.servers[0].failures == 0, "the server was blamed for what it said"
        await environment.close()


# -- words -----------------------------------------------------------------------------------------------------------


def test_the_field_of_a_call_is_read_from_the_schema() -> None:
    action = Action("reply", (ToolCall("click", {"x": 1}),))
    none: dict[str, str | None] = {"name": None, "text": None}

    def fields(properties: dict[str, Any], wanted: dict[str, str | None] = none, format: str = "json") -> Any:
        return action_fields(action, {"properties": properties}, wanted, format)

    text = {"type": "string"}
    assert fields({"action_type": text}) == {"action_type": "click", "x": 1}
    assert fields({"type": text, "command": text}) == {"type": "click", "x": 1}
    assert fields({"what": text}, {"name": "what", "text": None}) == {"what": "click", "x": 1}
    assert fields({"x": {}}) == {"x": 1}
    assert fields({"message": text, "metadata": {"type": "object"}}, format="text") == {"message": "reply"}
    assert fields({"a": text, "b": {"anyOf": [text]}}, {"name": None, "text": "b"}, "text") == {"b": "reply"}
    with pytest.raises(ConfigError, match="text_field"):
        fields({"a": text, "b": {"anyOf": [text]}}, format="text")


@pytest.mark.parametrize(
    ("data", "ends"),
    [
        ({"observation": {}, "done": True}, (True, False)),
        ({"observation": {}, "done": False}, (False, False)),
        ({"observation": {}, "done": True, "truncated": True}, (False, True)),
        ({"observation": {"done": True, "truncated": True}}, (False, True)),
        ({"observation": {}, "done": True, "terminated": True, "truncated": True}, (True, True)),
        ({"observation": {"terminated": True}, "done": True, "truncated": False}, (True, False)),
    ],
)
def test_ends_of_all_ages(data: dict[str, Any], ends: tuple[bool, bool]) -> None:
    frame = read_frame(data, "here")
    assert (frame.terminated, frame.truncated) == ends


def test_texts_of_observations() -> None:
    def text(observation: dict[str, Any]) -> str:
        return read_frame({"observation": observation}, "here").observation.text

    assert text({"text": "main", "other": "x"}) == "main"
    assert text({"goal": "only one"}) == "only one"
    assert text({"goal": "a", "score": 2, "tags": ["x"], "empty": "", "none": None}) == 'goal: a\nscore: 2\ntags: ["x"]'


@pytest.mark.parametrize(
    "data",
    [
        {"observation": None},
        {"observation": {}, "reward": "much"},
        {"observation": {}, "reward": True, "done": "yes"},
        {"observation": {"image": "no base64!"}},
        {"observation": {"pixels": [[["a"]]]}},
        {"observation": {"pixels": [[[300, 0, 0]]]}},
        {"observation": {"tool_results": [{"nome": "x"}]}},
    ],
)
def test_nonsense_is_a_failure(data: dict[str, Any]) -> None:
    with pytest.raises(EnvironmentFailure, match="here sent"):
        read_frame(data, "here")
