"""One tab of the browser: go somewhere, read, look. Every call ends within its time limit."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from uirl.environments.browser.page.dialogs import Dialog
from uirl.environments.browser.page.problems import (
    Blocked,
    Moved,
    PageLost,
    Refused,
    TabClosed,
    Threw,
    Unanswered,
    Unopened,
)
from uirl.errors import EnvironmentFailure, EpisodeTimeout

if TYPE_CHECKING:
    from playwright.async_api import CDPSession
    from playwright.async_api import Page as BrowserPage

LOAD_SECONDS = 20.0
WORLD = "uirl"
"""Name of the JavaScript world of ours in a page: it sees the same document, and the page's scripts cannot see it."""
STARTS_WITHIN = 0.25
"""Seconds in which a requested navigation starts; the browser forgets some without a word (a blocked address)."""
TWO_FRAMES = """new Promise(done => {
  const frame = next => document.hidden ? done() : requestAnimationFrame(next);
  document.addEventListener('visibilitychange', () => done(), {once: true});
  frame(() => frame(() => setTimeout(done)));
})"""
"""JavaScript: a promise that is kept when the page has drawn two frames, or draws none since another tab is shown.

In the first a scroll arrives, and those who listen to it are called. What they ask for of a frame, and what watches
where elements are, comes by the second.
"""
_LEFT = (
    *("Inspected target navigated", "Execution context was destroyed", "Cannot find context", "Promise was coll"),
    *("Not attached to an active page", "uniqueContextId not found", "Frame was detached"),
)
"""How the browser refuses a call where the page has left the document it was for."""
_UNTOLD = ("Object reference chain is too long", "Object couldn't be returned by value", "Failed to convert response")
"""How it refuses a call whose answer JSON does not hold."""
_GONE = ("Target page, context or browser has been closed", "Target closed", "Target crashed", "Connection closed")
_BY_VALUE = {"returnByValue": True, "awaitPromise": True}
T = TypeVar("T")


