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
    AnswerDialog,
    Back,
    Click,
    ClickMark,
    CloseTab,
    Drag,
    DragMark,
    Forward,
    Goto,
    HoldKey,
    Insert,
    Keys,
    MouseButton,
    Move,
    MoveToMark,
    NewTab,
    OnElement,
    Scroll,
    SwitchTab,
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
        case Click(x, y, button, count, held):
            await page.click(*frame.on_page(x, y), button, count, held)
        case ClickMark(number, button, count, held):
            mark = _mark(marks, number)
            if isinstance(mark, str):
                return mark
            await page.click(mark.x, mark.y, button, count, held)
        case Move(x, y):
            await page.move(*frame.on_page(x, y))
        case MoveToMark(number):
            mark = _mark(marks, number)
            if isinstance(mark, str):
                return mark
            await page.move(mark.x, mark.y)
        case MouseButton(x, y, button, down):
            await page.mouse_button(*frame.on_page(x, y), button, down)
        case Drag(x, y, to_x, to_y):
            await page.drag(*frame.on_page(x, y), *frame.on_page(to_x, to_y))
        case DragMark(number, other):
            start, end = _mark(marks, number), _mark(marks, other)
            if isinstance(start, str) or isinstance(end, str):
                return start if isinstance(start, str) else str(end)
            await page.drag(start.x, start.y, end.x, end.y)
        case Scroll(direction, amount, x, y):
            at = None if x is None or y is None else frame.on_page(x, y)
            await page.scroll(direction, amount, at)
        case _:
            return await _other(page, action, origins)
    return None


async def _other(page: Page, action: UIAction, origins: Collection[str]) -> str | None:
    """What has no place: keys, and the browser around the page."""
    match action:
        case Type(text):
            await page.type(text)
        case Insert(text):
            await page.insert(text)
        case Keys(keys):
            await page.press(keys)
        case HoldKey(key, down):
            await page.hold_key(key, down)
        case Wait(seconds):
            await asyncio.sleep(seconds)
        case Back():
            return await page.back()
        case Forward():
            return await page.forward()
        case Goto(url):
            return await _go(page, url, origins)
        case NewTab():
            return await page.tabs.new()
        case SwitchTab(number):
            return await page.tabs.switch(number)
        case CloseTab():
            return await page.tabs.close()
        case OnElement() | AnswerDialog():
            return f"{action.name} is not possible here"
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


def _mark(marks: Sequence[Mark], number: int) -> Mark | str:
    if number <= len(marks):
        return marks[number - 1]
    return f"there is no mark {number}; the picture has {f'1 to {len(marks)}' if marks else 'none'}"
