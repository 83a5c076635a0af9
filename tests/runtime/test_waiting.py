"""A wait that takes long is logged, and one that takes too long ends."""

from __future__ import annotations

import asyncio
import logging

import pytest

from uirl.runtime import waiting
from uirl.runtime.time_limits import TimedOut


async def test_a_wait_ends_says_so_and_passes_on_what_comes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def answer() -> int:
        await asyncio.sleep(0)
        return 7

    async def fail() -> int:
        raise ValueError("no")

    assert await waiting.wait_for("an answer", answer(), 60.0) == 7
    with pytest.raises(ValueError, match="no"):
        await waiting.wait_for("an answer", fail(), 60.0)
    assert not caplog.records
    monkeypatch.setattr(waiting, "SAY_EVERY", 0.01)
    with caplog.at_level(logging.WARNING), pytest.raises(TimedOut, match=r"waited 0\.2 s for the last bus"):
        await waiting.wait_for("the last bus", asyncio.Event().wait(), 0.2)
    assert "waiting for the last bus" in caplog.text
    await asyncio.sleep(0)
    assert len(asyncio.all_tasks()) == 1
