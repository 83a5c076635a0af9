"""One page of the browser: go somewhere, look, read, use mouse and keyboard. Every call ends within its time limit."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from uirl.environments.browser import keyboard, pointer
from uirl.environments.browser.cdp import CdpConnection, Refused
from uirl.environments.browser.navigation import Navigation, PageLost, Threw, Unopened, is_moved, value_of
from uirl.environments.browser.site import Site
from uirl.environments.browser.style import STYLE
from uirl.errors import EnvironmentFailure, EpisodeTimeout

LOAD_SECONDS = 20.0
LOWEST_WINDOW = 100
"""Pixels. The full browser never draws a page whose window has no room beside its bars, whatever the page's size."""
WORLD = "uirl"
"""Name of the JavaScript world of ours in a page: it sees the same document, and the page's scripts cannot see it."""
LONGEST_TYPED = 200
"""Characters up to which a text is typed key by key; a longer one arrives at once, as if it were pasted."""
MAX_NOTICES = 8
_BY_VALUE = {"returnByValue": True, "awaitPromise": True}
_TOGETHER = 64  # input events sent before the first answer


class Page:
    """A page in a browser context of its own. `Page.open` makes one, `close` frees all of it."""

    def __init__(self, connection: CdpConnection, context: str, target: str, session: str) -> None:
        self.context = context
        self.target = target
        self._broken: str | None = None
        self._own_doing = False  # `_broken` by the page itself
        self._connection = connection
        self._session = session
        self._closed = False
        self._navigation = Navigation(connection, target, session)
        self._world: tuple[int, int] | None = None  # the document it is of, and its id
        self._background: set[asyncio.Task[Any]] = set()
        self._notices: list[str] = []
        self._clipboard = ""
        self._pointer = (0.0, 0.0)
        self._site: Site | None = None

    @classmethod
    async def open(cls, connection: CdpConnection, width: int, height: int) -> Page:
        """An empty page of `width` x `height` CSS pixels in a new context."""
        # disposeOnDetach: where this process dies without a word, the browser frees the context by itself.
        try:
            made = await connection.call("Target.createBrowserContext", {"disposeOnDetach": True})
            context = made["browserContextId"]
            try:
                window = {"width": width, "height": max(height, LOWEST_WINDOW)}
                where = {"url": "about:blank", "browserContextId": context, **window}
                target = (await connection.call("Target.createTarget", where))["targetId"]
                attached = await connection.call("Target.attachToTarget", {"targetId": target, "flatten": True})
                page = cls(connection, context, target, attached["sessionId"])
                await page._prepare(width, height)
            except BaseException:
                if connection.lost is None:
                    await connection.call("Target.disposeBrowserContext", {"browserContextId": context})
                raise
        except EpisodeTimeout:
            await connection.probe()
            raise
        return page

    async def _prepare(self, width: int, height: int) -> None:
        listen, session = self._connection.on, self._session
        listen(session, "Page.javascriptDialogOpening", self._on_dialog)
        # The scale is that of the browser: where a page has one of its own, clicks are lost now and then.
        metrics = {"width": width, "height": height, "deviceScaleFactor": 0, "mobile": False}
        deny = {"behavior": "deny", "browserContextId": self.context}
        await asyncio.gather(
            self._call("Page.enable"),
            self._call("Page.setLifecycleEventsEnabled", {"enabled": True}),
            self._call("Emulation.setDeviceMetricsOverride", metrics),
            self._call("Page.setInterceptFileChooserDialog", {"enabled": True}),
            self._connection.call("Browser.setDownloadBehavior", deny),
            self.run_on_load(STYLE),
        )

    @property
    def broken(self) -> str | None:
        """Why the page must not be used any more (a call failed, timed out or was cut off); None: it is fine."""
        return self._broken or self._connection.lost

    async def serve(self, site: Site) -> None:
        """Answers what this page asks of the site's origin, from this process."""
        self._site = site
        self._connection.on(self._session, "Fetch.requestPaused", self._on_request)
        await self._call("Fetch.enable", {"patterns": [{"urlPattern": f"{site.origin}/*"}]})

    async def run_on_load(self, script: str) -> None:
        """Runs `script` in every later document, before its own scripts, in the world apart from theirs."""
        await self._call("Page.addScriptToEvaluateOnNewDocument", {"source": script, "worldName": WORLD})

    async def collect_errors(self) -> list[str]:
        """A list to which every exception is added, from now on, that a script of the page leaves uncaught."""
        found: list[str] = []

        def note(event: Mapping[str, Any]) -> None:
            details = event["exceptionDetails"]
            found.append(details.get("exception", {}).get("description") or details["text"])

        self._connection.on(self._session, "Runtime.exceptionThrown", note)
        await self._call("Runtime.enable")
        return found

    async def goto(self, url: str, *, timeout: float = LOAD_SECONDS) -> None:
        """Returns when `url` is loaded (its load event).

        Raises `Unopened` where it cannot be (a file to be kept counts), or takes too long: then it stops where it is.
        """
        self._check()
        self._navigation.begin()
        try:
            async with asyncio.timeout(timeout):
                answer = await self._connection.call(
                    "Page.navigate", {"url": url}, session=self._session, timeout=2 * timeout
                )
                if answer.get("errorText"):
                    raise Unopened(f"{url} cannot be opened: {answer['errorText']}")
                loader = answer.get("loaderId")  # absent where only the fragment of the address changed
                if loader:
                    await self._navigation.loaded(loader)
                    await self._navigation.end()  # else its end would look like that of the next one
                    self._check()
        except TimeoutError as error:
            await self._stop_loading()
            raise Unopened(f"{url} was not loaded within {timeout} s") from error
        except asyncio.CancelledError:
            self._broken = self._broken or f"going to {url} was cut off"
            raise

    async def back(self) -> bool:
        """Goes back to the page before. False: there is none since `forget_history`."""
        history = await self._call("Page.getNavigationHistory")
        before = history["currentIndex"] - 1
        if before < 0:
            return False
        await self._call("Page.navigateToHistoryEntry", {"entryId": history["entries"][before]["id"]})
        await self.settle()
        return True

    async def forget_history(self) -> None:
        """Makes the page that is shown the first one."""
        await self._call("Page.resetNavigationHistory")

    @property
    def unreachable(self) -> str | None:
        """The address in whose place the browser's error page is shown; None: a page is shown."""
        return self._navigation.unreachable

    @property
    def leaving(self) -> bool:
        """The page is on its way to another, as far as it is known by now."""
        return self._navigation.under_way

    async def settle(self, *, sure: bool = False, timeout: float = LOAD_SECONDS) -> None:
        """Returns when the page is not on its way to another (at once, mostly).

        `sure`: asks the page first, for after an action that may have led away: what it began is known only by then,
        and whoever looks at a page that is leaving may wait for a picture that never comes.
        """
        if sure and not self.leaving:
            await self._ask_whether_it_stays()
        if not self.leaving:
            return
        try:
            async with asyncio.timeout(timeout):
                await self._navigation.end()
        except TimeoutError:
            self._notice(f"the page had not finished loading after {timeout:g} s, and was stopped")
            await self._stop_loading()
        self._check()

    async def _stop_loading(self) -> None:
        """Ends a navigation where it is. Raises EnvironmentFailure where the browser does not."""
        await self._call("Page.stopLoading")
        try:
            async with asyncio.timeout(self._connection.timeout):
                await self._navigation.end()
        except TimeoutError as error:
            self._broken = "a navigation did not end, and could not be stopped"
            raise EnvironmentFailure(self._broken) from error

    async def _ask_whether_it_stays(self) -> None:
        with contextlib.suppress(Refused):  # it has left
            # The answer comes on the way of the page's events, after all that went before it.
            await self._call("Runtime.evaluate", {"expression": "0"})

    async def evaluate(self, expression: str, *, apart: bool = False, timeout: float | None = None) -> Any:
        """The JSON value of a JavaScript expression; a promise is awaited.

        `apart`: in a world of ours, which sees the same document and none of the page's variables, and which the
        page's scripts can neither see nor change. Raises `Threw` where the expression throws, PageLost where the page
        does not stay.
        """
        params = {"expression": expression, **_BY_VALUE}

        async def ask() -> Any:
            where = {"contextId": await self._world_apart()} if apart else {}
            return await self._call("Runtime.evaluate", params | where, timeout=timeout)

        return value_of(await self._of_one_document(ask, f"{expression[:120]!r}"), expression)

    async def hold(self, expression: str) -> str:
        """A handle of the object that a JavaScript expression gives: the page's scripts have no way to it.

        It is good for `ask` until the page loads another document.
        """
        answer = await self._call("Runtime.evaluate", {"expression": expression})
        value_of(answer, expression)
        return str(answer["result"]["objectId"])

    async def ask(self, handle: str, function: str, *arguments: Any, timeout: float | None = None) -> Any:
        """The JSON value of a JavaScript function called on a held object, as `this`; a promise is awaited.

        Raises `Refused` where the page has gone elsewhere, EnvironmentFailure where the function throws.
        """
        given = [{"value": argument} for argument in arguments]
        params = {"objectId": handle, "functionDeclaration": function, "arguments": given, **_BY_VALUE}
        return value_of(await self._call("Runtime.callFunctionOn", params, timeout=timeout), function)

    async def move(self, x: float, y: float) -> None:
        """Moves the pointer to x, y (CSS pixels from the top left)."""
        self._pointer = (x, y)
        await self._input("Input.dispatchMouseEvent", [pointer.move(x, y)])

    async def click(self, x: float, y: float, button: str = "left", count: int = 1) -> None:
        """Moves to x, y, presses and releases the button `count` times; returns when the page handled it."""
        self._pointer = (x, y)
        # All are sent before the first answer: one round trip, and the browser keeps their order.
        await self._input("Input.dispatchMouseEvent", pointer.clicks(x, y, button, count))

    async def drag(self, x: float, y: float, to_x: float, to_y: float) -> None:
        """Presses the left button at x, y, moves to to_x, to_y and releases it there."""
        self._pointer = (to_x, to_y)
        for event in pointer.drag(x, y, to_x, to_y):  # one by one: moves that come together are seen as one
            await self._input("Input.dispatchMouseEvent", [event])

    async def scroll(self, direction: pointer.Direction, notches: int, at: tuple[float, float] | None = None) -> None:
        """Turns the wheel at a place; None: where the pointer is."""
        self._pointer = at or self._pointer
        await self._input("Input.dispatchMouseEvent", [pointer.wheel(*self._pointer, direction, notches)])

    async def type(self, text: str) -> None:
        """Types into whatever has the focus."""
        if len(text) <= LONGEST_TYPED:
            await self._input("Input.dispatchKeyEvent", keyboard.typing(text))
        else:
            await self._input("Input.insertText", [{"text": text}])

    async def press(self, keys: Sequence[str]) -> None:
        """Presses keys together, named as in `uirl.environments.ui_keys`.

        The clipboard is this page's own: the browser has one for all its pages, through which they would see what
        another one copied.
        """
        chord = tuple(keys)
        if chord in keyboard.PASTE:
            if self._clipboard:
                await self._input("Input.insertText", [{"text": self._clipboard}])
            return
        if chord in keyboard.COPY | keyboard.CUT:
            with contextlib.suppress(Threw):  # no document in which anything is selected
                self._clipboard = await self.evaluate(keyboard.SELECTED, apart=True) or self._clipboard
        await self._input("Input.dispatchKeyEvent", keyboard.chord(chord))

    async def screenshot(self, *, format: Literal["png", "jpeg"] = "png", quality: int = 80) -> bytes:
        """The visible page as an encoded picture. `quality` is JPEG's, 1 to 100."""
        params = {"format": format, "quality": quality, "optimizeForSpeed": True}
        taken = await self._of_one_document(lambda: self._call("Page.captureScreenshot", params), "its picture")
        return base64.b64decode(taken["data"])

    async def accessibility_nodes(self) -> list[dict[str, Any]]:
        """The nodes of the accessibility tree, as the protocol gives them."""
        tree = await self._of_one_document(lambda: self._call("Accessibility.getFullAXTree"), "its tree")
        return list(tree["nodes"])

    def take_notices(self) -> list[str]:
        """What a person would have noticed since the last call: dialogs and their words, windows that opened."""
        taken, self._notices = self._notices, []
        return taken

    async def close(self) -> None:
        """Frees the page and its context, also where the page hangs or the browser is gone. Twice is fine."""
        if self._closed:
            return
        self._closed = True
        self._broken = self._broken or "the page was closed"
        self._connection.forget(self._session)
        if self._connection.lost is not None:
            return
        try:
            await self._connection.call("Target.disposeBrowserContext", {"browserContextId": self.context})
        except Refused:
            pass  # it is gone already
        except EpisodeTimeout:
            await self._connection.probe()  # a browser that answers nobody is ended, and the context with it
            if self._connection.lost is None:
                raise

    def close_popup(self, target: str, url: str) -> None:
        """Closes another window that this page opened: nobody could see it."""
        if target != self.target:
            self._notice(f"a new window was closed: {url or 'about:blank'}")
            self._reply("Target.closeTarget", {"targetId": target}, of_page=False)

    async def _of_one_document(self, call: Callable[[], Awaitable[Any]], what: str) -> Any:
        """What a call gives that the page stays for. Raises PageLost where it leaves three times."""
        for _ in range(3):
            await self.settle()
            try:
                return await call()
            except Refused as error:
                if not is_moved(error):
                    raise
        raise PageLost(f"the page went elsewhere three times during {what}")

    async def _world_apart(self) -> int:
        document = self._navigation.documents
        if self._world is None or self._world[0] != document:
            # In a document without scripts those of `run_on_load` wait for the first one that runs.
            await self._call("Runtime.evaluate", {"expression": "0"})
            made = await self._call("Page.createIsolatedWorld", {"frameId": self.target, "worldName": WORLD})
            self._world = document, made["executionContextId"]
        return self._world[1]

    async def _input(self, method: str, events: Iterable[Mapping[str, Any]]) -> None:
        await self.settle()
        waiting = list(events)
        for start in range(0, len(waiting), _TOGETHER):
            try:
                await asyncio.gather(*(self._call(method, event) for event in waiting[start : start + _TOGETHER]))
            except Refused as error:
                if not is_moved(error):  # a page that leaves under the hand was left by it
                    raise

    async def _call(self, method: str, params: Mapping[str, Any] | None = None, timeout: float | None = None) -> Any:
        self._check()
        try:
            return await self._connection.call(method, params, session=self._session, timeout=timeout)
        except BaseException as error:
            # Cancelled, timed out or refused: what the page did meanwhile is unknown.
            if not is_moved(error):
                self._broken = self._broken or f"{method} did not finish: {error!r}"
            raise

    def _check(self) -> None:
        if self.broken is not None:
            kind = PageLost if self._own_doing else EnvironmentFailure
            raise kind(f"this page is broken, open another: {self.broken}")

    def _notice(self, words: str) -> None:
        if len(self._notices) < MAX_NOTICES:
            self._notices.append(words[:200])

    def _reply(self, method: str, params: Mapping[str, Any], *, of_page: bool = True) -> None:
        """Makes a call that nobody waits for. Where it fails the page has gone on without it, or is gone."""

        async def make() -> None:
            with contextlib.suppress(EnvironmentFailure, EpisodeTimeout):
                await self._connection.call(method, params, session=self._session if of_page else None)

        task = asyncio.create_task(make())
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _on_request(self, event: Mapping[str, Any]) -> None:
        assert self._site is not None
        answer = self._site.fulfilment(event["request"]["url"])
        self._reply("Fetch.fulfillRequest", {"requestId": event["requestId"], **answer})

    def crashed(self, killed: bool) -> None:
        """Told by the browser: the page's process is gone. `killed`: by somebody else, as where memory is out."""
        self._lose("the page was killed" if killed else "the page crashed", own_doing=not killed)

    def closed_itself(self) -> None:
        """Told by the browser: the page is gone."""
        if not self._closed:
            self._lose("the page closed itself", own_doing=True)

    def _lose(self, reason: str, own_doing: bool) -> None:
        if self._broken is None:
            self._broken, self._own_doing = reason, own_doing
        self._connection.fail_session(self._session, reason, PageLost if own_doing else EnvironmentFailure)
        self._navigation.give_up()

    def _on_dialog(self, event: Mapping[str, Any]) -> None:
        """Accepts alerts and questions: a dialog stops the page, and nobody else would answer it."""
        if event["type"] != "beforeunload":
            self._notice(f"the page said: {event['message']}")
        reply = {"accept": True, "promptText": event.get("defaultPrompt", "")}
        self._reply("Page.handleJavaScriptDialog", reply)
