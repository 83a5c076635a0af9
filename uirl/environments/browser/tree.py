"""The accessibility tree of a page as text: one line per thing, indented, cut at whole lines."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from uirl.environments.browser.acting import Thing
from uirl.environments.browser.tab import Tab
from uirl.runtime.limits import whole_characters

MORE = "..."
LONGEST_NAME = 120
MOST_NODES = 10_000
"""Elements and texts of a page whose accessibility tree is asked for."""
SHOWN_STATES = ("checked", "pressed", "selected", "expanded", "focused", "disabled")
ACTED_ON = frozenset({
    "button", "link", "textbox", "searchbox", "combobox", "listbox", "option", "checkbox", "radio", "switch", "slider",
    "spinbutton", "tab", "menuitem", "menuitemcheckbox", "menuitemradio", "treeitem",
})  # fmt: skip
"""Roles of what a policy acts on."""
_FIELDS = frozenset({"textbox", "searchbox", "combobox", "listbox", "spinbutton"})
_COUNT = f"""(() => {{
  const walker = document.createTreeWalker(document);
  let count = 0;
  while (count <= {MOST_NODES} && walker.nextNode()) count++;
  return count;
}})()"""
_LINE = re.compile(r"( *)- (?:'((?:[^']|'')*)'|(.*?))(?::(?: (.*))?)?$")
_ESCAPED = re.compile(r"\\[\\x]")
_KEY = re.compile(r'([\w-]+)(?: ("(?:[^"\\]|\\.)*"))?')


@dataclass(slots=True)
class Node:
    """One line of the tree."""

    depth: int
    role: str
    """Empty: a text."""
    name: str = ""
    value: str = ""
    states: Mapping[str, str] = field(default_factory=dict)
    """As Playwright writes them: 'box', 'checked' and their like."""
    ref: str = ""
    """The name of the element; empty: it has none. Before its last number is that of the frame."""


async def read_tree(tab: Tab) -> list[Node]:
    """Return the accessibility tree of a tab with its frames.

    A page of more than `MOST_NODES` gives one node that says so: the browser would take seconds to list them all.
    """
    if await tab.evaluate(_COUNT, apart=True) > MOST_NODES:
        return [Node(0, "", value=f"(a page of more than {MOST_NODES} elements and texts, too many to list)")]

    async def read() -> tuple[str, str]:
        return await tab.page.title(), await tab.page.aria_snapshot(mode="ai", boxes=True)

    title, whole = await tab.of_one_document(read, "its tree")
    return [Node(-1, "page", title), *parse(whole)]


def parse(snapshot: str) -> Iterator[Node]:
    """Yield the lines of one of Playwright's snapshots (https://playwright.dev/python/docs/aria-snapshots)."""
    for line in snapshot.split("\n"):  # what else ends a line may stand in a value
        found = _LINE.match(line)
        if found is None:
            continue
        depth = len(found[1]) // 2
        key = found[2].replace("''", "'") if found[2] is not None else found[3]
        value = _scalar(found[4] or "")
        head = _KEY.match(key)
        if key == "text":
            yield Node(depth, "", value=value)
        elif head is not None:  # else it is a property, such as the address of a link
            states = dict(state.partition("=")[::2] for state in re.findall(r"\[([^\]]*)\]", key[head.end() :]))
            if "active" in states:
                states["focused"] = states.pop("active")
            name = json.loads(head[2], strict=False) if head[2] else ""
            yield Node(depth, head[1], name, value, states, states.pop("ref", ""))


async def number_things(tab: Tab, nodes: Sequence[Node], named: list[Thing], most: int) -> dict[int, int]:
    """Return place of a node in the tree -> number of the thing, from 1.

    `named`: what can be acted on; nodes that can be as well and are not in it are added, up to `most`.
    """
    frames = await _frames_of(tab, nodes) if tab.page.main_frame.child_frames else {}
    waiting: dict[Any, list[int]] = {}
    for number, thing in enumerate(named, start=1):
        left, top, right, bottom = thing.box
        box = (math.floor(side + 0.5) for side in (left, top, right - left, bottom - top))
        waiting.setdefault((thing.frame, *box), []).append(number)
    numbers: dict[int, int] = {}
    for sure in (True, False):  # first those of the same kind: a button is as large as the row that it fills
        for place, node in enumerate(nodes):
            if not node.ref or place in numbers:
                continue
            if not sure and place + 1 < len(nodes) and nodes[place + 1].depth > node.depth:  # its words are elsewhere
                continue
            frame = frames.get(node.ref.rpartition("e")[0], tab.page.main_frame)
            same = waiting.get((frame, *map(int, node.states.get("box", "").split(","))), [])
            fitting = [number for number in same if not sure or _is_kind(node.role, named[number - 1].role)]
            if fitting:
                numbers[place] = fitting[0]
                same.remove(fitting[0])
    unmatched = sorted(number for same in waiting.values() for number in same)
    for place, node in enumerate(nodes):
        if node.role not in ACTED_ON or not node.ref or place in numbers:
            continue
        # what moves is elsewhere in the list than in the tree
        moved = [n for n in unmatched if _is_kind(node.role, named[n - 1].role) and named[n - 1].words == node.name]
        if moved and node.name:
            numbers[place] = moved[0]
            unmatched.remove(moved[0])
        elif len(named) < most:
            named.append(Thing(ref=node.ref))
            numbers[place] = len(named)
    return numbers


