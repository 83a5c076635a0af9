"""`NativeRemoteEnvironment`: what is played through a server is what would have been played here."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from typing import Any

import pytest

from tests.environments.remote.running import Served, serving, until
from tests.patience import PATIENCE
from tests.rollout.worlds import collector, specs
from uirl.environments import BaseEnvironment, EnvironmentSession, ScreenEnvironment, create_environment
from uirl.environments.remote.client.native import NativeRemoteEnvironment
from uirl.environments.remote.server.native import describe_environment
from uirl.errors import ConfigError, EnvironmentFailure
from uirl.inference import ChatRenderer, LoadedModel
from uirl.rollout import ExpertAgent
from uirl.types import Action, Trajectory

OPTIONS = {"level": 3, "retries": 1, "demonstrator": "careless", "carelessness": 0.7}


@pytest.fixture(scope="module")
def screen() -> Iterator[Served]:
    with serving("screen", options=OPTIONS, sessions=8) as served:
        yield served


def remote(served: Served, **options: Any) -> NativeRemoteEnvironment:
    return NativeRemoteEnvironment(url=served.url, **options)


def test_trajectories_through_the_server_equal_those_played_here(screen: Served, vlm: LoadedModel) -> None:
    def played(environment: BaseEnvironment) -> list[Trajectory]:
        group = collector(vlm, environment)

        async def run() -> list[Trajectory]:
            try:
                return await group.collect(specs(6), lambda spec: ExpertAgent(ChatRenderer(vlm), group.parser))
            finally:
                await group.close()

        return asyncio.run(run())

    here, there = played(ScreenEnvironment(**OPTIONS)), played(remote(screen))  # type: ignore[arg-type]
    assert screen.active == 0
    assert {t.stop_reason for t in here} == {"terminated"}
    assert 0 < sum(t.metrics["success"] for t in here) < 6
    for mine, theirs in zip(here, there, strict=True):
        assert mine.failure is theirs.failure is None
        assert mine.turns == theirs.turns  # images by their hash, rewards, info, tokens: everything
        assert mine.metrics.keys() == theirs.metrics.keys()
        assert mine.success == theirs.success


def test_it_is_what_the_server_serves(screen: Served) -> None:
    environment, local = remote(screen), ScreenEnvironment(**OPTIONS, describe=True)  # type: ignore[arg-type]
    assert (environment.action_format, environment.max_turns) == ("json", local.max_turns)
    assert environment.demonstrator_may_fail is True
    assert environment.scored_at_end is False
    assert environment.message_style == "plain"
    assert environment.tasks() is None
    controls = environment.controls()
    assert controls["constant_click"] == local.constant_click_action()
    with serving("screen", options={"describe": True}) as other:
        assert remote(other).get_prompt_prefix() == local.get_prompt_prefix()
    blank = controls["blank_image"]
    expected = local.controls()["blank_image"]

    async def first_picture(env: BaseEnvironment) -> bytes:
        session = EnvironmentSession(env)
        seen = await session.reset(seed=1)
        await session.close()
        data: bytes = seen.images[0].data
        return data

    assert asyncio.run(first_picture(blank)) == asyncio.run(first_picture(expected))
    assert screen.active == 0


@pytest.mark.parametrize("describe", ["template", "prompt"])
def test_its_tools_are_known_however_the_policy_is_told_of_them(describe: str) -> None:
    with serving("calculator", options={"describe": describe}) as served:
        environment = remote(served)
        assert [tool["function"]["name"] for tool in environment.callable_tools()] == ["calculator"]
        assert bool(environment.tool_schemas()) == (describe == "template")


async def test_a_lease_is_renewed_while_the_model_thinks(screen: Served) -> None:
    with serving("screen", lease=1.5) as served:
        environment = remote(served)
        await environment.reset(seed=1)
        (lease,) = served.sessions.active
        for _ in range(3):
            served.pass_time(1.0)
            async with asyncio.timeout(PATIENCE):
                while lease.renewed < served.sessions.clock():
                    await asyncio.sleep(0.01)
        assert served.active == 1
        assert (await environment.step(Action.of("click", x=1, y=1))).terminated
        await environment.close()
        assert served.active == 0


async def test_an_environment_that_nobody_holds_lets_its_session_go() -> None:
    with serving("screen", lease=0.4) as served:
        environment = remote(served)
        await environment.reset(seed=1)
        task = environment._heart
        del environment
        gc.collect()
        assert task is not None
        async with asyncio.timeout(PATIENCE):
            await task
        served.pass_time(0.5)
        until(lambda: served.active == 0)


async def test_a_session_that_ran_out_between_episodes_is_replaced() -> None:
    with serving("screen", idle=1.0) as served:
        environment = remote(served)
        first = await environment.reset(seed=1)
        served.pass_time(1.1)
        until(lambda: served.active == 0)
        again = await environment.reset(seed=1)
        assert again.images == first.images
        assert served.active == 1
        await environment.close()
        await environment.close()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"url": "127.0.0.1:8000"}, "no address of a server"),
        ({"url": "ftp://host"}, "no address of a server"),
        ({"url": "http://me:secret@host"}, "the credential in token_env"),
        ({"urls": "http://host"}, r"remote\.urls: got 'http://host', expected list"),
        ({"urls": ["http://a", "http://a/"]}, "named twice"),
        ({"spares": ["http://a"]}, "no option 'spares'; did you mean 'fallback_urls'"),
        ({"patience": 3}, "no option 'patience'; did you mean 'acquire_timeout'"),
        ({"rest": 3}, "no option 'rest'; did you mean 'retry_backoff'"),
        ({"sessions_per_server": 3}, "no option 'sessions_per_server'; did you mean 'max_sessions'"),
        ({"token_env": "NO_SUCH_VARIABLE"}, "NO_SUCH_VARIABLE holds no token"),
        ({"step_timeout": 0}, r"remote\.step_timeout: got 0, expected number > 0"),
    ],
)
def test_options_that_do_not_fit(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        create_environment("remote", options)
    assert "secret" not in str(caught.value)


def test_servers_that_serve_something_else_are_refused(screen: Served) -> None:
    with serving("screen") as other:
        environment = NativeRemoteEnvironment(urls=[screen.url, other.url])
        assert environment.max_turns == 4  # the description is the first server's

        async def run() -> None:
            one, two = environment.spawn(), environment.spawn()
            await one.reset(seed=1)
            with pytest.raises(EnvironmentFailure, match="serves another environment"):
                await two.reset(seed=1)
            await one.close()
            await two.close()

        asyncio.run(run())
        assert screen.active == other.active == 0


def test_copies_share_servers_and_nothing_else(screen: Served) -> None:
    async def run() -> None:
        environment = remote(screen)
        others = [environment.spawn() for _ in range(3)]
        await asyncio.gather(*[other.reset(seed=i) for i, other in enumerate(others)])  # type: ignore[call-arg]
        assert screen.active == 3
        assert [server.active for server in environment.pool.servers] == [3]
        assert len({other._session for other in others}) == 3  # type: ignore[attr-defined]
        await asyncio.gather(*[other.close() for other in others])  # type: ignore[func-returns-value]
        assert [server.active for server in environment.pool.servers] == [0]
        assert not environment.client._open, "connections are left open"

    asyncio.run(run())


async def test_an_answer_to_another_step_is_a_failure(screen: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = remote(screen)
    await environment.reset(seed=1)
    ask = environment.client.json

    async def skip(*request: Any, **options: Any) -> Any:
        answer = await ask(*request, **options)
        return {**answer, "turn": answer["turn"] + 1} if "turn" in answer else answer

    monkeypatch.setattr(environment.client, "json", skip)
    with pytest.raises(EnvironmentFailure, match="counts 2 steps of the episode and this client 1"):
        await environment.step(Action.of("click", x=1, y=1))
    await environment.close()


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"scored_at_end": "false"}, "environment.scored_at_end is 'false'; expected true or false"),
        ({"max_turns": 0}, "environment.max_turns is 0"),
        ({"tool_schemas": {}}, "environment.tool_schemas is {}; expected a list"),
        ({"controls": {"blank": {"action": {"txt": "a"}}}}, "environment.controls.blank.action.txt is not known here"),
        ({"action_format": None}, "environment.action_format is missing"),
        ({"protocol": 2}, "speaks protocol 2 and this client 1"),
    ],
)
def test_a_description_is_checked(wrong: dict[str, Any], told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = NativeRemoteEnvironment()
    description = describe_environment("screen", ScreenEnvironment()).write() | {"grades": True} | wrong

    def first_answer(urls: Any, path: str, read: Any, *words: str) -> Any:
        return read(description)

    monkeypatch.setattr(environment.client, "first_answer", first_answer)
    with pytest.raises(ConfigError, match=told):
        environment.get_prompt_prefix()
