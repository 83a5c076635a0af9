"""The frames inside a tab's page, those of other processes too: what is asked of each, and where it is on the page."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from uirl.environments.browser.chromium.cdp import CdpConnection
from uirl.errors import EnvironmentFailure, EpisodeTimeout

MAX_FRAMES = 24
"""That are looked into; a page may have any number."""


@dataclass(frozen=True, slots=True)
class ChildFrame:
    """A frame that is not the tab's own."""

    id: str
    parent: str
    session: str
    """Which it is spoken to in: the tab's, or that of the process it runs in."""


class Frames:
    """Which frames a tab has, as the browser tells. A page without any costs nothing."""

    def __init__(
        self,
        connection: CdpConnection,
        top: str,
        session: str,
        prepare: Callable[[str], Awaitable[Any]],
    ) -> None:
        """Follow the frames of a tab; `prepare` readies another process's session before a script of the frame runs."""
        self._connection = connection
        self._top = top
        self._session = session
        self._prepare = prepare
        self._frames: dict[str, ChildFrame] = {}
        self._work: set[asyncio.Task[Any]] = set()
        self.sessions: list[str] = []
        """Of frames in other processes."""
        self._listen(session)

    def __bool__(self) -> bool:
        return bool(self._frames)

    def get(self, frame: str) -> ChildFrame | None:
        """Return the frame of that id; None: there is none."""
        return self._frames.get(frame)

    def of(self, parent: str) -> Iterator[ChildFrame]:
        """Return the frames directly inside another, in the order in which they came."""
        return (frame for frame in list(self._frames.values()) if frame.parent == parent)

    def all(self) -> list[ChildFrame]:
        """Return all frames, parents before what is in them, `MAX_FRAMES` at most."""
        found: list[ChildFrame] = []
        waiting = [self._top]
        while waiting and len(found) < MAX_FRAMES:
            inside = list(self.of(waiting.pop(0)))
            found += inside
            waiting += [frame.id for frame in inside]
        return found[:MAX_FRAMES]

    def forget(self) -> None:
        """Stop following the frames of a closed tab."""
        for task in self._work:
            task.cancel()
        for session in self.sessions:
            self._connection.forget(session)

    def renew(self, event: Mapping[str, Any]) -> None:
        """Clear the frames: the browser reports a new document in the tab. One kept for going back has its frames."""
        self._frames.clear()
        if event.get("type") == "BackForwardCacheRestore":
            self._spawn(self._restore())

    async def ready(self) -> None:
        """Wait until every frame that is known by now can be asked."""
        while self._work:
            await asyncio.wait(self._work)

    def _listen(self, session: str) -> None:
        on = self._connection.on
        on(session, "Page.frameAttached", lambda event: self._on_attached(session, event))
        on(session, "Page.frameDetached", self._on_detached)
        on(session, "Target.attachedToTarget", self._on_process)
        on(session, "Target.detachedFromTarget", self._on_process_gone)

    def _on_attached(self, session: str, event: Mapping[str, Any]) -> None:
        frame, parent = event["frameId"], event["parentFrameId"]
        self._frames[frame] = ChildFrame(frame, parent, session)

    def _on_detached(self, event: Mapping[str, Any]) -> None:
        if event.get("reason") == "swap":  # it goes on in another process
            return
        gone = [event["frameId"]]
        while gone:
            self._frames.pop(gone[0], None)
            gone = [*gone[1:], *(frame.id for frame in self.of(gone[0]))]

    def _on_process(self, event: Mapping[str, Any]) -> None:
        frame, session = event["targetInfo"]["targetId"], event["sessionId"]
        attached = self._frames.get(frame)
        if attached is not None:
            self._frames[frame] = replace(attached, session=session)
        elif "parentFrameId" in event["targetInfo"]:
            self._frames[frame] = ChildFrame(frame, event["targetInfo"]["parentFrameId"], session)
        self.sessions.append(session)
        self._listen(session)
        self._spawn(self._prepare(session))

    async def _restore(self) -> None:
        with contextlib.suppress(EnvironmentFailure, EpisodeTimeout):  # it has left again
            tree = await self._connection.call("Page.getFrameTree", session=self._session)
            waiting = [tree["frameTree"]]
            while waiting:
                around = waiting.pop()
                for inside in around.get("childFrames", ()):
                    frame = inside["frame"]["id"]
                    self._frames[frame] = ChildFrame(frame, around["frame"]["id"], self._session)
                    waiting.append(inside)

    def _spawn(self, work: Awaitable[Any]) -> None:
        task = asyncio.ensure_future(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    def _on_process_gone(self, event: Mapping[str, Any]) -> None:
        session = event["sessionId"]
        if session in self.sessions:
            self.sessions.remove(session)
        self._connection.forget(session)
