"""Families of tasks of later servers, and the waits around them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.environments.mobile_world.playing import DONE, SOLUTIONS, environment, phones, play_alone
from uirl.environments.mobile_world import environment as phone_module
from uirl.environments.mobile_world.options import MobileWorldOptions
from uirl.errors import EnvironmentFailure

TASK = "ContactsOpenContact"
SWITCH = "/suite_family/switch"


def switches(phone: Any) -> list[Any]:
    return [what for path, what in phone.double.told if path == SWITCH]


def test_tasks_of_android_world_are_listed_and_played() -> None:
    with phones(later=True) as (phone,):
        env = environment(phone, suite="android_world")
        assert [task.id for task in env.tasks()] == [TASK]
        played = play_alone(env, SOLUTIONS["FindZoeTask"], TASK)
        assert (played.success, phone.idle) == (True, True)
        # a server that another run left with the other suite lists its tasks no more
        assert TASK not in [task.id for task in environment(phone).tasks()]


def test_a_seed_reaches_a_server_that_has_the_suite_already() -> None:
    with phones(later=True) as (phone,):
        phone.double.suite, phone.double.seed = "android_world", 7
        play_alone(environment(phone, suite="android_world", suite_seed=3), [DONE], TASK)
        assert (phone.double.suite, phone.double.seed) == ("android_world", 3)
        assert switches(phone) == [("android_world", 3), "mobile_world", ("android_world", 3)]
        phone.double.told.clear()
        play_alone(environment(phone, suite="android_world"), [DONE], TASK)
        assert (switches(phone), phone.double.seed) == (["android_world"], 3), "no seed is asked for: it stays"


def test_an_early_server_has_no_other_suite() -> None:
    refused = pytest.raises(EnvironmentFailure, match=r"no suite android_world.*400.*Invalid suite_family")
    with phones() as (phone,), refused:
        environment(phone, suite="android_world").tasks()


def test_what_may_restart_an_emulator_has_the_time_for_it() -> None:
    with phones(later=True) as (phone,):
        env = environment(phone, suite="android_world", restart_timeout=543.0, task_timeout=99.0)
        asked: list[tuple[str, float]] = []
        ask = env.client.json

        async def watched(method: str, url: str, **options: Any) -> Any:
            asked.append((url.removeprefix(phone.url), options["timeout"]))
            return await ask(method, url, **options)

        env.client.json = watched  # type: ignore[method-assign]
        play_alone(env, [DONE], TASK)
    limits = dict(asked)
    assert (limits["/health"], limits[SWITCH], limits["/task/init"]) == (543.0, 543.0, 99.0)
    options = MobileWorldOptions()
    assert (options.restart_timeout, options.suite_query) == (600.0, {"target_family": "mobile_world"})


def test_the_first_screen_is_waited_for_as_every_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The original goes home, waits, and looks."""
    done: list[Any] = []

    class Asyncio:
        def __getattr__(self, name: str) -> Any:
            return getattr(asyncio, name)

        async def sleep(self, seconds: float) -> None:
            done.append(seconds)

    def wrap(app: Any) -> Any:
        async def watched(scope: Any, receive: Any, send: Any) -> None:
            if scope.get("path") in ("/task/init", "/screenshot", "/step"):
                done.append(scope["path"])
            await app(scope, receive, send)

        return watched

    monkeypatch.setattr(phone_module, "asyncio", Asyncio())
    with phones(wrap=wrap) as (phone,):
        play_alone(environment(phone, step_wait_time=1.0), SOLUTIONS["OpenSettingsTask"], "OpenSettingsTask")
    assert done == ["/task/init", 1.0, "/screenshot", "/step", 1.0, "/screenshot"]
