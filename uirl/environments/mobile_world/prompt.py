"""What a policy is told before its first screenshot: how to reply, what a phone can do, which tools there are."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

_ROLE = (
    "You hold an Android phone and carry out what its owner asks. You are shown the screen; reply with your plan and "
    "with exactly one action, look at what became of it, and go on until the task is done."
)
_REPLY = """\
<thinking>
what the screen shows, what is still to do, and what the next action is for
</thinking>
<tool_call>
{"name":"mobile_use","arguments":{"action":"click","coordinate":[500,250]}}
</tool_call>"""
_PLACES = (
    "A place is [x,y]: both from 0 to 999, whatever the size of the screen, x from left to right, y from top to bottom."
)
_ACTIONS: dict[str, tuple[Mapping[str, Any], str]] = {
    "click": ({"coordinate": [500, 250]}, "taps there"),
    "long_press": ({"coordinate": [500, 250]}, "keeps a finger there for a second"),
    "double_click": ({"coordinate": [500, 250]}, "taps there twice"),
    "type": ({"text": "hello"}, "types into the field that has the focus; tap on the field first"),
    "swipe": (
        {"direction": "up"},
        "moves a finger up, down, left or right; up shows what is further down. Swipes to a side may begin at a "
        '"coordinate"',
    ),
    "drag": (
        {"start_coordinate": [500, 700], "end_coordinate": [500, 300]},
        "holds the one place and drags to the other",
    ),
    "open": ({"text": "Settings"}, "opens an app by its name"),
    "system_button": ({"button": "back"}, "presses back, home or enter"),
    "wait": ({}, "waits a second"),
    "ask_user": ({"text": "Which Anna do you mean?"}, "asks the owner; the reply is text"),
    "answer": ({"text": "It is 7:45."}, "gives the answer that the task asks for, and ends it"),
    "terminate": ({"status": "success"}, "ends the task: success, or fail where it cannot be done"),
}
_RULES = (
    "Where the task asks a question, end with answer; otherwise with terminate.",
    "An action that was refused changes nothing on the phone: read why, and do better.",
)


def system_prompt(names: Sequence[str], apps: Sequence[str], tools: Sequence[Mapping[str, Any]]) -> str:
    """Return the prompt for the actions `names` and the `tools` of a task, as JSON schemas."""
    parts = [_ROLE, f"# Reply\n{_REPLY}\n{_PLACES}", "# Actions\n" + "\n".join(_line(name) for name in names)]
    if apps:
        parts.append(f"Apps that open by name: {', '.join(apps)}.")
    if tools:
        lines = "\n".join(json.dumps(dict(tool), ensure_ascii=False) for tool in tools)
        parts.append(
            "# Tools\nThese are no part of the phone. Call one in the same way, by its own name "
            '({"name":NAME,"arguments":{...}}); its result is text.\n' + lines
        )
    parts.append("# Rules\n" + "\n".join(f"- {rule}" for rule in _RULES))
    return "\n\n".join(parts)


def _line(name: str) -> str:
    arguments, purpose = _ACTIONS[name]
    return f"{json.dumps({'action': name, **arguments}, separators=(',', ':'))}  {purpose}"
