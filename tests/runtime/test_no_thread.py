"""Where the system has no thread left, what needs one says so, and works once there is one again."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable

import pytest

from tests.patience import PATIENCE
from uirl.runtime.patience import Patience
from uirl.runtime.time_limits import Worker
from uirl.training.record.progress import Activity, _Watch

ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"


def worker() -> Callable[[], None]:
    made = Worker("w")

    def use() -> None:
        try:
            assert asyncio.run(made.run(lambda: 7, PATIENCE)) == 7
        finally:
            assert not made.busy

    return use


def patience() -> Callable[[], None]:
    made = Patience(0.2)

    def use() -> None:
        connection = sqlite3.connect(":memory:")
        with pytest.raises(sqlite3.OperationalError, match="interrupted"), made.watch(connection):
            connection.execute(ENDLESS)
        assert not made._reading

    return use


def progress() -> Callable[[], None]:
    made = _Watch()

    def use() -> None:
        activity = Activity("work", None)
        made.begin(activity)
        made.end(activity)
        assert not made.activities

    return use


@pytest.mark.parametrize("make", [worker, patience, progress])
def test_a_thread_that_could_not_begin_is_begun_by_the_next_call(
    make: Callable[[], Callable[[], None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    use = make()

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            use()
    use()
