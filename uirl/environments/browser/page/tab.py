"""One tab of the browser: go somewhere, read, look. Every call ends within its time limit."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal

from uirl.environments.browser.chromium.cdp import CdpConnection, Refused
from uirl.environments.browser.page.dialogs import Blocked, Dialog
from uirl.environments.browser.page.frames import Frames
from uirl.environments.browser.page.navigation import (
    MOVED,
    Navigation,
    PageLost,
    TabClosed,
    Threw,
    Unopened,
    is_moved,
    is_untold,
    value_of,
)
from uirl.environments.browser.page.world import World
from uirl.errors import EnvironmentFailure, EpisodeTimeout

LOAD_SECONDS = 20.0
_BY_VALUE = {"returnByValue": True, "awaitPromise": True}


class Tab:
    """One target of the browser, spoken to in one session. It belongs to a `Page`, which prepares and closes it."""

    def __init__(
        self,
        connection: CdpConnection,
        target: str,
        session: str,
        notice: Callable[[str], None],
        prepare_frame: Callable[[str], Awaitable[Any]],
        on_left: Callable[[str], None],
    ) -> None:
        """Create the tab of a session; `Page.enable` must follow.

        `notice` takes what a person would have seen, in words; `prepare_frame` readies the session of a frame that
        runs in a process of its own; `on_left` is told the session when it is closed before its page.
        """
        self.target = target
        self.session = session
        self.url = self.title = ""
        self.closed = False
        """It is gone, and the page is not."""
        self.dialog: Dialog | None = None
        """The one that is open and left to the policy."""
        self.frames = Frames(connection, target, session, prepare_frame)
        self.navigation = Navigation(connection, target, session, self.frames.renew)
        self._connection = connection
        self._notice = notice
        self._on_left = on_left
        self._broken: str | None = None
        self._own_doing = False  # `_broken` by the page itself
        self._world = World(self.call, self.navigation, target)

    def take_copied(self) -> str:
        """Return what a button of the page copied since the last call; empty: nothing."""
        copied, self._world.copied = self._world.copied, ""
        return copied

    @property
    def broken(self) -> str | None:
        """Why the tab must not be used any more (a call failed, timed out or was cut off); None: it is fine."""
        return self._broken or self._connection.lost

    def end(self, reason: str, own_doing: bool = False) -> None:
        """Mark the tab as unusable: the calls that wait fail, and so does every later one.

        `own_doing`: the page brought it about, which is a PageLost.
        """
        if self._broken is None:
            self._broken, self._own_doing = reason, own_doing
        self._connection.fail_session(self.session, reason, PageLost if own_doing else EnvironmentFailure)
        self.navigation.give_up()

    def forget(self, reason: str) -> None:
        """Stop listening to a tab whose page is closed."""
        self._broken = self._broken or reason
        self.frames.forget()
        self._connection.forget(self.session)

    def leave(self) -> None:
        """Mark the tab as closed while others are open: whoever waits for it has to look at another (`TabClosed`)."""
        self.closed = True
        for session in (self.session, *self.frames.sessions):
            self._connection.refuse(session, MOVED[0])
        self.navigation.give_up()
        self.frames.forget()
        self._connection.forget(self.session)
        self._on_left(self.session)

    @property
    def blank(self) -> bool:
        """Whether the tab has not loaded any document: the browser draws nothing of it, and reports nothing."""
        return not self.url and not self.navigation.documents

    async def call(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        *,
        session: str | None = None,
    ) -> Any:
        """Return the result of a protocol method of this tab. A call that does not finish breaks the tab.

        `session`: of one of its frames, where a refusal breaks nothing: frames come and go.
        """
        self.check()
        try:
            return await self._connection.call(method, params, session=session or self.session, timeout=timeout)
        except BaseException as error:
            # Cancelled, timed out or refused: what the page did meanwhile is unknown.
            if isinstance(error, Blocked) or self.closed or is_untold(error):
                raise
            if not is_moved(error) and not (session is not None and isinstance(error, Refused)):
                self._broken = self._broken or f"{method} did not finish: {error!r}"
            raise

    def check(self) -> None:
        """Raise where the tab is unusable: EnvironmentFailure, PageLost, `TabClosed`, or `Blocked` by a dialog."""
        if self.closed:
            raise TabClosed("the tab was closed")
        if self.broken is not None:
            kind = PageLost if self._own_doing else EnvironmentFailure
            raise kind(f"this page is broken, open another: {self.broken}")
        if self.dialog is not None:
            raise Blocked("a dialog is open")

    def block(self, dialog: Dialog) -> None:
        """Leave a dialog open: every call until it is answered raises `Blocked`."""
        self.dialog = dialog
        self.interrupt()

    def interrupt(self) -> None:
        """End the calls that wait with `Blocked`: a dialog of this tab or of one that its scripts reach is open."""
        for session in (self.session, *self.frames.sessions):
            self._connection.fail_session(session, "a dialog is open", Blocked)
        self.navigation.give_up()

    async def answer(self, agree: bool, text: str | None = None) -> None:
        """Answer the dialog that is open; `text`: what is written into it, where it asks for that."""
        dialog, self.dialog = self.dialog, None
        if dialog is None:
            return
        reply = {"accept": agree, "promptText": dialog.proposed if text is None else text}
        with contextlib.suppress(Refused):  # it is gone
            await self.call("Page.handleJavaScriptDialog", reply, session=self.session)
        if dialog.kind == "beforeunload" and agree:
            self.navigation.expect()

    async def goto(self, url: str, *, timeout: float = LOAD_SECONDS) -> None:
        """Load `url` and wait for its load event.

        Raises `Unopened` where it cannot be loaded (a file to be kept counts), or takes too long: then loading stops.
        """
        self.check()
        self.navigation.begin()
        try:
            async with asyncio.timeout(timeout):
                answer = await self._connection.call(
                    "Page.navigate", {"url": url}, session=self.session, timeout=2 * timeout
                )
                if answer.get("errorText"):
                    raise Unopened(f"{url} cannot be opened: {answer['errorText']}")
                loader = answer.get("loaderId")  # absent where only the fragment of the address changed
                if loader:
                    await self.navigation.loaded(loader)
                    await self.navigation.end()  # else its end would look like that of the next one
                    self.check()
        except TimeoutError as error:
            await self._stop_loading(timeout)
            raise Unopened(f"{url} was not loaded within {timeout} s") from error
        except asyncio.CancelledError:
            self._broken = self._broken or f"going to {url} was cut off"
            raise

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
            if self.navigation.under_way:
                await self._arrive(timeout)
            if drew:
                return

    async def _draw(self) -> bool:
        """Return whether the tab has drawn what was done to it; False: it went elsewhere instead."""
        if self.navigation.under_way:
            return False
        try:
            return await self.navigation.unless_it_begins(self._world.draw(self._notice))
        except Refused as error:
            if not is_moved(error):
                raise
            return False

    async def _arrive(self, timeout: float) -> None:
        try:
            async with asyncio.timeout(timeout):
                await self.navigation.end()
        except TimeoutError:
            self._notice(f"the page had not finished loading after {timeout:g} s, and was stopped")
            await self._stop_loading(timeout)
        self.check()

    async def _stop_loading(self, timeout: float) -> None:
        """Stop a navigation where it is. Raises EpisodeTimeout where page or browser do not."""
        try:
            await self.call("Page.stopLoading")
        except Refused as error:
            if not is_moved(error):
                raise
        try:
            async with asyncio.timeout(min(timeout, self._connection.timeout)):
                await self.navigation.end()
        except TimeoutError as error:
            self._broken = "a navigation did not end, and could not be stopped"
            raise EpisodeTimeout(self._broken) from error

    async def evaluate(self, expression: str, *, apart: bool = False, timeout: float | None = None) -> Any:
        """Return the JSON value of a JavaScript expression; see `Page.evaluate`."""
        params = {"expression": expression, **_BY_VALUE}

        async def ask() -> Any:
            where = {"contextId": await self._world.id()} if apart else {}
            return await self.call("Runtime.evaluate", params | where, timeout=timeout)

        try:
            answer = await self.of_one_document(ask, f"{expression[:120]!r}")
        except Refused as error:
            if not is_untold(error):
                raise
            raise Threw(f"what the page gave cannot be told, at {expression[:120]!r}: {error}") from error
        return value_of(answer, expression)

    async def hold(self, expression: str) -> str:
        """Return a handle of the object that a JavaScript expression gives; see `Page.hold`."""
        answer = await self.call("Runtime.evaluate", {"expression": expression})
        value_of(answer, expression)
        return str(answer["result"]["objectId"])

    async def ask(self, handle: str, function: str, *arguments: Any, timeout: float | None = None) -> Any:
        """Return the JSON value of a JavaScript function called on a held object; see `Page.ask`."""
        values = [{"value": argument} for argument in arguments]
        params = {"objectId": handle, "functionDeclaration": function, "arguments": values, **_BY_VALUE}
        return value_of(await self.call("Runtime.callFunctionOn", params, timeout=timeout), function)

    async def screenshot(self, *, format: Literal["png", "jpeg"] = "png", quality: int = 80) -> bytes:
        """Return the visible page as an encoded picture. `quality` is JPEG's, 1 to 100."""
        params = {"format": format, "quality": quality, "optimizeForSpeed": True}
        taken = await self.of_one_document(lambda: self.call("Page.captureScreenshot", params), "its picture")
        return base64.b64decode(taken["data"])

    async def of_one_document(self, call: Callable[[], Awaitable[Any]], what: str) -> Any:
        """Return the result of a call that the page stays for. Raises PageLost where it leaves three times."""
        for _ in range(3):
            await self.settle()
            try:
                return await call()
            except Refused as error:
                if not is_moved(error):
                    raise
        raise PageLost(f"the page went elsewhere three times during {what}")

    async def world(self, frame: str, session: str) -> int:
        """Return our world in a frame, the tab's own or one of `frames`. Raises `Refused` where the frame is gone."""
        return await (self._world.id() if frame == self.target else self._world.of(frame, session))
