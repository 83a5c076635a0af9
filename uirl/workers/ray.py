"""Ray: the cluster that a run joins, or starts on this machine, and workers as actors in it.

Ray finds a place for each worker, starts it again after a crash, and moves it when a machine is lost. What learner and
worker say to each other goes as bytes through calls of the actor; nothing of ours listens anywhere.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from uirl.errors import ConfigError, ProcessLost, UirlError
from uirl.runtime.event_loop import EventLoopThread
from uirl.workers.children import Child, Children
from uirl.workers.peer import PeerLost
from uirl.workers.supervisor import Streams
from uirl.workers.worker import Worker, made, serve

_LOG = logging.getLogger(__name__)
_PR_SET_CHILD_SUBREAPER = 36
_CHUNK = 1 << 20
"""Bytes of one call."""
_CALLS = 8
"""That an actor of Ray's carries out side by side: two that carry bytes, one that waits for the end, ..."""
_ASK_SECONDS = 30.0
"""After so many without a place, the person is told what is waited for."""
_PAUSE = 0.3
_CONNECT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Demand:
    """What the actors and engines of a run reserve, together. Ray counts the GPUs of a machine itself."""

    cpus: float
    resources: Mapping[str, float]


_users: set[RayCluster] = set()
"""Those that use the cluster that one of them had this process join."""


class RayCluster:
    """The Ray cluster that this process belongs to from now on.

    Where the process is in one already, that is it, and it stays when this is closed. One that was joined for a
    `RayCluster` is left when the last of them is closed, and ends then if it was started here. Raises ConfigError where
    Ray is not installed, or no cluster is at the address. It takes seconds.
    """

    def __init__(self, address: str | None, demand: Demand) -> None:
        ray = import_ray()
        if not ray.is_initialized():
            _users.clear()  # of a cluster that somebody else has left
            found = address or os.environ.get("RAY_ADDRESS")
            if found is None:
                _start(ray, demand)
            else:
                _join(ray, found)
            _users.add(self)
        else:
            here = ray.get_runtime_context().gcs_address
            if address not in (None, "auto", here):
                raise ConfigError(
                    f"ray.address={address}, but this process is in the Ray cluster at {here}; leave the "
                    "address out, or call ray.shutdown() before"
                )
            if _users:
                _users.add(self)
        self.name: str = ray.get_runtime_context().gcs_address
        """Host and port of the cluster's head."""

    def free(self) -> str:
        """Return what of the cluster is not reserved, in words."""
        return describe(import_ray().available_resources())

    def close(self) -> None:
        """Use it no more; the last one leaves it. Calling it twice is fine."""
        if self in _users:
            _users.discard(self)
            if not _users:
                import_ray().shutdown()


def import_ray() -> Any:
    """Return the module. Raises ConfigError where it is not installed."""
    # Ray's handler of fatal signals takes SIGTERM for one, and would end the process that has to save first
    os.environ.setdefault("RAY_DISABLE_FAILURE_SIGNAL_HANDLER", "1")
    try:
        import ray
    except ImportError as error:
        raise ConfigError(
            f"ray.use_ray=true needs the package ray, and it cannot be imported ({error}); "
            "pip install 'uirl[ray]', or set ray.use_ray=false"
        ) from None
    return ray


def describe(resources: Mapping[str, float]) -> str:
    """Return resources in words: '2 CPU, 0.5 GPU, 4 browser'."""
    shown = {name: amount for name, amount in sorted(resources.items()) if ":" not in name and "memory" not in name}
    return ", ".join(f"{amount:g} {name}" for name, amount in shown.items()) or "nothing"


def _start(ray: Any, demand: Demand) -> None:
    """Start Ray on this machine, with room for the actors and engines of this run: nothing else is to share it.

    Ray gives its node thirty seconds and no more; on a busy machine the second start finds what it needs in memory.
    """
    for tries_left in (1, 0):
        try:
            return _init(
                ray,
                address="local",
                include_dashboard=False,
                num_cpus=max(os.cpu_count() or 1, int(demand.cpus + 0.999)),
                resources=dict(demand.resources) or None,
            )
        except Exception as error:  # Ray's own has no class
            if not tries_left or "timed out during startup" not in str(error):
                raise
            _LOG.warning("Ray's node on this machine was not up within 30 s; starting it once more")
            ray.shutdown()