def _is_kind(role: str, kind: str) -> bool:
    """Return whether a role of the tree is that of a kind of element."""
    return role in ACTED_ON and (role == kind or {role, kind} <= _FIELDS)


async def _frames_of(tab: Tab, nodes: Sequence[Node]) -> dict[str, Any]:
    """Return what the refs of a frame begin with -> the frame."""
    firsts = {node.ref.rpartition("e")[0]: node.ref for node in reversed(nodes) if node.ref}

    async def find() -> dict[str, Any]:
        found = {}
        for frame, ref in firsts.items():
            element = await tab.page.locator(f"aria-ref={ref}").element_handle(timeout=1000)
            found[frame] = await element.owner_frame()
        return found

    return await tab.run(find, "the frames of its tree")


def tree_text(
    nodes: Sequence[Node], limit: int, numbers: Mapping[int, int] | None = None, more: Sequence[tuple[int, str]] = ()
) -> str:
    """Return lines such as `  button "Send" (focused)`, at most `limit` characters; '...' is last where more was there.

    `numbers`: place of a node -> the number that is written after it, as in Playwright's snapshots: a model that finds
    the word reads on to the number. `  button "Send" [3]`. `more`: numbers and words of what the tree does not have,
    such as an empty box that can be clicked.
    """
    lines: list[str] = []
    left = limit
    for line in _lines(nodes, numbers or {}, more):
        left -= len(line) + 1
        if left < len(MORE):
            lines.append(MORE)
            break
        lines.append(line)
    return "\n".join(lines)[:limit]


def _lines(nodes: Sequence[Node], numbers: Mapping[int, int], more: Sequence[tuple[int, str]]) -> Iterator[str]:
    around = [(-2, -1)]  # depths in the snapshot -> in what is written, of what the node is in
    for place, node in enumerate(nodes):
        while around[-1][0] >= node.depth:
            around.pop()
        depth = around[-1][1] + 1
        number = numbers.get(place)
        if node.role == "generic" and number is None:
            if node.value or node.name:
                yield "  " * depth + f'"{_one_line(node.value or node.name)}"'
            around.append((node.depth, depth - 1))
            continue
        yield "  " * depth + _describe(node) + (f" [{number}]" if number else "")
        around.append((node.depth, depth))
    for number, words in more:
        yield "  clickable" + (f' "{_one_line(words)}"' if words else "") + f" [{number}]"


def _describe(node: Node) -> str:
    name, value = _one_line(node.name), _one_line(node.value)
    if not node.role:
        return f'"{value}"'
    if value and not name and node.role not in ACTED_ON:
        name, value = value, ""
    states = ((state, node.states[state]) for state in SHOWN_STATES if state in node.states)
    held = ", ".join(f"{state}: {content}" if content else state for state, content in states)
    parts = [node.role, f'"{name}"' if name else "", f'= "{value}"' if value else "", f"({held})" if held else ""]
    return " ".join(part for part in parts if part)


def _scalar(text: str) -> str:
    """Return a value of YAML as Playwright writes it: plain, or in double quotes with JSON's escapes and \\xNN."""
    if not text.startswith('"'):
        return text
    return str(json.loads(_ESCAPED.sub(lambda found: found[0].replace("\\x", "\\u00"), text), strict=False))


def _one_line(text: str) -> str:
    # Half of a surrogate pair, which JavaScript can hold and no tokenizer takes: what the browser draws for it.
    text = whole_characters(" ".join(text.split()))
    return text if len(text) <= LONGEST_NAME else text[: LONGEST_NAME - len(MORE)] + MORE
