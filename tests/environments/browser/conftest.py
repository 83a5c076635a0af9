"""The tests of a file share an event loop, and with it Playwright's driver and a browser, while it is as it began."""

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
            item.add_marker(pytest.mark.asyncio(loop_scope="module"), append=False)


@pytest_asyncio.fixture(loop_scope="module", autouse=True)
async def nothing_is_left() -> AsyncIterator[None]:
    """Closes what a test left open. A browser of other flags, replaced or changed, is not left to the next one."""
    yield
    for key, browser in list(process._shared.items()):
        if key[0] is asyncio.get_running_loop():
            for page in list(browser._pages):
                await page.close()
            if (browser.starts, browser.timeout, browser.allowed, browser.scale) != (1, Chromium().timeout, (), 1.0):
                await browser.close()
                del process._shared[key]