def _init(ray: Any, **how: Any) -> None:
    """Call `ray.init`, which in the main thread makes SIGTERM its own; it stays what it was. In another thread it warns
    that it does not, which nobody need hear."""
    before, log = signal.getsignal(signal.SIGTERM), logging.getLogger("ray._private.worker")
    log.addFilter(_is_news)
    try:
        ray.init(**how)
    finally:
        log.removeFilter(_is_news)
    if before is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)


def _is_news(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("SIGTERM handler is not set")


def _join(ray: Any, address: str) -> None:
    if address.startswith("ray://"):
        raise ConfigError(
            f"got ray.address={address}, which is for clients outside the cluster; the learner has to be in it, where "
            "its actors can reach it: `ray job submit -- uirl train CONFIG ray.address=auto`, or run it on a machine "
            "of the cluster"
        )
    if address not in ("auto", "local"):
        _require_listener(address)
    try:
        _init(ray, address=address)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"cannot join the Ray cluster at ray.address={address}: {str(error).splitlines()[0]} Run `ray start "
            "--head` there and `ray start --address=HOST:6379` on this machine, or set ray.address=null to start Ray "
            "on this machine alone"
        ) from error


def _require_listener(address: str) -> None:
    """Raise ConfigError where nobody listens at host:port: Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS):
            return
    except (OSError, ValueError, OverflowError) as error:
        raise ConfigError(
            f"nobody answers at ray.address={address} ({error}); expected HOST:PORT of a cluster's head (6379 unless "
            "`ray start --head` was told another port), 'auto', or null to start Ray on this machine"
        ) from None


# -- workers -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Place:
    """Where an actor of Ray's is."""

    host: str
    pid: int
    node: str
    """Address and beginning of the id, as `ray status` has it: a machine may have several."""

    def __str__(self) -> str:
        return f"Ray process {self.pid} of {self.host}, node {self.node}"


@dataclass(frozen=True, slots=True)
class Needs:
    """What Ray reserves for one worker, and the words for a person whose cluster has no room for it."""

    cpus: float
    gpus: float = 0.0
    resources: Mapping[str, float] | None = None
    keys: str = ""
    """The keys of the config that say so."""
    fewer: str = ""
    """The key that says how many there are."""

    def __str__(self) -> str:
        needs = {"CPU": self.cpus, **({"GPU": self.gpus} if self.gpus else {}), **(self.resources or {})}
        return ", ".join(f"{amount:g} {resource}" for resource, amount in needs.items())


class RayWorker:
    """What Ray runs for one worker: it has it as a child with a keeper, or (`inside`) in its own process, which can
    then read objects of Ray's, and passes on what is said.

    The keeper is needed because Ray's own ways to end what a worker has started miss programs in sessions of their own,
    which browsers are.
    """

    def __init__(self) -> None:
        with suppress(OSError, AttributeError):
            # where Ray has its processes adopt orphans, this one would adopt keepers, and kill them when it ends
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(0), 0, 0, 0)
        # what is printed here comes out where the learner runs, with the name of this process
        self._children = Children(lambda name, line: print(line, flush=True))
        self._loop = EventLoopThread("uirl-worker")
        self._socket: socket.socket | None = None
        self._worker: Worker | None = None
        self._child: Child | None = None
        self._over: Any = None

    def place(self) -> Place:
        """Return where this process is."""
        ray = import_ray()
        node = f"{ray.util.get_node_ip_address()} ({ray.get_runtime_context().get_node_id()[:12]})"
        return Place(socket.gethostname(), os.getpid(), node)

    def begin(self, name: str, program: str, inside: bool) -> None:
        """Start the worker; one that was here before has ended."""
        self._socket, theirs = socket.socketpair()
        if inside:
            self._worker = made(program)
            self._over = self._loop.submit(serve(self._worker, theirs))
        else:
            with theirs:
                self._child = self._loop.run(self._children.start_with(theirs, name, program))
            self._over = self._loop.submit(self._child.ended())

    def push(self, data: bytes) -> None:
        """Carry bytes to the worker; none: there are no more."""
        assert self._socket is not None
        with suppress(OSError):  # it has ended, which `pull` tells
            self._socket.sendall(data) if data else self._socket.shutdown(socket.SHUT_WR)

    def pull(self) -> bytes:
        """Wait for bytes of the worker; none: it has ended."""
        assert self._socket is not None
        try:
            return self._socket.recv(_CHUNK)
        except OSError:
            return b""

    def wait(self) -> tuple[str, str]:
        """Wait for the end of the worker; return how it ended, and what it printed last."""
        how = str(self._over.result())
        return how, "" if self._child is None else self._child.last_words()

    def give(self, method: str, args: tuple[Any, ...], *objects: Any) -> UirlError | None:
        """Call a method of a worker inside with objects of Ray's store; return what it raises."""
        try:
            self._loop.run(getattr(self._worker, method)(*args, objects))
        except UirlError as error:
            return error
        return None


