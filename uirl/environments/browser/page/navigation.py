"""Whether a page is on its way to another: read from the browser's events, so that nobody looks in between."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from uirl.environments.browser.chromium.cdp import CdpConnection, Refused, TooMuch
from uirl.errors import EnvironmentFailure

STARTS_WITHIN = 0.25
"""Seconds in which a requested navigation starts; the browser forgets some without a word (a blocked address)."""


MOVED = (
    *("Inspected target navigated", "Execution context was destroyed", "Cannot find context", "Promise was coll"),
    "Not attached to an active page",
)
"""How the browser refuses a call where the page has left the document it was for."""
UNTOLD = (
    *("Object reference chain is too long", "Object couldn't be returned by value"),
    "Failed to convert response to JSON",
)
"""How the browser refuses a call whose answer JSON does not hold."""
LEFT = "the page leaves"
"""With what a call is cancelled that the page may never answer, since it leaves."""


class Unopened(EnvironmentFailure):
    """An address that the browser did not open: it shows its error page, or still the page of before."""


class PageLost(EnvironmentFailure):
    """A page did this to itself: it crashed, closed itself, threw or did not stay.

    After an action of the policy it is the policy's doing; before the first it is a failure of the environment.
    """


class TabClosed(EnvironmentFailure):
    """A tab beside the first was closed, by the policy or by itself: another one is shown."""


class Threw(PageLost):
    """A script of ours found the page in a state in which it throws."""


class Navigation:
    """The navigations of one page's main frame."""

    def __init__(
        self,
        connection: CdpConnection,
        target: str,
        session: str,
        on_document: Callable[[Mapping[str, Any]], None] = lambda event: None,
    ) -> None:
        """Listen to the page's events; `Page.enable` must follow. `on_document` is told of every new document."""
        self._on_new = on_document
        self._connection = connection
        self._target = target
        self._session = session
        self._loading = False
        self._still = asyncio.Event()
        self._still.set()
        self._begun = asyncio.Event()  # its opposite
        self._loads: dict[str, asyncio.Event] = {}
        self.documents = 0
        """How many documents the main frame has shown: what was made in an earlier one is gone."""
        self.unreachable: str | None = None
        """The address in whose place the browser's error page is shown; None: a page is shown."""
        for name, handler in (
            ("Page.frameRequestedNavigation", self._on_requested),
            ("Page.frameStartedLoading", self._on_started),
            ("Page.frameStoppedLoading", self._on_stopped),
            ("Page.frameNavigated", self._on_document),
            ("Page.lifecycleEvent", self._on_lifecycle),
        ):
            connection.on(session, name, handler)

    @property
    def under_way(self) -> bool:
        """Whether the page is going somewhere else."""
        return not self._still.is_set()

    async def end(self) -> None:
        """Wait until no navigation is under way."""
        await self._still.wait()

    async def unless_it_begins(self, work: Coroutine[Any, Any, None]) -> bool:
        """Run `work` with the page. False: a navigation began and cancelled it: a page that leaves may not answer."""
        doing = asyncio.ensure_future(work)
        beginning = asyncio.ensure_future(self._begun.wait())
        try:
            await asyncio.wait({doing, beginning}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            doing.cancel(LEFT if beginning.done() else None)
            beginning.cancel()
        await asyncio.wait({doing})
        if doing.cancelled():
            return False
        doing.result()
        return True

    def begin(self) -> None:
        """Forget the earlier loads."""
        self._loads.clear()

    def expect(self) -> None:
        """Record that a navigation was requested, which starts in a moment or not at all."""
        self._set_still(False)
        asyncio.get_running_loop().call_later(STARTS_WITHIN, self._on_not_started)

    async def begins(self, seconds: float) -> None:
        """Wait until a navigation begins, at most `seconds`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._begun.wait()

    async def loaded(self, loader: str) -> None:
        """Wait until the document of that loader is loaded (its load event)."""
        await self._load(loader).wait()

    def give_up(self) -> None:
        """Release all waiting calls: the page is gone."""
        self._set_still(True)
        for event in self._loads.values():
            event.set()

    def _set_still(self, still: bool) -> None:
        (self._still.set if still else self._still.clear)()
        (self._begun.clear if still else self._begun.set)()

    def _load(self, loader: str) -> asyncio.Event:
        return self._loads.setdefault(loader, asyncio.Event())

    def _on_requested(self, event: Mapping[str, Any]) -> None:
        if event["frameId"] == self._target and event.get("disposition", "currentTab") == "currentTab":
            self.expect()

    def _on_not_started(self) -> None:
        if not self._loading:
            self._set_still(True)

    def _on_started(self, event: Mapping[str, Any]) -> None:
        if event["frameId"] == self._target:
            self._loading = True
            self._set_still(False)

    def _on_stopped(self, event: Mapping[str, Any]) -> None:
        if event["frameId"] == self._target:
            self._loading = False
            self._set_still(True)

    def _on_document(self, event: Mapping[str, Any]) -> None:
        if event["frame"]["id"] == self._target:
            self.documents += 1
            self.unreachable = event["frame"].get("unreachableUrl")
            self._on_new(event)
            # A picture of the document before never comes, and the browser does not say so.
            self._connection.refuse(self._session, MOVED[0], "Page.captureScreenshot")

    def _on_lifecycle(self, event: Mapping[str, Any]) -> None:
        if event["name"] == "load":
            self._load(event["loaderId"]).set()


def is_moved(error: BaseException) -> bool:
    """Return whether a call was refused, or given up, because the page had left the document it was for."""
    if isinstance(error, asyncio.CancelledError):
        return error.args == (LEFT,)
    return isinstance(error, Refused) and error.reason.startswith(MOVED)


def is_untold(error: BaseException) -> bool:
    """Return whether a call was refused because its answer cannot be sent: a page decides how large an answer is."""
    return isinstance(error, TooMuch) or (isinstance(error, Refused) and error.reason.startswith(UNTOLD))


def value_of(answer: Mapping[str, Any], expression: str) -> Any:
    """Return the value in the answer to an expression. Raises `Threw`."""
    thrown = answer.get("exceptionDetails")
    if thrown is not None:
        what = thrown.get("exception", {}).get("description") or thrown.get("text", "")
        raise Threw(f"the page threw {what[:400]!r} at {expression[:120]!r}")
    return answer["result"].get("value")
