"""Actions of the vocabulary -> what a mouse, a keyboard and an address bar do on a page."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Sequence
from urllib.parse import urlsplit

from uirl.environments.browser.marks import Mark
from uirl.environments.browser.navigation import Unopened
from uirl.environments.browser.page import Page
from uirl.environments.browser.picture import Frame
from uirl.environments.ui_actions import (
    Back,
    Click,
    ClickMark,
    Drag,
    Goto,
    Keys,
    Move,
    Scroll,
    Type,
    UIAction,
    Wait,
)


async def perform(
    page: Page, action: UIAction, frame: Frame, *, marks: Sequence[Mark] = (), origins: Collection[str] = ()
) -> str | None:
    """Carries out an action; a str where it cannot be: why not, in words for the policy.

    `marks`: those on the picture the policy saw. `origins`: where `goto` may lead. Answers, terminations and looks
    do nothing to a page. Raises EnvironmentFailure or EpisodeTimeout where the page fails.
    """
    match action:
        case Click(x, y, button, count):
            await page.click(*frame.on_page(x, y), button, count)
        case ClickMark(number, button, count):
            if number > len(marks):
                return f"there is no mark {number}; the picture has {_count(marks)}"
            await page.click(marks[number - 1].x, marks[number - 1].y, button, count)
        case Move(x, y):
            await page.move(*frame.on_page(x, y))
        case Drag(x, y, to_x, to_y):
            await page.drag(*frame.on_page(x, y), *frame.on_page(to_x, to_y))
        case Type(text):
            await page.type(text)
        case Keys(keys):
            await page.press(keys)
        case Scroll(direction, amount, x, y):
            at = None if x is None or y is None else frame.on_page(x, y)
            await page.scroll(direction, amount, at)
        case Wait(seconds):
            await asyncio.sleep(seconds)
        case Back():
            return None if await page.back() else "there is no page to go back to"
        case Goto(url):
            return await _go(page, url, origins)
    return None


def origin_of(url: str) -> str | None:
    """scheme://host[:port] of an http address, as browsers write it; None: it is no such address."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.password:
        return None
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}" + ("" if port in (None, {"http": 80, "https": 443}[parts.scheme]) else f":{port}")


async def _go(page: Page, url: str, origins: Collection[str]) -> str | None:
    if origin_of(url) not in origins:
        return f"{url:.80} is out of reach; expected an address under {' or '.join(sorted(origins)) or 'no origin'}"
    with contextlib.suppress(Unopened):  # it is seen, as after a click on a link that leads there
        await page.goto(url)
    return None


def _count(marks: Sequence[Mark]) -> str:
    return f"1 to {len(marks)}" if marks else "none"
