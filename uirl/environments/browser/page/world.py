"""The JavaScript world of ours in a page: it sees the same document, and the page's scripts cannot see it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from uirl.environments.browser.page.navigation import Navigation
from uirl.runtime.assets import read_asset

WORLD = "uirl"
"""Its name."""
TWO_FRAMES = read_asset(__package__, "two_frames.js")
"""JavaScript: a promise that is kept when the page has drawn two frames, or draws none since another tab is shown. It
gives what the scripts of `style.py` have to tell the policy, and the text that the page copied (null: none).

In the first a scroll arrives, and those who listen to it are called. What they ask for of a frame, and what watches
where elements are, comes by the second.
"""

Call = Callable[..., Awaitable[Any]]


class World:
    """That world in whatever document one page shows."""

    def __init__(self, call: Call, navigation: Navigation, frame: str) -> None:
        """Use `call` for the calls of the protocol; `frame` is the page's main frame."""
        self._call = call
        self._navigation = navigation
        self._frame = frame
        self.copied = ""
        """The text that a button of the page copied last."""
        self._made: tuple[int, int] | None = None  # the document it is of, and its id

    async def id(self) -> int:
        """Return the world's id in the protocol: that in the document that is shown now."""
        document = self._navigation.documents
        if self._made is None or self._made[0] != document:
            # In a document without scripts those of `Page.run_on_load` wait for the first one that runs.
            await self._call("Runtime.evaluate", {"expression": "0"})
            self._made = document, await self.of(self._frame)
        return self._made[1]

    async def of(self, frame: str, session: str | None = None) -> int:
        """Return the world's id in another frame, with that frame's session. Raises `Refused` where it is gone."""
        where = {"frameId": frame, "worldName": WORLD}  # the same one, where it has been made before
        return int((await self._call("Page.createIsolatedWorld", where, session=session))["executionContextId"])

    async def draw(self, tell: Callable[[str], None]) -> None:
        """Wait until the page has drawn what was done to it. Raises `Refused` where it leaves meanwhile.

        `tell` is called with what a person would have seen outside of the picture.
        """
        where = {"contextId": await self.id(), "awaitPromise": True, "returnByValue": True}
        answer = await self._call("Runtime.evaluate", {"expression": TWO_FRAMES, **where})
        value = answer["result"].get("value") or {"told": (), "copied": None}
        for words in value["told"]:
            tell(words)
        self.copied = value["copied"] or self.copied
