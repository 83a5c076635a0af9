"""Chrome DevTools Protocol over the browser's pipe: calls that always end, events, and a lost browser is an error.

A client of our own, because it is fast: `benchmarks/browser.py` compares its steps per second with BrowserGym over
Playwright (21 to 51 times) and with Selenium.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from uirl.environments.browser.chromium.pipe import LONGEST_MESSAGE, PipeEnds, Wire
from uirl.errors import EnvironmentFailure, EpisodeTimeout

MOST_VALUES = 1 << 19
"""Of one message, by its commas: reading so many takes a fifth of a second, in which no other page is heard."""
_NUMBER = re.compile(rb'\s*\{\s*"id"\s*:\s*(\d+)')
EventHandler = Callable[[Mapping[str, Any]], object]


class Refused(EnvironmentFailure):
    """The browser answered a call with an error."""

    def __init__(self, method: str, reason: str) -> None:
        super().__init__(f"{method}: the browser refused: {reason}")
        self.reason = reason


class Unanswered(EpisodeTimeout):
    """A call got no answer in time."""

    def __init__(self, message: str, late: asyncio.Future[dict[str, Any]]) -> None:
        super().__init__(message)
        self.late = late
        """The answer, should it come after all: then whoever waited for it gave up too early."""


class TooMuch(Refused):
    """The browser's answer is too long to be read: a page decides how much there is to say of it."""


@dataclass(slots=True)
class _Pending:
    """A call that waits for its answer."""

    method: str
    session: str | None
    answer: asyncio.Future[dict[str, Any]]


