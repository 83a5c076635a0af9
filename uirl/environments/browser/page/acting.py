"""Actions of the vocabulary -> what a mouse, a keyboard and an address bar do on a page."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from uirl.environments.browser.page import elements
from uirl.environments.browser.page.dialogs import Dialog
from uirl.environments.browser.page.elements import Thing
from uirl.environments.browser.page.page import Page
from uirl.environments.browser.page.problems import Unopened
from uirl.environments.browser.page.tab import Tab
from uirl.environments.browser.page.viewport import Viewport
from uirl.environments.ui import vocabulary as ui
from uirl.environments.ui.arguments import Mistake
from uirl.runtime.limits import shown

if TYPE_CHECKING:
    from playwright.async_api import ElementHandle
    from playwright.async_api import Page as BrowserPage


async def perform(
    page: Page,
    action: ui.UIAction,
    viewport: Viewport,
    *,
    marks: Sequence[Thing] = (),
    origins: Collection[str] = (),
) -> str | None:
    """Carry out an action; return a str where that is impossible: why, in words for the policy.

    `marks`: what the numbers name that the policy saw, from 1. `origins`: where `goto` may lead. Answers, terminations
    and looks do nothing to a page. Raises EnvironmentFailure or EpisodeTimeout where the page fails.
    """
    if page.tabs.shown.dialog is not None:
        return await _answer(page.tabs.shown, page.tabs.shown.dialog, action)
    try:
        return await _perform(page, action, viewport, marks, origins)
    except Mistake as mistake:
        return str(mistake)


async def _perform(
    page: Page, action: ui.UIAction, viewport: Viewport, marks: Sequence[Thing], origins: Collection[str]
) -> str | None:
    match action:
        case ui.Click(x, y, button, count, held):
            await page.click(*viewport.on_page(x, y), button, count, held)
        case ui.ClickMark(number, button, count, held):
            named, keys = _named(marks, number), tuple(dict.fromkeys((*page.held, *held)))
            return _of_mark(number, await elements.click(page.tabs.shown, named, button, count, keys))
        case ui.Move(x, y):
            await page.move(*viewport.on_page(x, y))
        case ui.MoveToMark(number):
            return _of_mark(number, await elements.hover(page.tabs.shown, _named(marks, number)))
        case ui.MouseButton(x, y, button, down):
            await page.mouse_button(*viewport.on_page(x, y), button, down)
        case ui.Drag(x, y, to_x, to_y):
            await page.drag(*viewport.on_page(x, y), *viewport.on_page(to_x, to_y))
        case ui.DragMark(number, other):
            first, second = _named(marks, number), _named(marks, other)
            return await elements.drag(page.tabs.shown, first, second)
        case ui.Upload():
            return await _upload(page, action, viewport, marks)
        case ui.OnElement():
            return await _on_element(page, action, viewport, marks)
        case ui.Scroll(direction, amount, x, y):
            at = None if x is None or y is None else viewport.on_page(x, y)
            await page.scroll(direction, amount, at)
        case _:
            return await _other(page, action, origins)
    return None


async def _other(page: Page, action: ui.UIAction, origins: Collection[str]) -> str | None:
    """Carry out an action that has no position: keys, and the browser around the page."""
    match action:
        case ui.Type(text):
            await page.type(text)
        case ui.Insert(text):
            await page.insert(text)
        case ui.Keys(keys):
            await page.press(keys)
        case ui.HoldKey(key, down):
            await page.hold_key(key, down)
        case ui.Wait(seconds):
            await asyncio.sleep(seconds)
        case ui.Back():
            return await page.back()
        case ui.Forward():
            return await page.forward()
        case ui.Goto(url):
            return await _go(page, url, origins)
        case ui.NewTab():
            return await page.tabs.new()
        case ui.SwitchTab(number):
            return await page.tabs.switch(number)
        case ui.CloseTab():
            return await page.tabs.close()
        case ui.AnswerDialog():
            return "no dialog is open"
    return None


def origin_of(url: str) -> str | None:
    """Return scheme://host[:port] of an http address, as browsers write it; None: it is no such address."""
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


async def _answer(tab: Tab, dialog: Dialog, action: ui.UIAction) -> str | None:
    """Answer the open dialog as the action says; return a str where nothing was done."""
    match action:
        case ui.AnswerDialog(choice, text):
            await tab.answer(choice == "ok", dialog.typed if text is None else text)
        case ui.Keys(("enter",)):
            await tab.answer(True, dialog.typed)
        case ui.Keys(("escape",)) | ui.Answer() | ui.Terminate():
            await tab.answer(False)
        case ui.Type(text) if dialog.kind == "prompt":
            dialog.typed = (dialog.typed or "") + text
            return f"{shown(dialog.typed, 60)} stands in the dialog"
        case ui.Wait(seconds):
            await asyncio.sleep(seconds)
        case ui.LookAgain():
            pass
        case _:
            return f"a dialog is open, so {action.name} did nothing"
    return None


async def _upload(page: Page, action: ui.Upload, viewport: Viewport, marks: Sequence[Thing]) -> str | None:
    """Click where a place is given, then give the files to the chooser that is open."""
    if action.mark is not None:
        problem = await elements.click(page.tabs.shown, _named(marks, action.mark), "left", 1, ())
        if problem is not None:
            return problem
    elif action.x is not None and action.y is not None:
        await page.click(*viewport.on_page(action.x, action.y))
    await page.settle(drawn=True)
    return await page.files.choose(action.files)


async def _on_element(page: Page, action: ui.OnElement, viewport: Viewport, marks: Sequence[Thing]) -> str | None:
    """Carry out an action on one element, whatever is in front of it."""
    tab = page.tabs.shown
    if action.mark is not None:
        find: elements.Find = _named(marks, action.mark).element
    elif action.x is not None and action.y is not None:
        x, y = viewport.on_page(action.x, action.y)

        async def find(page: BrowserPage) -> ElementHandle | None:
            return await elements.element_at(page, x, y)

    else:
        return elements.GONE
    match action:
        case ui.Focus():
            return await elements.focus(tab, find)
        case ui.Select(options=options):
            return await elements.select(tab, find, options)
        case ui.Fill(value=value):
            return await elements.fill(tab, find, value)
    return None


def _of_mark(number: int, problem: str | None) -> str | None:
    return None if problem is None else f"mark {number}: {problem}"


def _named(marks: Sequence[Thing], number: int) -> Thing:
    """Return what carries that number. Raises Mistake where nothing does."""
    if number > len(marks):
        raise Mistake(f"there is no mark {number}; the picture has {f'1 to {len(marks)}' if marks else 'none'}")
    return marks[number - 1]
