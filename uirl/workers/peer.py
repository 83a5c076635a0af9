"""Two processes that call each other over one connection: calls, cancels, heartbeats, pictures by hash.

Any number of calls is under way in both directions. What a handler raises is raised by the call; cancelling the call
cancels the handler; when the connection ends, every call raises `PeerLost` and every handler is cancelled.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import logging
import struct
import types
import weakref
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from uirl.errors import ContractError, UirlError
from uirl.images import Screenshot
from uirl.runtime.limits import LimitError, shown
from uirl.runtime.time_limits import TimedOut
from uirl.workers.codec import RemoteError, ToldError, decode, encode, typed

_LOG = logging.getLogger(__name__)
_HEADER = struct.Struct(">BQQ")
"""Kind of frame, number of the call, bytes that follow."""
CALL, RESULT, ERROR, CANCEL, NOTIFY, BEAT, PICTURE = range(7)
MAX_FRAME = 256 * 1024**2
"""Bytes of one message without its pictures, and of one picture."""
BEAT_SECONDS = 2.0
_CHUNK = 1 << 18
_REMEMBERED = 64 * 2**20
"""Bytes of pictures that a receiver keeps for later messages, and that their sender counts on."""
_FLUSH = 5.0
"""Seconds that what was said before `close` has to go out."""

Handler = Callable[..., Awaitable[Any]]
"""Its annotations say what it takes: a call with anything else is refused."""


class PeerLost(UirlError):
    """The other process is gone, or does not answer."""


class Pictures(Protocol):
    """A folder of pictures: `SharedPictures`."""

    def put(self, image: Screenshot, /) -> None: ...

    def get(self, hash: str, /) -> Screenshot: ...


class _Remembered:
    """The pictures that one side remembers of those that the other sent. Each end of a connection has one for each
    direction and changes it with every message in the same way, so that the sender knows what need not be sent."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[Screenshot | None, int]] = OrderedDict()
        """Hash -> (the picture, at the end that got it; bytes), those used last at the end."""
        self._held = 0

    def missing(self, named: Mapping[str, object]) -> list[str]:
        """Return which of the pictures that a message names have to be sent with it."""
        return [hash for hash in named if hash not in self._kept]

    def add(self, hash: str, image: Screenshot | None, size: int) -> None:
        """Take note of a picture that goes over the connection, ahead of the message that names it."""
        self._kept[hash] = image, size
        self._held += size

    def use(self, named: Mapping[str, object]) -> None:
        """Take note of a message that names these; forget what no message has named for longest."""
        for hash in named:
            if hash in self._kept:
                self._kept.move_to_end(hash)
        while self._held > _REMEMBERED and len(self._kept) > 1:
            _, (_, size) = self._kept.popitem(last=False)
            self._held -= size


