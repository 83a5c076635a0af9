"""Workers behind calls of Ray actors, against a stand-in of Ray's module whose actors are threads of this process."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from tests.patience import PATIENCE
from uirl.errors import ConfigError, ContractError
from uirl.workers import peer as peer_module
from uirl.workers import ray as ray_module
from uirl.workers import supervisor as supervisor_module
from uirl.workers.peer import Handler, PeerLost
from uirl.workers.ray import Needs, Place, RayProcess, RayTransport
from uirl.workers.supervisor import Supervisor
from uirl.workers.worker import Worker, program_of

NODE = "10.0.0.7 (1f3a)"


class Echo(Worker):
    """Says what it is told."""

    def __init__(self) -> None:
        self.heard: list[int] = []

    @property
    def handlers(self) -> Mapping[str, Handler]:
        return {"echo": self.echo, "hear": self.hear, "hang": self.hang}

    async def echo(self, value: Any) -> Any:
        return value

    async def hear(self, number: int) -> None:
        self.heard.append(number)

    async def hang(self) -> None:
        await asyncio.sleep(1000)

    async def take(self, number: int, objects: tuple[int, ...]) -> None:
        if number < 0:
            raise ContractError("these do not fit")
        self.heard += [number, *objects]


class Lost(Exception):
    """Ray's RayError."""


class Raised(Lost):
    """Ray's RayTaskError: the actor is still there."""


class Handle:
    """Of one actor, which is made anew where it is killed."""

    def __init__(self, kind: Callable[[], Any]) -> None:
        self._kind, self._generation = kind, 0
        self._pending: set[asyncio.Future[Any]] = set()
        self._worker = kind()

    def __getattr__(self, name: str) -> Any:
        if name == "place":
            return SimpleNamespace(remote=lambda: self._call(lambda: Place("there", self._generation, NODE)))
        return SimpleNamespace(remote=lambda *args: self._call(getattr(self._worker, name), *args))

    def _call(self, method: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        self._pending.add(answer)

        def work() -> None:
            try:
                value, error = method(*args), None
            except Exception as raised:
                value, error = None, Raised(str(raised))
            with suppress(RuntimeError):  # the test is over
                loop.call_soon_threadsafe(end, value, error)

        def end(value: Any, error: Exception | None) -> None:
            self._pending.discard(answer)
            if not answer.done():
                answer.set_result(value) if error is None else answer.set_exception(error)

        threading.Thread(target=work, daemon=True).start()
        return answer

    def kill(self, no_restart: bool) -> None:
        for answer in list(self._pending):
            if not answer.done():
                answer.set_exception(Lost("the actor died"))
        if self._worker._socket is not None:
            with suppress(OSError):
                self._worker._socket.shutdown(socket.SHUT_RDWR)
        self._generation += 1
        if not no_restart:
            self._worker = self._kind()


class Cluster:
    """What a transport asks of a cluster."""

    name = "head:6379"
    closed = 0

    def free(self) -> str:
        return "1 CPU"

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def handles(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Handle]]:
    made: list[Handle] = []

    def options(kind: Any) -> Any:
        def actor() -> Handle:
            made.append(Handle(kind))
            return made[-1]

        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=actor))

    ray = SimpleNamespace(
        remote=options,
        kill=lambda handle, no_restart: handle.kill(no_restart),
        exceptions=SimpleNamespace(RayError=Lost, RayTaskError=Raised),
    )
    monkeypatch.setattr(ray_module, "import_ray", lambda: ray)
    monkeypatch.setattr(supervisor_module, "FIRST_PAUSE", 0.001)
    yield made
    for handle in made:
        handle.kill(no_restart=True)


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("inside", [True, pytest.param(False, marks=pytest.mark.actors)])
async def test_a_worker_under_ray_is_asked_killed_and_asked_again(handles: list[Handle], inside: bool) -> None:
    cluster: Any = Cluster()
    transport = RayTransport(cluster, Needs(1.0), PATIENCE, inside=inside)
    one = Supervisor("worker-0", transport, program_of(Echo), lambda peer: peer.call("echo", 1))
    one.begin()
    for life in (1, 2):
        await until(lambda life=life: one.incarnation == life and one.peer)
        assert one.peer is not None
        for number in range(50):
            one.peer.notify("hear", number)
        large = bytes(range(256)) * 20_000
        assert await asyncio.gather(one.peer.call("echo", large), one.peer.call("echo", (1, 2.5))) == [large, (1, 2.5)]
        if inside:
            assert handles[0]._worker._worker.heard == list(range(50)), "in the order in which they were said"
        if life == 1:
            hangs = asyncio.ensure_future(one.peer.call("hang"))
            await one.peer.call("echo", None)
            handles[0].kill(no_restart=False)
            with pytest.raises(PeerLost):
                await asyncio.wait_for(hangs, PATIENCE)
    assert len(handles) == 1, "Ray restarts its actor; nobody asks for another"
    assert "Ray process 0 of there, node 10.0.0.7 (1f3a) is lost (Lost: the actor died)" in one.why
    assert one.node == NODE
    await asyncio.wait_for(one.close(), PATIENCE)
    await transport.close()
    await transport.close()
    assert cluster.closed == 1


