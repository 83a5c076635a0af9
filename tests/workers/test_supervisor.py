"""The kill matrix: in which ways a worker is lost, and what is done about it, whatever carries what it says."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.patience import PATIENCE
from tests.workers.memory import InMemory, Life
from uirl.errors import ConfigError, EnvironmentFailure, ProcessLost, StorageError
from uirl.workers import peer as peer_module
from uirl.workers import supervisor as supervisor_module
from uirl.workers.peer import Handler, PeerLost
from uirl.workers.supervisor import Supervisor
from uirl.workers.worker import Worker

KILLED = "it was killed by SIGKILL"


class Fake(Worker):
    """`dies`: how it ends when it is to start; `raises`: what its start raises."""

    def __init__(self, *, dies: bool = False, raises: Exception | None = None, hangs: bool = False) -> None:
        self.dies, self.raises, self.hangs = dies, raises, hangs
        self.closed = 0

    @property
    def handlers(self) -> Mapping[str, Handler]:
        return {"start": self.start, "work": self.work}

    async def start(self) -> None:
        if self.dies:
            self.learner.close()
        if self.raises is not None:
            raise self.raises
        if self.hangs:
            await asyncio.sleep(1000)

    async def work(self) -> None:
        await asyncio.sleep(1000)

    async def close(self) -> None:
        self.closed += 1


def workers(*kinds: dict[str, Any]) -> InMemory:
    """Workers of these kinds in turn; the last kind is that of all that follow."""

    def make(number: int) -> Worker:
        kind = kinds[min(number, len(kinds) - 1)]
        if error := kind.get("no start"):
            raise error
        return Fake(**kind)

    return InMemory(make)


@asynccontextmanager
async def supervised(transport: InMemory, **options: Any) -> AsyncIterator[Supervisor]:
    made = Supervisor("worker-0", transport, "a:B", lambda peer: peer.call("start"), **options)
    made.begin()
    try:
        yield made
    finally:
        async with asyncio.timeout(PATIENCE):
            await made.close()


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "FIRST_PAUSE", 0.001)


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.005)


async def test_a_worker_says_where_it_is_and_gets_time_to_free_what_it_holds() -> None:
    transport, seen = workers({}), list[str]()
    async with supervised(transport) as one:
        one.on_change = lambda: seen.append(one.state)
        one.begin()
        await until(lambda: one.peer)
        await until(lambda: one.pid)
        assert (one.pid, one.host, one.incarnation) == (os.getpid(), socket.gethostname(), 1)
        await one.close()
        await one.close()
        (life,) = transport.lives
        assert await life.ended() == "it ended with status 0"
        assert (life.worker.closed, life.killed) == (1, 0)
        assert (seen[-1], one.pid, one.peer) == ("stopped", None, None)
    one.begin()
    await asyncio.sleep(0.01)
    assert one.incarnation == 1


def freeze(one: Supervisor, life: Life) -> None:
    life.freeze()


@pytest.mark.parametrize(
    ("blow", "why"),
    [
        (lambda one, life: life.end(KILLED), KILLED),
        (lambda one, life: life.worker.learner.close(), "it ended with status 0"),
        (freeze, "it said nothing for"),
        (lambda one, life: one.replace("its calls hang"), "its calls hang"),
    ],
    ids=["killed", "hangs up", "frozen", "replaced"],
)
async def test_whoever_is_lost_fails_its_calls_and_is_started_again(
    blow: Callable[[Supervisor, Life], None], why: str, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(peer_module, "BEAT_SECONDS", 0.02)
    transport = workers({})
    async with supervised(transport, silence=0.5) as one:
        await until(lambda: one.peer)
        assert one.peer is not None
        call = asyncio.ensure_future(one.peer.call("work"))
        await asyncio.sleep(0.02)
        blow(one, transport.lives[0])
        with pytest.raises(PeerLost):
            await asyncio.wait_for(call, PATIENCE)
        await until(lambda: one.incarnation == 2 and one.peer)
        assert why in one.why
        assert f"worker-0 is gone: {one.why}. It is started again" in caplog.text
        told = [record.message for record in caplog.records]
        assert [line for line in told if "works again" in line] == ["worker-0 works again"], "not at its first start"
        assert one.refused is None


async def test_pauses_grow_with_lives_of_no_use(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    monkeypatch.setattr(supervisor_module, "FIRST_PAUSE", 0.1)
    monkeypatch.setattr(supervisor_module, "LONGEST_PAUSE", 0.4)
    transport = workers({})
    async with supervised(transport) as one:
        for number in range(5):
            await until(lambda number=number: one.incarnation == number + 1 and one.peer)
            one.useful = number == 3
            transport.lives[-1].end()
        await until(lambda: one.incarnation == 6)
    pauses = [line.split("again in ")[1] for line in caplog.text.splitlines() if "again in" in line]
    assert pauses == ["0.2 s", "0.4 s", "0.4 s", "0.1 s", "0.2 s"]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ({"dies": True}, "the last time: it ended with status 0. It said:\nout of memory"),
        ({"raises": EnvironmentFailure("server down")}, "the last time: EnvironmentFailure: server down"),
        ({"raises": ValueError("odd")}, "the last time: ValueError: odd"),
        ({"no start": ProcessLost("no memory to fork")}, "the last time: no memory to fork"),
        ({"no start": OSError("too many files")}, "the last time: too many files"),
        ({"hangs": True}, "the last time: it could not work 0.05 s after its start"),
    ],
)
async def test_what_may_pass_is_tried_three_times(kind: dict[str, Any], words: str) -> None:
    transport = workers(kind)
    async with supervised(transport, start_seconds=0.05 if "hangs" in kind else PATIENCE) as one:
        await asyncio.wait_for(one.begun.wait(), PATIENCE)
        assert isinstance(one.refused, ProcessLost)
        assert "worker-0 died 3 times in a row before it could work" in str(one.refused)
        assert words in str(one.refused)
        assert (one.state, one.incarnation, transport.starts) == ("given up", 3, 3)


@pytest.mark.parametrize(
    "kind", [{"raises": ConfigError("no such option")}, {"no start": ConfigError("no such option")}]
)
async def test_what_is_wrong_for_good_is_refused_at_once(kind: dict[str, Any]) -> None:
    async with supervised(workers(kind)) as one:
        await asyncio.wait_for(one.begun.wait(), PATIENCE)
        assert isinstance(one.refused, ConfigError)
        assert (str(one.refused), one.incarnation) == ("no such option", 1)


async def test_deaths_at_the_start_are_forgotten_once_it_works() -> None:
    transport = workers({"dies": True}, {"dies": True}, {}, {"dies": True}, {"dies": True}, {})
    async with supervised(transport) as one:
        await until(lambda: one.peer)
        transport.lives[-1].end()
        await until(lambda: one.incarnation == 6 and one.peer)


@pytest.mark.parametrize("later", [{"dies": True}, {"raises": ConfigError("no GPU")}])
async def test_a_persistent_one_that_has_worked_is_never_given_up(later: dict[str, Any]) -> None:
    transport = workers({}, *[later] * 5, {})
    async with supervised(transport, persistent=True) as one:
        await until(lambda: one.peer)
        transport.lives[-1].end()
        await until(lambda: one.incarnation == 7 and one.peer)
        assert one.refused is None


@pytest.mark.parametrize("kind", [{"hangs": True}, {"dies": True}])
async def test_closing_waits_neither_for_a_start_nor_for_a_pause(
    kind: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "FIRST_PAUSE", 1000.0)
    monkeypatch.setattr(supervisor_module, "LONGEST_PAUSE", 1000.0)
    transport = workers(kind)
    async with supervised(transport) as one:
        await until(lambda: one.pid if "hangs" in kind else one.state == "lost")
        await asyncio.wait_for(one.close(), PATIENCE)
        assert one.state == "stopped"
        assert all(life.worker.closed or life.killed for life in transport.lives)


async def test_a_state_that_cannot_be_written_down_ends_the_attempts() -> None:
    def note() -> None:
        if one.state == "lost":
            raise StorageError("the disk is full")

    transport = workers({})
    async with supervised(transport, on_change=note) as one:
        await until(lambda: one.peer)
        transport.lives[0].end()
        await until(lambda: one.refused)
        assert isinstance(one.refused, StorageError)
