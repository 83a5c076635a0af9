"""Whatever breaks between here and a phone: a typed failure, no reward of zero, and a task that is torn down where its
server can still be reached."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.environments.mobile_world.double import Double
from tests.environments.mobile_world.playing import DONE, Served, act, environment, phones, play, reply, tap
from tests.environments.remote.faults import Faulty, Wire
from tests.environments.remote.running import until
from tests.environments.remote.test_faults import expect_failures
from tests.rollout.worlds import collector, play_with, scripted
from uirl.environments.mobile_world.environment import MobileWorldEnvironment
from uirl.environments.session import EnvironmentSession
from uirl.errors import EnvironmentFailure, EpisodeTimeout
from uirl.inference import LoadedModel
from uirl.rollout import EpisodeLimits, EpisodeSpec
from uirl.types import Task, Trajectory

TASK = "OpenSettingsTask"
HUNG = 3.0
"""Seconds after which a request hangs: those that do not may be slow on a busy machine."""
SMALL = {"image_size": [56, 112], "max_turns": 4}


def collect(
    vlm: LoadedModel,
    env: MobileWorldEnvironment,
    episodes: int = 1,
    *,
    retries: int = 0,
    before_turn: Callable[[int], None] = lambda number: None,
    replies: tuple[str, ...] = (reply(tap(1, 1)), reply(tap(270, 900))),
    **options: Any,
) -> list[Trajectory]:
    """Episodes of four taps, with the last of which the settings are open."""
    engine = scripted(vlm, *replies)
    generate, calls = engine.generate, iter(range(10**9))

    async def counted(request: Any) -> Any:
        before_turn(next(calls))
        return await generate(request)

    engine.generate = counted  # type: ignore[method-assign]
    group = collector(vlm, env, retries=retries, parallel=8, **({"limits": EpisodeLimits(8)} | options))

    async def run() -> list[Trajectory]:
        specs = [EpisodeSpec(Task(TASK), i, i, f"g-{i}", "g") for i in range(episodes)]
        try:
            return await group.collect(specs, play_with(engine, 200))
        finally:
            await group.close()

    return asyncio.run(run())


def small(*served: Served, **options: Any) -> MobileWorldEnvironment:
    return environment(*served, **{**SMALL, "acquire_timeout": 0.5, **options})


def asked(double: Double, path: str) -> int:
    return sum(own == path for own, _ in double.told)


def once(end: str, fault: str, number: int = 1) -> Callable[[Any], Faulty]:
    """Spoils the requests to paths of this end, from the `number`th on."""

    def wrap(app: Any) -> Faulty:
        faulty = Faulty(app)
        faulty.rule = lambda method, path: fault if path.endswith(end) and faulty.count(end) >= number else None
        return faulty

    return wrap


def test_nothing_breaks(vlm: LoadedModel) -> None:
    """The measure of all others."""
    with phones() as (phone,):
        (trajectory,) = collect(vlm, small(phone))
        assert (trajectory.failure, trajectory.stop_reason, trajectory.rewards) == (None, "terminated", [0, 0, 0, 1.0])
        assert phone.idle


@pytest.mark.parametrize(("solved", "max_turns"), [(True, None), (False, 9)])
def test_an_episode_that_the_run_cuts_is_scored_as_the_phone_stands(
    vlm: LoadedModel, solved: bool, max_turns: int | None
) -> None:
    """A policy that wanders until the run cuts it off must not be spared its loss."""
    replies = (reply(tap(1, 1)), reply(tap(270, 900) if solved else tap(2, 2)))
    with phones() as (phone,):
        env = small(phone, max_turns=max_turns)
        (trajectory,) = collect(vlm, env, replies=replies, limits=EpisodeLimits(max_turns=4))
        assert (trajectory.failure, trajectory.stop_reason) == (None, "max_turns")
        assert trajectory.rewards == [0, 0, 0, float(solved)]
        assert trajectory.success is solved
        assert phone.idle
        assert asked(phone.double, "/task/eval") == 1


def test_a_score_that_does_not_come_is_a_failure_still(vlm: LoadedModel) -> None:
    with phones(wrap=once("/task/eval", "500")) as (phone,):
        (trajectory,) = collect(vlm, small(phone, max_turns=None), limits=EpisodeLimits(max_turns=2))
        assert trajectory.failure is not None
        assert trajectory.failure.kind == "environment"


# -- answers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("end", "fault", "number", "kind", "words", "turn"),
    [
        ("/step", "503", 2, "environment", "/step was answered with 503", 1),
        ("/step", "text", 2, "environment", "not JSON", 1),
        ("/screenshot", "text", 1, "environment", "not JSON", 0),
        ("/task/init", "500", 1, "environment", "/task/init was answered with 500", 0),
        ("/task/goal", "500", 1, "environment", "/task/goal was answered with 500", 0),
        ("/task/eval", "500", 1, "environment", "/task/eval was answered with 500", 3),
        ("/task/eval", "hang", 1, "timeout", "/task/eval: no answer within 3 s", 3),
        ("/health", "503", 1, "environment", "/health was answered with 503", 0),
    ],
)
def test_answers_of_the_wrong_kind(
    vlm: LoadedModel, end: str, fault: str, number: int, kind: str, words: str, turn: int
) -> None:
    with phones(wrap=once(end, fault, number)) as (phone,):
        limit = HUNG if fault == "hang" else 60.0
        env = small(phone, step_timeout=limit, task_timeout=limit)
        env.client.backoff = 0.01
        expect_failures(collect(vlm, env), kind, words, turn=turn)
        assert phone.idle, "the task was not torn down"
        assert phone.app.count("/step") == (turn + 1 if turn else 0), "an act was sent again"
        assert [server.active for server in env.pool.servers] == [0]


def test_a_score_that_is_missing_is_a_failure_and_no_zero(vlm: LoadedModel) -> None:
    replies = (reply(DONE),)
    with phones() as (phone,):
        for said in ({}, {"score": None}, {"score": "1"}, {"score": True}, {"score": 7}, [1.0], None):
            phone.double.spoil["score"] = said
            trajectories = collect(vlm, small(phone), replies=replies)
            expect_failures(trajectories, "environment", "/task/eval answered something else", turn=0)
            assert phone.idle


@pytest.mark.parametrize("data", [b"\x89PNG\r\n\x1a\n and then nothing", b"<html>", None])
def test_pictures_that_are_damaged(vlm: LoadedModel, data: bytes | None) -> None:
    with phones() as (phone,):

        def spoil(number: int) -> None:
            if number == 1:
                phone.double.spoil["png"] = data or phone.double.phone.picture()[:-60]

        trajectories = collect(vlm, small(phone), before_turn=spoil)
        expect_failures(trajectories, "environment", "a picture that cannot be used", turn=1)
        assert phone.idle


def test_a_tear_down_that_fails_leaves_the_score_as_it_is(vlm: LoadedModel, caplog: pytest.LogCaptureFixture) -> None:
    with phones(wrap=once("/task/tear_down", "500")) as (phone,), caplog.at_level(logging.WARNING):
        (trajectory,) = collect(vlm, small(phone))
        assert (trajectory.failure, trajectory.total_reward()) == (None, 1.0)
        assert "was not torn down" in caplog.text


# -- phones ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("later", [False, True])
def test_a_phone_that_falls_ill_and_is_mended(vlm: LoadedModel, later: bool) -> None:
    with phones(later=later) as (phone,):

        def fall_ill(number: int) -> None:
            if number == 2:
                phone.double.sick()

        env = small(phone, acquire_timeout=60.0)
        done, attempt = collect(vlm, env, retries=1, before_turn=fall_ill)
        expect_failures([attempt], "environment", "Device is not healthy", turn=2)
        # asking for the health mended it, and the episode was played again
        assert (done.failure, done.total_reward()) == (None, 1.0)
        assert asked(phone.double, "/suite_family/switch") == 2
        assert asked(phone.double, "/task/tear_down") == 2


def test_a_phone_that_stays_ill_is_left_alone(vlm: LoadedModel) -> None:
    with phones(2) as (ill, well):
        ill.double.heals = False
        ill.double.sick()
        env = small(ill, well, acquire_timeout=60.0)
        assert [t.failure for t in collect(vlm, env, episodes=4)] == [None] * 4
        assert (ill.double.begun, well.double.begun) == (0, 4)
        assert env.pool.servers[0].failures >= 1
        expect_failures(collect(vlm, small(ill)), "environment", "says that a device is not well", turn=0)


def test_no_phone_is_free_in_time(vlm: LoadedModel) -> None:
    with phones() as (phone,):
        env = small(phone, acquire_timeout=0.2)

        async def run() -> None:
            holder, other = EnvironmentSession(env.spawn()), EnvironmentSession(env.spawn())
            await holder.reset(Task(TASK))
            with pytest.raises(EnvironmentFailure, match="no server is free"):
                await other.reset(Task(TASK))
            await other.close()
            await holder.close()

        asyncio.run(run())
        assert phone.idle


def test_a_task_the_server_does_not_have(vlm: LoadedModel) -> None:
    async def run(env: MobileWorldEnvironment, name: str) -> None:
        session = EnvironmentSession(env)
        try:
            await session.reset(Task(name))
        finally:
            await session.close()

    with phones() as (phone,):
        with pytest.raises(EnvironmentFailure, match="no task 'OpenSetingsTask'; did you mean 'OpenSettingsTask'"):
            asyncio.run(run(small(phone), "OpenSetingsTask"))
        with pytest.raises(EnvironmentFailure, match=r"'AddTask' needs the tools of \['adder'\]"):
            asyncio.run(run(small(phone), "AddTask"))
        assert asked(phone.double, "/task/init") == 0


# -- servers and wires -------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def in_a_process() -> Iterator[tuple[Served, subprocess.Popen[str]]]:
    """A phone whose server can be killed."""
    command = [sys.executable, "-m", "tests.environments.mobile_world.double"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield Served(process.stdout.readline().strip(), Double()), process
        finally:
            process.kill()


def test_a_server_that_is_killed_in_the_middle(vlm: LoadedModel) -> None:
    with in_a_process() as (doomed, process), phones() as (other,):

        def kill(number: int) -> None:
            if number == 2:
                process.kill()
                process.wait()

        env = small(doomed, other, acquire_timeout=60.0)
        done, attempt = collect(vlm, env, retries=1, before_turn=kill)
        expect_failures([attempt], "environment", doomed.url.split("//")[1], turn=2)
        assert (done.failure, done.total_reward()) == (None, 1.0)
        assert other.double.begun == 1
        assert other.idle
        expect_failures(collect(vlm, small(doomed)), "environment", "Does the server run", turn=0)


def test_a_server_that_does_not_run_lists_no_tasks() -> None:
    with pytest.raises(EnvironmentFailure, match="no MobileWorld server lists its tasks"):
        small(Served("http://127.0.0.1:9", Double())).tasks()


def test_half_open_sockets(vlm: LoadedModel) -> None:
    with phones() as (phone,), Wire(phone.url).running() as wire:
        freeze = lambda number: wire.freeze() if number == 2 else None  # noqa: E731
        there = Served(wire.url, phone.double)
        env = small(there, step_timeout=HUNG, tear_down_timeout=0.4)
        expect_failures(collect(vlm, env, before_turn=freeze), "timeout", "/step: no answer within 3 s", turn=2)
        assert phone.double.task == TASK  # it could not be reached any more
        wire.mend()
        (trajectory,) = collect(vlm, small(there, acquire_timeout=60.0))
        assert (trajectory.failure, trajectory.total_reward()) == (None, 1.0)


def test_an_act_whose_answer_gets_lost_is_taken_once(vlm: LoadedModel) -> None:
    with phones() as (phone,), Wire(phone.url).running() as wire:
        cut = lambda number: wire.cut() if number == 2 else None  # noqa: E731
        env = small(Served(wire.url, phone.double))
        expect_failures(collect(vlm, env, before_turn=cut), "environment", "/step failed after 1 try", turn=2)
        assert asked(phone.double, "/step") == 3
        wire.mend()


# -- whoever gives up on this side -------------------------------------------------------------------------------------


def gate(end: str, opened: threading.Event, arrived: threading.Event | None = None) -> Callable[[Any], Any]:
    """Requests to paths of this end set `arrived` and wait for `opened`."""

    def wrap(app: Any) -> Any:
        async def waiting(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http" and scope["path"].endswith(end):
                if arrived is not None:
                    arrived.set()
                await asyncio.to_thread(opened.wait, 30)
            await app(scope, receive, send)

        waiting.state = app.state  # type: ignore[attr-defined]
        return waiting

    return wrap


def test_a_call_that_outlasts_the_run_s_limit() -> None:
    opened = threading.Event()
    with phones(wrap=gate("/step", opened)) as (phone,):
        env = small(phone)

        async def run() -> None:
            session = EnvironmentSession(env.spawn(), step_timeout=0.3)
            with pytest.raises(EpisodeTimeout, match=r"did not return within 0\.3 s"):
                await play(session, [tap(1, 1)], TASK)
            opened.set()
            await session.close()

        asyncio.run(run())
        until(lambda: phone.double.task is None, "the tear-down")
        assert asked(phone.double, "/task/tear_down") == 1
        assert [(server.active, server.why) for server in env.pool.servers] == [(0, "a call was given up")]


def test_a_reset_that_is_cancelled_while_the_task_is_set_up() -> None:
    opened, arrived = threading.Event(), threading.Event()
    with phones(wrap=gate("/task/init", opened, arrived)) as (phone,):
        env = small(phone)

        async def run() -> None:
            own = env.spawn()
            reset = asyncio.create_task(own.reset(Task(TASK)))
            await asyncio.to_thread(until, arrived.is_set)
            reset.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reset
            assert asked(phone.double, "/task/tear_down") == 1
            opened.set()
            await own.close()

        asyncio.run(run())
        # it may still be set up: no other episode begins there now
        (server,) = env.pool.servers
        assert (server.active, server.why) == (0, "a call was given up")
        assert server.out_until > 0


def test_a_cancelled_tear_down_goes_on() -> None:
    opened = threading.Event()
    with phones(wrap=gate("/task/tear_down", opened)) as (phone,):
        env = small(phone)

        async def run() -> None:
            own = env.spawn()
            await own.reset(Task(TASK))
            closing = asyncio.create_task(own.close())
            await asyncio.sleep(0.1)
            closing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await closing
            assert env.pool.servers[0].active == 1, "the phone is free while its task is torn down"
            opened.set()
            await own.close()
            assert env.pool.servers[0].active == 0

        asyncio.run(run())
        assert phone.idle


def test_an_episode_that_is_left_is_torn_down_before_the_next() -> None:
    with phones() as (phone,):

        async def run() -> None:
            session = EnvironmentSession(small(phone))
            await play(session, [act("wait")], TASK)
            await play(session, [DONE], "ReadClockTask")
            await session.close()

        asyncio.run(run())
        paths = [path for path, _ in phone.double.told if path.startswith("/task")]
        assert paths == ["/task/init", "/task/tear_down", "/task/init", "/task/eval", "/task/tear_down"]