async def test_a_worker_that_speaks_while_its_connection_ends_hears_of_the_end(
    handles: list[Handle], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster: Any = Cluster()
    monkeypatch.setattr(peer_module, "BEAT_SECONDS", 0.001)  # of the worker
    transport = RayTransport(cluster, Needs(1.0), PATIENCE, inside=True)
    process, (reader, writer) = await transport.start("worker-0", program_of(Echo))
    await reader.readexactly(1)  # it is there
    worker, goes_on = handles[0]._worker, threading.Event()
    push, pushing = worker.push, threading.Event()

    def slow(data: bytes) -> None:
        pushing.set()
        goes_on.wait(PATIENCE)
        push(data)

    monkeypatch.setattr(worker, "push", slow)
    writer.write(peer_module._HEADER.pack(peer_module.BEAT, 0, 0))
    await until(pushing.is_set)
    writer.close()
    await until(process._carrying[1].done)  # what it said came to nobody
    goes_on.set()
    assert "closed the connection" in await asyncio.wait_for(process.ended(), PATIENCE)
    await transport.close()


async def test_objects_of_rays_store_go_to_a_worker_inside(handles: list[Handle]) -> None:
    cluster: Any = Cluster()
    transport = RayTransport(cluster, Needs(1.0), PATIENCE, inside=True)
    process, (_, writer) = await transport.start("worker-0", program_of(Echo))
    assert isinstance(process, RayProcess)
    await process.give("take", (7,), [8, 9])
    assert handles[0]._worker._worker.heard == [7, 8, 9]
    with pytest.raises(ContractError, match="do not fit"):
        await process.give("take", (-1,), [])
    writer.close()
    assert "closed the connection" in await asyncio.wait_for(process.ended(), PATIENCE)
    await transport.close()


async def test_a_worker_that_was_said_to_wait_for_a_place_is_said_to_have_one(
    handles: list[Handle], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    call, answers = Handle._call, iter(["no room yet"])
    monkeypatch.setattr(ray_module, "_ASK_SECONDS", 0.0)

    async def full(words: str) -> Any:
        raise Lost(words)

    def late(handle: Handle, *args: Any) -> Any:
        words = next(answers, None)
        return call(handle, *args) if words is None else full(words)

    monkeypatch.setattr(Handle, "_call", late)
    cluster: Any = Cluster()
    transport = RayTransport(cluster, Needs(1.0), PATIENCE, inside=True)
    await transport.start("worker-0", program_of(Echo))
    told = [record.message for record in caplog.records]
    assert "worker-0 has had no place" in told[0]
    assert told[1:] == ["worker-0 has a place now: Ray process 0 of there, node 10.0.0.7 (1f3a)"]
    await transport.close()


async def test_a_worker_without_a_place_is_told_with_what_is_free(
    handles: list[Handle], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Handle, "_call", lambda *_: asyncio.get_running_loop().create_future())
    cluster: Any = Cluster()
    transport = RayTransport(cluster, Needs(0.25, resources={"browser": 1}, keys="ray.x", fewer="ray.n"), 0.01)
    words = r"actor-0 has had no place .* head:6379 .* needs 0.25 CPU, 1 browser .*ray.x.* are free: 1 CPU\..*ray.n"
    with pytest.raises(ConfigError, match=words):
        await asyncio.wait_for(transport.start("actor-0", program_of(Echo)), PATIENCE)
    await transport.close()
