"""What clients of all protocols share: servers to choose from, one session at a time, and a tidy end."""

from __future__ import annotations

import asyncio
import copy
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from uirl.environments.base import BaseEnvironment
from uirl.environments.remote.client.http import EnvironmentClient, NoAnswer, Refused, ServerLost
from uirl.environments.remote.client.servers import Server, ServerPool
from uirl.environments.remote.protocol.wire import WireError
from uirl.errors import ConfigError, EnvironmentFailure, RolloutFailure
from uirl.runtime.http import checked_url
from uirl.types import StepResult

GOODBYE = 2.0
"""Seconds that closing a session on its server may take; one that is not heard of again is reaped there."""


class RemoteEnvironment(BaseEnvironment):
    """An environment on one of several servers. What `spawn` returns shares the servers and what is known of them."""

    def __init__(
        self,
        config: Any,
        url: str | None,
        urls: Sequence[str],
        spares: Sequence[str],
        token_env: str | None,
        *,
        most: int | None,
        patience: float,
        rest: float,
        timeouts: tuple[float, float],
    ) -> None:
        """`timeouts`: seconds of a step and of a reset."""
        super().__init__(config)
        if isinstance(urls, str) or isinstance(spares, str):
            raise ConfigError(f"urls and spares are lists, got {urls or spares!r}; one server is url")
        addresses = [*([url] if url is not None else []), *urls] or ["http://127.0.0.1:8000"]
        addresses = [checked_url(address, "token_env") for address in addresses]
        self.step_timeout, self.reset_timeout = timeouts
        for name, seconds in (("step_timeout", timeouts[0]), ("reset_timeout", timeouts[1])):
            if not isinstance(seconds, (int, float)) or not seconds > 0:
                raise ConfigError(f"{name} must be positive seconds, got {seconds!r}")
        self.pool = ServerPool(
            addresses,
            [checked_url(address, "token_env") for address in spares],
            most=most,
            patience=patience,
            rest=rest,
        )
        self.client = EnvironmentClient(token_env)
        self._server: Server | None = None
        self._turns = 0
        """Steps since the reset, where `_end` counts them."""

    def spawn(self) -> BaseEnvironment:
        """Another session on the same servers."""
        other = copy.copy(self)
        other._server = None
        other._forget()
        return other

    def __deepcopy__(self, memo: Any) -> BaseEnvironment:
        return self.spawn()

    async def close(self) -> None:  # type: ignore[override]
        """Ends the session, on the server too where it can be reached."""
        server = self._server
        if server is None:
            return
        self._server = None
        await self._let_go(server)

    async def _let_go(self, server: Server) -> None:
        """Ends what there is of a session on `server`, and gives the place back also where it cannot be reached."""
        try:
            with suppress(RolloutFailure):
                await self._leave(server)
        finally:
            self._forget()
            self.pool.give_back(server)
            await self.client.release()

    async def _end(self, result: StepResult) -> StepResult:
        """Ends the session where `result` ends the episode: others may be waiting for one."""
        self._turns += 1
        if result.done or (self.max_turns is not None and self._turns >= self.max_turns):
            await self.close()
        return result

    @property
    def url(self) -> str:
        """The server of the current session; empty: there is none."""
        return self._server.url if self._server else ""

    # -- for the protocols -----------------------------------------------------------------------------------------

    @abstractmethod
    async def _open(self, server: Server) -> None:
        """Opens a session on `server`."""

    @abstractmethod
    async def _leave(self, server: Server) -> None:
        """Ends the session on `server`."""

    @abstractmethod
    def _forget(self) -> None:
        """Clears what this instance knows of its session. It may share it with the instance it was copied from: nothing
        is closed here."""

    async def _lease(self) -> None:
        """Holds a session on some server: goes from one to the next until one takes it.

        Raises what the last one said once the pool's patience is used up.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.pool.patience
        last: RolloutFailure | None = None
        while self._server is None:
            try:
                server = await self.pool.take(max(0.0, deadline - loop.time()))
            except RolloutFailure as nobody:
                raise (last or nobody) from None
            last = await self._try(server)

    async def _try(self, server: Server) -> RolloutFailure | None:
        """Opens a session on `server`; the failure after which another server may be asked, None: it is open."""
        self.client.hold()
        try:
            await self._open(server)
        except BaseException as error:  # cancelled or not, half a session must not stay behind
            await self._let_go(server)
            if isinstance(error, Refused) and error.status == 503:
                self.pool.full(server, error.retry_after or 1.0)
                return error
            if isinstance(error, (ServerLost, NoAnswer)):
                self.pool.take_out(server, str(error))
                return error
            if isinstance(error, RolloutFailure):
                self.pool.doubt(server, str(error))
            raise
        self._server = server
        self.pool.well(server)
        return None

    def _blame(self, error: RolloutFailure) -> None:
        """Takes the session's server out of the pool where the failure is its own."""
        if self._server is not None and isinstance(error, (ServerLost, NoAnswer)):
            self.pool.take_out(self._server, str(error))


@contextmanager
def understood(url: str) -> Iterator[None]:
    """A context in which an answer that makes no sense is a failure of the server that gave it."""
    try:
        yield
    except WireError as error:
        raise EnvironmentFailure(f"{url} answered something else than was asked for: {error}") from None
