"""A value that several ask for at the same time."""

from __future__ import annotations

import asyncio

from uirl.errors import EngineFailure
from uirl.runtime.once import Once


async def test_once_is_made_once_and_fails_for_all_who_wait() -> None:
    made = 0

    async def make() -> int:
        nonlocal made
        made += 1
        await asyncio.sleep(0.01)
        if made == 1:
            raise EngineFailure("not yet")
        return 7

    once = Once(make)
    first = await asyncio.gather(*[once.get() for _ in range(5)], return_exceptions=True)
    assert [type(e) for e in first] == [EngineFailure] * 5
    given_up = asyncio.ensure_future(once.get())
    others = [asyncio.ensure_future(once.get()) for _ in range(3)]
    await asyncio.sleep(0)
    given_up.cancel()
    assert await asyncio.gather(*others) == [7, 7, 7]
    assert await once.get() == 7
    assert made == 2
