"""One page of the browser: go somewhere, look, read, use mouse and keyboard. Every call ends within its time limit."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

from uirl.environments.browser.chromium.cdp import CdpConnection, Refused
from uirl.environments.browser.page import keyboard, pointer
from uirl.environments.browser.page.dialogs import Blocked, Dialog
from uirl.environments.browser.page.files import PageFiles
from uirl.environments.browser.page.navigation import PageLost, TabClosed, Threw, is_moved
from uirl.environments.browser.page.tab import LOAD_SECONDS, Tab
from uirl.environments.browser.page.tabs import MAX_TABS, Tabs
from uirl.environments.browser.page.target_setup import TargetSetup
from uirl.environments.browser.site import Site
from uirl.errors import EpisodeTimeout

LOWEST_WINDOW = 100
"""Pixels. The full browser never draws a page whose window has no room beside its bars, whatever the page's size."""
LONGEST_TYPED = 200
"""Characters up to which a text is typed key by key; a longer one arrives at once, as if it were pasted, but for line
breaks and tabs, which are keys."""
MAX_NOTICES = 8
FULLSCREEN = """document.fullscreenElement ? new Promise(done => {
    document.addEventListener('fullscreenchange', () => setTimeout(done, 0, true), {once: true});
    setTimeout(done, 1000, true);
    document.exitFullscreen();
}) : false"""
"""JavaScript: leaves the full screen; whether there was any to leave."""
MAX_DIALOGS = 100
"""Dialogs between two looks at the notices, after which a page is lost: it would go on asking for ever."""
_TOGETHER = 64  # input events sent before the first answer


