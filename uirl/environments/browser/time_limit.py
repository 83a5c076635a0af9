"""The time limit of a step: whether a page that exceeds it hangs, or the browser or the machine is too slow."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from uirl.environments.browser.page.problems import PageLost, Unanswered
from uirl.environments.browser.process import Chromium
from uirl.errors import EpisodeTimeout

LONGEST_STEP = 60.0
"""Seconds that a step may take, or fewer where the caller allows less."""
STEP_SHARE = 0.7
"""Of that, for the action and what comes of it; the rest is to find out whose doing it is that it takes longer."""
T = TypeVar("T")


async def run_within(work: Coroutine[Any, Any, T], browser: Chromium, step_timeout: float) -> T:
    """Return what `work` with a page gives, within its share of the `step_timeout` seconds.

    Raises PageLost where the page leaves a call without an answer, does not stop where it is told to, or takes too long
    for all of it, and another page of the browser does in time what pages do; EpisodeTimeout where that does not
    either, or the answer has come by then.
    """
    limit = STEP_SHARE * min(step_timeout, LONGEST_STEP)
    try:
        async with asyncio.timeout(limit):
            return await work
    except EpisodeTimeout as error:
        if await browser.hangs(error.late if isinstance(error, Unanswered) else None):
            raise PageLost(f"the page hangs, and others of the browser do not: {error}") from error
        raise
    except TimeoutError as error:
        slow = f"the action and what came of it took the page more than {limit:g} s"
        if await browser.hangs():
            raise PageLost(slow) from error
        raise EpisodeTimeout(slow) from error
