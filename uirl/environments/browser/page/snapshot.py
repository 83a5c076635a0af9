"""What is on a tab, in all its frames: what can be clicked, the accessibility tree, where an element is."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from uirl.environments.browser.chromium.cdp import Refused
from uirl.environments.browser.page.elements import (
    Element,
    Handle,
    ask,
    evaluate_in_frame,
    handle_of,
    resolve,
)
from uirl.environments.browser.page.frames import ChildFrame
from uirl.environments.browser.page.marks import CLICKABLE, Mark
from uirl.environments.browser.page.navigation import Threw, value_of
from uirl.environments.browser.page.tab import Tab
from uirl.runtime.assets import read_asset

MOST_MARKS = 200
_MOST_HOSTS = 50
MOST_NODES = 10_000
"""Elements and texts of a page whose accessibility tree is asked for."""
_COUNT = f"""(() => {{
  const walker = document.createTreeWalker(document);
  let count = 0;
  while (count <= {MOST_NODES} && walker.nextNode()) count++;
  return count;
}})()"""
_AGAIN = f"function () {{ return {CLICKABLE}([this], true); }}"

_OWNER = read_asset(__package__, "frame_place.js")
"""JavaScript, of a frame's element: where the frame is in the one around it, and which of its points can be seen."""

_PLACE = """function () {
  this.scrollIntoViewIfNeeded();
  const box = this.getClientRects()[0];
  if (!box || !box.width || !box.height) return null;
  return [Math.min(Math.max(box.left + box.width / 2, 0), innerWidth - 1),
    Math.min(Math.max(box.top + box.height / 2, 0), innerHeight - 1)];
}"""


async def find_marks(tab: Tab) -> list[Mark]:
    """Return what can be clicked and seen: the page's own elements in their order, then those of its frames."""
    await tab.frames.ready()
    found, hosts = await tab.evaluate(f"{CLICKABLE}([document])", apart=True)
    searched = {frame.id for frame in tab.frames.all()}
    return (await _marks(tab, tab.target, tab.session, found, hosts, searched))[:MOST_MARKS]


async def element_center(tab: Tab, element: Element) -> tuple[float, float] | None:
    """Return the middle of an element on the page, which is scrolled to it; None: the element is gone, or not drawn."""
    try:
        handle = await handle_of(tab, element)
        place = None if handle is None else await ask(tab, handle, _PLACE)
        frame = tab.frames.get(element.frame)
        while place is not None and frame is not None:
            around = tab.frames.get(frame.parent)
            owner = await _owner(tab, frame, tab.session if around is None else around.session)
            box = await ask(tab, owner, _OWNER, [])
            place = [box["left"] + place[0] * box["across"], box["top"] + place[1] * box["down"]]
            frame = around
    except (Refused, Threw):
        return None
    return None if place is None else (float(place[0]), float(place[1]))


async def accessibility_nodes(tab: Tab) -> list[dict[str, Any]]:
    """Return the nodes of the accessibility tree, with those of the frames under theirs; `frame` says whose a node is.

    A page of more than `MOST_NODES` gives one node that says so: the browser would take seconds to list them all.
    """
    await tab.frames.ready()
    if await tab.evaluate(_COUNT, apart=True) > MOST_NODES:
        notice = f"(a page of more than {MOST_NODES} elements and texts, too many to list)"
        role, name = {"value": "StaticText"}, {"value": notice}
        return [{"nodeId": "0", "role": role, "name": name, "frame": tab.target, "session": tab.session}]
    whole = await tab.of_one_document(lambda: tab.call("Accessibility.getFullAXTree"), "its tree")
    nodes = [node | {"frame": tab.target, "session": tab.session} for node in whole["nodes"]]
    if not tab.frames:
        return nodes
    for frame in tab.frames.all():
        try:
            which = {"frameId": frame.id}
            inner = (await tab.call("Accessibility.getFullAXTree", which, session=frame.session))["nodes"]
            around = tab.frames.get(frame.parent)
            session = tab.session if around is None else around.session
            owner = (await tab.call("DOM.getFrameOwner", which, session=session))["backendNodeId"]
        except Refused:
            continue
        _attach(nodes, inner, frame, owner)
    return nodes


async def mark_numbers(tab: Tab, marks: Sequence[Mark]) -> dict[tuple[str, int], int]:
    """Return frame and the browser's number of the node -> number of the mark."""
    elements = [mark.element for mark in marks]
    places = sorted({(element.frame, element.session) for element in elements if element is not None})
    nodes: dict[tuple[str, int], int] = {}  # frame and place in `uirlMarked` -> node
    for frame, session in places:
        try:
            held = await _list(tab, frame, session, "uirlMarked")
            found = await asyncio.gather(*(_described(tab, session, one) for one in held))
        except Refused:
            continue
        nodes |= {(frame, index): node["backendNodeId"] for index, node in enumerate(found)}
    return {
        (element.frame, nodes[element.frame, element.index]): number
        for number, element in enumerate(elements, start=1)
        if element is not None and element.index is not None and (element.frame, element.index) in nodes
    }


