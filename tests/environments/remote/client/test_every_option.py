"""No option of a client of a server is accepted and then does nothing.

What a client reads before it speaks to anybody (its prompt, its limits, the servers it leases from) is compared here
with that of a client without the option. What only shows on the wire is named with the test that shows it.
"""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.environments.mobile_world.playing import SOLUTIONS, environment, phones, play_alone
from uirl.environments.mobile_world import environment as phone_module
from uirl.environments.registry import create_environment, environment_class, option_names
from uirl.environments.remote.client.base import Server
from uirl.environments.remote.protocol.openenv import action_fields
from uirl.errors import ConfigError, EnvironmentFailure
from uirl.types import Action

HERE = Path(__file__).parents[2]
CLICK = Action.of("click", x=3, y=4)


def leased(env: Any) -> Any:
    """What `RemoteEnvironment` leases a session by."""
    servers = [(server.url, server.fallback, server.max_sessions) for server in env.pool.servers]
    return (
        servers,
        env.pool.acquire_timeout,
        env.pool._backoff_of(env.pool.servers[0]),
        env.options.step_timeout,
        getattr(env.options, "reset_timeout", None),
    )


def limits(env: Any) -> Any:
    """The time limits of a phone's server."""
    return (env.options.step_timeout, env.options.task_timeout)


def told(env: Any) -> Any:
    return env.get_prompt_prefix()


def turns(env: Any) -> Any:
    return env.max_turns


def acted(env: Any) -> Any:
    """The parameters of a click on the wire of ui-verifiers."""
    return env._query(env.space.read(CLICK))


def filled(env: Any) -> Any:
    """The fields of a click on the wire of OpenEnv."""
    return action_fields(CLICK, {"properties": {"message": {"type": "string"}}}, env._fields, env.action_format)


def opened(env: Any) -> Any:
    """What a client sends to open a session."""
    sent: list[Any] = []

    class Wire:
        async def send(self, *args: Any, **options: Any) -> Any:
            return type("Root", (), {"text": "UI Verifiers Server", "headers": {}})

        async def json(self, *args: Any, **options: Any) -> Any:
            sent.append((args, options))
            raise EnvironmentFailure("that is all")

    env.client = Wire()
    env._seed = None
    with pytest.raises(EnvironmentFailure, match="that is all"):
        asyncio.run(env._open(Server("http://x")))
    return sent


