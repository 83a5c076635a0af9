"""Actions of the vocabulary on a page, and what can be acted on in all its frames. What is refused is told."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from uirl.environments.browser.page import DRAG_STEPS, Page, key_name
from uirl.environments.browser.picture import Viewport
from uirl.environments.browser.tab import Moved, Refused, Tab, Unopened
from uirl.environments.ui import vocabulary as ui
from uirl.environments.ui.actions import Mistake
from uirl.environments.ui.keys import MODIFIERS
from uirl.runtime.assets import read_asset
from uirl.runtime.limits import shown

if TYPE_CHECKING:
    from playwright.async_api import ElementHandle, Frame, JSHandle
    from playwright.async_api import Page as BrowserPage

MOST_THINGS = 400
MAX_FRAMES = 24
"""That are looked into; a page may have any number."""
PATIENCE = 1500
"""Milliseconds in which an element has to become ready for an action: to be drawn, enabled, still, and in front."""
GONE = "it is not on the page any more; look again"
CLICKABLE = read_asset(__file__, "clickable.js")
"""JavaScript: the elements that can be acted on, open shadow roots included, in document order, and of each its box and
a point that nothing covers (null: there is none)."""
_FRAME_PLACE = read_asset(__file__, "frame_place.js")
"""JavaScript, of a frame's element: where the frame is in the one around it, and where in that one the marks and places
of things in the frame are (null: they cannot be seen)."""
_AT = """([x, y]) => {
  let found = document.elementFromPoint(x, y);
  while (found && found.shadowRoot) {
    const inner = found.shadowRoot.elementFromPoint(x, y);
    if (!inner || inner === found) break;
    found = inner;
  }
  return found;
}"""
_PICKED = ("date", "time", "datetime-local", "month", "week", "color", "range")
"""Types of fields that are set at once, as by their own picker."""
_FIELD = """(element, value) => {
  const label = element.isContentEditable ? null : element.closest('label');
  let field = label && !element.matches('input, select, textarea, button') && label.control || element;
  while (field.parentElement && field.isContentEditable && field.parentElement.isContentEditable)
    field = field.parentElement;
  if (!/^(PICKED)$/.test(field.type)) return [field, value, field.type || ''];
  const trial = field.cloneNode();
  trial.value = value;
  return [field, trial.value || !value ? trial.value : null, field.type];
}""".replace("PICKED", "|".join(_PICKED))
"""JavaScript: the field that an element stands for, what it makes of a value (null: nothing), and its type."""
_FOCUS = """async field => {
  field.focus();
  await new Promise(done => setTimeout(done, 20));
  return field.getRootNode().activeElement === field;
}"""
_OPTIONS = """(element, wanted) => {
  const label = element.closest('label'), text = o => (o.label || o.textContent).trim();
  const list = element.closest('select') || !element.matches('input') && label && label.control || element;
  const options = [...list.localName === 'select' ? list.options : list.list ? list.list.options : []];
  const chosen = wanted.map(word => {
    const found = options.find(o => o.value === word) || options.find(o => text(o) === word.trim());
    return found && !found.disabled && !found.closest('optgroup[disabled]') ? options.indexOf(found) : null;
  });
  return [list, options.map(o => o.value), options.slice(0, 20).map(text), chosen, list.localName, !!list.multiple];
}"""
"""JavaScript: the list that an element stands for, the values and texts of its options, which of these are wanted, by
value or else by text (null: there is none, or it is disabled), its tag, and whether it takes several."""
_REFUSALS = {
    r"(<.+?) intercepts pointer events": "it is covered by {}",
    r"element is not (?:visible|connected)|not attached|no longer attached": "it is not drawn on the page",
    r"element is not enabled": "it is disabled",
    r"element is not editable": "it can only be read",
    r"element is not stable": "it does not keep still",
    r"element is inert": "it is inert: its part of the page takes no input",
    r"option being selected is not enabled": "the option is disabled",
    r"outside of the viewport": "it cannot be scrolled into view",
}
"""What Playwright says while it waits for an element -> what the policy is told."""
Place = Callable[[float, float], tuple[float, float]]
"""From pixels of the picture to CSS pixels of the window."""


@dataclass(frozen=True, slots=True)
class Thing:
    """One element that can be acted on, by its place in a list or by its name in the accessibility tree."""

    box: tuple[float, float, float, float] = (0, 0, 0, 0)
    """Left, top, right, bottom, in CSS pixels of its frame."""
    frame: Frame | None = None
    list: JSHandle | None = None
    index: int = 0
    ref: str = ""
    role: str = ""
    """That of its kind; empty: it is anything that can be clicked."""
    words: str = ""
    loose: bool = False
    """Its own box is empty, and what is in it is seen: it is pressed by its place."""
    free: tuple[float, float] | None = None
    """A point of it that nothing covers, in its frame."""
    position: Any = None
    """The same within its box, as Playwright writes it; None: its middle, or it is elsewhere, as in a label."""
    mark: tuple[float, float, float, float] | None = None
    """Where it is in the window; None: it cannot be seen there."""
    place: tuple[float, float] | None = None
    """`free`, in the window."""

    async def element(self, page: BrowserPage) -> ElementHandle:
        """Return the browser's handle of it."""
        if self.list is None:
            return await page.locator(f"aria-ref={self.ref}").element_handle(timeout=PATIENCE)
        found: Any = await self.list.evaluate_handle("(held, n) => held.elements[n]", self.index)
        return found.as_element()

    async def pressed_at(self) -> tuple[float, float] | None:
        """Return where it can be pressed in the window, as a person would see it now; None: something covers it."""
        found: Any = self.list and await self.list.evaluate("(held, n) => held.place(n)", self.index)
        if found is None:
            return None
        (x, y), (left, top) = (self.place, self.free) if self.place and self.free else ((0, 0), (0, 0))
        return found[0] + x - left, found[1] + y - top


