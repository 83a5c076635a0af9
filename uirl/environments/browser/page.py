"""One page of the browser with its tabs: go somewhere, look, read, use mouse and keyboard, files and dialogs."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, Protocol

from uirl.environments.browser.files import PageFiles
from uirl.environments.browser.tab import (
    LOAD_SECONDS,
    Blocked,
    Moved,
    PageLost,
    Refused,
    Tab,
    TabClosed,
    Unopened,
    quietly,
)  # fmt: skip
from uirl.environments.ui.vocabulary import Button
from uirl.errors import EnvironmentFailure, EpisodeTimeout
from uirl.runtime.assets import read_asset
from uirl.runtime.limits import shown

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext, Dialog, Route
    from playwright.async_api import Page as BrowserPage

_LOG = logging.getLogger(__name__)
_ERRORS = 5
"""Of the errors of pages, so many different ones are told."""
_told: set[str] = set()
NOTCH = 53
"""Pixels that one notch of the wheel scrolls, as in Chromium on Linux."""
DRAG_STEPS = 5
"""Movements of a drag: pages look at the first few to tell a drag from a click."""
LONGEST_TYPED = 200
"""Characters up to which a text is typed key by key; a longer one arrives at once, as if it were pasted, but for line
breaks and tabs, which are keys."""
MAX_NOTICES, LONGEST_NOTICE = 8, 200
MAX_DIALOGS = 100
"""Dialogs between two looks at the notices, after which a page is lost: it would go on asking for ever."""
MAX_TABS = 8
"""Open at a time; a window beyond is closed, and the policy is told."""
MOST_WINDOWS = 64
"""Opened after one action; with the next one the page is lost: each costs the browser a hundredth of a second."""
SHOWS_WITHIN = 1.0
"""Seconds in which a window shows a page, or `LOAD_SECONDS` where its address leads to one; else it is closed."""
EVERY_DOCUMENT = read_asset(__file__, "page.js")
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
_NAMES = {"ctrl": "Control", "pageup": "PageUp", "pagedown": "PageDown"}
_NAMES |= {key: f"Arrow{key.title()}" for key in ("left", "right", "up", "down")}
_SIGNS: dict[str, str] = dict(zip("`-=[]\\;',./", (
    "Backquote", "Minus", "Equal", "BracketLeft", "BracketRight", "Backslash", "Semicolon", "Quote", "Comma", "Period",
    "Slash",
), strict=True))  # fmt: skip
P = ParamSpec("P")


def key_name(key: str, shifted: bool = False) -> str:
    """Return Playwright's name of a key. `shifted`: its place on a US keyboard, where shift makes it another sign."""
    if len(key) > 1:
        return _NAMES.get(key, key.capitalize())
    if shifted and key.isascii() and key.isalnum():
        return f"Digit{key}" if key.isdigit() else f"Key{key.upper()}"
    return _SIGNS.get(key, key) if shifted else key


def _by_hand(
    do: Callable[Concatenate[Page, BrowserPage, P], Awaitable[None]],
) -> Callable[Concatenate[Page, P], Awaitable[None]]:
    """Make a method an action on the tab that is shown; see `Page.act`."""

    @functools.wraps(do)
    async def act(self: Page, *args: P.args, **kwargs: P.kwargs) -> None:
        await self.act(lambda page: do(self, page, *args, **kwargs), f"the action {do.__name__}")

    return act


class Owner(Protocol):  # see `Chromium`
    timeout: float

    async def close_window(self, target: str) -> None: ...
    def clipboard(self, text: str) -> contextlib.AbstractAsyncContextManager[None]: ...
    async def free(self, context: BrowserContext) -> None: ...


