"""The accessibility tree of a page as text: one line per thing, indented, cut at whole lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from uirl.runtime.limits import whole_characters

SILENT_ROLES = frozenset({"none", "generic", "InlineTextBox", "LineBreak", "ListMarker", "presentation"})
"""Roles that say nothing a reader needs; what is under them is shown."""
SHOWN_STATES = ("checked", "pressed", "selected", "expanded", "focused", "disabled", "readonly", "required")
MORE = "..."
LONGEST_NAME = 120

Node = Mapping[str, Any]
ACTED_ON = frozenset({
    "button", "link", "textbox", "searchbox", "combobox", "listbox", "option", "checkbox", "radio", "switch", "slider",
    "spinbutton", "tab", "menuitem", "menuitemcheckbox", "menuitemradio", "treeitem", "MenuListOption", "ColorWell",
    "Date", "DateTime", "InputTime", "DisclosureTriangle", "PopUpButton",
})  # fmt: skip
"""Roles of what a policy acts on."""


def acted_on(nodes: Sequence[Node]) -> list[Node]:
    """Return the nodes of elements that a policy may want to name, in the order of the tree."""
    return [
        node
        for node in nodes
        if "backendDOMNodeId" in node
        and not node.get("ignored")
        and (_of(node, "role") in ACTED_ON or _property(node, "focusable"))
        and _of(node, "role") not in (*SILENT_ROLES, "RootWebArea", "Iframe")
    ]


def tree_text(nodes: Sequence[Node], limit: int, numbers: Mapping[tuple[str, int], int] | None = None) -> str:
    """Return lines such as `  button "Send" (focused)`, at most `limit` characters; '...' is last where more was there.

    `numbers`: frame and node of an element -> its number, which is written before it: `  [3] button "Send"`.
    """
    lines: list[str] = []
    left = limit
    for line in _lines(nodes, numbers or {}):
        left -= len(line) + 1
        if left < len(MORE):
            lines.append(MORE)
            break
        lines.append(line)
    return "\n".join(lines)[:limit]


def _lines(nodes: Sequence[Node], numbers: Mapping[tuple[str, int], int]) -> Iterator[str]:
    by_id = {node["nodeId"]: node for node in nodes}
    # A stack of node, depth and the name of the thing it is in: pages can be nested deeper than Python recurses.
    waiting = [(node, 0, "") for node in nodes if "parentId" not in node][:1]
    while waiting:
        node, depth, around = waiting.pop()
        role, name = str(_of(node, "role") or ""), _one_line(_of(node, "name"))
        # A text that only repeats the name of its button would say everything twice.
        repeated = role == "StaticText" and (not name or name in around)
        if not node.get("ignored") and role not in SILENT_ROLES and not repeated:
            number = numbers.get((node.get("frame", ""), node.get("backendDOMNodeId", -1)))
            yield "  " * depth + (f"[{number}] " if number else "") + _describe(node, role, name)
            depth, around = depth + 1, "" if role == "RootWebArea" else name
        children = [by_id[child] for child in node.get("childIds", ()) if child in by_id]
        waiting += [(child, depth, around) for child in reversed(children)]


def _describe(node: Node, role: str, name: str) -> str:
    if role == "StaticText":
        return f'"{name}"'
    if role == "RootWebArea":
        return f'page "{name}"' if name else "page"
    value = _one_line(_of(node, "value"))
    states = {state["name"]: state["value"].get("value") for state in node.get("properties", ())}
    held = ", ".join(_state(name, states[name]) for name in SHOWN_STATES if _is_on(states.get(name)))
    parts = [role, f'"{name}"' if name else "", f'= "{value}"' if value else "", f"({held})" if held else ""]
    return " ".join(part for part in parts if part)


def _property(node: Node, name: str) -> Any:
    return next((row["value"].get("value") for row in node.get("properties", ()) if row["name"] == name), None)


def _state(name: str, value: Any) -> str:
    return name if value in (True, "true") else f"{name}: {value}"


def _is_on(value: Any) -> bool:
    return value not in (None, False, "false")


def _of(node: Node, key: str) -> Any:
    return node.get(key, {}).get("value")


def _one_line(value: Any) -> str:
    text = " ".join(str("" if value is None else value).split())
    # Half of a surrogate pair, which JavaScript can hold and no tokenizer takes: what the browser draws for it.
    text = whole_characters(text)
    return text if len(text) <= LONGEST_NAME else text[: LONGEST_NAME - len(MORE)] + MORE