class RayProcess:
    """One life of a worker under Ray."""

    def __init__(self, handle: Any, place: Place, name: str, program: str, inside: bool) -> None:
        self.place, self.killed = place, False
        self._handle, self._inside, self._words = handle, inside, ""
        self._begun = handle.begin.remote(name, program, inside)
        self._end = asyncio.ensure_future(self._wait())
        self._carrying: list[asyncio.Task[None]] = []

    @property
    def node(self) -> str:
        """Where it is in the cluster."""
        return self.place.node

    @property
    def over(self) -> bool:
        """Whether it ended."""
        return self._end.done()

    async def connect(self) -> Streams:
        """Return what it is talked to over: a pair of sockets in this process, whose other end goes through Ray."""
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=theirs)
        self._carrying = [asyncio.ensure_future(self._push(reader)), asyncio.ensure_future(self._pull(writer))]
        return await asyncio.open_connection(sock=ours)

    async def ended(self) -> str:
        return await asyncio.shield(self._end)

    def stop(self) -> None:
        """Nothing: it ends when its connection does."""

    def kill(self) -> None:
        for task in self._carrying:
            task.cancel()
        if not self.killed and (self._inside or not self.over):
            self.killed = True
            with suppress(Exception):  # of a cluster that is gone
                import_ray().kill(self._handle, no_restart=False)

    def last_words(self) -> str:
        return self._words

    async def give(self, method: str, args: tuple[Any, ...], objects: Iterable[Any]) -> None:
        """Call a method of the worker with objects of Ray's store, as it raises. Raises PeerLost where it is lost."""
        try:
            await self._begun
            error = await self._handle.give.remote(method, args, *objects)
        except import_ray().exceptions.RayError as lost:
            raise PeerLost(f"{self.place} is lost ({type(lost).__name__}: {first_line(lost)})") from lost
        if error is not None:
            raise error

    async def _push(self, reader: asyncio.StreamReader) -> None:
        data = b"any"
        with suppress(Exception):  # of Ray's: `ended` says which
            await self._begun
            while data:
                try:
                    data = await reader.read(_CHUNK)
                except OSError:  # what the worker said meanwhile came to nobody: the end comes as an error then
                    data = b""
                await self._handle.push.remote(data)

    async def _pull(self, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(Exception):
                await self._begun
                while data := await self._handle.pull.remote():
                    writer.write(data)
                    await writer.drain()
        finally:
            writer.close()

    async def _wait(self) -> str:
        try:
            await self._begun
            how, self._words = await self._handle.wait.remote()
        except asyncio.CancelledError:
            raise
        except Exception as error:  # Ray has a class for each way in which a process or a machine is lost
            self.killed = True
            if isinstance(error, import_ray().exceptions.RayTaskError):  # it raised something, and is still there
                import_ray().kill(self._handle, no_restart=False)
            return f"{self.place} is lost ({type(error).__name__}: {first_line(error)})"
        return f"under {self.place}: {how}"


class RayTransport:
    """Starts workers in `cluster`, which is left with `close`. Each name keeps one actor of Ray's, restarts included.

    `seconds`: how long it may take until the first has a place. `inside`: see `RayWorker`.
    """

    def __init__(self, cluster: RayCluster, needs: Needs, seconds: float, *, inside: bool = False) -> None:
        self.cluster, self.needs = cluster, needs
        self._seconds, self._inside = seconds, inside
        self._handles: dict[str, Any] = {}
        self._lives: dict[str, RayProcess] = {}
        self._closed = False

    async def start(self, name: str, program: str) -> tuple[RayProcess, Streams]:
        """Wait for a place, and have the worker work there. Raises ConfigError where none at all finds a place in
        time. While others have one, this one waits for its own."""
        if self._closed:
            raise ProcessLost("no more workers are started: the run ends")
        if name not in self._handles:
            # restarted for ever, on any machine, its calls not repeated: half of an episode cannot be played again
            actor = (
                import_ray()
                .remote(RayWorker)
                .options(
                    num_cpus=self.needs.cpus,
                    num_gpus=self.needs.gpus,
                    resources=dict(self.needs.resources or {}) or None,
                    max_restarts=-1,
                    max_task_retries=0,
                    max_concurrency=_CALLS,
                    scheduling_strategy="SPREAD",
                )
            )
            self._handles[name] = actor.remote()
        handle, before = self._handles[name], self._lives.get(name)
        left = before.place if before is not None and before.killed else None
        place = await self._place(name, handle, left, lambda: all(life.over for life in self._lives.values()))
        life = self._lives[name] = RayProcess(handle, place, name, program, self._inside)
        return life, await life.connect()

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            for handle in self._handles.values():
                with suppress(Exception):  # of a cluster that is gone
                    import_ray().kill(handle, no_restart=True)
            await asyncio.to_thread(self.cluster.close)

    async def _place(self, name: str, handle: Any, left: Place | None, alone: Callable[[], bool]) -> Place:
        """Wait until it has a place; another one than `left`, whose process was killed."""
        begun = told = time.monotonic()
        problem = "it waits for a place"
        asked: asyncio.Future[Place] | None = None
        try:
            while True:
                if asked is None:
                    asked = asyncio.ensure_future(_answer(handle.place.remote()))
                await asyncio.wait({asked}, timeout=1.0)
                if asked.done():
                    try:
                        place = asked.result()
                    except Exception as error:  # Ray has a class for each way in which a process is lost
                        problem = f"{type(error).__name__}: {first_line(error)}"
                    else:
                        if place != left:
                            if told != begun:
                                _LOG.warning("%s has a place now: %s", name, place)
                            return place
                        problem = "its last process has not ended"
                    asked = None
                    await asyncio.sleep(_PAUSE)
                now = time.monotonic()
                if now - begun > self._seconds and alone():
                    raise ConfigError(self._without_place(name, now - begun, problem))
                if now - told > _ASK_SECONDS:
                    told = now
                    _LOG.warning("%s", self._without_place(name, now - begun, problem))
        finally:
            if asked is not None:
                asked.cancel()

    def _without_place(self, name: str, seconds: float, problem: str) -> str:
        return (
            f"{name} has had no place in the Ray cluster at {self.cluster.name} for {seconds:.0f} s ({problem}). "
            f"It needs {self.needs} on one machine ({self.needs.keys}); of the whole cluster are free: "
            f"{self.cluster.free()}. Start more machines, or ask for less or fewer ({self.needs.fewer})"
        )


def first_line(error: BaseException) -> str:
    """Return the first line of what Ray says, which goes on for pages, or of what was raised under it."""
    cause = getattr(error, "cause", None)
    lines = str(error if cause is None else f"{type(cause).__name__}: {cause}").strip().splitlines()
    return lines[0] if lines else ""


async def _answer(reference: Any) -> Any:
    return await reference
