"""What can be acted on in a tab, in all its frames, and the actions on one such element. What it refuses is told."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from uirl.environments.browser.page.page import DRAG_STEPS, Button, key_name
from uirl.environments.browser.page.problems import Moved, Refused
from uirl.environments.browser.page.tab import Tab
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
CLICKABLE = read_asset(__package__, "clickable.js")
"""JavaScript: the elements that can be acted on, open shadow roots included, in document order, and of each its box and
a point that nothing covers (null: there is none)."""
_FRAME_PLACE = read_asset(__package__, "frame_place.js")
"""JavaScript, of a frame's element: where the frame is in the one around it, and which of its points can be seen."""
_AT = """([x, y]) => {
  let found = document.elementFromPoint(x, y);
  while (found && found.shadowRoot) {
    const inner = found.shadowRoot.elementFromPoint(x, y);
    if (!inner || inner === found) break;
    found = inner;
  }
  return found;
}"""
_FIELD = """(element, value) => {
  const label = element.isContentEditable ? null : element.closest('label');
  let field = label && !element.matches('input, select, textarea, button') && label.control || element;
  while (field.parentElement && field.isContentEditable && field.parentElement.isContentEditable)
    field = field.parentElement;
  if (/^(date|time|datetime-local|month|week|color|range)$/.test(field.type)) {
    const trial = field.cloneNode();
    trial.value = value;
    return [field, trial.value || !value ? trial.value : null, field.type];
  }
  return [field, value, field.type || ''];
}"""
"""JavaScript: the field that an element stands for, what it makes of a value (null: nothing), and its type."""
_PICKED = frozenset({"date", "time", "datetime-local", "month", "week", "color", "range"})
"""Types of fields that are set at once, as by their own picker."""
_FOCUS = """async field => {
  field.focus();
  await new Promise(done => setTimeout(done, 20));
  return field.getRootNode().activeElement === field;
}"""
_OPTIONS = """element => {
  const label = element.closest('label');
  let list = element.closest('select') || !element.matches('input') && label && label.control || element;
  const options = list.localName === 'select' ? list.options : list.list ? list.list.options : [];
  return [list, [...options].map(o => [o.value, (o.label || o.textContent).trim(),
                                     o.disabled || !!o.closest('optgroup[disabled]')]), list.localName,
          !!list.multiple];
}"""
_REFUSALS = (
    (re.compile(r"(<.+?) intercepts pointer events"), "it is covered by {}"),
    (
        re.compile(r"element is not (?:visible|connected)|not attached|no longer attached"),
        "it is not drawn on the page",
    ),
    (re.compile(r"element is not enabled"), "it is disabled"),
    (re.compile(r"element is not editable"), "it can only be read"),
    (re.compile(r"element is not stable"), "it does not keep still"),
    (re.compile(r"element is inert"), "it is inert: its part of the page takes no input"),
    (re.compile(r"option being selected is not enabled"), "the option is disabled"),
    (re.compile(r"outside of the viewport"), "it cannot be scrolled into view"),
)
"""What Playwright says while it waits for an element -> what the policy is told."""


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
    mark: tuple[float, float, float, float] | None = None
    """Where it is in the window; None: it cannot be seen there."""
    place: tuple[float, float] | None = None
    """`free`, in the window."""

    async def element(self, page: BrowserPage) -> ElementHandle:
        """Return the browser's handle of it."""
        if self.list is None:
            found: Any = await page.locator(f"aria-ref={self.ref}").element_handle(timeout=PATIENCE)
        else:
            held = await self.list.evaluate_handle("(held, index) => held.elements[index]", self.index)
            found = held.as_element()
        return found

    @property
    def position(self) -> Any:
        """The free point within the element; None: its middle, or it is elsewhere, as in a label."""
        if self.free is None:
            return None
        x, y = self.free
        inside = self.box[0] <= x <= self.box[2] and self.box[1] <= y <= self.box[3]
        return {"x": x - self.box[0], "y": y - self.box[1]} if inside else None

    async def pressed_at(self) -> tuple[float, float] | None:
        """Return where it can be pressed in the window, as a person would see it now; None: something covers it."""
        if self.list is None:
            return None
        found = await self.list.evaluate("(held, index) => held.place(index)", self.index)
        if found is None:
            return None
        across, down = (0.0, 0.0)
        if self.free is not None and self.place is not None:  # of its frame
            across, down = self.place[0] - self.free[0], self.place[1] - self.free[1]
        return found[0] + across, found[1] + down


async def find_things(tab: Tab) -> list[Thing]:
    """Return what can be acted on: the page's own elements in their order, then those of its frames."""

    async def find() -> list[Thing]:
        return await _things_of(tab.page.main_frame, [0])

    return (await tab.of_one_document(find, "its elements"))[:MOST_THINGS]