class Peer:
    """One end of a connection whose other end is a `Peer` as well; it works from when it is made.

    `handlers`: method -> coroutine function, for calls of the other side. `pictures`: where those lie that the other
    side only names; see `share`. `silence`: seconds without a word, heartbeats included, after which the other side
    counts as lost; None: only the end of the connection tells, for a side that may compute for minutes. Time in which
    this process itself was busy or stopped does not count.

    Both sides remember the same pictures, the newest `_REMEMBERED` bytes of those that went over the connection, so
    that each goes over it once as long as it is in use.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        handlers: Mapping[str, Handler],
        *,
        pictures: Pictures | None = None,
        name: str = "the other process",
        silence: float | None = None,
    ) -> None:
        self.name = name
        self.reason: str | None = None
        """Why the connection ended; None: it has not."""
        self._reader, self._writer = reader, writer
        self._handlers = {name: (handler, _taken(handler)) for name, handler in handlers.items()}
        self.silence = silence
        """Of the other side, that is borne; it may be changed at any time."""
        self._pictures, self._shared = pictures, False
        self._numbers = itertools.count(1)
        self._calls: dict[int, tuple[asyncio.Future[Any], Any]] = {}
        """Number -> where the answer is waited for, and what it has to be."""
        self._serving: dict[int, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._sent, self._came = _Remembered(), _Remembered()
        self._alive: weakref.WeakValueDictionary[str, Screenshot] = weakref.WeakValueDictionary()
        self._silent_beats = 0
        self._ended = asyncio.Event()
        self._start(self._read())
        self._start(self._beat())

    def share(self, pictures: Pictures) -> None:
        """Put pictures into a folder that the other side reads too, from now on, instead of sending them."""
        self._pictures, self._shared = pictures, True

    # -- what callers use ------------------------------------------------------------------------------------------

    async def call(self, method: str, *args: Any, returns: Any = Any, timeout: float | None = None) -> Any:
        """Return what the other side's handler of `method` returns, as the annotation `returns` says (Any: plain data);
        raise what it raises.

        Raises PeerLost where the connection ends before the answer, TimedOut after `timeout` seconds (the handler is
        cancelled then), LimitError for a message beyond `MAX_FRAME`, ContractError for what no message can hold, and
        RemoteError for an answer that is something else.
        """
        number = next(self._numbers)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(_retrieve_exception)
        self._calls[number] = answer, returns
        try:
            self._send(CALL, number, (method, args))
            if timeout is None:
                return await answer
            done, _ = await asyncio.wait({answer}, timeout=timeout)
            if not done:
                raise TimedOut(f"{self.name} did not answer {method!r} within {timeout:g} s")
            return answer.result()
        finally:
            if self._calls.pop(number, None) is not None and self.reason is None:
                self._send(CANCEL, number)

    def notify(self, method: str, *args: Any) -> None:
        """Have the other side's handler of `method` called, and hear nothing of it. A lost peer is fine."""
        if self.reason is None:
            self._send(NOTIFY, 0, (method, args))

    async def wait_closed(self) -> str:
        """Wait for the end of the connection and return its reason."""
        await self._ended.wait()
        assert self.reason is not None
        return self.reason

    def close(self, reason: str = "this side closed the connection") -> None:
        """End the connection; what was said before goes out first. Calling it twice is fine."""
        if self.reason is None:
            self._end(reason)
            self._writer.close()
            # the other side may never read what is left
            asyncio.get_running_loop().call_later(_FLUSH, self._writer.transport.abort)

    # -- frames ----------------------------------------------------------------------------------------------------

    def _send(self, kind: int, number: int, value: Any = None) -> None:
        if self.reason is not None:
            raise PeerLost(f"{self.name} is gone: {self.reason}")
        body, named = encode(value)
        if len(body) > MAX_FRAME:
            raise LimitError(f"a message of {len(body)} bytes to {self.name}; expected at most {MAX_FRAME}: say less")
        if self._shared and self._pictures is not None:
            for image in named.values():
                self._pictures.put(image)  # also one that is there: it is not forgotten before it is read
        else:
            for hash in self._sent.missing(named):
                self._write(PICTURE, 0, named[hash].data)
                self._sent.add(hash, None, len(named[hash].data))
            self._sent.use(named)
        self._write(kind, number, body)

    def _write(self, kind: int, number: int, body: bytes) -> None:
        if self._writer.transport.is_closing():
            return  # it broke, which the reader is about to hear; asyncio would warn of each write
        self._writer.write(_HEADER.pack(kind, number, len(body)))
        self._writer.write(body)

    async def _read(self) -> None:
        buffer, reason = bytearray(), "it closed the connection"
        try:
            while data := await self._reader.read(_CHUNK):
                self._silent_beats = 0
                buffer += data
                while self._take(buffer):
                    pass
            if buffer:
                reason = f"it closed the connection in the middle of a message ({len(buffer)} bytes of it came)"
        except OSError as error:
            reason = f"the connection broke: {error}"
        except Exception as error:
            reason = f"it said what cannot be understood ({type(error).__name__}: {error})"
            _LOG.exception("the connection to %s ends", self.name)
        self._lose(reason)

    def _take(self, buffer: bytearray) -> bool:
        """Take one whole frame off the buffer, if there is one."""
        if len(buffer) < _HEADER.size:
            return False
        kind, number, length = _HEADER.unpack_from(buffer)
        if kind > PICTURE or length > MAX_FRAME:
            raise ValueError(f"a frame of kind {kind} and {length} bytes")
        end = _HEADER.size + length
        if len(buffer) < end:
            return False
        with memoryview(buffer) as view:
            body = bytes(view[_HEADER.size : end])
        del buffer[:end]
        if kind == PICTURE:
            image = Screenshot(body)
            self._alive[image.hash] = image
            self._came.add(image.hash, image, length)
        elif kind != BEAT:
            value, named = decode(body, self._find)
            self._came.use(named)
            self._act(kind, number, value)
        return True

    def _find(self, hash: str) -> Screenshot:
        image = self._alive.get(hash)
        if image is None:
            if self._pictures is None:
                raise KeyError(f"picture {hash} was named and never sent")
            image = self._alive[hash] = self._pictures.get(hash)
        return image

    def _act(self, kind: int, number: int, value: Any) -> None:
        """Do what a message asks for. Raises RemoteError where it is none of this protocol."""
        if kind == CALL:
            self._serving[number] = self._start(self._serve(number, *typed(value, _ASKED)))
        elif kind == NOTIFY:
            self._start(self._hear(*typed(value, _ASKED)))
        elif kind in (RESULT, ERROR):
            answer, returns = self._calls.pop(number, (None, None))  # None: the caller gave up
            if answer is None or answer.done():
                return
            try:
                if kind == ERROR:
                    raise typed(value, ToldError).made()
                answer.set_result(typed(value, returns, f"an answer of {self.name}"))
            except Exception as error:
                answer.set_exception(error)
        elif kind == CANCEL:
            task = self._serving.pop(number, None)
            if task is not None:
                task.cancel()

    # -- handlers --------------------------------------------------------------------------------------------------

    async def _serve(self, number: int, method: str, args: Any) -> None:
        try:
            self._answer(RESULT, number, await self._handled(method, args))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise  # the caller gave up, or is gone, or this process ends, and its connection with it
            error = RemoteError(f"{method!r} was cancelled by the process that carried it out")
            self._answer(ERROR, number, ToldError.of(error, f"the handler of {method!r}"))
        except BaseException as error:  # without an answer the caller would wait for ever
            self._answer(ERROR, number, ToldError.of(error, f"the handler of {method!r}"))
        finally:
            self._serving.pop(number, None)

    def _answer(self, kind: int, number: int, value: Any) -> None:
        if self.reason is None and number in self._serving:
            self._send(kind, number, value)

    async def _hear(self, method: str, args: Any) -> None:
        try:
            await self._handled(method, args)
        except Exception:
            _LOG.exception("what %s told (%r) could not be dealt with", self.name, method)

    async def _handled(self, method: str, args: Any) -> Any:
        if method not in self._handlers:
            known = ", ".join(sorted(self._handlers)) or "none"
            raise ContractError(f"{shown(method)} is not known here; expected one of {known}")
        handler, taken = self._handlers[method]
        return await handler(*typed(args, taken, f"the call of {method!r}"))

    def _start(self, coroutine: Any) -> asyncio.Task[Any]:
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # -- life ------------------------------------------------------------------------------------------------------

    async def _beat(self) -> None:
        while True:
            # beats are counted, not seconds: where this process stood still, it could not hear either
            await asyncio.sleep(BEAT_SECONDS)
            self._write(BEAT, 0, b"")
            self._silent_beats += 1
            silent = self._silent_beats * BEAT_SECONDS
            if self.silence is not None and silent > self.silence:
                self._lose(f"it said nothing for {silent:g} s")
                return

    def _lose(self, reason: str) -> None:
        if self.reason is None:
            self._end(reason)
        self._writer.transport.abort()

    def _end(self, reason: str) -> None:
        self.reason = reason
        calls, self._calls = list(self._calls.values()), {}
        for answer, _ in calls:
            if not answer.done():
                answer.set_exception(PeerLost(f"{self.name} is gone: {reason}"))
        current = asyncio.current_task()
        for task in list(self._tasks):
            if task is not current:
                task.cancel()
        self._came = _Remembered()
        self._ended.set()


_ASKED = tuple[str, Any]
"""The method, and what it is called with."""


def _taken(handler: Handler) -> Any:
    """Return the annotation of all that a handler is called with, a tuple; what it does not annotate is plain data."""
    parameters = inspect.signature(handler, eval_str=True).parameters.values()
    kinds = [Any if one.annotation is one.empty else one.annotation for one in parameters]
    return types.GenericAlias(tuple, (*kinds,))


def _retrieve_exception(answer: asyncio.Future[Any]) -> None:
    # asyncio logs exceptions that nobody looked at; a caller that was cancelled at that moment does not look
    if not answer.cancelled():
        answer.exception()
