"""Workers as processes of this machine, each on a pair of connected sockets of which it inherits one.

What a worker prints comes out here with its name. The fork server and the keepers are described in `keeper`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from uirl.errors import ProcessLost
from uirl.runtime.limits import clip
from uirl.workers import keeper
from uirl.workers.supervisor import Streams

SERVER_SECONDS = 300.0
"""That imports may take on a slow disk."""
_LINES, _PERIOD = 200, 10.0
"""A worker that prints more lines in so many seconds has the others counted instead."""
_LINE = 2000
_LAST_LINES = 40
_CODE = """
import sys
sys.path[:] = {path!r}
from uirl.workers.keeper import main
main({control}, {learner}, {preload!r}, {variables!r})
"""

Say = Callable[[str, str], None]
"""(name of the worker, line that it printed)."""


def to_stderr(name: str, line: str) -> None:
    """Print a line of a worker with its name."""
    print(f"[{name}] {line}", file=sys.stderr, flush=True)


class Child:
    """One worker: its keeper, the pipe that ends it, and what it printed."""

    node: str | None = None

    def __init__(self, name: str, say: Say) -> None:
        self.status: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.pipe_end, self._pipe = os.pipe()
        self._closed = False
        self.output = Output(name, say)

    async def ended(self) -> str:
        how = await asyncio.shield(self.status)
        await asyncio.to_thread(self.output.join)  # its last words are on the way
        return how

    def stop(self) -> None:
        self._tell(keeper.STOP)

    def kill(self) -> None:
        self._tell(keeper.KILL)

    def end(self, how: str) -> None:
        """Take note that it is gone. Calling it twice is fine."""
        if not self._closed:
            self._closed = True
            os.close(self._pipe)
        if not self.status.done():
            self.status.set_result(how)

    def _tell(self, word: bytes) -> None:
        if not self._closed:
            with contextlib.suppress(OSError):  # it has ended
                os.write(self._pipe, word)

    def last_words(self) -> str:
        return "\n".join(self.output.last)


class Output:
    """Reads what one process prints, on a thread: the loop may compute for minutes, and a full pipe stops a printer."""

    def __init__(self, name: str, say: Say) -> None:
        self.last: deque[str] = deque(maxlen=_LAST_LINES)
        self._name, self._say = name, say
        read, self.end = os.pipe()
        self._thread = threading.Thread(target=self._read, args=(read,), name=f"uirl-output-{name}", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait for the last line, which comes when all that could print are gone."""
        self._thread.join(timeout=2.0)

    def _read(self, handle: int) -> None:
        begun, said, more = time.monotonic(), 0, 0
        with open(handle, "rb", buffering=0) as stream:
            rest = b""
            while data := stream.read(1 << 16):
                *lines, rest = (rest + data).split(b"\n")
                if len(rest) > _LINE:
                    lines, rest = [*lines, rest], b""
                for line in lines:
                    text = clip(line.decode(errors="replace").rstrip(), _LINE)
                    self.last.append(text)
                    now = time.monotonic()
                    if now - begun > _PERIOD:
                        if more:
                            self._say(self._name, f"({more} more lines)")
                        begun, said, more = now, 0, 0
                    said, more = (said + 1, more) if said < _LINES else (said, more + 1)
                    if said <= _LINES and not more:
                        self._say(self._name, text)
            if rest:
                self.last.append(clip(rest.decode(errors="replace"), _LINE))
                self._say(self._name, self.last[-1])
            if more:
                self._say(self._name, f"({more} more lines)")


