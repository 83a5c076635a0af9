"""One page of the browser: go somewhere, look, read, use mouse and keyboard. Every call ends within its time limit."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Protocol

from uirl.environments.browser.page.dialogs import Dialog
from uirl.environments.browser.page.files import PageFiles
from uirl.environments.browser.page.problems import Blocked, Moved, PageLost, Refused, TabClosed, quietly
from uirl.environments.browser.page.tab import LOAD_SECONDS, WORLD, Tab
from uirl.environments.browser.page.tabs import MAX_TABS, Tabs
from uirl.environments.browser.site import Site
from uirl.environments.ui.keys import MODIFIERS
from uirl.errors import EnvironmentFailure
from uirl.runtime.assets import read_asset

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext, Route
    from playwright.async_api import Dialog as BrowserDialog
    from playwright.async_api import Page as BrowserPage

_LOG = logging.getLogger(__name__)
NOTCH = 53
"""Pixels that one notch of the wheel scrolls, as in Chromium on Linux."""
DRAG_STEPS = 5
"""Movements of a drag: pages look at the first few to tell a drag from a click."""
LONGEST_TYPED = 200
"""Characters up to which a text is typed key by key; a longer one arrives at once, as if it were pasted, but for line
breaks and tabs, which are keys."""
MAX_NOTICES = 8
MAX_DIALOGS = 100
"""Dialogs between two looks at the notices, after which a page is lost: it would go on asking for ever."""
EVERY_DOCUMENT = read_asset(__package__, "page.js")
"""A script for every document, among the page's own: equal states give equal pictures, the mouse reaches all, and what
a person would have seen or copied outside of the picture is told."""
FULLSCREEN = """document.fullscreenElement ? new Promise(done => {
    document.addEventListener('fullscreenchange', () => setTimeout(done, 0, true), {once: true});
    setTimeout(done, 1000, true);
    document.exitFullscreen();
}) : false"""
"""JavaScript: leaves the full screen; whether there was any to leave."""
PASTE = frozenset(map(frozenset, [("ctrl", "v"), ("ctrl", "shift", "v"), ("shift", "insert"), ("meta", "v")]))
COPY = frozenset(map(frozenset, [("ctrl", c) for c in "cx"] + [("ctrl", "insert"), ("shift", "delete")]))
"""Keys that are down together."""
Direction = Literal["up", "down", "left", "right"]
Button = Literal["left", "right", "middle"]
_NAMES = {
    "ctrl": "Control", "alt": "Alt", "shift": "Shift", "meta": "Meta", "enter": "Enter", "tab": "Tab",
    "escape": "Escape", "backspace": "Backspace", "delete": "Delete", "insert": "Insert", "space": "Space",
    "home": "Home", "end": "End", "pageup": "PageUp", "pagedown": "PageDown", "left": "ArrowLeft", "up": "ArrowUp",
    "right": "ArrowRight", "down": "ArrowDown", **{f"f{number}": f"F{number}" for number in range(1, 13)},
}  # fmt: skip
"""Our name of a key -> Playwright's; the others are called by their character."""
_SIGNS = dict(zip("`-=[]\\;',./", (
    "Backquote", "Minus", "Equal", "BracketLeft", "BracketRight", "Backslash", "Semicolon", "Quote", "Comma", "Period",
    "Slash",
), strict=True))  # fmt: skip
"""Sign -> its place on the keyboard."""


def key_name(key: str, shifted: bool = False) -> str:
    """Return Playwright's name of a key. `shifted`: its place on a US keyboard, where shift makes it another sign."""
    if shifted and key.isalnum() and len(key) == 1:
        return f"Digit{key}" if key.isdigit() else f"Key{key.upper()}"
    return _SIGNS.get(key, key) if shifted and len(key) == 1 else _NAMES.get(key, key)


