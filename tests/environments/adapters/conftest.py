"""The pages of a file share an event loop on a thread, and with it a driver and a browser."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from uirl.environments.adapters import calls
from uirl.runtime.event_loop import EventLoopThread


class KeptThread(EventLoopThread):
    """Goes on when an adapter is closed or dropped."""

    def close(self) -> None:
        pass

    def close_after(self, coroutine: Coroutine[Any, Any, object]) -> None:
        if self._thread.is_alive():
            self.submit(coroutine)
        else:
            coroutine.close()


@pytest.fixture(scope="module")
def kept_thread() -> Iterator[KeptThread]:
    thread = KeptThread()
    yield thread
    EventLoopThread.close(thread)


@pytest.fixture
def one_browser(kept_thread: KeptThread, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every adapter of the test plays on that thread."""
    monkeypatch.setattr(calls, "EventLoopThread", lambda: kept_thread)
