"""One element of a page: found at a place or by a mark, filled, focused, chosen from. What it refuses is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from uirl.environments.browser.chromium.cdp import Refused
from uirl.environments.browser.page.navigation import Threw, value_of
from uirl.environments.browser.page.tab import Tab
from uirl.runtime.assets import read_asset

GONE = "it is not on the page any more; look again"


@dataclass(frozen=True, slots=True)
class Element:
    """An element by its place in `uirlMarked`, a list of our world in its frame, or by the browser's number for it."""

    frame: str
    session: str
    index: int | None = None
    node: int | None = None


@dataclass(frozen=True, slots=True)
class Handle:
    """An element as the protocol holds it: good until its document goes."""

    session: str
    object: str


FILL = read_asset(__package__, "fill.js")
"""JavaScript: '' where text is to be put in now, null where it is done, else why it cannot be."""

FOCUS = read_asset(__package__, "focus.js")

SELECT = read_asset(__package__, "select.js")

AT = """((x, y) => {
  let found = document.elementFromPoint(x, y);
  while (found && found.shadowRoot) {
    const inner = found.shadowRoot.elementFromPoint(x, y);
    if (!inner || inner === found) break;
    found = inner;
  }
  return found;
})(%r, %r)"""

INSIDE = """function (x, y) {
  const box = this.getBoundingClientRect();
  const across = box.width / this.offsetWidth || 1, down = box.height / this.offsetHeight || 1;
  return [(x - box.left) / across - this.clientLeft, (y - box.top) / down - this.clientTop];
}"""
"""JavaScript, of a frame's element: a place of the page around it -> the place in the frame."""


async def handle_of(tab: Tab, element: Element) -> Handle | None:
    """Return the element's handle in the protocol; None: the element is gone."""
    try:
        if element.node is not None:
            return await resolve(tab, element.frame, element.session, element.node)
        marked = f"globalThis.uirlMarked?.[{element.index}]"
        return await handle_in_frame(tab, element.frame, element.session, marked)
    except Refused:
        return None


async def resolve(tab: Tab, frame: str, session: str, node: int) -> Handle:
    """Return the handle of a node in our world of its frame. Raises `Refused` where it is gone."""
    where = {"backendNodeId": node, "executionContextId": await tab.world(frame, session)}
    answer = await tab.call("DOM.resolveNode", where, session=session)
    return Handle(session, str(answer["object"]["objectId"]))


async def evaluate_in_frame(tab: Tab, frame: str, session: str, expression: str, **options: Any) -> Any:
    """Return the protocol's answer to an expression in our world of a frame. Raises `Refused` where it is gone."""
    where = {"expression": expression, "contextId": await tab.world(frame, session), **options}
    return await tab.call("Runtime.evaluate", where, session=session)


async def handle_in_frame(tab: Tab, frame: str, session: str, expression: str) -> Handle | None:
    """Return the handle of the object that an expression gives; None: it gives none."""
    found = (await evaluate_in_frame(tab, frame, session, expression))["result"].get("objectId")
    return None if found is None else Handle(session, str(found))


async def element_at(tab: Tab, x: float, y: float) -> Handle | None:
    """Return the innermost element at a place of the page (CSS pixels), in whichever frame; None: there is none."""
    frame, session = tab.target, tab.session
    while True:
        try:
            handle = await handle_in_frame(tab, frame, session, AT % (x, y))
            if handle is None or not tab.frames:
                return handle
            node = (await tab.call("DOM.describeNode", {"objectId": handle.object}, session=session))["node"]
            inside = tab.frames.get(node.get("frameId", ""))
            if inside is None:
                return handle
            x, y = await ask(tab, handle, INSIDE, x, y)
        except Refused:
            return None
        frame, session = inside.id, inside.session


async def ask(tab: Tab, handle: Handle, function: str, *arguments: Any) -> Any:
    """Return the JSON value of a JavaScript function called on an element. Raises `Refused` if it is gone, `Threw`."""
    values = [{"value": argument} for argument in arguments]
    params = {
        "objectId": handle.object,
        "functionDeclaration": function,
        "arguments": values,
        "returnByValue": True,
        "userGesture": True,
    }
    return value_of(await tab.call("Runtime.callFunctionOn", params, session=handle.session), function)


async def fill(tab: Tab, handle: Handle, value: str) -> str | bool:
    """Make a field ready for its new text. True: the text is to be inserted now; a str where the field takes none: why.

    False: it is set already; a date, a colour, a range and their like are set at once, as their own picker would.
    """
    problem = await _try(tab, handle, FILL, value)
    return False if problem is None else problem or True


async def focus(tab: Tab, handle: Handle) -> str | None:
    """Give the element the keyboard focus; return a str where it does not take it."""
    return await _try(tab, handle, FOCUS) or None


async def select(tab: Tab, handle: Handle, options: Sequence[str]) -> str | None:
    """Choose these options of a list, by value or text, and no others; return a str where that is impossible."""
    return await _try(tab, handle, SELECT, list(options)) or None


async def _try(tab: Tab, handle: Handle, function: str, *arguments: Any) -> Any:
    try:
        return await ask(tab, handle, function, *arguments)
    except Refused:
        return GONE
    except Threw as error:
        return str(error)