async def _things_of(frame: Frame, searched: list[int]) -> list[Thing]:
    from playwright.async_api import Error

    held = await frame.evaluate_handle(CLICKABLE)
    rows = json.loads(await (await held.get_property("found")).json_value())
    things = [
        Thing(tuple(box), frame, held, index, "", role, words, bool(seen), free and tuple(free), _visible(seen or box))
        for index, (box, free, role, seen, words) in enumerate(rows)
    ]
    things = [replace(thing, mark=thing.mark if thing.free else None, place=thing.free) for thing in things]
    for inner in frame.child_frames:
        if searched[0] >= MAX_FRAMES:
            break
        searched[0] += 1
        try:
            found = await _things_of(inner, searched)
            box = await (await inner.frame_element()).evaluate(_FRAME_PLACE, [thing.place for thing in found])
        except Error as error:  # it has gone, or is no document of elements
            if "closed" in error.message or "crashed" in error.message:
                raise
            continue
        things += [_lifted(thing, box, seen) for thing, seen in zip(found, box["seen"], strict=True)]
    return things


def _visible(box: Sequence[float]) -> tuple[float, float, float, float]:
    return max(box[0], 0.0), max(box[1], 0.0), box[2], box[3]


def _lifted(thing: Thing, around: Any, seen: bool) -> Thing:
    """Return a thing of a frame with its place in the window."""
    if not seen or thing.mark is None or thing.place is None:
        return replace(thing, mark=None, place=None)
    left, top, across, down = around["left"], around["top"], around["across"], around["down"]
    mark = (
        max(left, left + thing.mark[0] * across, 0.0),
        max(top, top + thing.mark[1] * down, 0.0),
        min(around["right"], left + thing.mark[2] * across),
        min(around["bottom"], top + thing.mark[3] * down),
    )
    return replace(thing, mark=mark, place=(left + thing.place[0] * across, top + thing.place[1] * down))


async def element_at(page: BrowserPage, x: float, y: float) -> ElementHandle | None:
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
            under: Any = (await inner.evaluate_handle("[...document.querySelectorAll(':hover')].pop()")).as_element()
            return under
        x, y = (x - box["left"]) / box["across"], (y - box["top"]) / box["down"]
        frame = inner


Find = Callable[["BrowserPage"], Awaitable["ElementHandle | None"]]


async def click(tab: Tab, thing: Thing, button: Button, count: int, modifiers: Collection[str]) -> str | None:
    """Click on it; return a str where it cannot be: why. `modifiers`: all keys that are held then."""
    held: Any = {"modifiers": [key_name(key) for key in modifiers]} if modifiers else {}

    async def do(page: BrowserPage, element: ElementHandle) -> None:
        how: Any = {"button": button, "click_count": count, "timeout": PATIENCE, **held}
        await element.click(position=thing.position, **how)

    async def there(page: BrowserPage, x: float, y: float) -> None:
        await page.mouse.click(x, y, button=button, click_count=count)

    return await _pointed(tab, thing, do, there)


async def hover(tab: Tab, thing: Thing) -> str | None:
    """Move the pointer onto it; return a str where it cannot be: why."""

    async def do(page: BrowserPage, element: ElementHandle) -> None:
        await element.hover(position=thing.position, timeout=PATIENCE)

    async def there(page: BrowserPage, x: float, y: float) -> None:
        await page.mouse.move(x, y)

    return await _pointed(tab, thing, do, there)


async def _pointed(
    tab: Tab,
    thing: Thing,
    do: Callable[[BrowserPage, ElementHandle], Awaitable[None]],
    there: Callable[[BrowserPage, float, float], Awaitable[None]],
) -> str | None:
    """Point at an element: as Playwright does, or where it has no place of its own or does not keep still, by sight."""
    from playwright.async_api import Error

    async def point(page: BrowserPage) -> None:
        try:
            if not thing.loose:
                await do(page, await thing.element(page))
                return
        except Error as error:
            if "not stable" not in error.message and "intercepts pointer events" not in error.message:
                raise
            place = await thing.pressed_at()
            if place is None:
                raise
        else:
            place = await thing.pressed_at()
            if place is None:
                raise Error("element is not visible")
        await there(page, *place)

    return await _told(tab, point)