async def find_things(tab: Tab) -> list[Thing]:
    """Return what can be acted on: the page's own elements in their order, then those of its frames."""
    found = await tab.of_one_document(lambda: _things_of(tab.page.main_frame, [0]), "its elements")
    return found[:MOST_THINGS]


async def _things_of(frame: Frame, searched: list[int]) -> list[Thing]:
    from playwright.async_api import Error

    held = await frame.evaluate_handle(CLICKABLE)
    things = []
    for index, found in enumerate(json.loads(await held.evaluate("held => held.found"))):
        things.append(Thing(frame=frame, list=held, index=index, **found))
    for inner in frame.child_frames:
        if searched[0] >= MAX_FRAMES:
            break
        searched[0] += 1
        try:
            within = await _things_of(inner, searched)
            seen = [[thing.mark, thing.place] for thing in within]
            around = await (await inner.frame_element()).evaluate(_FRAME_PLACE, seen)
        except Error as error:  # it has gone, or is no document of elements
            if "closed" in error.message or "crashed" in error.message:
                raise
            continue
        lifted = zip(within, around["lifted"], strict=True)
        things += [replace(thing, mark=mark, place=place) for thing, (mark, place) in lifted]
    return things


async def perform(
    page: Page, action: ui.UIAction, viewport: Viewport, *, marks: Sequence[Thing] = (), origins: Collection[str] = ()
) -> str | None:
    """Carry out an action; return a str where that is impossible: why, in words for the policy.

    `marks`: what the numbers name that the policy saw, from 1. `origins`: where `goto` may lead. Answers, terminations
    and looks do nothing to a page. Raises EnvironmentFailure or EpisodeTimeout where the page fails.
    """
    if page.shown.dialog is not None:
        return await _answer(page.shown, action)
    try:
        return await _perform(page, action, viewport.on_page, marks, origins)
    except Mistake as mistake:
        return str(mistake)


async def _perform(
    page: Page, action: ui.UIAction, at: Place, marks: Sequence[Thing], origins: Collection[str]
) -> str | None:
    match action:
        case ui.Click(x, y, button, count, held):
            await page.click(*at(x, y), button, count, held)
        case ui.Move(x, y):
            await page.move(*at(x, y))
        case ui.MouseButton(x, y, button, down):
            await page.mouse_button(button, down, None if x is None or y is None else at(x, y))
        case ui.Drag(x, y, to_x, to_y):
            await page.drag(*at(x, y), *at(to_x, to_y))
        case ui.Scroll(direction, amount, x, y):
            await page.scroll(direction, amount, None if x is None or y is None else at(x, y))
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
        case ui.Back() | ui.Forward():
            return await page.travel(-1 if isinstance(action, ui.Back) else 1)
        case ui.Goto(url):
            if origin_of(url) not in origins:
                reach = " or ".join(sorted(origins)) or "no origin"
                return f"{url:.80} is out of reach; expected an address under {reach}"
            with contextlib.suppress(Unopened):  # it is seen, as after a click on a link that leads there
                await page.goto(url)
        case ui.NewTab():
            return await page.new_tab()
        case ui.SwitchTab(number):
            return await page.switch_tab(number)
        case ui.CloseTab():
            return await page.close_tab()
        case ui.AnswerDialog():
            return "no dialog is open"
        case ui.Upload(x, y, mark, names):
            # a click where a place is given, then the files for the chooser that is open
            if mark is not None and (problem := await _on_element(page, ui.ClickMark(mark), at, marks)) is not None:
                return problem
            if x is not None and y is not None:
                await page.click(*at(x, y))
            await page.settle(drawn=True)
            return await page.files.choose(names)
        case ui.ClickMark() | ui.MoveToMark() | ui.DragMark() | ui.OnElement():
            return await _on_element(page, action, at, marks)
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