Look = tuple[Any, Callable[[Any], Any]]
"""Another value of the option, and what it changes."""
ANY: dict[str, Look | str] = {
    "url": ("http://other:9000", leased),
    "urls": (["http://a:1", "http://b:1"], leased),
    "fallback_urls": (["http://spare:1"], leased),
    "token_env": ("ENV_TOKEN", lambda env: env.client.headers()),
    "acquire_timeout": (7.0, leased),
    "retry_backoff": (3.5, leased),
    "step_timeout": (8.0, leased),
}
PROTOCOLS, OPENENV = "remote/test_every_protocol.py::", "remote/client/test_openenv.py::"
UI, PHONE = "remote/client/test_ui_verifiers.py::", "mobile_world/test_environment.py::"
SUITES = "mobile_world/test_suites.py::"
CHOSEN = f"{PHONE}test_tasks_are_chosen_by_names_tags_and_apps"
CLIENTS: dict[str, dict[str, Look | str]] = {
    "remote": {
        **ANY,
        "reset_timeout": (8.0, leased),
        "max_sessions": (2, leased),
        "blind": f"{PROTOCOLS}test_rewards_need_the_graders_token",
        "variant": ("blank_image", opened),
    },
    "ui_verifiers": {
        **ANY,
        "reset_timeout": (8.0, leased),
        "protocol": ("M", told),
        "session_type": ("forms", opened),
        "prompt": f"{UI}test_rewards_over_protocol_s_follow_progress",
        "rows": f"{UI}test_rewards_over_protocol_s_follow_progress",
        "wrong_cost": f"{UI}test_protocol_m_makes_a_session_per_episode",
        "max_turns": (3, turns),
        "width": (640, told),
        "height": (480, told),
        "coordinates": ("grid_999", told),
        "delay": (0.25, acted),
    },
    "openenv": {
        **ANY,
        "reset_timeout": (8.0, leased),
        "action_format": ("text", filled),
        "name_field": ("what", filled),
        "text_field": "remote/client/test_every_option.py::test_a_text_goes_to_the_field_that_is_named",
        "reset_options": f"{OPENENV}test_an_episode_of_a_foreign_environment",
        "describe": "remote/client/test_openenv_tools.py::test_the_tools_are_listed_for_the_chat_template",
        "prompt": ("Click.", told),
        "max_turns": (3, turns),
        "invalid_reward": (-2.0, lambda env: env.mistake_reward),
        "blind": f"{PROTOCOLS}test_rewards_need_the_graders_token",
    },
    "mobile_world": {
        **ANY,
        "device": "remote/client/test_every_option.py::test_the_device_and_the_wait_reach_the_phone",
        "step_wait_time": "remote/client/test_every_option.py::test_the_device_and_the_wait_reach_the_phone",
        **dict.fromkeys(("task_names", "tags", "without_tags", "apps", "mcp"), CHOSEN),
        "more_apps": f"{PHONE}test_the_prompt_names_what_there_is",
        "ask_user": (False, told),
        "max_turns": (3, turns),
        "prompt": ("mai_ui", told),
        "suite": f"{SUITES}test_tasks_of_android_world_are_listed_and_played",
        "suite_seed": f"{SUITES}test_a_seed_reaches_a_server_that_has_the_suite_already",
        "restart_timeout": f"{SUITES}test_what_may_restart_an_emulator_has_the_time_for_it",
        "image_size": f"{PHONE}test_small_pictures_of_the_same_places",
        "task_timeout": (8.0, limits),
        "tear_down_timeout": "mobile_world/test_faults.py::test_half_open_sockets",
    },
}
"""Client -> option -> a value and what it changes, or the test that shows its effect."""


def names_option(test: str, option: str) -> bool:
    """Whether there is such a test, and it gives the option."""
    path, _, function = test.partition("::")
    source = (HERE / path).read_text()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == function:
            text = ast.get_source_segment(source, node) or ""
            return f"{option}=" in text or f'"{option}"' in text
    return False


@pytest.mark.parametrize("name", CLIENTS)
def test_every_option_of_a_client_changes_something(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENV_TOKEN", "secret")
    assert CLIENTS[name].keys() == option_names(environment_class(name))
    for option, shown in CLIENTS[name].items():
        if isinstance(shown, str):
            assert names_option(shown, option), (option, shown)
            continue
        value, look = shown
        assert look(create_environment(name, {option: value})) != look(create_environment(name)), option


def test_a_text_goes_to_the_field_that_is_named() -> None:
    env: Any = create_environment("openenv", {"action_format": "text", "text_field": "said"})
    assert action_fields(Action("hello"), {"properties": {}}, env._fields, env.action_format) == {"said": "hello"}


def test_the_device_and_the_wait_reach_the_phone(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    class Asyncio:
        def __getattr__(self, name: str) -> Any:
            return getattr(asyncio, name)

        async def sleep(self, seconds: float) -> None:
            slept.append(seconds)

    monkeypatch.setattr(phone_module, "asyncio", Asyncio())
    with phones() as (phone,):
        task = "OpenSettingsTask"
        play_alone(environment(phone, device="emulator-5554", step_wait_time=0.75), SOLUTIONS[task], task)
        assert ("/init", "emulator-5554") in phone.double.told
    assert slept == [0.75, 0.75]
    env: Any = create_environment("mobile_world", {"device": "emulator-5556"})
    assert env.options.device == "emulator-5556"


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("openenv", {"name_field": "what", "action_format": "text"}, "name_field is for the name of a call"),
        ("openenv", {"text_field": "said"}, "text_field is for action_format 'text', got 'json'"),
        ("ui_verifiers", {"session_type": "forms", "protocol": "S"}, "protocol 'S' opens no sessions"),
    ],
)
def test_an_option_that_nothing_reads_is_refused(name: str, options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        create_environment(name, options)
