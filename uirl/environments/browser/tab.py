"""One tab of the browser, over Playwright's page. Every call ends within its time limit, or with a typed failure."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from uirl.errors import EnvironmentFailure, EpisodeTimeout
from uirl.runtime.limits import shown

if TYPE_CHECKING:
    from playwright.async_api import CDPSession, Dialog
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
"""JavaScript: a promise that is kept when the page has drawn two frames, or draws none since another tab is shown. A
scroll arrives in the first; what its listeners ask for, and what watches where elements are, comes by the second."""
_LEFT = (
    *("Inspected target navigated", "Execution context was destroyed", "Cannot find context", "Promise was coll"),
    *("Not attached to an active page", "uniqueContextId not found", "Frame was detached", "Unable to capture"),
)
"""How the browser refuses a call where the page has left the document it was for."""
_UNTOLD = ("Object reference chain is too long", "Object couldn't be returned by value", "Failed to convert response")
"""How it refuses a call whose answer JSON does not hold."""
_GONE = ("Target page, context or browser has been closed", "Target closed", "Target crashed", "Connection closed")
_BY_VALUE = {"returnByValue": True, "awaitPromise": True}
T = TypeVar("T")


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


class Tab:
    """A tab belongs to a `Page`, which opens, shows and closes it."""

    dialog: Dialog | None = None
    """The one that is open and left to the policy."""
    limit: Callable[[], float]
    """Gives the seconds of a call that names none."""
    notice: Callable[[str], None]
    """Takes what is told to the policy."""
    typed: str | None = None
    """What the policy has typed into it; None: what is proposed stands there."""
    unreachable: str | None = None
    """The address in whose place the browser's error page is shown; None: a page is shown."""
    _ended: EnvironmentFailure | None = None
    _loading = False
    _world: int | None = None  # of the document that is shown

    def __init__(self, page: BrowserPage, session: CDPSession, info: Mapping[str, Any]) -> None:
        self.page = page
        self.session = session
        """For what Playwright has no words for, and for pictures and scripts, which are on the way of every step:
        `benchmarks/browser.py` has what it saves."""
        self.context, self.target = str(info["browserContextId"]), str(info["targetId"])
        """The browser's names of the context, and of the tab and its main frame."""
        self.title = str(info["title"])
        self.blank = not info["url"]
        """It has shown no document yet: the browser draws nothing of it."""
        self._loop = loop = asyncio.get_running_loop()
        self._interrupted: asyncio.Future[EnvironmentFailure] = loop.create_future()
        self._moved: asyncio.Future[None] = loop.create_future()  # done when the document is another one
        self._leaving: asyncio.Future[None] = loop.create_future()  # done while a navigation is under way
        self._still = asyncio.Event()  # the opposite
        self._still.set()
        session.on("Page.frameRequestedNavigation", self._on_requested)
        session.on("Page.frameStartedLoading", lambda event: self.on_loading(event["frameId"], True))
        session.on("Page.frameStoppedLoading", lambda event: self.on_loading(event["frameId"], False))
        session.on("Page.frameNavigated", self._on_document)

    @classmethod
    async def open(cls, page: BrowserPage, metrics: Mapping[str, Any]) -> Tab:
        """Return the tab of a page that was just opened, of this size. Raises Playwright's error where it is gone."""
        session = await page.context.new_cdp_session(page)
        tab = cls(page, session, (await session.send("Target.getTargetInfo"))["targetInfo"])
        metrics_set = session.send("Emulation.setDeviceMetricsOverride", dict(metrics))
        await asyncio.gather(session.send("Page.enable"), metrics_set)
        shown = await session.send("Target.getTargetInfo")  # what it came to before it told of it
        tab.blank = tab.blank and not shown["targetInfo"]["url"]
        return tab

    @property
    def elsewhere(self) -> bool:
        """Whether it belongs to another event loop, which has ended."""
        return asyncio.get_running_loop() is not self._loop

    @property
    def broken(self) -> str | None:
        """Why the tab must not be used any more (a call failed, timed out or was cut off); None: it is fine."""
        if self.elsewhere:
            self._ended = self._ended or EnvironmentFailure("the browser belongs to another event loop")
        return None if self._ended is None else str(self._ended)

    def check(self) -> None:
        """Raise where the tab is unusable: EnvironmentFailure, PageLost, `TabClosed`, or `Blocked` by a dialog."""
        if self.broken is not None:
            raise type(self._ended)(f"this page is broken, open another: {self._ended}")  # type: ignore[misc]
        if self.dialog is not None:
            raise Blocked("a dialog is open")

    def end(self, problem: EnvironmentFailure) -> None:
        """Mark the tab as unusable: the calls that wait fail, and so does every later one.

        PageLost: the page brought it about. `TabClosed`: others are open, and whoever waits has to look at them.
        """
        self._ended = problem if isinstance(problem, TabClosed) else self._ended or problem
        if not self.elsewhere:
            self._interrupt(self._ended)

    def block(self, dialog: Dialog | None = None) -> None:
        """End the calls that wait with `Blocked`; the `dialog`, where it is this tab's, waits for an answer."""
        if dialog is not None:
            self.dialog, self.typed = dialog, None
        self._interrupt(Blocked("a dialog is open"))

    def _interrupt(self, problem: EnvironmentFailure) -> None:
        self._interrupted.set_result(problem)
        self._interrupted = self._loop.create_future()
        self._set_still(True)

    def _break(self, reason: str) -> None:
        self._ended = self._ended or EnvironmentFailure(reason)

    async def run(
        self, call: Callable[[], Awaitable[T]], what: str, *, timeout: float | None = None, until: Any = None
    ) -> T:
        """Return what a call to the browser gives while the tab is there and the dialog is not.

        `until`: `Moved` is raised as soon as it is done. A call that does not finish within `timeout` seconds (None:
        the limit) or is cut off breaks the tab, since what the page did meanwhile is unknown.
        """
        self.check()
        seconds = self.limit() if timeout is None else timeout
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
            await asyncio.wait({interrupted}, timeout=1.0)  # the browser says why in a moment
            self._break(f"{what}: {reason}")
            raise (interrupted.result() if interrupted.done() else EnvironmentFailure(f"{what}: {reason}")) from None

    async def call(self, method: str, params: Mapping[str, Any] | None = None, until: Any = None) -> Any:
        """Return the result of a method of the DevTools protocol."""
        return await self.run(lambda: self.session.send(method, dict(params or {})), method, until=until)

    async def of_one_document(self, call: Callable[[], Awaitable[T]], what: str, timeout: float | None = None) -> T:
        """Return the result of a call that the page stays for. Raises PageLost where it leaves three times."""
        for _ in range(3):
            await self.settle()
            moved = self._moved
            # of a document that is gone no picture ever comes, and the browser does not say so
            with contextlib.suppress(Moved):
                return await self.run(call, what, timeout=timeout, until=moved)
            await asyncio.wait({moved}, timeout=1.0)  # the call may be refused before the next document is there
        raise PageLost(f"the page went elsewhere three times during {what}")

    async def answer(self, agree: bool, text: str | None = None) -> None:
        """Answer the dialog that is open; `text`: what is written into one that asks for that, None: its proposal."""
        dialog, self.dialog = self.dialog, None
        if dialog is None:
            return
        if dialog.type == "beforeunload" and agree:
            self._expect()
        written = dialog.default_value if text is None else text
        with contextlib.suppress(Moved):
            await self.run(lambda: dialog.accept(written) if agree else dialog.dismiss(), "the answer to a dialog")

    def question(self, has_action: bool) -> str:
        """Return the dialog that is open in words for the policy, empty: none; `has_action`: it has one for dialogs."""
        if self.dialog is None:
            return ""
        way = 'answer with the action dialog, "ok" or "cancel"'
        way = way if has_action else "press enter to agree, escape to refuse"
        if self.dialog.type == "beforeunload":
            return f"the page asks whether to leave it, and what was changed may be lost; {way}"
        proposed = f", and proposes {shown(self.dialog.default_value, 60)}" if self.dialog.default_value else ""
        return f"the page asks: {self.dialog.message[:200]}{proposed}; {way}"

    async def settle(self, *, drawn: bool = False, timeout: float = LOAD_SECONDS) -> None:
        """Wait until the tab is not on its way to another page (at once, mostly); see `Page.settle`."""
        for _ in range(3):  # what it came to may lead on
            drew = not drawn or await self._draw()
            if not self._still.is_set():
                await self.arrive(timeout)
            if drew:
                return

    async def _draw(self) -> bool:
        try:
            where = {"contextId": await self._own_world(), "awaitPromise": True}
            await self.call("Runtime.evaluate", {"expression": TWO_FRAMES, **where}, self._leaving)
        except Moved:
            return False
        return True

    async def comes(self, seconds: float) -> bool:
        """Wait for the first document, which begins to load within `seconds`. False: there is none."""
        if self.blank:
            ends = {self._moved, self._leaving}
            await asyncio.wait(ends, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            await self.settle()
        return not self.blank

    async def arrive(self, timeout: float) -> None:
        """Wait for the end of a navigation; where it takes longer than `timeout` seconds, it is stopped and told."""
        try:
            async with asyncio.timeout(timeout):
                await self._still.wait()
        except TimeoutError:
            self.notice(f"the page had not finished loading after {timeout:g} s, and was stopped")
            await self.stop_loading(timeout)
        self.check()

    async def stop_loading(self, timeout: float) -> None:
        """Stop a navigation where it is. Raises EpisodeTimeout where page or browser do not."""
        with contextlib.suppress(Moved):
            await self.call("Page.stopLoading")
        try:
            async with asyncio.timeout(min(timeout, self.limit())):
                await self._still.wait()
        except TimeoutError as error:
            self._break("a navigation did not end, and could not be stopped")
            raise EpisodeTimeout("a navigation did not end, and could not be stopped") from error

    async def _own_world(self) -> int:
        if self._world is None:
            made = await self.call("Page.createIsolatedWorld", {"frameId": self.target, "worldName": WORLD})
            self._world = int(made["executionContextId"])
        return self._world

    async def evaluate(self, expression: str, *, apart: bool = False, timeout: float | None = None) -> Any:
        """Return the JSON value of a JavaScript expression; a promise is awaited.

        `apart`: in a world of ours, which sees the same document and none of the page's variables, and which the page's
        scripts can neither see nor change. Raises `Threw` where it throws, PageLost where the page does not stay.
        """

        async def ask() -> Any:
            where = {"contextId": await self._own_world()} if apart else {}
            return await self.session.send("Runtime.evaluate", {"expression": expression, **_BY_VALUE, **where})

        return _value_of(await self.of_one_document(ask, f"{expression[:120]!r}", timeout), expression)

    async def hold(self, expression: str) -> str:
        """Return a handle for `ask` of the object that a JavaScript expression gives, good while the document stays."""
        answer = await self.call("Runtime.evaluate", {"expression": expression})
        _value_of(answer, expression)
        return str(answer["result"]["objectId"])

    async def ask(self, handle: str, function: str, *arguments: Any) -> Any:
        """Return the JSON value of a JavaScript function called on a held object, as `this`; a promise is awaited.

        Raises `Moved` or `Refused` where the page has gone elsewhere, `Threw` where the function throws.
        """
        values = [{"value": argument} for argument in arguments]
        params = {"objectId": handle, "functionDeclaration": function, "arguments": values, **_BY_VALUE}
        return _value_of(await self.call("Runtime.callFunctionOn", params), function)

    def _set_still(self, still: bool) -> None:
        (self._still.set if still else self._still.clear)()
        if still and self._leaving.done():
            self._leaving = self._loop.create_future()
        elif not still and not self._leaving.done():
            self._leaving.set_result(None)

    def _expect(self) -> None:  # a navigation was requested, which starts in a moment or not at all
        self._set_still(False)
        self._loop.call_later(STARTS_WITHIN, lambda: self._set_still(not self._loading))

    def _on_requested(self, event: Mapping[str, Any]) -> None:
        if event["frameId"] == self.target and event.get("disposition", "currentTab") == "currentTab":
            self._expect()

    def on_loading(self, frame: str, loading: bool) -> None:
        """Handle the beginning or the end of the loading of a frame, told by the browser."""
        if frame == self.target:
            self._loading = loading
            self._set_still(not loading)

    def _on_document(self, event: Mapping[str, Any]) -> None:
        if event["frame"]["id"] == self.target:
            self._world, self.blank = None, False
            self.unreachable = event["frame"].get("unreachableUrl")
            self._moved.set_result(None)
            self._moved = self._loop.create_future()


def _value_of(answer: Mapping[str, Any], expression: str) -> Any:
    thrown = answer.get("exceptionDetails")
    if thrown is not None:
        what = thrown.get("exception", {}).get("description") or thrown.get("text", "")
        raise Threw(f"the page threw {what[:400]!r} at {expression[:120]!r}")
    return answer["result"].get("value")