async def _marks(
    tab: Tab, frame: str, session: str, found: list[list[float]], hosts: int, searched: set[str]
) -> list[Mark]:
    """Return the marks of a frame from what `CLICKABLE` found there, then those of the frames in it."""
    if hosts:
        found = found + await _in_closed_roots(tab, frame, session, hosts)
    marks = [
        Mark(left, top, right, bottom, x, y, Element(frame, session, index=int(index)))
        for left, top, right, bottom, x, y, index in found
    ]
    for inner in tab.frames.of(frame):
        marks += await _marks_of_frame(tab, inner, session, searched)
    return marks


async def _marks_of_frame(tab: Tab, frame: ChildFrame, around: str, searched: set[str]) -> list[Mark]:
    """Return marks in coordinates of the frame around it, which is spoken to in the session `around`."""
    if frame.id not in searched:
        return []
    try:
        expression = f"{CLICKABLE}([document])"
        answer = await evaluate_in_frame(tab, frame.id, frame.session, expression, returnByValue=True)
        found, hosts = value_of(answer, "CLICKABLE")
        marks = await _marks(tab, frame.id, frame.session, found, hosts, searched)
        owner = await _owner(tab, frame, around)
        box = await ask(tab, owner, _OWNER, [[mark.x, mark.y] for mark in marks])
    except (Refused, Threw):  # it has gone, or is a document without a body
        return []
    return [_lifted(mark, box) for mark, seen in zip(marks, box["seen"], strict=True) if seen]


def _lifted(mark: Mark, box: Mapping[str, float]) -> Mark:
    left, top, across, down = box["left"], box["top"], box["across"], box["down"]
    return replace(
        mark,
        left=max(left, left + mark.left * across, 0.0),
        top=max(top, top + mark.top * down, 0.0),
        right=min(box["right"], left + mark.right * across),
        bottom=min(box["bottom"], top + mark.bottom * down),
        x=left + mark.x * across,
        y=top + mark.y * down,
    )


async def _owner(tab: Tab, frame: ChildFrame, session: str) -> Handle:
    """Return the element of a frame, in the document around it."""
    node = (await tab.call("DOM.getFrameOwner", {"frameId": frame.id}, session=session))["backendNodeId"]
    return await resolve(tab, frame.parent, session, node)


async def _in_closed_roots(tab: Tab, frame: str, session: str, hosts: int) -> list[list[float]]:
    """Return the boxes in closed shadow roots, which the browser gives and the page's scripts do not get."""
    found: list[list[float]] = []
    done = 0
    while done < hosts <= _MOST_HOSTS:
        try:
            held = (await _list(tab, frame, session, "uirlHosts"))[done:]
            done = hosts
            described = await asyncio.gather(*(_described(tab, session, one) for one in held))
            for root in (root for node in described for root in node.get("shadowRoots", ())):
                if root["shadowRootType"] != "closed":
                    continue
                more, hosts = await ask(tab, await resolve(tab, frame, session, root["backendNodeId"]), _AGAIN)
                found += more
        except (Refused, Threw):
            break
    return found


async def _list(tab: Tab, frame: str, session: str, name: str) -> list[str]:
    """Return the handles of the elements in a list of our world in a frame."""
    answer = await evaluate_in_frame(tab, frame, session, f"globalThis.{name} || []")
    held = answer["result"]["objectId"]
    rows = await tab.call("Runtime.getProperties", {"objectId": held, "ownProperties": True}, session=session)
    listed = [row for row in rows["result"] if row["name"].isdigit() and "objectId" in row.get("value", {})]
    return [row["value"]["objectId"] for row in sorted(listed, key=lambda row: int(row["name"]))]


async def _described(tab: Tab, session: str, held: str) -> Mapping[str, Any]:
    node: Mapping[str, Any] = (await tab.call("DOM.describeNode", {"objectId": held}, session=session))["node"]
    return node


def _attach(nodes: list[dict[str, Any]], inner: Sequence[Mapping[str, Any]], frame: ChildFrame, owner: int) -> None:
    """Attach the tree of a frame under the node of its element."""
    above = [node for node in nodes if node["frame"] == frame.parent and node.get("backendDOMNodeId") == owner]
    if not above or not inner:
        return

    def name(node: str) -> str:
        return f"{frame.id} {node}"

    for node in inner:
        more: dict[str, Any] = {"nodeId": name(node["nodeId"]), "frame": frame.id, "session": frame.session}
        more["childIds"] = [name(child) for child in node.get("childIds", ())]
        more["parentId"] = name(node["parentId"]) if "parentId" in node else above[0]["nodeId"]
        nodes.append({**node, **more})
    above[0]["childIds"] = [name(inner[0]["nodeId"])]