class Children:
    """Starts workers from one fork server, which is started with the first and again when it is gone.

    `preload`: modules that the server imports, so that no worker has to; `variables`: of the environment of all.
    """

    def __init__(
        self, say: Say = to_stderr, preload: Sequence[str] = (), variables: Mapping[str, str] | None = None
    ) -> None:
        self._say, self._preload, self._variables = say, list(preload), dict(variables or {})
        self._server: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._hearing: asyncio.Task[None] | None = None
        self._up: asyncio.Future[None] | None = None
        self._asked: deque[Child] = deque()
        self._children: dict[int, Child] = {}
        self._one_at_a_time = asyncio.Lock()
        self._output: Output | None = None
        self._closed = False

    async def start(self, name: str, program: str) -> tuple[Child, Streams]:
        """Start a worker. Raises ProcessLost where that is not possible."""
        ours, theirs = socket.socketpair()
        with theirs:
            child = await self.start_with(theirs, name, program)
        return child, await asyncio.open_connection(sock=ours)

    async def start_with(self, connection: socket.socket, name: str, program: str) -> Child:
        """Start a worker that has the end `connection` of a pair of sockets."""
        async with self._one_at_a_time:
            await self._serve()
            assert self._channel is not None
            child = Child(name, self._say)
            ends = [child.pipe_end, child.output.end]
            self._asked.append(child)
            try:
                socket.send_fds(self._channel, [program.encode()], [*ends, connection.fileno()])
            except OSError as error:
                self._asked.remove(child)
                child.end("it was not started")
                raise ProcessLost(f"the server that forks workers is gone: {error}") from error
            finally:
                for end in ends:
                    os.close(end)
            return child

    async def close(self) -> None:
        self._closed = True
        for child in [*self._asked, *self._children.values()]:
            child.kill()
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._hearing is not None:
            self._hearing.cancel()
        if self._server is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(self._server.wait, 2.0)
            self._server.kill()
            await asyncio.to_thread(self._server.wait)
            self._server = None

    async def _serve(self) -> None:
        """Have a server that answers. Raises ProcessLost."""
        if self._closed:
            raise ProcessLost("no more workers are started: the run ends")
        if self._channel is None:
            self._start()
        assert self._up is not None
        done, _ = await asyncio.wait({self._up}, timeout=SERVER_SECONDS)
        if not done:
            self._lose(f"it had not imported what workers need after {SERVER_SECONDS:g} s")
        self._up.result()

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        self._output = Output("workers", self._say)
        code = _CODE.format(
            path=[os.path.abspath(p) for p in sys.path],
            control=theirs.fileno(),
            learner=os.getpid(),
            preload=self._preload,
            variables=self._variables,
        )
        try:
            self._server = subprocess.Popen(
                [sys.executable, "-c", code],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._output.end,
                stderr=self._output.end,
                start_new_session=True,  # Ctrl-C in the terminal is this process's affair
            )
        except OSError as error:
            ours.close()
            raise ProcessLost(f"cannot start the server that forks workers: {error}") from error
        finally:
            theirs.close()
            os.close(self._output.end)
        self._channel, self._up = ours, asyncio.get_running_loop().create_future()
        self._up.add_done_callback(lambda up: up.cancelled() or up.exception())
        self._hearing = asyncio.ensure_future(self._hear(ours, self._up))

    async def _hear(self, channel: socket.socket, up: asyncio.Future[None]) -> None:
        loop = asyncio.get_running_loop()
        try:
            while data := await loop.sock_recv(channel, keeper.MESSAGE):
                words = json.loads(data)
                if "up" in words:
                    up.set_result(None)
                elif "started" in words:
                    self._children[words["started"]] = self._asked.popleft()
                elif words["ended"] in self._children:
                    self._children.pop(words["ended"]).end(how_it_ended(words["status"]))
            reason = "it ended"
        except OSError as error:
            reason = str(error)
        self._lose(reason)

    def _lose(self, reason: str) -> None:
        """Take note that the server is gone, and end what it forked, of whose end nobody would hear."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        said = "\n".join(self._output.last) if self._output is not None else ""
        said = f"It said:\n{said}" if said.strip() else "It said nothing"
        if self._up is not None and not self._up.done():
            self._up.set_exception(ProcessLost(f"the server that forks workers is gone ({reason}). {said}"))
        for child in [*self._asked, *self._children.values()]:
            child.kill()
            child.end(f"the server that forked it is gone ({reason})")
        self._asked.clear()
        self._children.clear()
        if self._server is not None:
            self._server.kill()


def how_it_ended(status: int) -> str:
    """Return how a process ended by its status: -n, or 128 + n as shells have it, where signal n ended it."""
    number = -status if status < 0 else status - 128
    try:
        name = signal.Signals(number).name
    except ValueError:  # no signal
        return f"it ended with status {status}"
    if number == signal.SIGKILL:
        return f"it was killed by {name}, as the system does where memory runs out (`dmesg` tells)"
    return f"it was killed by {name}"
