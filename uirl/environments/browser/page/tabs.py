"""The tabs of one page's context: those that a page opens are shown, told, and never more than a few."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any

from uirl.environments.browser.page.dialogs import Dialog
from uirl.environments.browser.page.tab import LOAD_SECONDS, Tab
from uirl.errors import EnvironmentFailure, EpisodeTimeout

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext
    from playwright.async_api import Page as BrowserPage

MAX_TABS = 8
"""Open at a time; a window beyond is closed, and the policy is told."""
MOST_WINDOWS = 64
"""Opened after one action; with the next one the page is lost: each costs the browser a hundredth of a second."""
_LONGEST_ADDRESS = 80
_COMES_WITHIN = {True: LOAD_SECONDS, False: 1.0}
"""Whether a window was opened for an address that leads to a page -> seconds in which it shows one."""


class Tabs:
    """In the order in which they were opened. The first one is the page of the task and stays open."""

    def __init__(
        self,
        context: BrowserContext,
        first: Tab,
        make: Callable[[BrowserPage], Awaitable[Tab]],
        close: Callable[[str], Awaitable[None]],
        notice: Callable[[str], None],
    ) -> None:
        """Start with the tab `first`.

        `make` makes a tab of a page of the browser; `close` closes a window by the browser's name for it; `notice`
        takes what is told to the policy.
        """
        self._context = context
        self._make = make
        self._close = close
        self._notice = notice
        self._all = [first]
        self.shown = first
        """The tab that is seen and acted on."""
        self._opening: dict[str, asyncio.Event] = {}  # by the browser's name: set where it is a tab, or gone
        self._work: set[asyncio.Task[None]] = set()
        self._unwanted: set[str] = set()
        self._news = asyncio.Event()
        self._asked: list[str] = []  # addresses for which a script opened windows, until these are told of
        self._opened = 0  # since the last action

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Tab]:
        return iter(self._all)

    @property
    def first(self) -> Tab:
        return self._all[0]

    @property
    def broken(self) -> str | None:
        """Why one of the tabs must not be used any more; None: all are fine."""
        return next((tab.broken for tab in self._all if tab.broken is not None), None)

    @property
    def opening(self) -> bool:
        """Whether a window was opened that is not a tab yet."""
        return bool(self._opening or self._asked)

    @property
    def number(self) -> int:
        """The number of the tab that is shown, from 1."""
        return self._all.index(self.shown) + 1

    def named(self) -> list[tuple[str, str]]:
        """Return address and title of each tab."""
        return [(tab.url, tab.title) for tab in self._all]

    def words(self) -> str:
        """Return the open tabs in a line, for the policy; empty where there is but one."""
        if len(self._all) == 1:
            return ""
        listed = (
            f"{number}{' (shown)' if tab is self.shown else ''} {(tab.url or 'about:blank')[:_LONGEST_ADDRESS]}"
            for number, tab in enumerate(self._all, start=1)
        )
        return f"tabs: {', '.join(listed)}"

    def of(self, page: BrowserPage | None) -> Tab | None:
        """Return the tab of a page of the browser; None: it is none yet, or none any more."""
        return next((tab for tab in self._all if tab.page is page), None)

    def asked(self, address: str) -> None:
        """Handle the opening of a window, told by the tab that opens it before there is one."""
        self._asked.append(address)
        self._news.clear()

    def opened(self, target: str) -> None:
        """Handle a window that opened, told by the browser before it shows anything."""
        self._opened += 1
        if self._opened > MOST_WINDOWS:
            self.first.end(f"the page opened more than {MOST_WINDOWS} windows at once", own_doing=True)
            return
        coming = sum(not came.is_set() for name, came in self._opening.items() if name not in self._unwanted)
        if len(self._all) + coming >= MAX_TABS:
            self._notice(f"a new window was closed: no more than {MAX_TABS} tabs are open at a time")
            self._unwanted.add(target)
        self._opening[target] = asyncio.Event()
        address = self._asked.pop(0) if self._asked else ""
        self._news.set()
        self._spawn(self._await(target, address.partition(":")[0] in ("", "http", "https", "file", "about", "blob")))

    def came(self, page: BrowserPage) -> None:
        """Handle a window that shows its first page."""
        self._spawn(self._adopt(page))

    async def ready(self) -> None:
        """Wait until every window that opened is a tab, and the newest is shown."""
        while self.opening:
            if self._asked:
                try:
                    async with asyncio.timeout(_COMES_WITHIN[False]):
                        await self._news.wait()
                except TimeoutError:  # the browser opened none
                    self._asked.clear()
                self._news.clear()
            else:
                await asyncio.wait(self._work)

    def acted(self) -> None:
        """Count anew the windows that open: an action of the policy begins."""
        self._opened = 0
        self._asked.clear()

    def block(self, dialog: Dialog) -> None:
        """Leave a dialog of the shown tab open for the policy. The script that opened it may be another tab's."""
        self.shown.block(dialog)
        for tab in self._all:
            if tab is not self.shown:
                tab.block()

    async def show(self, tab: Tab) -> None:
        """Bring a tab to the front."""
        self.shown = tab
        await tab.call("Page.bringToFront")

    async def new(self) -> str | None:
        """Open an empty tab and show it; return a str where there are enough."""
        if len(self._all) >= MAX_TABS:
            return f"no more than {MAX_TABS} tabs are open at a time; close one first"
        await self.shown.run(self._context.new_page, "a new tab")
        await self.ready()
        return None

    async def switch(self, number: int) -> str | None:
        """Show another tab; return a str where there is none of that number."""
        if number > len(self._all):
            return f"there is no tab {number}; expected 1 to {len(self._all)}"
        await self.show(self._all[number - 1])
        return None

    async def close(self) -> str | None:
        """Close the tab that is shown and show the one before it; return a str where it is the first."""
        tab = self.shown
        if tab is self.first:
            return "the first tab is the page of the task, and stays open"
        await self._drop(tab)
        await self._close(tab.target)
        return None

    async def close_others(self) -> None:
        """Close every tab but the first."""
        self.acted()
        await self.ready()
        for tab in self._all[1:]:
            await self._drop(tab)
            await self._close(tab.target)

    def forget(self, reason: str) -> None:
        """Forget all tabs, which are closed with their context."""
        for task in () if self.first.elsewhere else self._work:
            task.cancel()
        for tab in self._all:
            tab.end(reason)

    def gone(self, target: str) -> None:
        """Handle a window that closed itself, told by the browser."""
        if target in self._opening:
            self._opening[target].set()
        for tab in self._all[1:]:
            if tab.target == target:
                self._notice(f"tab {self._all.index(tab) + 1} closed itself")
                tab.leave()
                self._spawn(self._drop(tab))
        if self.first.target == target:
            self.first.end("the page closed itself", own_doing=True)

    def renamed(self, target: str, title: str) -> None:
        """Handle a new title of a tab, told by the browser."""
        for tab in self._all:
            if tab.target == target:
                tab.title = title

    def crashed(self, target: str, killed: bool) -> None:
        """Handle the end of a tab's process, told by the browser. `killed`: from outside, as when memory runs out."""
        for tab in self._all:
            if tab.target == target:
                tab.end("the page was killed" if killed else "the page crashed", own_doing=not killed)

    async def _await(self, target: str, leads: bool) -> None:
        """Wait for a window's first page; one that comes to none is closed: the browser draws nothing of it."""
        try:
            async with asyncio.timeout(_COMES_WITHIN[leads]):
                await self._opening[target].wait()
        except TimeoutError:
            if target not in self._unwanted:
                self._notice(f"tab {len(self._all) + 1} came to no page, and was closed")
            await self._close(target)
        finally:
            del self._opening[target]
            self._unwanted.discard(target)

    async def _adopt(self, page: BrowserPage) -> None:
        try:
            tab = await self._make(page)
        except (EnvironmentFailure, EpisodeTimeout):  # it is gone again, or hangs
            return
        came = self._opening.get(tab.target)
        if came is None:
            return
        with contextlib.suppress(EnvironmentFailure, EpisodeTimeout):  # it is found broken where it is used
            await self._take_in(tab)
        came.set()

    async def _take_in(self, tab: Tab) -> None:
        # not closed before: whoever opened it waits until it shows something
        if tab.target in self._unwanted:
            await self._close(tab.target)
        elif not await tab.comes(_COMES_WITHIN[False]):
            self._notice(f"tab {len(self._all) + 1} came to no page, and was closed")
            await self._close(tab.target)
        else:
            self._all.append(tab)
            self._notice(f"a new tab was opened: {len(self._all)}")
            await self.show(tab)

    async def _drop(self, tab: Tab) -> None:
        """Take a tab from the list."""
        if tab not in self._all:
            return
        number = self._all.index(tab)
        self._all.remove(tab)
        tab.leave()
        if tab is self.shown:
            with contextlib.suppress(EnvironmentFailure, EpisodeTimeout):
                await self.show(self._all[number - 1])

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)