async def _answer(tab: Tab, action: ui.UIAction) -> str | None:
    """Answer the open dialog as the action says; return a str where nothing was done."""
    match action:
        case ui.AnswerDialog(choice, text):
            await tab.answer(choice == "ok", tab.typed if text is None else text)
        case ui.Keys(("enter",)):
            await tab.answer(True, tab.typed)
        case ui.Keys(("escape",)) | ui.Answer() | ui.Terminate():
            await tab.answer(False)
        case ui.Type(text) if tab.dialog is not None and tab.dialog.type == "prompt":
            tab.typed = (tab.typed or "") + text
            return f"{shown(tab.typed, 60)} stands in the dialog"
        case ui.Wait(seconds):
            await asyncio.sleep(seconds)
        case ui.LookAgain():
            pass
        case _:
            return f"a dialog is open, so {action.name} did nothing"
    return None


async def _on_element(page: Page, action: Any, at: Place, marks: Sequence[Thing]) -> str | None:
    """Carry out an action on one or two elements; return a str where it, or Playwright, refuses: why."""
    await page.settle()
    tab, held = page.shown, page.held
    try:
        problem = await tab.run(lambda: _act(tab.page, action, at, marks, held), "an action on an element")
    except Moved:  # by what it did
        return None
    except Refused as error:
        problem = _in_words(error.reason.splitlines())
    pointed = isinstance(action, (ui.ClickMark, ui.MoveToMark))
    return f"mark {action.mark}: {problem}" if pointed and problem is not None else problem


def _in_words(reason: Sequence[str]) -> str:
    for line in reversed(reason):
        for pattern, words in _REFUSALS.items():
            seen = re.search(pattern, line)
            if seen is not None:
                return words.format(*(shown(group, 100) for group in seen.groups()))
    first = reason[0].split("Error: ", 1)[-1].split(": ", 1)[-1]
    log = [line.strip(" -") for line in reason if line.strip().startswith("-")]
    return log[-1] if log and "Timeout" in first else first


async def _act(page: BrowserPage, action: Any, at: Place, marks: Sequence[Thing], held: Sequence[str]) -> str | None:
    match action:
        case ui.ClickMark(number, button, count, more):
            thing, how = _named(marks, number), {"button": button, "click_count": count}
            keys = [key_name(key) for key in dict.fromkeys((*held, *more)) if key in MODIFIERS]
            timed: Any = {**how, "timeout": PATIENCE, **({"modifiers": keys} if keys else {})}
            await _point(page, thing, lambda element: element.click(position=thing.position, **timed), how)
        case ui.MoveToMark(number):
            thing = _named(marks, number)
            await _point(page, thing, lambda element: element.hover(position=thing.position, timeout=PATIENCE), None)
        case ui.DragMark(number, other):
            await _drag(page, _named(marks, number), _named(marks, other))
        case ui.OnElement(x, y, mark):
            if mark is not None:
                element: ElementHandle | None = await _named(marks, mark).element(page)
            else:
                element = await _element_at(page, *at(x or 0, y or 0))
            if element is None:
                return GONE
            if isinstance(action, ui.Select):
                return await _select(element, action.options)
            return await _fill(element, action.value if isinstance(action, ui.Fill) else None)
    return None


def _named(marks: Sequence[Thing], number: int) -> Thing:
    """Return what carries that number. Raises Mistake where nothing does."""
    if number > len(marks):
        raise Mistake(f"there is no mark {number}; the picture has {f'1 to {len(marks)}' if marks else 'none'}")
    return marks[number - 1]


