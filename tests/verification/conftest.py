"""A judge's server for each test that asks for one; the judges that an async test made to ask it are closed with it."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.verification.scripted_judge import ScriptedJudge


@pytest_asyncio.fixture
async def server(request: pytest.FixtureRequest) -> AsyncIterator[ScriptedJudge]:
    """`SERVER` of the module that asks, else a `ScriptedJudge`."""
    with getattr(request.module, "SERVER", ScriptedJudge)() as opened:
        yield opened
        for judge in opened.judges if inspect.iscoroutinefunction(request.function) else ():
            await judge.close()
