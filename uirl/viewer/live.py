"""What goes on while a page is open: new rows as events, and the index that follows a run."""

from __future__ import annotations

import asyncio
import contextlib
import csv
import io
import json
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from uirl.errors import StorageError
from uirl.storage.labels import inert
from uirl.viewer.runs import Run, Runs
from uirl.viewer.tail import Piece, read_from

_LOG = logging.getLogger(__name__)
EVERY = 1.0
"""Seconds between looks at the files of a run."""
MOST_STREAMS = 3
"""Streams of one address; see `Streams`."""
COMMENT = 15.0
"""Seconds after which a stream without news says that it is there."""
SLICE, PAUSE = 0.2, 0.05
"""Seconds that the index is built without a pause, and of the pause: questions come first."""


class Indexing:
    """A thread that keeps the indices of the runs that somebody looked at up to date."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._stopped = threading.Event()
        self._failed: set[str] = set()
        self._not_before: dict[str, float] = {}
        """Key of a run that could not be read -> when it is tried again: later, the longer that took."""
        self._thread = threading.Thread(target=self._follow, name="uirl-view-index", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, and wait for the end."""
        self._stopped.set()
        self._thread.join(10)

    def _follow(self) -> None:
        while not self._stopped.is_set():
            busy = [self._work_on(run) for run in self._runs.followed()]
            self._stopped.wait(PAUSE if any(busy) else EVERY)

    def _work_on(self, run: Run) -> bool:
        """Bring one index further; return whether there is more to do."""
        began = time.monotonic()
        if began < self._not_before.get(run.key, 0.0):
            return False
        try:
            more = run.curves.begun and run.curves.catch_up(SLICE)
            if not run.has_store:
                return more
            index = run.index
            index.catch_up(SLICE)
            return index.read_words(SLICE) or more
        except StorageError:  # gone, locked or being replaced: the page that asks is told, and a later look tries again
            now = time.monotonic()
            self._not_before[run.key] = now + 10 * (now - began)
            return False
        except Exception:  # one run must not end the index of all others
            if run.key not in self._failed:
                self._failed.add(run.key)
                _LOG.exception("the index of %s cannot be brought up to date; its list may lack what is new", run.key)
            return False


def metrics(run: Run, since: int, sample: bool) -> dict[str, Any]:
    """Return the rows from a place on, {"rows", "next"}; from 0 on those of a long run in few points. `sample`: they
    are but a sample. One who has a sample (`sample`) is told to begin again once there is more: `restart`."""
    if since and not (sample and run.curves.complete):
        return read_from(run.metrics_path, since).to_dict()
    if since:
        return Piece([], 0, restart=True).to_dict()
    piece, only_sample = run.curves.opening()
    return piece.to_dict() | ({"sample": True} if only_sample else {})


@dataclass(slots=True)
class Followed:
    """A run that somebody follows, and how far he has its rows."""

    run: Run
    place: int
    sample: bool
    """Whether he has but a sample of its rows: see `metrics`."""
    count: int = -1
    """Trajectories that he was told of."""


class Streams:
    """Who holds a stream open. A browser keeps six connections to one server, over all its tabs: streams may not take
    them all, so of one address only `MOST_STREAMS` are served. The other tabs ask every few seconds."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()
        self._ended = False

    def events(self, followed: Sequence[Followed], request: Request) -> Response | None:
        """Return the stream of the news of some runs, each with its `run`: `metrics` {"next", "rows"}, `restart` {},
        `trajectories` {"count"}; None: there are too many already."""
        peer = request.client.host if request.client else ""
        if self._open[peer] >= MOST_STREAMS:
            return None
        self._open[peer] += 1  # here, where it was checked: others ask before this stream begins
        return _Stream(_news(followed, request, self), lambda: self._open.subtract([peer]))

    def end(self) -> None:
        """Let all of them end: the viewer is told to stop."""
        self._ended = True

    @property
    def ended(self) -> bool:
        """Whether `end` was called."""
        return self._ended

    @property
    def count(self) -> int:
        """How many there are."""
        return self._open.total()


class _Stream(StreamingResponse):
    """A stream of events that says when it has ended, also where it was cut off before it began."""

    def __init__(self, news: AsyncGenerator[bytes, None], ended: Callable[[], None]) -> None:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(news, headers=headers, media_type="text/event-stream")
        self._news, self._ended = news, ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        try:
            async with contextlib.aclosing(self._news):
                await super().__call__(scope, receive, send)
        finally:
            self._ended()


async def _news(followed: Sequence[Followed], request: Request, streams: Streams) -> AsyncGenerator[bytes, None]:
    said = time.monotonic()
    yield b"retry: 2000\n\n"
    while not streams.ended and not await request.is_disconnected():
        found = [await _news_of(one) for one in followed]
        if any(news is None for news, _ in found):
            return  # whoever listened asks for the rows, and is told why there are none
        news = b"".join(news or b"" for news, _ in found)
        if not news and time.monotonic() - said > COMMENT:
            news = b": still here\n\n"
        if news:
            said = time.monotonic()
            yield news
        if not any(more for _, more in found):
            await asyncio.sleep(EVERY)


async def _news_of(one: Followed) -> tuple[bytes | None, bool]:
    """Return what is new of a run since the last call, and whether there is more; None: it cannot be read."""
    run = one.run
    run.used = time.monotonic()
    try:
        piece = await run_in_threadpool(read_from, run.metrics_path, one.place)
    except StorageError:
        return None, False
    news = b""
    if piece.restart or (one.sample and run.curves.complete):
        news += _event("restart", {"run": run.key})
        one.sample = False
    elif piece.rows:
        news += _event("metrics", {"run": run.key, **piece.to_dict()})
    one.place = piece.next
    now = await run_in_threadpool(_count, run)
    if now != one.count:
        news += _event("trajectories", {"run": run.key, "count": now})
        one.count = now
    return news, bool(piece.rows)


def _count(run: Run) -> int:
    try:
        return run.index.total if run.has_store else 0
    except StorageError:
        return 0


def _event(name: str, data: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data, allow_nan=False)}\n\n".encode("ascii")


def csv_of(run: Run) -> Response:
    """Return all rows as CSV, piece by piece, a column for each name that the run has: an environment writes names too,
    and no spreadsheet shall compute them."""
    columns = ["step", "time", *run.curves.names(math.inf)]

    def lines() -> Iterator[bytes]:
        place = 0
        yield (",".join(_quoted(inert(name)) for name in columns) + "\r\n").encode()
        while (piece := read_from(run.metrics_path, place)).rows:
            out = io.StringIO()
            writer = csv.DictWriter(out, columns, restval="", extrasaction="ignore")
            writer.writerows(piece.rows)
            yield out.getvalue().encode("utf-8", "replace")
            place = piece.next

    headers = {"cache-control": "no-store", "content-disposition": f'attachment; filename="{run.key}-metrics.csv"'}
    return StreamingResponse(lines(), headers=headers, media_type="text/csv")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"' if set(name) & set(',"\r\n') else name