class Owner(Protocol):
    """What a page needs of the browser that it is in, see `Chromium`."""

    timeout: float

    async def close_window(self, target: str) -> None: ...
    def clipboard(self, text: str) -> contextlib.AbstractAsyncContextManager[None]: ...
    async def free(self, context: BrowserContext) -> None: ...


class Page:
    """A page in a browser context of its own. `Page.open` makes one, `close` frees all of it."""

    def __init__(self, context: BrowserContext, first: Tab, metrics: Mapping[str, Any], owner: Owner) -> None:
        """Use `open`."""
        self.context = context
        self._metrics = metrics
        self._owner = owner
        self.files = PageFiles(self._notice)
        self.tabs = Tabs(context, first, self._tab, owner.close_window, self._notice)
        """The page's own tab and those that it opened."""
        self.asks_policy = False
        """Dialogs with a choice are left open for the policy; else they are accepted with what they propose."""
        self._closed = False
        self._notices: list[str] = []
        self._dialogs = 0  # since the notices were taken
        self._clipboard = ""
        self._pointer = (0.0, 0.0)
        self._held: list[str] = []  # keys
        self._pressed: set[Button] = set()  # buttons of the mouse
        self._work: set[asyncio.Task[Any]] = set()
        context.on("dialog", self._on_dialog)
        context.on("page", self.tabs.came)
        self._watch(first)

    @classmethod
    async def open(cls, browser: Browser, owner: Owner, width: int, height: int, downloads: bool) -> Page:
        """Open an empty page of `width` x `height` CSS pixels in a new context."""
        context = await browser.new_context(no_viewport=True, accept_downloads=downloads)
        try:
            told: list[Any] = []  # nothing is told before there is a page
            await context.expose_binding(
                "uirlTell", lambda source, kind, words: [p._on_told(kind, words) for p in told]
            )
            _, made = await asyncio.gather(context.add_init_script(EVERY_DOCUMENT), context.new_page())
            metrics = {"width": width, "height": height, "deviceScaleFactor": 0, "mobile": False}
            page = cls(context, await Tab.open(made, metrics, lambda: owner.timeout), metrics, owner)
        except BaseException:
            await quietly(context.close())
            raise
        told.append(page)
        return page

    async def _tab(self, made: BrowserPage) -> Tab:
        """Return the tab of a window that the page opened."""
        from playwright.async_api import Error

        try:
            async with asyncio.timeout(self._owner.timeout):
                tab = await Tab.open(made, self._metrics, lambda: self._owner.timeout)
        except (TimeoutError, Error) as error:
            raise EnvironmentFailure(f"a window could not be shown: {error}") from error
        self._watch(tab)
        return tab

    def _watch(self, tab: Tab) -> None:
        tab.notice = self._notice
        tab.session.on("Page.windowOpen", lambda event: self.tabs.asked(event["url"]))
        self.files.listen(tab)

    @property
    def broken(self) -> str | None:
        """Why the page must not be used any more (a call failed, timed out or was cut off); None: it is fine."""
        return self.tabs.broken

    async def serve(self, site: Site) -> None:
        """Answer what this page asks of the site's origin, from this process."""
        from playwright.async_api import Error

        async def answer(route: Route) -> None:
            with contextlib.suppress(Error):  # whoever asked is gone
                try:
                    status, kind, body = site.answer(route.request.url)
                except ValueError as error:  # raised here it would meet whichever page makes the next call
                    _LOG.warning("%s cannot be sent: %s", route.request.url, error)
                    await route.abort()
                    return
                headers = {"content-type": kind, "cache-control": "no-store"}
                await route.fulfill(status=status, headers=headers, body=body)

        await self.tabs.first.run(lambda: self.context.route(f"{site.origin}/**", answer), "serving a site")

    async def run_on_load(self, script: str) -> None:
        """Run `script` in every later document of the first tab, before the page's own scripts, in the world apart."""
        await self.tabs.first.call("Page.addScriptToEvaluateOnNewDocument", {"source": script, "worldName": WORLD})

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

    @property
    def held(self) -> tuple[str, ...]:
        """The modifiers that are held."""
        return tuple(key for key in self._held if key in MODIFIERS)

    async def forget_history(self) -> None:
        """Make the page that is shown the first one in the history."""
        await self.tabs.shown.call("Page.resetNavigationHistory")

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
                await tab.settle(drawn=drawn, timeout=timeout)
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

    async def move(self, x: float, y: float) -> None:
        """Move the pointer to x, y (CSS pixels from the top left)."""
        self._pointer = (x, y)
        await self.act(lambda page: page.mouse.move(x, y), "a move")

    async def click(
        self, x: float, y: float, button: Button = "left", count: int = 1, modifiers: Collection[str] = ()
    ) -> None:
        """Move to x, y, press and release the button `count` times, and wait until the page handled it."""
        self._pointer = (x, y)

        async def click(page: BrowserPage) -> None:
            async with _holding(page, [key for key in modifiers if key not in self._held]):
                await page.mouse.click(x, y, button=button, click_count=count)

        await self.act(click, "a click")

    async def mouse_button(self, x: float, y: float, button: Button, down: bool) -> None:
        """Move to x, y and press a button there, or release it."""
        self._pointer = (x, y)

        async def press(page: BrowserPage) -> None:
            await page.mouse.move(x, y)
            await (page.mouse.down if down else page.mouse.up)(button=button)

        (self._pressed.add if down else self._pressed.discard)(button)
        await self.act(press, "a button of the mouse")

    async def drag(self, x: float, y: float, to_x: float, to_y: float) -> None:
        """Press the left button at x, y, move to to_x, to_y and release it there."""
        self._pointer = (to_x, to_y)

        async def drag(page: BrowserPage) -> None:
            await page.mouse.move(x, y)
            await page.mouse.down()
            await page.mouse.move(to_x, to_y, steps=DRAG_STEPS)
            await page.mouse.up()

        await self.act(drag, "a drag")

    async def scroll(self, direction: Direction, notches: int, at: tuple[float, float] | None = None) -> None:
        """Turn the wheel at a place; None: where the pointer is."""
        self._pointer = at or self._pointer
        across, down = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}[direction]

        async def turn(page: BrowserPage) -> None:
            await page.mouse.move(*self._pointer)
            await page.mouse.wheel(across * NOTCH * notches, down * NOTCH * notches)

        await self.act(turn, "the wheel")

    async def type(self, text: str) -> None:
        """Type into whatever has the focus."""

        async def write(page: BrowserPage) -> None:
            for piece in re.split(r"(\t|\r\n|[\n\r])", text):
                if piece in ("\t", "\r\n", "\n", "\r"):
                    await page.keyboard.press("Tab" if piece == "\t" else "Enter")
                elif len(piece) <= LONGEST_TYPED:
                    await page.keyboard.type(piece)
                else:
                    await page.keyboard.insert_text(piece)

        await self.act(write, "typing", timeout=max(self._owner.timeout, 0.2 * len(text)))

    async def insert(self, text: str) -> None:
        """Insert text at once, without keys."""
        await self.act(lambda page: page.keyboard.insert_text(text), "inserting text")

    async def hold_key(self, key: str, down: bool) -> None:
        """Press a key and hold it, or release it; a modifier that is held goes with clicks and keys."""
        name = key_name(key, "shift" in self._held)
        if down:
            async with self._clip((*self._held, key)):
                await self.act(lambda page: page.keyboard.down(name), "a key")
            self._held.append(key)
        else:
            await self.act(lambda page: page.keyboard.up(name), "a key")
            self._held = [held for held in self._held if held != key]

    async def press(self, keys: Sequence[str]) -> None:
        """Press keys together, named as in `uirl.environments.ui.keys`.

        The clipboard is this page's own: the browser has one for all its pages, through which they would see what
        another one copied.
        """
        *held, last = keys
        if tuple(keys) == ("escape",) and await self.evaluate(FULLSCREEN, apart=True, shown=True):
            return

        async def press(page: BrowserPage) -> None:
            async with _holding(page, held):
                await page.keyboard.press(key_name(last, "shift" in (*self._held, *held)))

        async with self._clip((*self._held, *keys)):
            await self.act(press, "a key")

    @contextlib.asynccontextmanager
    async def _clip(self, keys: Collection[str]) -> Any:
        """Put this page's clipboard into the browser's while keys that paste are pressed; wait for what others copy."""
        together = frozenset(keys)
        if together not in PASTE:
            yield
            if together in COPY:
                with contextlib.suppress(Moved, PageLost):
                    await self.evaluate("new Promise(done => setTimeout(done))", apart=True, shown=True)
            return
        async with self._owner.clipboard(self._clipboard):
            yield

    async def act(
        self, do: Callable[[BrowserPage], Awaitable[Any]], what: str, *, timeout: float | None = None
    ) -> None:
        """Do something to the tab that is shown, once it has settled.

        A page that leaves under the hand was left by it.
        """
        await self.settle()
        tab = self.tabs.shown
        with contextlib.suppress(TabClosed, Moved):
            await tab.run(lambda: do(tab.page), what, timeout=timeout)

    async def screenshot(self, *, format: Literal["png", "jpeg"] = "png", quality: int = 80) -> bytes:
        """Return the visible page as an encoded picture. `quality` is JPEG's, 1 to 100."""
        return await self.tabs.shown.screenshot(format=format, quality=quality)

    def take_notices(self) -> list[str]:
        """Return and clear what a person would have noticed since the last call: dialogs, their words, new windows."""
        taken, self._notices, self._dialogs = self._notices, [], 0
        return taken

    async def answers(self) -> None:
        """Wait until the page has answered, or is gone. Raises EpisodeTimeout where it does not answer."""
        with contextlib.suppress(Refused, Moved, Blocked, PageLost):  # it has left, or asks something
            await self.tabs.shown.call("Runtime.evaluate", {"expression": "0"})

    async def close(self) -> None:
        """Free the page and its context, also where the page hangs or the browser is gone. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        elsewhere = self.tabs.first.elsewhere
        self.tabs.forget("the page was closed")
        if not elsewhere:
            self.files.close()
            await self._owner.free(self.context)

    def _notice(self, words: str) -> None:
        if len(self._notices) < MAX_NOTICES:
            self._notices.append(words[:200])

    def _on_told(self, kind: str, words: str) -> None:
        """Handle what the script of `EVERY_DOCUMENT` says, or the page in its name: no more than words."""
        if kind == "copied":
            self._clipboard = str(words)
        else:
            self._notice(str(words))

    def _on_dialog(self, dialog: BrowserDialog) -> None:
        """Accept the dialog, or leave it to the policy: a dialog stops the page, and nobody else would answer it."""
        tab = self.tabs.of(dialog.page) or self.tabs.shown
        self._dialogs += 1
        if self._dialogs > MAX_DIALOGS:
            tab.end(f"the page asked more than {MAX_DIALOGS} times in one step", own_doing=True)
            return
        asked = Dialog(dialog)
        if self.asks_policy and tab is self.tabs.shown and asked.kind != "alert":
            self.tabs.block(asked)
            return
        if asked.kind != "beforeunload":
            self._notice(f"the page said: {dialog.message}")
        self._spawn(asked.answer(True))

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(quietly(work))
        self._work.add(task)
        task.add_done_callback(self._work.discard)


@contextlib.asynccontextmanager
async def _holding(page: BrowserPage, keys: Sequence[str]) -> Any:
    for key in keys:
        await page.keyboard.down(key_name(key))
    yield
    for key in reversed(keys):
        await page.keyboard.up(key_name(key))