async def _element_at(page: BrowserPage, x: float, y: float) -> ElementHandle | None:
    """Return the innermost element at a place of the window (CSS pixels), in whichever frame; None: there is none."""
    frame, place = page.main_frame, (x, y)
    while True:
        found: Any = (await frame.evaluate_handle(_AT, [x, y])).as_element()
        inner = None if found is None else await found.content_frame()
        if inner is None:
            return found
        box = await found.evaluate(_FRAME_PLACE, [])
        if box["turned"]:  # the browser alone knows what is there
            await page.mouse.move(*place)
            return (await inner.evaluate_handle("[...document.querySelectorAll(':hover')].pop()")).as_element()
        x, y = (x - box["left"]) / box["across"], (y - box["top"]) / box["down"]
        frame = inner


async def _point(page: BrowserPage, thing: Thing, do: Callable[[ElementHandle], Awaitable[None]], presses: Any) -> None:
    """Point at an element: as Playwright does, or where it has no place of its own or does not keep still, by sight.

    `presses`: arguments of a click by sight; None: the pointer is moved there.
    """
    from playwright.async_api import Error

    refused = Error("element is not visible")
    if not thing.loose:
        try:
            return await do(await thing.element(page))
        except Error as error:
            if "not stable" not in error.message and "intercepts pointer events" not in error.message:
                raise
            refused = error
    place = await thing.pressed_at()
    if place is None:
        raise refused
    await (page.mouse.move(*place) if presses is None else page.mouse.click(*place, **presses))


async def _drag(page: BrowserPage, thing: Thing, to: Thing) -> None:
    """Press the left button on the first and release it on the second."""
    first, second = await thing.element(page), await to.element(page)
    # both are tried before anything is pressed
    await second.hover(position=to.position, trial=True, timeout=PATIENCE)
    await first.hover(position=thing.position, timeout=PATIENCE)
    x, y = await _place_of(first, thing)
    await page.mouse.down()
    await page.mouse.move(x + 4, y + 4, steps=2)  # else a scroll ends it
    await second.scroll_into_view_if_needed(timeout=PATIENCE)
    await page.mouse.move(*await _place_of(second, to), steps=DRAG_STEPS)
    await page.mouse.up()


async def _place_of(element: ElementHandle, thing: Thing) -> tuple[float, float]:
    box = await element.bounding_box() or {"x": 0, "y": 0, "width": 0, "height": 0}
    at = thing.position or {"x": box["width"] / 2, "y": box["height"] / 2}
    return box["x"] + at["x"], box["y"] + at["y"]


async def _parts(element: ElementHandle, script: str, *argument: Any) -> tuple[Any, list[Any]]:
    """Return the element that a script gives first, and the JSON values that follow it."""
    found = await element.evaluate_handle(script, *argument)
    return (await found.get_property("0")).as_element(), await found.evaluate("found => found.slice(1)")


async def _fill(element: ElementHandle, value: str | None) -> str | None:
    """Replace what a field holds (None: only give it the focus); return a str where it does not take it: why."""
    field, (wanted, kind) = await _parts(element, _FIELD, value or "")
    if value is None:
        await field.scroll_into_view_if_needed(timeout=PATIENCE)
    elif wanted is None:
        return f"a field of the type {kind} does not take {value[:40]}"
    elif kind in _PICKED or not await field.is_visible() or not await field.is_enabled():
        await field.fill(wanted, timeout=PATIENCE)  # what is disabled or can only be read Playwright tells of
        return None
    if not await field.evaluate(_FOCUS):  # it hands it on, and a text would go elsewhere
        return "it does not take the keyboard"
    if value is not None:
        await field.fill(wanted, timeout=PATIENCE)
    return None


async def _select(element: ElementHandle, wanted: Sequence[str]) -> str | None:
    """Choose these options of a list, by value or text, and no others; return a str where that is impossible."""
    held, (values, texts, chosen, name, several) = await _parts(element, _OPTIONS, list(wanted))
    if not values:
        return f"<{name}> has no options"
    if None in chosen:
        return f"there is no option {wanted[chosen.index(None)][:40]}; expected of {', '.join(texts)}"
    if len(wanted) != 1 and not several:
        return "the list takes one option" + (", and none was named" if not wanted else "")
    if name == "select":
        await held.select_option(index=chosen, timeout=PATIENCE)
    else:
        await held.fill(values[chosen[0]], timeout=PATIENCE)
    return None
