"""The pool of servers: who gets the next session, who is left alone, for how long."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, cast

import pytest

from tests.environments.remote.running import HandClock
from tests.patience import PATIENCE
from uirl.environments.remote.client import base
from uirl.environments.remote.client.base import MAX_BACKOFF, RemoteEnvironment, Server, ServerLost, ServerPool
from uirl.errors import ConfigError, EnvironmentFailure


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


def taken(pool: ServerPool, count: int) -> list[str]:
    found = [pool._choose() for _ in range(count)]
    return [server.url if server else "-" for server in found]


def test_sessions_are_balanced(clock: HandClock) -> None:
    pool = ServerPool(["a", "b", "c"], clock=clock)
    assert sorted(taken(pool, 6)) == ["a", "a", "b", "b", "c", "c"]
    pool.give_back(pool.servers[1])
    assert taken(pool, 1) == ["b"]


def test_a_server_takes_no_more_than_it_may(clock: HandClock) -> None:
    pool = ServerPool(["a", "b"], max_sessions=2, clock=clock)
    assert sorted(taken(pool, 5)) == ["-", "a", "a", "b", "b"]


def test_spares_stand_in_while_nobody_else_can(clock: HandClock) -> None:
    pool = ServerPool(["a"], ["s"], max_sessions=2, clock=clock)
    assert taken(pool, 3) == ["a", "a", "s"]
    pool = ServerPool(["a"], ["s"], retry_backoff=5.0, clock=clock)
    pool.take_out(pool.servers[0], "it broke")
    assert taken(pool, 2) == ["s", "s"]
    clock.now += 5.0
    assert taken(pool, 1) == ["a"]


def test_a_server_that_failed_is_tried_by_one_session_and_rests_longer_each_time(
    clock: HandClock, caplog: pytest.LogCaptureFixture
) -> None:
    pool = ServerPool(["a"], retry_backoff=5.0, clock=clock)
    server = pool.servers[0]
    assert taken(pool, 3) == ["a", "a", "a"]
    for _ in range(3):  # all three sessions tell of the same mishap
        pool.take_out(server, "it broke")
        pool.give_back(server)
    assert server.failures == 1
    assert caplog.messages == ["a is left out for 5 s after failure 1; 0 of 1 servers are in use. 'it broke'"]
    for rest in (5.0, 10.0, 20.0, 40.0, 80.0, 160.0, MAX_BACKOFF, MAX_BACKOFF):
        clock.now += rest - 0.1
        assert taken(pool, 1) == ["-"]
        clock.now += 0.1
        assert taken(pool, 2) == ["a", "-"]
        pool.take_out(server, "still broken")
        pool.give_back(server)
    clock.now += MAX_BACKOFF
    assert taken(pool, 2) == ["a", "-"]
    pool.well(server)
    assert taken(pool, 2) == ["a", "a"]
    assert (server.failures, server.why) == (0, "")
    assert len(caplog.messages) == 1


def test_a_full_server_is_left_alone_and_not_blamed(clock: HandClock) -> None:
    pool = ServerPool(["a", "b"], clock=clock)
    server = pool.servers[0]
    assert taken(pool, 5) == ["a", "b", "a", "b", "a"]
    pool.full(server, 3.0)
    pool.give_back(server)
    assert taken(pool, 3) == ["b", "b", "b"]
    pool.give_back(server)  # one session less there: room for one
    assert taken(pool, 2) == ["a", "b"]
    clock.now += 3.0
    assert taken(pool, 2) == ["a", "b"], "one session asks whether there is more room by now"
    pool.well(server)  # there is
    assert server.capacity == 3
    clock.now += 1.0
    assert taken(pool, 1) == ["a"]
    pool.full(server, 3.0)
    pool.give_back(server)
    assert taken(pool, 1) == ["b"]
    assert server.failures == 0


def test_a_server_that_opens_no_sessions_does_not_draw_them(clock: HandClock) -> None:
    pool = ServerPool(["a", "b"], ["s"], max_sessions=2, retry_backoff=5.0, clock=clock)
    assert taken(pool, 1) == ["a"]
    pool.give_back(pool.servers[0])
    pool.doubt(pool.servers[0], "no browser here")
    assert taken(pool, 5) == ["b", "b", "s", "s", "a"], "it is used where no other can"
    pool.give_back(pool.servers[0])
    pool.give_back(pool.servers[1])
    assert taken(pool, 1) == ["b"]
    pool.give_back(pool.servers[1])
    clock.now += 5.0
    assert taken(pool, 1) == ["a"], "after a rest it is as good as the others"
    pool.doubt(pool.servers[0], "no browser here")
    pool.well(pool.servers[0])
    assert (pool.servers[0].doubtful_until, pool.servers[0].why) == (0.0, "")


def test_a_server_that_is_full_runs_again(clock: HandClock) -> None:
    pool = ServerPool(["a"], retry_backoff=5.0, clock=clock)
    server = pool.servers[0]
    for rest in (0.0, 5.0, 10.0):  # down for a while
        clock.now += rest
        assert taken(pool, 1) == ["a"]
        pool.take_out(server, "it broke")
        pool.give_back(server)
    clock.now += 20.0
    assert taken(pool, 1) == ["a"]
    pool.full(server, 1.0)  # by now it runs, and others were faster
    pool.give_back(server)
    assert server.failures == 0
    clock.now += 1.0
    assert taken(pool, 1) == ["a"]


@pytest.mark.parametrize("woken", [True, False])
async def test_who_gives_up_leaves_the_place_to_the_next(woken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_LOOK", 3600.0)
    pool = ServerPool(["http://a"], max_sessions=1)
    one = await pool.take()
    first, second = (asyncio.create_task(pool.take(3600.0)) for _ in range(2))
    await asyncio.sleep(0.05)
    async with asyncio.timeout(PATIENCE):
        if woken:
            pool.give_back(one)
            await asyncio.sleep(0)
        first.cancel()
        if not woken:
            await asyncio.wait([first])
            pool.give_back(one)
        assert await second is one


async def test_take_waits_and_gives_up_with_the_reasons() -> None:
    pool = ServerPool(["http://a", "http://b"], max_sessions=1, acquire_timeout=0.3)
    _, two = await pool.take(), await pool.take()
    pool.take_out(two, "it broke")
    with pytest.raises(EnvironmentFailure) as caught:
        await pool.take()
    assert str(caught.value) == "no server is free: http://a (1 sessions); http://b (it broke)"


async def test_who_waits_is_woken_by_whoever_gives_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_LOOK", 3600.0)  # nobody looks on his own
    pool = ServerPool(["http://a"], max_sessions=1)
    one = await pool.take()
    waiting = [asyncio.create_task(pool.take(3600.0)) for _ in range(2)]
    await asyncio.sleep(0.05)
    async with asyncio.timeout(PATIENCE):
        pool.give_back(one)
        done, still = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert [task.result() for task in done] == [one]
        threading.Thread(target=pool.give_back, args=(one,)).start()  # from wherever it was used
        assert await still.pop() is one


async def test_who_waits_is_not_overtaken_by_who_comes_later() -> None:
    pool = ServerPool(["http://a"], max_sessions=1)
    one = await pool.take()
    order: list[str] = []

    async def waiter(name: str) -> None:
        server = await pool.take(PATIENCE)
        order.append(name)
        pool.give_back(server)

    waiting = [asyncio.create_task(waiter(name)) for name in ("first", "second")]
    while len(pool._waiting) < 2:
        await asyncio.sleep(0)
    pool.give_back(one)  # and who gives it back wants it again at once
    await asyncio.gather(waiter("the one that played"), *waiting)
    assert order == ["first", "second", "the one that played"]


class Lost(RemoteEnvironment):
    """A client whose server takes one session and cannot be reached."""

    asked = 0

    def _max_sessions(self) -> int | None:
        return 1

    async def _open(self, server: Server) -> None:
        Lost.asked += 1
        await asyncio.sleep(0)
        raise ServerLost("it cannot be reached")

    async def _leave(self, server: Server) -> None:
        await asyncio.sleep(0)

    def _forget(self) -> None:
        self._seen = None

    def get_state_description(self) -> str:
        return ""

    def reset(self) -> Any:
        return ""

    def step(self, action: Any) -> Any:
        return ""


async def test_a_server_that_was_lost_is_not_handed_to_the_next_one_who_waits() -> None:
    template = Lost(url="http://a", acquire_timeout=0.2, retry_backoff=3600.0)
    sessions = [cast(Lost, template.spawn()) for _ in range(5)]
    problems = await asyncio.gather(*[session._lease() for session in sessions], return_exceptions=True)
    assert all(isinstance(problem, EnvironmentFailure) for problem in problems)
    assert Lost.asked == 1


async def test_a_closed_event_loop_holds_nobody_up() -> None:
    pool = ServerPool(["http://a"], max_sessions=1)
    one = await pool.take()
    gone = asyncio.new_event_loop()
    pool._waiting.append(gone.create_future())
    gone.close()
    waiting = asyncio.create_task(pool.take(PATIENCE))
    while len(pool._waiting) < 2:
        await asyncio.sleep(0)
    pool.give_back(one)
    assert await waiting is one


def test_a_pool_needs_servers() -> None:
    with pytest.raises(ConfigError, match="there is no server"):
        ServerPool([], ["s"])
    with pytest.raises(ConfigError, match="named twice"):
        ServerPool(["a"], ["a"])
    assert Server("a").max_sessions is None
