"""What can become of a call to a page, beside its answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from typing import Any

from uirl.errors import EnvironmentFailure, EpisodeTimeout


class Unopened(EnvironmentFailure):
    """An address that the browser did not open: it shows its error page, or still the page of before."""


class PageLost(EnvironmentFailure):
    """A page did this to itself: it crashed, closed itself, threw or did not stay.

    After an action of the policy it is the policy's doing; before the first it is a failure of the environment.
    """


class Threw(PageLost):
    """A script of ours found the page in a state in which it throws."""


class Refused(EnvironmentFailure):
    """The browser, or Playwright before it, refused a call."""

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(f"{what}: {reason}")
        self.reason = reason


class TabClosed(EnvironmentFailure):
    """A tab beside the first was closed, by the policy or by itself: another one is shown."""


class Moved(EnvironmentFailure):
    """The page left the document that the call was for."""


class Blocked(EnvironmentFailure):
    """A dialog is open, and the page does nothing until it is answered: after an action of the policy, its choice."""


class Unanswered(EpisodeTimeout):
    """A call got no answer in time."""

    def __init__(self, message: str, late: asyncio.Future[Any]) -> None:
        super().__init__(message)
        self.late = late
        """The answer, should it come after all: then whoever waited for it gave up too early."""


async def quietly(work: Awaitable[Any]) -> None:
    """Await what matters no more where its page or the whole browser is gone."""
    from playwright.async_api import Error

    with contextlib.suppress(Error, EnvironmentFailure, EpisodeTimeout):
        await work