async def drag(tab: Tab, thing: Thing, to: Thing) -> str | None:
    """Press the left button on the first and release it on the second; return a str where one cannot be reached."""

    async def do(page: BrowserPage) -> None:
        first, second = await thing.element(page), await to.element(page)
        # both are tried before anything is pressed
        await second.hover(position=to.position, trial=True, timeout=PATIENCE)
        await first.hover(position=thing.position, timeout=PATIENCE)
        start = await first.bounding_box() or {"x": 0, "y": 0, "width": 0, "height": 0}
        at = thing.position or {"x": start["width"] / 2, "y": start["height"] / 2}
        await page.mouse.down()
        await page.mouse.move(start["x"] + at["x"] + 4, start["y"] + at["y"] + 4, steps=2)  # else a scroll ends it
        await second.scroll_into_view_if_needed(timeout=PATIENCE)
        box = await second.bounding_box()
        if box is not None:
            at = to.position or {"x": box["width"] / 2, "y": box["height"] / 2}
            await page.mouse.move(box["x"] + at["x"], box["y"] + at["y"], steps=DRAG_STEPS)
        await page.mouse.up()

    return await _told(tab, do)


async def fill(tab: Tab, find: Find, value: str) -> str | None:
    """Replace what a field holds; return a str where it takes no text, or not this one: why."""

    async def do(page: BrowserPage) -> str | None:
        element = await find(page)
        if element is None:
            return GONE
        found = await element.evaluate_handle(_FIELD, value)
        field: Any = (await found.get_property("0")).as_element()
        wanted, kind = (
            await (await found.get_property("1")).json_value(),
            await (await found.get_property("2")).json_value(),
        )
        if wanted is None:
            return f"a field of the type {kind} does not take {value[:40]}"
        if kind not in _PICKED:
            problem = await _unready(field)
            if problem is not None:
                return problem
        await field.fill(wanted, timeout=PATIENCE)
        return None

    return await _told(tab, do)


async def _unready(field: ElementHandle) -> str | None:
    """Give a field the focus; return a str where it hands it on, so that a text would go elsewhere.

    One that is disabled or can only be read is left to Playwright, which says so.
    """
    if await field.is_visible() and await field.is_enabled() and not await field.evaluate(_FOCUS):
        return "it does not take the keyboard"
    return None


async def focus(tab: Tab, find: Find) -> str | None:
    """Give the element the keyboard focus; return a str where it does not take it."""

    async def do(page: BrowserPage) -> str | None:
        element = await find(page)
        if element is None:
            return GONE
        found = await element.evaluate_handle(_FIELD, "")
        field: Any = (await found.get_property("0")).as_element()
        await field.scroll_into_view_if_needed(timeout=PATIENCE)
        return None if await field.evaluate(_FOCUS) else "it does not take the keyboard"

    return await _told(tab, do)


async def select(tab: Tab, find: Find, wanted: Sequence[str]) -> str | None:
    """Choose these options of a list, by value or text, and no others; return a str where that is impossible."""

    async def do(page: BrowserPage) -> str | None:
        element = await find(page)
        if element is None:
            return GONE
        found = await element.evaluate_handle(_OPTIONS)
        held: Any = (await found.get_property("0")).as_element()
        rows, name, several = [await (await found.get_property(key)).json_value() for key in "123"]
        if not rows:
            return f"<{name}> has no options"
        chosen = [_option(rows, word) for word in wanted]
        if None in chosen:
            texts = ", ".join(row[1] for row in rows[:20])
            return f"there is no option {wanted[chosen.index(None)][:40]}; expected of {texts}"
        if len(wanted) != 1 and not several:
            return "the list takes one option" + (", and none was named" if not wanted else "")
        if name == "select":
            await held.select_option(index=chosen, timeout=PATIENCE)
        else:
            await held.fill(rows[chosen[0] or 0][0], timeout=PATIENCE)
        return None

    return await _told(tab, do)


def _option(rows: Sequence[tuple[str, str, bool]], word: str) -> int | None:
    """Return the number of the option of that value, else of that text; None: there is none, or it is disabled."""
    for column, wanted in ((0, word), (1, word.strip())):
        for number, row in enumerate(rows):
            if row[column] == wanted:
                return None if row[2] else number
    return None


async def _told(tab: Tab, do: Callable[[BrowserPage], Awaitable[str | None]]) -> str | None:
    """Return what an action on an element says, or why Playwright refused it."""
    await tab.settle()
    try:
        return await tab.run(lambda: do(tab.page), "an action on an element")
    except Moved:  # by what it did
        return None
    except Refused as error:
        lines = error.reason.splitlines()
        for line in reversed(lines):
            for pattern, words in _REFUSALS:
                seen = pattern.search(line)
                if seen is not None:
                    return words.format(*(shown(group, 100) for group in seen.groups()))
        first = lines[0].split("Error: ", 1)[-1].split(": ", 1)[-1]
        log = [line.strip(" -") for line in lines if line.strip().startswith("-")]
        return log[-1] if log and "Timeout" in first else first