class Page:
    """A page in a browser context of its own. `Page.open` makes one, `close` frees all of it."""

    def __init__(
        self, connection: CdpConnection, context: str, target: str, session: str, size: tuple[int, int]
    ) -> None:
        self.context = context
        self._connection = connection
        self.files = PageFiles(connection, context, self._notice)
        self._setup = TargetSetup(connection, size, self.files.listen)
        self.tabs = Tabs(connection, context, target, session, self._tab, self._setup.tab, self._notice)
        """The page's own tab and those that it opened."""
        self.asks_policy = False
        """Dialogs with a choice are left open for the policy; else they are accepted with what they propose."""
        self._closed = False
        self._notices: list[str] = []
        self._dialogs = 0  # since the notices were taken
        self._clipboard = ""
        self._pointer = (0.0, 0.0)
        self._held: set[str] = set()  # keys
        self._pressed: set[str] = set()  # buttons of the mouse

    @classmethod
    async def open(cls, connection: CdpConnection, width: int, height: int, attached: Callable[[str], str]) -> Page:
        """Open an empty page of `width` x `height` CSS pixels in a new context.

        `attached` gives the session of a target that was just made: the browser attaches to all of them.
        """
        # disposeOnDetach: where this process dies without a word, the browser frees the context by itself.
        try:
            created = await connection.call("Target.createBrowserContext", {"disposeOnDetach": True})
            context = created["browserContextId"]
            try:
                window = {"width": width, "height": max(height, LOWEST_WINDOW)}
                where = {"url": "about:blank", "browserContextId": context, **window}
                target = (await connection.call("Target.createTarget", where))["targetId"]
                page = cls(connection, context, target, attached(target), (width, height))
                refusal = connection.call("Browser.setDownloadBehavior", page.files.behaviour(keeps=False))
                await asyncio.gather(refusal, page._setup.tab(page.tabs.first))
            except BaseException:
                if connection.lost is None:
                    await connection.call("Target.disposeBrowserContext", {"browserContextId": context})
                raise
        except EpisodeTimeout:
            await connection.probe()
            raise
        return page

    def _tab(self, target: str, session: str) -> Tab:
        tab = Tab(self._connection, target, session, self._notice, self._setup.frame, self.files.left)
        self._connection.on(session, "Page.javascriptDialogOpening", lambda event: self._on_dialog(tab, event))
        return tab

    @property
    def target(self) -> str:
        """The browser's name of the first tab."""
        return self.tabs.first.target

    @property
    def broken(self) -> str | None:
        """Why the page must not be used any more (a call failed, timed out or was cut off); None: it is fine."""
        return self.tabs.broken

    async def serve(self, site: Site) -> None:
        """Answer what this page asks of the site's origin, from this process."""
        await self._setup.serve(self.tabs.first, site)

    async def run_on_load(self, script: str) -> None:
        """Run `script` in every later document, before the page's own scripts, in the world apart from theirs."""
        await self._setup.run_on_load(self.tabs.first, script)

    async def goto(self, url: str, *, timeout: float = LOAD_SECONDS) -> None:
        """Load `url` and wait for its load event.

        Raises `Unopened` where it cannot be loaded (a file to be kept counts), or takes too long: then loading stops.
        """
        await self.tabs.shown.goto(url, timeout=timeout)

    async def back(self) -> str | None:
        """Go back to the page before; return a str where there is none since `forget_history`.

        A tab that the page opened is closed where it has no page before, as on a phone: what opened it is shown again.
        """
        if await self.tabs.shown.travel(-1):
            return None
        if self.tabs.shown is self.tabs.first:
            return "there is no page to go back to"
        return await self.tabs.close()

    async def forward(self) -> str | None:
        """Go forward again; return a str where nothing was gone back from."""
        return None if await self.tabs.shown.travel(1) else "there is no page to go forward to"

    async def begin(self, uploads: Mapping[str, str | bytes] = MappingProxyType({}), downloads: bool = False) -> None:
        """Clear what an episode may have left: dialogs, other tabs, keys and buttons that are held, notices.

        `uploads`: files by name that the policy may choose in a file chooser. `downloads`: they are kept, in
        `files.downloads`; else they are refused.
        """
        self.asks_policy = False
        self._clipboard = ""
        await self.tabs.first.answer(agree=True)
        await self.tabs.close_others()
        await self.files.begin(uploads, downloads)
        for button in tuple(self._pressed):
            await self.mouse_button(*self._pointer, button, down=False)
        for key in tuple(self._held):
            await self.hold_key(key, down=False)
        self.take_notices()

    async def forget_history(self) -> None:
        """Make the page that is shown the first one in the history."""
        await self._call("Page.resetNavigationHistory")

    @property
    def unreachable(self) -> str | None:
        """The address in whose place the browser's error page is in the first tab; None: a page is."""
        return self.tabs.first.navigation.unreachable

    @property
    def leaving(self) -> bool:
        """The page is on its way to another, as far as it is known by now, or a window is opening."""
        return self.tabs.first.navigation.under_way or self.tabs.shown.navigation.under_way or self.tabs.opening

    async def settle(self, *, drawn: bool = False, timeout: float = LOAD_SECONDS) -> None:
        """Wait until the page is not on its way to another (at once, mostly).

        `drawn`: for after an action, wait also until the page has drawn what it did. A wheel or a key scrolls in the
        next frame, and what listens to that is called then; where an action leads away is known by then, too, and
        whoever looks at a page that is leaving may wait for a picture that never comes.
        """
        await self._settle_shown(drawn, timeout)
        if self.files.busy:
            await self.files.ready(timeout)
            await self._settle_shown(False, timeout)
        if self.tabs.shown is not self.tabs.first:
            await self.tabs.first.settle(timeout=timeout)

    async def _settle_shown(self, drawn: bool, timeout: float) -> None:
        for _ in range(2 * MAX_TABS):  # each may be closed, and show another, while it is waited for
            tab = self.tabs.shown
            with contextlib.suppress(TabClosed):
                if tab is not self.tabs.first:
                    await tab.settle(timeout=timeout)
                    if self.files.busy:  # a window that was opened for a download alone
                        await self.files.ready(timeout)
                    if await self.tabs.close_blank(tab, timeout):
                        continue
                await tab.settle(drawn=drawn, timeout=timeout)
            self._clipboard = tab.take_copied() or self._clipboard
            if self.tabs.opening:
                await self.tabs.ready()
            if self.tabs.shown is tab:
                return
        self.tabs.shown.check()

    async def evaluate(
        self, expression: str, *, apart: bool = False, shown: bool = False, timeout: float | None = None
    ) -> Any:
        """Return the JSON value of a JavaScript expression in the first tab; a promise is awaited.

        `shown`: in the tab that is shown, whichever it is. `apart`: in a world of ours, which sees the same document
        and none of the page's variables, and which the page's scripts can neither see nor change. Raises `Threw` where
        the expression throws, PageLost where the page does not stay.
        """
        tab = self.tabs.shown if shown else self.tabs.first
        return await tab.evaluate(expression, apart=apart, timeout=timeout)

    async def hold(self, expression: str) -> str:
        """Return a handle of the object that an expression gives in the first tab; the page's scripts cannot reach it.

        It is good for `ask` until the page loads another document.
        """
        return await self.tabs.first.hold(expression)

    async def ask(self, handle: str, function: str, *arguments: Any, timeout: float | None = None) -> Any:
        """Return the JSON value of a JavaScript function called on a held object, as `this`; a promise is awaited.

        Raises `Refused` where the page has gone elsewhere, EnvironmentFailure where the function throws.
        """
        return await self.tabs.first.ask(handle, function, *arguments, timeout=timeout)

    async def move(self, x: float, y: float) -> None:
        """Move the pointer to x, y (CSS pixels from the top left)."""
        self._pointer = (x, y)
        await self._input("Input.dispatchMouseEvent", [pointer.move(x, y)])

    async def click(
        self, x: float, y: float, button: str = "left", count: int = 1, modifiers: Collection[str] = ()
    ) -> None:
        """Move to x, y, press and release the button `count` times, and wait until the page handled it."""
        self._pointer = (x, y)
        held = keyboard.modifier_bits((*modifiers, *self._held))
        # All are sent before the first answer: one round trip, and the browser keeps their order.
        await self._input("Input.dispatchMouseEvent", pointer.clicks(x, y, button, count, held))

    async def mouse_button(self, x: float, y: float, button: str, down: bool) -> None:
        """Move to x, y and press a button there, or release it."""
        self._pointer = (x, y)
        for event in pointer.button_event(x, y, button, down):
            await self._input("Input.dispatchMouseEvent", [event])
        (self._pressed.add if down else self._pressed.discard)(button)

    async def drag(self, x: float, y: float, to_x: float, to_y: float) -> None:
        """Press the left button at x, y, move to to_x, to_y and release it there."""
        self._pointer = (to_x, to_y)
        for event in pointer.drag(x, y, to_x, to_y):  # one by one: moves that come together are seen as one
            await self._input("Input.dispatchMouseEvent", [event])

    async def scroll(self, direction: pointer.Direction, notches: int, at: tuple[float, float] | None = None) -> None:
        """Turn the wheel at a place; None: where the pointer is."""
        self._pointer = at or self._pointer
        await self._input("Input.dispatchMouseEvent", [pointer.wheel(*self._pointer, direction, notches)])

    async def type(self, text: str) -> None:
        """Type into whatever has the focus."""
        for piece in [text] if len(text) <= LONGEST_TYPED else keyboard.apart(text):
            if len(piece) <= LONGEST_TYPED:
                await self._input("Input.dispatchKeyEvent", keyboard.typing(piece))
            else:
                await self.insert(piece)

    async def insert(self, text: str) -> None:
        """Insert text at once, without keys."""
        await self._input("Input.insertText", [{"text": text}])

    async def hold_key(self, key: str, down: bool) -> None:
        """Press a key and hold it, or release it; a modifier that is held goes with clicks and keys."""
        self._held.discard(key)
        if down and await self._clip((*self._held, key)):
            return
        await self._input("Input.dispatchKeyEvent", [keyboard.hold(key, down, keyboard.modifier_bits(self._held))])
        if down:
            self._held.add(key)

    async def press(self, keys: Sequence[str]) -> None:
        """Press keys together, named as in `uirl.environments.ui.keys`.

        The clipboard is this page's own: the browser has one for all its pages, through which they would see what
        another one copied.
        """
        chord = tuple(keys)
        if await self._clip((*self._held, *chord)):
            return
        if chord == ("escape",) and await self.evaluate(FULLSCREEN, apart=True, shown=True):
            return
        held = keyboard.modifier_bits(self._held)
        await self._input("Input.dispatchKeyEvent", keyboard.chord(chord, held))

    async def _clip(self, keys: Collection[str]) -> bool:
        """Return whether the keys that are down together paste, which is done then; what they copy is remembered."""
        together = frozenset(keys)
        if together in keyboard.PASTE:
            if self._clipboard:
                await self._input("Input.insertText", [{"text": self._clipboard}])
            return True
        if together in keyboard.COPY | keyboard.CUT:
            with contextlib.suppress(Threw):  # no document in which anything is selected
                self._clipboard = await self.evaluate(keyboard.SELECTED, apart=True, shown=True) or self._clipboard
        return False

    async def screenshot(self, *, format: Literal["png", "jpeg"] = "png", quality: int = 80) -> bytes:
        """Return the visible page as an encoded picture. `quality` is JPEG's, 1 to 100."""
        return await self.tabs.shown.screenshot(format=format, quality=quality)

    def take_notices(self) -> list[str]:
        """Return and clear what a person would have noticed since the last call: dialogs, their words, new windows."""
        taken, self._notices, self._dialogs = self._notices, [], 0
        return taken

    async def answers(self) -> None:
        """Wait until the page has answered, or is gone. Raises EpisodeTimeout where it does not answer."""
        with contextlib.suppress(Refused, Blocked, PageLost):  # it has left, or asks something
            await self._call("Runtime.evaluate", {"expression": "0"})

    async def close(self) -> None:
        """Free the page and its context, also where the page hangs or the browser is gone. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        self.tabs.forget("the page was closed")
        self.files.close()
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

    async def _input(self, method: str, events: Iterable[Mapping[str, Any]]) -> None:
        await self.settle()
        waiting = list(events)
        for start in range(0, len(waiting), _TOGETHER):
            try:
                await asyncio.gather(*(self._call(method, event) for event in waiting[start : start + _TOGETHER]))
            except TabClosed:
                return
            except Refused as error:
                if not is_moved(error):  # a page that leaves under the hand was left by it
                    raise

    async def _call(self, method: str, params: Mapping[str, Any] | None = None) -> Any:
        return await self.tabs.shown.call(method, params)

    def _notice(self, words: str) -> None:
        if len(self._notices) < MAX_NOTICES:
            self._notices.append(words[:200])

    def crashed(self, target: str, killed: bool) -> None:
        """Handle the end of a tab's process, told by the browser. `killed`: from outside, as when memory runs out."""
        self.tabs.crashed(target, "the page was killed" if killed else "the page crashed", own_doing=not killed)

    def gone(self, target: str) -> None:
        """Handle the end of a tab, told by the browser."""
        if not self._closed and self.tabs.gone(target):
            self.tabs.first.end("the page closed itself", own_doing=True)

    def _on_dialog(self, tab: Tab, event: Mapping[str, Any]) -> None:
        """Accept the dialog, or leave it to the policy: a dialog stops the page, and nobody else would answer it."""
        self._dialogs += 1
        if self._dialogs > MAX_DIALOGS:
            tab.end(f"the page asked more than {MAX_DIALOGS} times in one step", own_doing=True)
            return
        if self.asks_policy and tab is self.tabs.shown and event["type"] != "alert":
            self.tabs.block(Dialog(event["type"], event["message"], event.get("defaultPrompt", "")))
            return
        if event["type"] != "beforeunload":
            self._notice(f"the page said: {event['message']}")
        reply = {"accept": True, "promptText": event.get("defaultPrompt", "")}
        self._connection.post("Page.handleJavaScriptDialog", reply, session=tab.session)