class Page:
    """A page in a browser context of its own. `Page.open` makes one, `close` frees all of it."""

    first: Tab
    """The page of the task, which stays open."""
    shown: Tab
    """The tab that is seen and acted on."""
    asks_policy = False
    """Dialogs with a choice are left open for the policy; else they are accepted with what they propose."""

    def __init__(self, context: BrowserContext, owner: Owner, metrics: Mapping[str, Any]) -> None:
        self.context = context
        self.tabs: list[Tab] = []
        """In the order in which they were opened."""
        self.files = PageFiles(self._notice, self._spawn)
        self.held: list[str] = []
        """Keys, named as in `uirl.environments.ui.keys`."""
        self._owner = owner
        self._metrics = metrics
        self._closed = False
        self._notices: list[str] = []
        self._dialogs = 0  # since the notices were taken
        self._clipboard = ""
        self._pointer = (0.0, 0.0)
        self._pressed: set[Button] = set()  # buttons of the mouse
        self._work: set[asyncio.Task[Any]] = set()
        self._asked: list[str] = []  # addresses for which a script opens windows, until the browser tells of these
        self._opening: dict[str, asyncio.Future[Tab | None]] = {}  # windows by the browser's name, until they are tabs
        self._coming = 0  # of these, those that will be tabs
        self._opened = 0  # windows since the last action

    @classmethod
    async def open(cls, browser: Browser, owner: Owner, width: int, height: int, downloads: bool) -> Page:
        """Open an empty page of `width` x `height` CSS pixels in a new context."""
        context = await browser.new_context(no_viewport=True, accept_downloads=downloads)
        page = cls(context, owner, {"width": width, "height": height, "deviceScaleFactor": 0, "mobile": False})
        try:
            await context.expose_binding("uirlTell", lambda source, kind, words: page._on_told(kind, words))
            _, made = await asyncio.gather(context.add_init_script(EVERY_DOCUMENT), context.new_page())
            page.first = page.shown = await page._tab(made)
        except BaseException:
            await quietly(context.close())
            raise
        page.tabs.append(page.shown)
        context.on("dialog", page._on_dialog)
        context.on("weberror", lambda seen: _tell_error(str(seen.error)))
        context.on("page", lambda made: page._spawn(page._adopt(made)))
        return page

    async def _tab(self, made: BrowserPage) -> Tab:
        tab = await Tab.open(made, self._metrics)
        tab.limit, tab.notice = lambda: self._owner.timeout, self._notice
        tab.session.on("Page.windowOpen", lambda event: self._asked.append(event["url"]))
        self.files.listen(tab)
        return tab

    @property
    def broken(self) -> str | None:
        """Why the page must not be used any more (a call failed, timed out or was cut off); None: it is fine."""
        return next((tab.broken for tab in self.tabs if tab.broken is not None), None)

    async def serve(self, origin: str, answer: Callable[[str], tuple[int, str, bytes]]) -> None:
        """Answer what this page asks of an origin from this process: address -> status, content type, body."""
        from playwright.async_api import Error

        async def fulfill(route: Route) -> None:
            with contextlib.suppress(Error):  # whoever asked is gone
                status, kind, body = answer(route.request.url)
                headers = {"content-type": kind, "cache-control": "no-store"}
                await route.fulfill(status=status, headers=headers, body=body)

        await self.first.run(lambda: self.context.route(f"{origin}/**", fulfill), "serving a site")

    async def begin(self, uploads: Mapping[str, str | bytes] = MappingProxyType({}), downloads: bool = False) -> None:
        """Clear what an episode may have left: dialogs, other tabs, keys and buttons that are held, notices.

        `uploads`: files by name that the policy may choose in a file chooser. `downloads`: they are kept, in
        `files.downloads`; else they are refused.
        """
        self.asks_policy = False
        self._clipboard = ""
        await self.first.answer(agree=True)
        self.acted()
        await self._all_windows()
        for tab in self.tabs[1:]:
            await self._drop(tab)
            await self._owner.close_window(tab.target)
        self.files.begin(uploads, downloads)
        for button in tuple(self._pressed):
            await self.mouse_button(button, False)
        for key in tuple(self.held):
            await self.hold_key(key, down=False)
        self.take_notices()

    async def goto(self, url: str, *, timeout: float = LOAD_SECONDS) -> None:
        """Load `url` in the tab that is shown, and wait for its load event.

        Raises `Unopened` where it cannot be loaded (a file to be kept counts), or takes too long: then loading stops.
        """
        tab, going = self.shown, f"going to {url}"
        try:
            await tab.run(lambda: tab.page.goto(url, timeout=timeout * 1000), going, timeout=2 * timeout + 1)
            await tab.arrive(timeout)  # else its end would look like that of the next one
        except Refused as error:
            if "Timeout" in error.reason:
                await tab.stop_loading(timeout)
                raise Unopened(f"{url} was not loaded within {timeout} s") from error
            reason = error.reason.removeprefix("Page.goto: ").split(" at ")[0]
            raise Unopened(f"{url} cannot be opened: {reason}") from error

    async def travel(self, steps: int) -> str | None:
        """Go that many pages through the history, back where negative; return a str where there is no such page.

        A tab that the page opened is closed where it has no page before, as on a phone: what opened it is shown again.
        """
        tab = self.shown
        history = await tab.call("Page.getNavigationHistory")
        wanted = history["currentIndex"] + steps
        if 0 <= wanted < len(history["entries"]):
            await tab.call("Page.navigateToHistoryEntry", {"entryId": history["entries"][wanted]["id"]})
            await tab.settle()
            return None
        if steps < 0 and tab is not self.first:
            return await self.close_tab()
        return f"there is no page to go {'back' if steps < 0 else 'forward'} to"

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
        if self.shown is not self.first:
            await self.first.settle(timeout=timeout)

    async def _settle_shown(self, drawn: bool, timeout: float) -> None:
        for _ in range(2 * MAX_TABS):  # each may be closed, and show another, while it is waited for
            tab = self.shown
            with contextlib.suppress(TabClosed):
                await tab.settle(drawn=drawn, timeout=timeout)
            await self._all_windows()
            if self.shown is tab:
                return
        self.shown.check()

    async def evaluate(self, expression: str, *, apart: bool = False, timeout: float | None = None) -> Any:
        """Return the JSON value of a JavaScript expression in the first tab; see `Tab.evaluate`."""
        return await self.first.evaluate(expression, apart=apart, timeout=timeout)

    async def screenshot(self, *, format: Literal["png", "jpeg"] = "png", quality: int = 80) -> bytes:
        """Return the visible page as an encoded picture. `quality` is JPEG's, 1 to 100."""
        tab, params = self.shown, {"format": format, "quality": quality, "optimizeForSpeed": True}
        taken = await tab.of_one_document(lambda: tab.session.send("Page.captureScreenshot", params), "its picture")
        return base64.b64decode(taken["data"])

    async def act(
        self, do: Callable[[BrowserPage], Awaitable[Any]], what: str, *, timeout: float | None = None
    ) -> None:
        """Do something to the tab that is shown, once it has settled. A page that leaves meanwhile was left by it."""
        await self.settle()
        tab = self.shown
        with contextlib.suppress(TabClosed, Moved):
            await tab.run(lambda: do(tab.page), what, timeout=timeout)

    @_by_hand
    async def move(self, page: BrowserPage, x: float, y: float) -> None:
        """Move the pointer to x, y (CSS pixels from the top left)."""
        self._pointer = (x, y)
        await page.mouse.move(x, y)

    @_by_hand
    async def click(
        self, page: BrowserPage, x: float, y: float, button: Button = "left", count: int = 1, held: Collection[str] = ()
    ) -> None:
        """Move to x, y, press and release the button `count` times, while keys are `held`."""
        self._pointer = (x, y)
        names = [key_name(key) for key in held if key not in self.held]
        for name in names:
            await page.keyboard.down(name)
        await page.mouse.click(x, y, button=button, click_count=count)
        for name in reversed(names):
            await page.keyboard.up(name)

    @_by_hand
    async def mouse_button(
        self, page: BrowserPage, button: Button, down: bool, at: tuple[float, float] | None = None
    ) -> None:
        """Move to a place and press a button there, or release it; None: where the pointer is."""
        self._pointer = at or self._pointer
        (self._pressed.add if down else self._pressed.discard)(button)
        await page.mouse.move(*self._pointer)
        await (page.mouse.down if down else page.mouse.up)(button=button)

    @_by_hand
    async def drag(self, page: BrowserPage, x: float, y: float, to_x: float, to_y: float) -> None:
        """Press the left button at x, y, move to to_x, to_y and release it there."""
        self._pointer = (to_x, to_y)
        await page.mouse.move(x, y)
        await page.mouse.down()
        await page.mouse.move(to_x, to_y, steps=DRAG_STEPS)
        await page.mouse.up()

    @_by_hand
    async def scroll(
        self, page: BrowserPage, direction: str, notches: int, at: tuple[float, float] | None = None
    ) -> None:
        """Turn the wheel 'up', 'down', 'left' or 'right' at a place; None: where the pointer is."""
        self._pointer = at or self._pointer
        across, down = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}[direction]
        await page.mouse.move(*self._pointer)
        await page.mouse.wheel(across * NOTCH * notches, down * NOTCH * notches)

    @_by_hand
    async def insert(self, page: BrowserPage, text: str) -> None:
        """Insert text at once, without keys."""
        await page.keyboard.insert_text(text)

    async def type(self, text: str) -> None:
        """Type into whatever has the focus."""

        async def write(page: BrowserPage) -> None:
            for piece in re.split(r"(\t|\r\n|[\n\r])", text):
                if piece in ("\t", "\r\n", "\n", "\r"):
                    await page.keyboard.press("Tab" if piece == "\t" else "Enter")
                else:
                    await (page.keyboard.type if len(piece) <= LONGEST_TYPED else page.keyboard.insert_text)(piece)

        await self.act(write, "the action type", timeout=max(self._owner.timeout, 0.2 * len(text)))

    async def hold_key(self, key: str, down: bool) -> None:
        """Press a key and hold it, or release it; a modifier that is held goes with clicks and keys."""
        name = key_name(key, "shift" in self.held)
        if down:
            async with self._clip((*self.held, key)):
                await self.act(lambda page: page.keyboard.down(name), "the action key_down")
            self.held.append(key)
        else:
            await self.act(lambda page: page.keyboard.up(name), "the action key_up")
            self.held = [held for held in self.held if held != key]

    async def press(self, keys: Sequence[str]) -> None:
        """Press keys together, named as in `uirl.environments.ui.keys`."""
        if tuple(keys) == ("escape",) and await self.shown.evaluate(FULLSCREEN, apart=True):
            return
        together = (*self.held, *keys)
        chord = "+".join((*map(key_name, keys[:-1]), key_name(keys[-1], "shift" in together)))
        async with self._clip(together):
            await self.act(lambda page: page.keyboard.press(chord), "the action keys")

    @contextlib.asynccontextmanager
    async def _clip(self, keys: Collection[str]) -> AsyncIterator[None]:
        """Put this page's clipboard into the browser's while keys that paste are pressed; wait for what others copy.

        The browser has one for all its pages, through which they would see what another one copied.
        """
        together = frozenset(keys)
        if together in PASTE:
            async with self._owner.clipboard(self._clipboard):
                yield
            return
        yield
        if together in COPY:
            with contextlib.suppress(Moved, PageLost):
                await self.shown.evaluate("new Promise(done => setTimeout(done))", apart=True)

    def take_notices(self) -> list[str]:
        """Return and clear what a person would have noticed since the last call: dialogs, their words, new windows."""
        taken, self._notices, self._dialogs = self._notices, [], 0
        return taken

    async def answers(self) -> None:
        """Wait until the page has answered, or is gone. Raises EpisodeTimeout where it does not answer."""
        with contextlib.suppress(Refused, Moved, Blocked, PageLost):  # it has left, or asks something
            await self.shown.call("Runtime.evaluate", {"expression": "0"})

    async def close(self) -> None:
        """Free the page and its context, also where the page hangs or the browser is gone. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        elsewhere = self.first.elsewhere
        for tab in self.tabs:
            tab.end(EnvironmentFailure("the page was closed"))
        if not elsewhere:
            for came in self._opening.values():
                came.cancel()
            self.files.close()
            await self._owner.free(self.context)

    def discard(self) -> None:
        """Close the page when the browser finds the time, for who does not wait for it."""
        self._spawn(self.close())

    async def new_tab(self) -> str | None:
        """Open an empty tab and show it; return a str where there are enough."""
        if len(self.tabs) >= MAX_TABS:
            return f"no more than {MAX_TABS} tabs are open at a time; close one first"
        await self.shown.run(self.context.new_page, "a new tab")
        await self._all_windows()
        return None

    async def switch_tab(self, number: int) -> str | None:
        """Show another tab; return a str where there is none of that number, from 1."""
        if number > len(self.tabs):
            return f"there is no tab {number}; expected 1 to {len(self.tabs)}"
        await self._show(self.tabs[number - 1])
        return None

    async def close_tab(self) -> str | None:
        """Close the tab that is shown and show the one before it; return a str where it is the first."""
        tab = self.shown
        if tab is self.first:
            return "the first tab is the page of the task, and stays open"
        await self._drop(tab)
        await self._owner.close_window(tab.target)
        return None

    def tabs_in_words(self) -> str:
        """Return the open tabs in a line, for the policy; empty where there is but one."""
        listed = (
            f"{number}{' (shown)' if tab is self.shown else ''} {(tab.page.url or 'about:blank')[:80]}"
            for number, tab in enumerate(self.tabs, start=1)
        )
        return f"tabs: {', '.join(listed)}" if len(self.tabs) > 1 else ""

    def acted(self) -> None:
        """Count anew the windows that open: an action of the policy begins."""
        self._opened = 0
        self._asked.clear()

    def on_target(self, what: str, event: Mapping[str, Any]) -> None:
        """Handle what the browser tells of a window of any page, sooner than Playwright or with more words."""
        found = event.get("targetInfo", {})
        target = event.get("targetId") or found["targetId"]
        tab = next((tab for tab in self.tabs if tab.target == target), None)
        if what == "Created" and found.get("browserContextId") == self.first.context:
            self._on_window(target)
        elif what == "InfoChanged" and tab is not None:
            tab.title = str(found["title"])
        elif what == "Crashed" and tab is not None:
            killed = event["status"] == "killed"  # from outside, as when memory runs out
            tab.end(EnvironmentFailure("the page was killed") if killed else PageLost("the page crashed"))
        elif what == "Destroyed" and tab is self.first:
            tab.end(PageLost("the page closed itself"))
        elif what == "Destroyed" and tab is not None:
            self._notice(f"tab {self.tabs.index(tab) + 1} closed itself")
            self._spawn(self._drop(tab))
        elif what == "Destroyed" and target in self._opening and not self._opening[target].done():
            self._opening[target].set_result(None)

    def _on_window(self, target: str) -> None:
        self._opened += 1
        if self._opened > MOST_WINDOWS:
            self.first.end(PageLost(f"the page opened more than {MOST_WINDOWS} windows at once"))
            return
        wanted = len(self.tabs) + self._coming < MAX_TABS
        self._coming += wanted
        if not wanted:
            self._notice(f"a new window was closed: no more than {MAX_TABS} tabs are open at a time")
        self._opening[target] = asyncio.get_running_loop().create_future()
        address = self._asked.pop(0) if self._asked else ""
        leads = address.partition(":")[0] in ("", "http", "https", "file", "about", "blob")
        self._spawn(self._take_in(target, wanted, LOAD_SECONDS if leads else SHOWS_WITHIN))

    async def _adopt(self, made: BrowserPage) -> None:
        # one that is gone again, or hangs, is no tab
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._owner.timeout):
                tab = await self._tab(made)
                came = self._opening.get(tab.target)
                if came is not None and not came.done():
                    came.set_result(tab)

    async def _take_in(self, target: str, wanted: bool, seconds: float) -> None:
        """Show a window with its first page; one that comes to none is closed: the browser draws nothing of it."""
        try:
            # not closed before, where it is not wanted: whoever opened it waits until it shows something
            async with asyncio.timeout(seconds):
                tab = await self._opening[target]
            if tab is None:  # it closed itself
                return
            if wanted and await tab.comes(SHOWS_WITHIN):
                self.tabs.append(tab)
                self._notice(f"a new tab was opened: {len(self.tabs)}")
                await quietly(self._show(tab))  # it is found broken where it is used
                return
        except (TimeoutError, EnvironmentFailure, EpisodeTimeout):
            pass
        finally:
            del self._opening[target]
            self._coming -= wanted
        if wanted:
            self._notice(f"tab {len(self.tabs) + 1} came to no page, and was closed")
        await self._owner.close_window(target)

    async def _all_windows(self) -> None:
        """Wait until every window that opened is a tab, and the newest is shown."""
        last = asyncio.get_running_loop().time() + SHOWS_WITHIN
        while self._opening or self._asked:
            await asyncio.sleep(0.01)
            if not self._opening and asyncio.get_running_loop().time() > last:  # the browser opened none
                self._asked.clear()

    async def _show(self, tab: Tab) -> None:
        self.shown = tab
        await tab.call("Page.bringToFront")

    async def _drop(self, tab: Tab) -> None:
        if tab in self.tabs:
            number = self.tabs.index(tab)
            self.tabs.remove(tab)
            tab.end(TabClosed("the tab was closed"))
            if tab is self.shown:
                await quietly(self._show(self.tabs[number - 1]))

    def _on_told(self, kind: str, words: str) -> None:
        # the script of `EVERY_DOCUMENT` says so, or the page in its name
        if kind == "copied":
            self._clipboard = str(words)
        else:
            self._notice(str(words))

    def _on_dialog(self, dialog: Dialog) -> None:
        """Accept the dialog, or leave it to the policy: a dialog stops the page, and nobody else would answer it."""
        tab = next((tab for tab in self.tabs if tab.page is dialog.page), self.shown)
        self._dialogs += 1
        if self._dialogs > MAX_DIALOGS:
            tab.end(PageLost(f"the page asked more than {MAX_DIALOGS} times in one step"))
        elif self.asks_policy and tab is self.shown and dialog.type != "alert":
            for one in self.tabs:  # the script that opened it may be another tab's
                one.block(dialog if one is tab else None)
        else:
            if dialog.type != "beforeunload":
                self._notice(f"the page said: {dialog.message}")
            self._spawn(dialog.accept(dialog.default_value))

    def _notice(self, words: str) -> None:
        if len(self._notices) < MAX_NOTICES:
            self._notices.append(words[:LONGEST_NOTICE])

    def _spawn(self, work: Awaitable[Any]) -> None:
        task = asyncio.create_task(quietly(work))
        self._work.add(task)
        task.add_done_callback(self._work.discard)


def _tell_error(error: str) -> None:
    """Warn of an error that a script of a page did not catch, once: its author may have to mend it."""
    words = shown(error, 200)
    if words not in _told and len(_told) < _ERRORS:
        _told.add(words)
        _LOG.warning("a script of the page failed: %s", words)