class Tab:
    """A tab belongs to a `Page`, which opens, shows and closes it."""

    def __init__(self, page: BrowserPage, session: CDPSession, target: str, limit: Callable[[], float]) -> None:
        """Use `open`. `limit` gives the seconds of a call that names none."""
        self.page = page
        self.target = target
        """The browser's name of the tab, and of its main frame."""
        self.session = session
        """For what Playwright has no words for, and for pictures and scripts, which are on the way of every step:
        `benchmarks/browser.py` has what it saves."""
        self.dialog: Dialog | None = None
        """The one that is open and left to the policy."""
        self.title = ""
        self.blank = False
        """It has shown no document yet: the browser draws nothing of it."""
        self.closed = False
        """It is gone, and the page is not."""
        self.notice: Callable[[str], None] = lambda words: None
        self.unreachable: str | None = None
        """The address in whose place the browser's error page is shown; None: a page is shown."""
        self._limit = limit
        self._broken: EnvironmentFailure | None = None
        self._loop = loop = asyncio.get_running_loop()
        self._interrupted: asyncio.Future[EnvironmentFailure] = loop.create_future()
        self._moved: asyncio.Future[None] = loop.create_future()  # done when the document is another one
        self._begun = asyncio.Event()  # a navigation is under way
        self._still = asyncio.Event()  # its opposite
        self._still.set()
        self._loading = False
        self._world: int | None = None  # of the document that is shown
        for name, handler in (
            ("Page.frameRequestedNavigation", self._on_requested),
            ("Page.frameStartedLoading", lambda event: self._on_loading(event, True)),
            ("Page.frameStoppedLoading", lambda event: self._on_loading(event, False)),
            ("Page.frameNavigated", self._on_document),
        ):
            session.on(name, handler)

    @classmethod
    async def open(cls, page: BrowserPage, metrics: Mapping[str, Any], limit: Callable[[], float]) -> Tab:
        """Return the tab of a page that was just opened. Raises what Playwright raises where it is gone again.

        `metrics`: its size.
        """
        session = await page.context.new_cdp_session(page)
        asked: list[dict[str, Any]] = await asyncio.gather(
            session.send("Target.getTargetInfo"),
            session.send("Page.enable"),
            session.send("Emulation.setDeviceMetricsOverride", dict(metrics)),
        )
        found = asked[0]["targetInfo"]
        tab = cls(page, session, found["targetId"], limit)
        tab.blank, tab.title = not found["url"], str(found.get("title", ""))
        return tab

    @property
    def url(self) -> str:
        return self.page.url

    @property
    def broken(self) -> str | None:
        """Why the tab must not be used any more (a call failed, timed out or was cut off); None: it is fine."""
        if self._broken is None and self.elsewhere:
            self._broken = EnvironmentFailure("the browser belongs to another event loop")
        return None if self._broken is None else str(self._broken)

    @property
    def elsewhere(self) -> bool:
        """Whether it belongs to another event loop, which has ended."""
        return asyncio.get_running_loop() is not self._loop

    @property
    def under_way(self) -> bool:
        """Whether the page is going somewhere else."""
        return not self._still.is_set()

    def end(self, reason: str, own_doing: bool = False) -> None:
        """Mark the tab as unusable: the calls that wait fail, and so does every later one.

        `own_doing`: the page brought it about, which is a PageLost.
        """
        if self._broken is None:
            self._broken = (PageLost if own_doing else EnvironmentFailure)(reason)
        if not self.elsewhere:
            self._interrupt(self._broken)

    def leave(self) -> None:
        """Mark the tab as closed while others are open: whoever waits for it has to look at another (`TabClosed`)."""
        self.closed = True
        self._interrupt(TabClosed("the tab was closed"))

    def block(self, dialog: Dialog | None = None) -> None:
        """End the calls that wait with `Blocked`; the `dialog`, where it is this tab's, waits for an answer."""
        self.dialog = dialog or self.dialog
        self._interrupt(Blocked("a dialog is open"))

    def _interrupt(self, problem: EnvironmentFailure) -> None:
        self._interrupted.set_result(problem)
        self._interrupted = self._loop.create_future()
        self._set_still(True)

    def check(self) -> None:
        """Raise where the tab is unusable: EnvironmentFailure, PageLost, `TabClosed`, or `Blocked` by a dialog."""
        if self.closed:
            raise TabClosed("the tab was closed")
        if self.broken is not None:
            raise (PageLost if isinstance(self._broken, PageLost) else EnvironmentFailure)(
                f"this page is broken, open another: {self._broken}"
            )
        if self.dialog is not None:
            raise Blocked("a dialog is open")

    async def run(
        self,
        call: Callable[[], Awaitable[T]],
        what: str,
        *,
        timeout: float | None = None,
        until: asyncio.Future[Any] | None = None,
    ) -> T:
        """Return what a call to the browser gives while the tab is there and the dialog is not.

        `until`: `Moved` is raised as soon as it is done. A call that does not finish within `timeout` seconds (None:
        the limit) or is cut off breaks the tab, since what the page did meanwhile is unknown.
        """
        self.check()
        seconds = self._limit() if timeout is None else timeout
        interrupted = self._interrupted
        doing = asyncio.ensure_future(call())
        try:
            ends: set[asyncio.Future[Any]] = {doing, interrupted} if until is None else {doing, interrupted, until}
            await asyncio.wait(ends, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError as error:
            doing.cancel()
            self._break(f"{what} did not finish: {error!r}")
            raise
        if doing.done():
            return await self._result(doing, what, interrupted)
        doing.add_done_callback(lambda late: late.cancelled() or late.exception())  # nobody need ask for it
        if interrupted.done():
            raise interrupted.result()
        if until is not None and until.done():
            raise Moved(f"{what}: the page leaves")
        self._break(f"{what} did not finish within {seconds:g} s")
        raise Unanswered(f"{what}: the page did not answer within {seconds:g} s", doing)

    async def _result(self, done: asyncio.Future[T], what: str, interrupted: asyncio.Future[EnvironmentFailure]) -> T:
        from playwright.async_api import Error

        try:
            return done.result()
        except Error as error:
            reason = error.message
            if any(words in reason for words in _LEFT):
                raise Moved(f"{what}: {reason}") from None
            if any(words in reason for words in _UNTOLD):
                raise Threw(f"what the page gave cannot be told, at {what}: {reason}") from None
            if not any(words in reason for words in _GONE):
                raise Refused(what, reason) from None
            # the browser says why in a moment
            await asyncio.wait({interrupted}, timeout=1.0)
            if not interrupted.done():
                self._break(f"{what}: {reason}")
            raise (interrupted.result() if interrupted.done() else EnvironmentFailure(f"{what}: {reason}")) from None

    def _break(self, reason: str) -> None:
        if self._broken is None and not self.closed:
            self._broken = EnvironmentFailure(reason)

    async def call(
        self, method: str, params: Mapping[str, Any] | None = None, *, timeout: float | None = None, until: Any = None
    ) -> Any:
        """Return the result of a method of the DevTools protocol."""
        return await self.run(
            lambda: self.session.send(method, dict(params or {})), method, timeout=timeout, until=until
        )

    async def answer(self, agree: bool, text: str | None = None) -> None:
        """Answer the dialog that is open; `text`: what is written into it, where it asks for that."""
        dialog, self.dialog = self.dialog, None
        if dialog is None:
            return
        if dialog.kind == "beforeunload" and agree:
            self._expect()
        with contextlib.suppress(Moved):
            await self.run(lambda: dialog.answer(agree, text), "the answer to a dialog")

    async def goto(self, url: str, *, timeout: float = LOAD_SECONDS) -> None:
        """Load `url` and wait for its load event.

        Raises `Unopened` where it cannot be loaded (a file to be kept counts), or takes too long: then loading stops.
        """
        try:
            await self.run(
                lambda: self.page.goto(url, timeout=timeout * 1000), f"going to {url}", timeout=2 * timeout + 1
            )
            await self._arrive(timeout)  # else its end would look like that of the next one
        except Refused as error:
            if "Timeout" in error.reason:
                await self._stop_loading(timeout)
                raise Unopened(f"{url} was not loaded within {timeout} s") from error
            raise Unopened(
                f"{url} cannot be opened: {error.reason.removeprefix('Page.goto: ').split(' at ')[0]}"
            ) from error

    async def travel(self, steps: int) -> bool:
        """Go that many pages through the history, back where negative. False: there is no such page."""
        history = await self.call("Page.getNavigationHistory")
        wanted = history["currentIndex"] + steps
        if not 0 <= wanted < len(history["entries"]):
            return False
        await self.call("Page.navigateToHistoryEntry", {"entryId": history["entries"][wanted]["id"]})
        await self.settle()
        return True

    async def settle(self, *, drawn: bool = False, timeout: float = LOAD_SECONDS) -> None:
        """Wait until the tab is not on its way to another page (at once, mostly); see `Page.settle`."""
        for _ in range(3):  # what it came to may lead on
            drew = not drawn or await self._draw()
            if self.under_way:
                await self._arrive(timeout)
            if drew:
                return

    async def comes(self, seconds: float) -> bool:
        """Wait for the first document, which begins to load within `seconds`. False: there is none."""
        if self.blank:
            begins = asyncio.ensure_future(self._begun.wait())
            ends: set[asyncio.Future[Any]] = {self._moved, begins}
            await asyncio.wait(ends, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            begins.cancel()
            await self.settle()
        return not self.blank

    async def _draw(self) -> bool:
        """Return whether the tab has drawn what was done to it; False: it went elsewhere instead."""
        begins = asyncio.ensure_future(self._begun.wait())
        try:
            where = {"contextId": await self.world(), "awaitPromise": True}
            await self.call("Runtime.evaluate", {"expression": TWO_FRAMES, **where}, until=begins)
        except Moved:
            return False
        finally:
            begins.cancel()
        return True

    async def _arrive(self, timeout: float) -> None:
        try:
            async with asyncio.timeout(timeout):
                await self._still.wait()
        except TimeoutError:
            self.notice(f"the page had not finished loading after {timeout:g} s, and was stopped")
            await self._stop_loading(timeout)
        self.check()

    async def _stop_loading(self, timeout: float) -> None:
        """Stop a navigation where it is. Raises EpisodeTimeout where page or browser do not."""
        with contextlib.suppress(Moved):
            await self.call("Page.stopLoading")
        try:
            async with asyncio.timeout(min(timeout, self._limit())):
                await self._still.wait()
        except TimeoutError as error:
            self._break("a navigation did not end, and could not be stopped")
            raise EpisodeTimeout("a navigation did not end, and could not be stopped") from error

    async def world(self) -> int:
        """Return the browser's number of our world in the document that is shown."""
        if self._world is None:
            made = await self.call("Page.createIsolatedWorld", {"frameId": self.target, "worldName": WORLD})
            self._world = int(made["executionContextId"])
        return self._world

    async def evaluate(self, expression: str, *, apart: bool = False, timeout: float | None = None) -> Any:
        """Return the JSON value of a JavaScript expression; see `Page.evaluate`."""

        async def ask() -> Any:
            where = {"contextId": await self.world()} if apart else {}
            return await self.session.send("Runtime.evaluate", {"expression": expression, **_BY_VALUE, **where})

        return _value_of(await self.of_one_document(ask, f"{expression[:120]!r}", timeout), expression)

    async def hold(self, expression: str) -> str:
        """Return a handle of the object that a JavaScript expression gives; the page's scripts cannot reach it.

        It is good for `ask` until the page loads another document.
        """
        answer = await self.call("Runtime.evaluate", {"expression": expression})
        _value_of(answer, expression)
        return str(answer["result"]["objectId"])

    async def ask(self, handle: str, function: str, *arguments: Any, timeout: float | None = None) -> Any:
        """Return the JSON value of a JavaScript function called on a held object, as `this`; a promise is awaited.

        Raises `Moved` or `Refused` where the page has gone elsewhere, `Threw` where the function throws.
        """
        values = [{"value": argument} for argument in arguments]
        params = {"objectId": handle, "functionDeclaration": function, "arguments": values, **_BY_VALUE}
        return _value_of(await self.call("Runtime.callFunctionOn", params, timeout=timeout), function)

    async def screenshot(self, *, format: Literal["png", "jpeg"] = "png", quality: int = 80) -> bytes:
        """Return the visible page as an encoded picture. `quality` is JPEG's, 1 to 100."""
        params = {"format": format, "quality": quality, "optimizeForSpeed": True}
        taken = await self.of_one_document(lambda: self.session.send("Page.captureScreenshot", params), "its picture")
        return base64.b64decode(taken["data"])

    async def of_one_document(self, call: Callable[[], Awaitable[T]], what: str, timeout: float | None = None) -> T:
        """Return the result of a call that the page stays for. Raises PageLost where it leaves three times."""
        for _ in range(3):
            await self.settle()
            # of a document that is gone no picture ever comes, and the browser does not say so
            with contextlib.suppress(Moved):
                return await self.run(call, what, timeout=timeout, until=self._moved)
        raise PageLost(f"the page went elsewhere three times during {what}")

    def _set_still(self, still: bool) -> None:
        (self._still.set if still else self._still.clear)()
        (self._begun.clear if still else self._begun.set)()

    def _expect(self) -> None:
        """Record that a navigation was requested, which starts in a moment or not at all."""
        self._set_still(False)
        self._loop.call_later(STARTS_WITHIN, self._set_still_unless_loading)

    def _set_still_unless_loading(self) -> None:
        if not self._loading:
            self._set_still(True)

    def _on_requested(self, event: Mapping[str, Any]) -> None:
        if event["frameId"] == self.target and event.get("disposition", "currentTab") == "currentTab":
            self._expect()

    def _on_loading(self, event: Mapping[str, Any], loading: bool) -> None:
        if event["frameId"] == self.target:
            self._loading = loading
            self._set_still(not loading)

    def _on_document(self, event: Mapping[str, Any]) -> None:
        if event["frame"]["id"] == self.target:
            self._world, self.blank = None, False
            self.unreachable = event["frame"].get("unreachableUrl")
            self._moved.set_result(None)
            self._moved = self._loop.create_future()


def _value_of(answer: Mapping[str, Any], expression: str) -> Any:
    """Return the value in the answer to an expression. Raises `Threw`."""
    thrown = answer.get("exceptionDetails")
    if thrown is not None:
        what = thrown.get("exception", {}).get("description") or thrown.get("text", "")
        raise Threw(f"the page threw {what[:400]!r} at {expression[:120]!r}")
    return answer["result"].get("value")
