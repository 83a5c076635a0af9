"""One page of the browser: go somewhere, look, read, use mouse and keyboard. Every call ends within its time limit."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from uirl.environments.browser import keyboard, pointer
from uirl.environments.browser.cdp import CdpConnection, Refused
from uirl.environments.browser.navigation import Threw, is_moved
from uirl.environments.browser.site import Site
from uirl.environments.browser.style import STYLE
from uirl.environments.browser.tab import LOAD_SECONDS, WORLD, Tab
from uirl.errors import EnvironmentFailure, EpisodeTimeout

LOWEST_WINDOW = 100
"""Pixels. The full browser never draws a page whose window has no room beside its bars, whatever the page's size."""
LONGEST_TYPED = 200
"""Characters up to which a text is typed key by key; a longer one arrives at once, as if it were pasted."""
MAX_NOTICES = 8
_TOGETHER = 64  # input events sent before the first answer


class Page:
    """A page in a browser context of its own. `Page.open` makes one, `close` frees all of it."""

    def __init__(self, connection: CdpConnection, context: str, target: str, session: str) -> None:
        self.context = context
        self._connection = connection
        self._tab = Tab(connection, target, session, self._notice)
        self._closed = False
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
        self._connection.on(self._tab.session, "Page.javascriptDialogOpening", self._on_dialog)
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
    def target(self) -> str:
        """The browser's name of the tab."""
        return self._tab.target

    @property
    def broken(self) -> str | None:
        """Why the page must not be used any more (a call failed, timed out or was cut off); None: it is fine."""
        return self._tab.broken

    async def serve(self, site: Site) -> None:
        """Answers what this page asks of the site's origin, from this process."""
        self._site = site
        self._connection.on(self._tab.session, "Fetch.requestPaused", self._on_request)
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

        self._connection.on(self._tab.session, "Runtime.exceptionThrown", note)
        await self._call("Runtime.enable")
        return found

    async def goto(self, url: str, *, timeout: float = LOAD_SECONDS) -> None:
        """Returns when `url` is loaded (its load event).

        Raises `Unopened` where it cannot be (a file to be kept counts), or takes too long: then it stops where it is.
        """
        await self._tab.goto(url, timeout=timeout)

    async def back(self) -> bool:
        """Goes back to the page before. False: there is none since `forget_history`."""
        return await self._tab.travel(-1)

    async def forget_history(self) -> None:
        """Makes the page that is shown the first one."""
        await self._call("Page.resetNavigationHistory")

    @property
    def unreachable(self) -> str | None:
        """The address in whose place the browser's error page is shown; None: a page is shown."""
        return self._tab.navigation.unreachable

    @property
    def leaving(self) -> bool:
        """The page is on its way to another, as far as it is known by now."""
        return self._tab.navigation.under_way

    async def settle(self, *, sure: bool = False, timeout: float = LOAD_SECONDS) -> None:
        """Returns when the page is not on its way to another (at once, mostly).

        `sure`: asks the page first, for after an action that may have led away: what it began is known only by then,
        and whoever looks at a page that is leaving may wait for a picture that never comes.
        """
        await self._tab.settle(sure=sure, timeout=timeout)

    async def evaluate(self, expression: str, *, apart: bool = False, timeout: float | None = None) -> Any:
        """The JSON value of a JavaScript expression; a promise is awaited.

        `apart`: in a world of ours, which sees the same document and none of the page's variables, and which the
        page's scripts can neither see nor change. Raises `Threw` where the expression throws, PageLost where the page
        does not stay.
        """
        return await self._tab.evaluate(expression, apart=apart, timeout=timeout)

    async def hold(self, expression: str) -> str:
        """A handle of the object that a JavaScript expression gives: the page's scripts have no way to it.

        It is good for `ask` until the page loads another document.
        """
        return await self._tab.hold(expression)

    async def ask(self, handle: str, function: str, *arguments: Any, timeout: float | None = None) -> Any:
        """The JSON value of a JavaScript function called on a held object, as `this`; a promise is awaited.

        Raises `Refused` where the page has gone elsewhere, EnvironmentFailure where the function throws.
        """
        return await self._tab.ask(handle, function, *arguments, timeout=timeout)

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
        return await self._tab.screenshot(format=format, quality=quality)

    async def accessibility_nodes(self) -> list[dict[str, Any]]:
        """The nodes of the accessibility tree, as the protocol gives them."""
        return await self._tab.accessibility_nodes()

    def take_notices(self) -> list[str]:
        """What a person would have noticed since the last call: dialogs and their words, windows that opened."""
        taken, self._notices = self._notices, []
        return taken

    async def close(self) -> None:
        """Frees the page and its context, also where the page hangs or the browser is gone. Twice is fine."""
        if self._closed:
            return
        self._closed = True
        self._tab.forget("the page was closed")
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

    async def _input(self, method: str, events: Iterable[Mapping[str, Any]]) -> None:
        await self.settle()
        waiting = list(events)
        for start in range(0, len(waiting), _TOGETHER):
            try:
                await asyncio.gather(*(self._call(method, event) for event in waiting[start : start + _TOGETHER]))
            except Refused as error:
                if not is_moved(error):  # a page that leaves under the hand was left by it
                    raise

    async def _call(self, method: str, params: Mapping[str, Any] | None = None) -> Any:
        return await self._tab.call(method, params)

    def _notice(self, words: str) -> None:
        if len(self._notices) < MAX_NOTICES:
            self._notices.append(words[:200])

    def _reply(self, method: str, params: Mapping[str, Any], *, of_page: bool = True) -> None:
        """Makes a call that nobody waits for. Where it fails the page has gone on without it, or is gone."""

        async def make() -> None:
            with contextlib.suppress(EnvironmentFailure, EpisodeTimeout):
                await self._connection.call(method, params, session=self._tab.session if of_page else None)

        task = asyncio.create_task(make())
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _on_request(self, event: Mapping[str, Any]) -> None:
        assert self._site is not None
        answer = self._site.fulfilment(event["request"]["url"])
        self._reply("Fetch.fulfillRequest", {"requestId": event["requestId"], **answer})

    def crashed(self, killed: bool) -> None:
        """Told by the browser: the page's process is gone. `killed`: by somebody else, as where memory is out."""
        self._tab.end("the page was killed" if killed else "the page crashed", own_doing=not killed)

    def closed_itself(self) -> None:
        """Told by the browser: the page is gone."""
        if not self._closed:
            self._tab.end("the page closed itself", own_doing=True)

    def _on_dialog(self, event: Mapping[str, Any]) -> None:
        """Accepts alerts and questions: a dialog stops the page, and nobody else would answer it."""
        if event["type"] != "beforeunload":
            self._notice(f"the page said: {event['message']}")
        reply = {"accept": True, "promptText": event.get("defaultPrompt", "")}
        self._reply("Page.handleJavaScriptDialog", reply)
