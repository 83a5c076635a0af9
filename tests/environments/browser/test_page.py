"""Pages in the real browser: what is seen, what is clicked, and that nothing hangs for ever."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from uirl.environments.browser.process import Chromium
from uirl.environments.browser.tab import Moved
from uirl.errors import EnvironmentFailure

RED_TURNS_GREEN = """<!doctype html><body style="margin:0;background:rgb(255,0,0)">
<script>
  document.addEventListener('click', () => document.body.style.background = 'rgb(0,255,0)');
</script></body>"""


@pytest.fixture
def web_page(tmp_path: Path) -> str:
    path = tmp_path / "page.html"
    path.write_text(RED_TURNS_GREEN)
    return path.as_uri()


def colour_at(png: bytes, x: int, y: int) -> tuple[int, ...]:
    return Image.open(io.BytesIO(png)).convert("RGB").getpixel((x, y))  # type: ignore[return-value]


async def test_a_screenshot_has_the_size_of_the_page_and_shows_what_the_click_did(web_page: str) -> None:
    page = await Chromium.shared().new_page(90, 70)
    await page.goto(web_page)
    before = await page.screenshot()
    assert Image.open(io.BytesIO(before)).size == (90, 70)
    assert colour_at(before, 5, 5) == (255, 0, 0)
    for _ in range(5):  # every time, not by luck of a frame
        await page.evaluate("document.body.style.background = 'rgb(0,0,255)'")
        assert colour_at(await page.screenshot(), 5, 5) == (0, 0, 255)
        await page.click(40, 40)
        assert colour_at(await page.screenshot(), 5, 5) == (0, 255, 0)
    assert Image.open(io.BytesIO(await page.screenshot(format="jpeg"))).format == "JPEG"


async def test_a_page_that_leaves_while_its_picture_is_taken_is_seen_where_it_went(web_page: str) -> None:
    page = await Chromium.shared().new_page(160, 210)
    for _ in range(10):
        await page.goto(web_page)
        # nobody tells what was asked for of a document that is gone
        picture, _ = await asyncio.gather(
            page.screenshot(), page.first.session.send("Page.navigate", {"url": f"{web_page}?there"})
        )
        assert colour_at(picture, 5, 5) == (255, 0, 0)
        await page.settle(drawn=True)
        assert await page.evaluate("location.search") == "?there"


async def test_a_picture_that_is_refused_before_the_page_has_left_is_taken_of_the_next_one(web_page: str) -> None:
    page = await Chromium.shared().new_page(160, 210)
    await page.goto(web_page)
    run, send, refused = page.first.run, page.first.session.send, []

    async def late(call: Any, what: str, **options: Any) -> Any:
        shown = await send("Runtime.evaluate", {"expression": "location.search"})
        if what != "its picture" or shown["result"]["value"] == "?there":
            return await run(call, what, **options)
        if not refused:
            leaving = send("Page.navigate", {"url": f"{web_page}?there"})
            asyncio.get_running_loop().call_later(0.2, asyncio.ensure_future, leaving)
        refused.append(what)
        raise Moved("Page.captureScreenshot: Unable to capture screenshot")

    page.first.run = late  # type: ignore[method-assign]
    assert colour_at(await page.screenshot(), 5, 5) == (255, 0, 0)
    assert len(refused) == 1


async def test_a_page_that_never_stays_is_a_failure(web_page: str) -> None:
    page = await Chromium.shared().new_page(160, 210)
    await page.goto(web_page)
    pictures = iter(range(9))

    async def leave(*_: object, **__: object) -> None:
        next(pictures)
        raise Moved("Page.captureScreenshot: Inspected target navigated or closed")

    page.first.run = leave  # type: ignore[method-assign, assignment]
    with pytest.raises(EnvironmentFailure, match="went elsewhere three times during its picture"):
        await page.screenshot()
    assert next(pictures) == 3


async def test_a_call_that_is_cut_off_breaks_the_page(web_page: str) -> None:
    page = await Chromium.shared().new_page(100, 100)
    await page.goto(web_page)
    waiting = asyncio.create_task(page.evaluate("new Promise(() => {})"))
    await asyncio.sleep(0.05)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    with pytest.raises(EnvironmentFailure, match="CancelledError"):
        await page.screenshot()
    await page.close()
    await page.close()
