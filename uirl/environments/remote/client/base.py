"""What clients of all protocols share: servers to choose from, one session at a time, and a tidy end."""

from __future__ import annotations

import asyncio
import copy
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, ClassVar

from uirl.environments.base import BaseEnvironment
from uirl.environments.options import ConfigurableEnvironment, OptionsLike
from uirl.environments.remote.client.http import EnvironmentClient, NoAnswer, Refused, ServerLost
from uirl.environments.remote.client.options import ServerPoolOptions
from uirl.environments.remote.client.servers import Server, ServerPool
from uirl.errors import EnvironmentFailure, RolloutFailure
from uirl.http.client import checked_url
from uirl.runtime.wire import WireError
from uirl.types import StepResult

GOODBYE = 2.0
"""Seconds that closing a session on its server may take; one that is not heard of again is reaped there."""


class RemoteEnvironment(ConfigurableEnvironment):
    """An environment on one of several servers. What `spawn` returns shares the servers and what is known of them."""

    options_class = ServerPoolOptions
    options: ServerPoolOptions
    default_url: ClassVar[str] = "http://127.0.0.1:8000"
    """Where no server is named."""

    def __init__(self, config: Any = None, options: OptionsLike = None, **keys: Any) -> None:
        """Asks no server yet. Raises ConfigError for options that do not fit."""
        super().__init__(config, options, **keys)
        options = self.options
        addresses = [*([] if options.url is None else [options.url]), *options.urls] or [self.default_url]
        self.pool = ServerPool(
            [checked_url(address, "token_env") for address in addresses],
            [checked_url(address, "token_env") for address in options.fallback_urls],
            max_sessions=self._max_sessions(),
            acquire_timeout=options.acquire_timeout,
            retry_backoff=options.retry_backoff,
        )
        self.client = EnvironmentClient(options.token_env)
        self._server: Server | None = None
        self.last_url = ""
        """The server that was last asked for a session of this instance; it stays when the session has ended."""
        self._turns = 0
        """Steps since the reset, where `_end` counts them."""

    def spawn(self) -> BaseEnvironment:
        """Return another session on the same servers."""
        other = copy.copy(self)
        other._server, other.last_url = None, ""
        other._forget()
        return other

    def __deepcopy__(self, memo: Any) -> BaseEnvironment:
        return self.spawn()

    async def close(self) -> None:  # type: ignore[override]
        """End the session, on the server too where it can be reached."""
        server = self._server
        if server is None:
            return
        self._server = None
        await self._let_go(server)

    async def _let_go(self, server: Server) -> None:
        """End what there is of a session on `server`, and give the place back also where it cannot be reached."""
        leaving = asyncio.ensure_future(self._leave(server))
        try:
            with suppress(RolloutFailure):
                await asyncio.shield(leaving)
        except asyncio.CancelledError:
            await _settle(leaving)
            raise
        finally:
            self._forget()
            self.pool.give_back(server)
            await self.client.release()

    async def _end(self, result: StepResult) -> StepResult:
        """End the session where `result` ends the episode: others may be waiting for one."""
        self._turns += 1
        if result.done or (self.max_turns is not None and self._turns >= self.max_turns):
            await self.close()
        return result

    @property
    def url(self) -> str:
        """The server of the current session; empty: there is none."""
        return self._server.url if self._server else ""

    # -- for the protocols -----------------------------------------------------------------------------------------

    def _max_sessions(self) -> int | None:
        """Return sessions per server that this process opens; None: as many as a server takes."""
        return None

    @abstractmethod
    async def _open(self, server: Server) -> None:
        """Open a session on `server`."""

    @abstractmethod
    async def _leave(self, server: Server) -> None:
        """End the session on `server`."""

    @abstractmethod
    def _forget(self) -> None:
        """Clear what this instance knows of its session. It may share it with the instance it was copied from: nothing
        is closed here."""

    async def _lease(self) -> None:
        """Hold a session on some server, going from one to the next until one takes it.

        Raises what the last one said once the pool's `acquire_timeout` has passed.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.pool.acquire_timeout
        last: RolloutFailure | None = None
        while self._server is None:
            try:
                server = await self.pool.take(max(0.0, deadline - loop.time()))
            except RolloutFailure as nobody:
                raise (last or nobody) from None
            last = await self._try(server)

    async def _try(self, server: Server) -> RolloutFailure | None:
        """Open a session on `server`; the failure after which another server may be asked, None: it is open."""
        self.client.hold()
        self.last_url = server.url
        opening = asyncio.ensure_future(self._open(server))
        try:
            await asyncio.shield(opening)
        except BaseException as error:  # cancelled or not, half a session must not stay behind
            await _settle(opening)
            another_may = self._judge(server, error)
            await self._let_go(server)
            if isinstance(error, RolloutFailure) and another_may:
                return error
            raise
        self._server = server
        self.pool.well(server)
        return None

    def _judge(self, server: Server, error: BaseException) -> bool:
        """Tell the pool why no session was opened, before the place goes to who waits; return whether another server
        may be asked."""
        if isinstance(error, Refused) and error.status == 503:
            self.pool.full(server, error.retry_after or 1.0)
        elif isinstance(error, (ServerLost, NoAnswer)):
            self.pool.take_out(server, str(error))
        else:
            if isinstance(error, RolloutFailure):
                self.pool.doubt(server, str(error))
            return False
        return True

    @contextmanager
    def _asking(self, url: str) -> Iterator[None]:
        """Return a context for a request about the session: a server that is lost is taken out of the pool, and an
        answer that makes no sense is its failure."""
        if self._server is None:
            raise EnvironmentFailure(f"{type(self).__name__} has no session; reset it first")
        try:
            with understood(url):
                yield
        except RolloutFailure as error:
            self._blame(error)
            raise

    def _blame(self, error: RolloutFailure) -> None:
        """Take the session's server out of the pool where the failure is its own."""
        if self._server is not None and isinstance(error, (ServerLost, NoAnswer)):
            self.pool.take_out(self._server, str(error))


async def _settle(request: asyncio.Future[None]) -> None:
    """Wait a moment for the answer to a request whose caller was cancelled: it says which session there is to end, or
    that it has ended."""
    with suppress(asyncio.CancelledError):  # a second time: what is known by now is ended all the same
        await asyncio.wait({request}, timeout=GOODBYE)
    if not request.done():
        request.cancel()
        await asyncio.wait({request}, timeout=GOODBYE)
    if request.done() and not request.cancelled():
        request.exception()


@contextmanager
def understood(url: str) -> Iterator[None]:
    """Return a context in which an answer that makes no sense is a failure of the server that gave it."""
    try:
        yield
    except WireError as error:
        raise EnvironmentFailure(f"{url} answered something else than was asked for: {error}") from None
