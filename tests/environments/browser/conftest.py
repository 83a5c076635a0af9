"""The tests of this folder share an event loop, and with it a driver and a browser, while it is as it began."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from uirl.environments.browser import process
from uirl.environments.browser.process import Chromium


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and pytest_asyncio.is_async_test(item):
            item.add_marker(pytest.mark.asyncio(loop_scope="package"), append=False)


@pytest_asyncio.fixture(loop_scope="package")
async def one_browser(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a plain test runs with `asyncio.run` is run on this loop, with its browser."""
    monkeypatch.setattr(asyncio, "run", asyncio.get_running_loop().run_until_complete)


@pytest_asyncio.fixture(loop_scope="package", autouse=True)
async def nothing_is_left() -> AsyncIterator[None]:
    """Closes what a test left open. A browser of other flags, replaced or changed, is not left to the next one."""
    yield
    shared = process._driver().browsers
    for key, browser in list(shared.items()):
        for page in list(browser._pages):
            await page.close()
        browser.timeout = Chromium().timeout
        if (browser.starts, browser.allowed, browser.scale) != (1, (), 1.0):
            await browser.close()
            del shared[key]
