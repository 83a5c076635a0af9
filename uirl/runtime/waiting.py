"""Waiting with an end, and with a word about what is waited for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import TypeVar

from uirl.runtime.time_limits import TimedOut, within

T = TypeVar("T")

_LOG = logging.getLogger(__name__)
SAY_EVERY = 30.0
"""Seconds between two log lines about the same wait."""


async def wait_for(what: str, awaitable: Awaitable[T], timeout: float) -> T:
    """Return the result of `awaitable`, and log a line now and then while it is waited for.

    `what` completes the sentence "waiting for ...". Raises `TimedOut` with it after `timeout` seconds.
    """
    loop = asyncio.get_running_loop()
    started = loop.time()

    async def say() -> None:
        while True:
            await asyncio.sleep(SAY_EVERY)
            _LOG.warning("waiting for %s: %.0f s of at most %g s", what, loop.time() - started, timeout)

    saying = asyncio.create_task(say())
    try:
        return await within(awaitable, timeout)
    except TimedOut:
        raise TimedOut(f"waited {timeout:g} s for {what}") from None
    finally:
        saying.cancel()
