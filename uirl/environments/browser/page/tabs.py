"""The tabs of one page's context: those that a page opens are shown, told, and never more than a few."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

from uirl.environments.browser.chromium.cdp import CdpConnection
from uirl.environments.browser.page.dialogs import Dialog
from uirl.environments.browser.page.tab import Tab
from uirl.errors import EnvironmentFailure, EpisodeTimeout

MAX_TABS = 8
"""Open at a time; a window beyond is closed, and the policy is told."""
MOST_WINDOWS = 64
"""Opened after one action; with the next one the page is lost: each costs the browser a hundredth of a second."""
_LONGEST_ADDRESS = 80
_BEGINS_WITHIN = 1.0
"""Seconds in which a window that was opened goes somewhere."""


class Tabs:
    """In the order in which they were opened. The first one is the page of the task and stays open."""

    def __init__(
        self,
        connection: CdpConnection,
        context: str,
        first: str,
        session: str,
        make: Callable[[str, str], Tab],
        prepare: Callable[[Tab], Awaitable[None]],
        notice: Callable[[str], None],
    ) -> None:
        """Start with the tab `first` and its `session`; `make` makes a tab of such a pair.

        `prepare` readies a tab before any script of it runs; `notice` takes what is told to the policy.
        """
        self._connection = connection
        self._context = context
        self._prepare = prepare
        self._notice = notice
        self._make = make
        self._all = [make(first, session)]
        self.shown = self._all[0]
        """The tab that is seen and acted on."""
        self._opening: dict[str, Tab] = {}  # by target
        self._work: set[asyncio.Task[None]] = set()
        self._opened = 0  # since the last action

    def __len__(self) -> int:
        return len(self._all)

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
        return bool(self._opening)

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

    def adopt(self, target: str, session: str, url: str) -> None:
        """Take in a window that the page opened, which waits for its first script until it is ready here."""
        self._opened += 1
        if self._opened > MOST_WINDOWS:  # it waits for the last one until it is closed
            self.first.end(f"the page opened more than {MOST_WINDOWS} windows at once", own_doing=True)
            return
        tab = self._make(target, session)
        tab.url = url
        if len(self._all) + len(self._opening) >= MAX_TABS:
            self._notice(f"a new window was closed: no more than {MAX_TABS} tabs are open at a time")
            self._spawn(self._dismiss(tab))
            return
        self._opening[target] = tab
        self._spawn(self._open(tab))

    async def ready(self) -> None:
        """Wait until every window that opened is a tab, and the newest is shown."""
        while self._opening:
            await asyncio.wait(self._work)

    def acted(self) -> None:
        """Count anew the windows that open: an action of the policy begins."""
        self._opened = 0

    def block(self, dialog: Dialog) -> None:
        """Leave a dialog of the shown tab open for the policy. The script that opened it may be another tab's."""
        self.shown.block(dialog)
        for tab in self._all:
            tab.interrupt()

    async def show(self, tab: Tab) -> None:
        """Bring a tab to the front."""
        self.shown = tab
        await tab.call("Page.bringToFront")

    async def new(self) -> str | None:
        """Open an empty tab and show it; return a str where there are enough."""
        if len(self._all) >= MAX_TABS:
            return f"no more than {MAX_TABS} tabs are open at a time; close one first"
        where = {"url": "about:blank", "browserContextId": self._context}
        await self._connection.call("Target.createTarget", where)  # it is adopted before the answer
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
        await self._remove(tab)
        return None

    async def close_others(self) -> None:
        """Close every tab but the first."""
        self.acted()
        await self.ready()
        for tab in self._all[1:]:
            await self._remove(tab)

    def forget(self, reason: str) -> None:
        """Forget all tabs, which are closed with their context."""
        for task in self._work:
            task.cancel()
        for tab in self._all:
            tab.forget(reason)

    def gone(self, target: str) -> bool:
        """Handle a tab that closed itself, told by the browser. True: it was the first."""
        for tab in self._all[1:]:
            if tab.target == target:
                self._notice(f"tab {self._all.index(tab) + 1} closed itself")
                tab.leave()
                self._spawn(self._drop(tab))
        return self.first.target == target

    def crashed(self, target: str, reason: str, own_doing: bool) -> None:
        """Handle the end of a tab's process, told by the browser."""
        for tab in self._all:
            if tab.target == target:
                tab.end(reason, own_doing)

    def renamed(self, target: str, info: Mapping[str, Any]) -> None:
        """Handle a new address and title of a tab, told by the browser."""
        for tab in (*self._all, *self._opening.values()):
            if tab.target == target:
                tab.url, tab.title = str(info.get("url", "")), str(info.get("title", ""))

    async def close_blank(self, tab: Tab, timeout: float) -> bool:
        """Close a window that shows no page: a download, an address that the browser does not open.

        False: there is something to see.
        """
        if not tab.blank:
            return False
        await tab.navigation.begins(_BEGINS_WITHIN)
        await tab.settle(timeout=timeout)
        if not tab.blank or tab not in self._all:
            return False
        self._notice(f"tab {self._all.index(tab) + 1} came to no page, and was closed")
        await self._remove(tab)
        return True

    async def _open(self, tab: Tab) -> None:
        try:
            await self._prepare(tab)
            tab.navigation.expect()
        except (EnvironmentFailure, EpisodeTimeout):
            self._notice("a window that the page opened could not be shown, and was closed")
            await self._dismiss(tab)
            return
        finally:
            del self._opening[tab.target]
        self._all.append(tab)
        self._notice(f"a new tab was opened: {len(self._all)}")
        with contextlib.suppress(EnvironmentFailure, EpisodeTimeout):  # it is found broken where it is used
            await self.show(tab)

    async def _dismiss(self, tab: Tab) -> None:
        # A page that opened it waits until it runs, also where it is closed.
        with contextlib.suppress(EnvironmentFailure, EpisodeTimeout):
            await self._connection.call("Runtime.runIfWaitingForDebugger", session=tab.session)
        tab.forget("the window was closed")
        await self._shut(tab)

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

    async def _remove(self, tab: Tab) -> None:
        """Take a tab from the list and close it."""
        await self._drop(tab)
        await self._shut(tab)

    async def _shut(self, tab: Tab) -> None:
        with contextlib.suppress(EnvironmentFailure, EpisodeTimeout):  # it is gone already, or goes with the context
            await self._connection.call("Target.closeTarget", {"targetId": tab.target})

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)