class CdpConnection:
    """The pipe to one browser, shared by all its pages.

    A page is addressed by its session id; None addresses the browser. Every call has a time limit. When the browser
    ends, all calls that wait fail at once, and so does every later one.
    """

    def __init__(self, *, timeout: float, on_lost: Callable[[], None] | None = None) -> None:
        """Create a connection inside a running event loop; it cannot be used before `open` has given it a pipe.

        `timeout` is the limit in seconds of a call that names none. `on_lost` is called once, when the pipe is closed
        or the event loop ends.
        """
        self.timeout = timeout
        self._wire = Wire(self._read, self.end)
        self._lost: str | None = None
        self._loop = asyncio.get_running_loop()
        self._on_lost = on_lost
        self._numbers = itertools.count(1)
        self._pending: dict[int, _Pending] = {}
        self._handlers: dict[tuple[str | None, str], EventHandler] = {}
        self._keeper: asyncio.Task[None] | None = None

    @property
    def lost(self) -> str | None:
        """Why no call can be made, from where it is asked; None: the connection stands."""
        if self._lost is None and asyncio.get_running_loop() is not self._loop:
            return "the browser belongs to another event loop"
        return self._lost

    @classmethod
    async def open(cls, ends: PipeEnds, *, timeout: float, on_lost: Callable[[], None] | None = None) -> CdpConnection:
        """Open a connection over our ends of the browser's two pipes, which it owns from now on."""
        connection = cls(timeout=timeout, on_lost=on_lost)
        await connection._wire.connect(ends)
        if connection._lost is None:
            connection._keeper = asyncio.create_task(connection._until_the_loop_ends(), name="cdp")
        return connection

    async def call(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        session: str | None = None,
        timeout: float | None = None,
    ) -> dict[str, Any]:
        """Return the result of one protocol method.

        Raises `Unanswered` where no answer came in time, `Refused` where the method was refused, EnvironmentFailure
        where the browser is gone or the page crashed.
        """
        lost = self.lost
        if lost is not None:
            raise EnvironmentFailure(f"{method}: {lost}")
        seconds = self.timeout if timeout is None else timeout
        number = next(self._numbers)
        waiting = _Pending(method, session, asyncio.get_running_loop().create_future())
        self._pending[number] = waiting
        answer = waiting.answer
        answer.add_done_callback(lambda _: self._pending.pop(number, None))
        try:
            self._send(number, method, params, session)
            await asyncio.wait({answer}, timeout=seconds)
        except BaseException:
            answer.cancel()
            raise
        if answer.done():
            return answer.result()
        answer.add_done_callback(lambda late: late.cancelled() or late.exception())  # nobody need ask for it
        raise Unanswered(f"{method}: the page did not answer within {seconds} s", answer)

    def post(self, method: str, params: Mapping[str, Any] | None = None, *, session: str | None = None) -> None:
        """Make a call without waiting for its answer: where it fails, what it was for has gone on without it."""
        if self._lost is None:
            self._send(next(self._numbers), method, params, session)

    def _send(self, number: int, method: str, params: Mapping[str, Any] | None, session: str | None) -> None:
        message: dict[str, Any] = {"id": number, "method": method, "params": dict(params or {})}
        if session is not None:
            message["sessionId"] = session
        self._wire.send(json.dumps(message, allow_nan=False).encode())

    def on(self, session: str | None, method: str, handler: EventHandler) -> None:
        """Call `handler(params)` at each such event of the session, on the event loop. One handler per event."""
        self._handlers[(session, method)] = handler

    def forget(self, session: str) -> None:
        """Drop the handlers of a session and fail the calls that still wait for it."""
        self._handlers = {key: handler for key, handler in self._handlers.items() if key[0] != session}
        self.fail_session(session, "the page was closed")

    def fail_session(self, session: str, reason: str, kind: type[EnvironmentFailure] = EnvironmentFailure) -> None:
        """End the waiting calls of one session with an EnvironmentFailure of that kind."""
        for waiting in self._pending.values():
            if waiting.session == session and not waiting.answer.done():
                waiting.answer.set_exception(kind(f"{waiting.method}: {reason}"))

    def refuse(self, session: str, reason: str, method: str | None = None) -> None:
        """End the waiting calls of a session, of one method or of all, as if the browser had refused them."""
        for waiting in self._pending.values():
            if waiting.session == session and method in (None, waiting.method) and not waiting.answer.done():
                waiting.answer.set_exception(Refused(waiting.method, reason))

    async def probe(self) -> None:
        """Give the browser up (`lost`) where it does not answer a request of its own.

        For after a call that timed out, to tell a page that hangs from a browser that does.
        """
        try:
            await self.call("Browser.getVersion")
        except EpisodeTimeout:
            self.end(f"the browser did not answer within {self.timeout} s, and is ended")
        except EnvironmentFailure:
            pass  # gone already

    async def close(self) -> None:
        """Close the pipe. Calls that wait fail; `on_lost` is called."""
        self.end("the connection to the browser was closed")
        if self._keeper is not None:
            await asyncio.gather(self._keeper, return_exceptions=True)

    async def _until_the_loop_ends(self) -> None:
        """End the connection when the event loop ends: the loop cancels this task, and gives no other notice."""
        try:
            await self._loop.create_future()
        finally:
            self.end("the connection to the browser was closed")

    def _read(self, message: bytes, length: int) -> None:
        if self._lost is not None:
            return
        try:
            if length > len(message) or message.count(b",") > MOST_VALUES:
                self._pass_over(message, length)
            else:
                self._receive(json.loads(message))
        except RecursionError:
            self._pass_over(message, length)
        except Exception as error:  # whatever it is must reach those who wait for the browser
            self.end(f"the connection to the browser broke: {type(error).__name__}: {error}")

    def _pass_over(self, message: bytes, length: int) -> None:
        """Fail the call whose answer is too long; nobody waits for an event."""
        numbered = _NUMBER.match(message)
        waiting = self._pending.get(int(numbered[1])) if numbered else None
        if waiting is not None and not waiting.answer.done():
            expected = f"expected at most {LONGEST_MESSAGE} bytes, {MOST_VALUES} values and a depth that Python reads"
            waiting.answer.set_exception(TooMuch(waiting.method, f"its answer has {length} bytes; {expected}"))

    def _receive(self, message: Mapping[str, Any]) -> None:
        if "id" not in message:
            if "method" not in message:
                return  # the browser could not read a message, and does not say which: its caller waits in vain
            handler = self._handlers.get((message.get("sessionId"), message["method"]))
            if handler is not None:
                handler(message.get("params", {}))
            return
        waiting = self._pending.get(message["id"])
        if waiting is None or waiting.answer.done():
            return  # the caller gave up before the answer came
        if "error" in message:
            reason = str(message["error"].get("message", message["error"]))
            waiting.answer.set_exception(Refused(waiting.method, reason))
        else:
            waiting.answer.set_result(message.get("result", {}))

    def end(self, reason: str) -> None:
        """Close the pipe and fail the waiting and all later calls with `reason`. Safe to call twice."""
        if self._lost is not None:
            return
        self._lost = reason
        with contextlib.suppress(RuntimeError):  # the loop was closed under us: nobody waits, nothing is left to abort
            self._wire.abort()
            if self._keeper is not None:
                self._keeper.cancel()
            for waiting in self._pending.values():
                if not waiting.answer.done():
                    waiting.answer.set_exception(EnvironmentFailure(f"{waiting.method}: {reason}"))
        if self._on_lost is not None:
            self._on_lost()
