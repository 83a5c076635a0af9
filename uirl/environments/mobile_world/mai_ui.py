"""The published protocol of MobileWorld's agent for MAI-UI (`mai_ui_agent`): its prompt, its words, and what it makes
of a reply that cannot be carried out. Scores found with it can be compared with published ones.

The text of the prompt is that of MobileWorld, src/mobile_world/agents/utils/prompts/mai_ui.py at commit 9cb125b
(https://github.com/Tongyi-MAI/MobileWorld), Apache License 2.0, character by character, blanks at the ends of lines
included; that of MAI-UI, src/prompt.py at commit 4dd07b9 (https://github.com/Tongyi-MAI/MAI-UI), Copyright (c) 2025,
Alibaba Cloud and its affiliates, Apache License 2.0, differs in the list of apps alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from uirl.environments.mobile_world.actions import OpenApp, Swipe
from uirl.tools.definition import ToolDefinition
from uirl.types import Action, ToolResult

_HEAD = (
    "You are a GUI agent. You are given a task and your action history, with screenshots. You need to "
    "perform the next action to complete the task. \n"
    "\n"
    "## Output Format\n"
    "For each function call, return the thinking process in <thinking> </thinking> tags, and a json "
    "object with function name and arguments within <tool_call></tool_call> XML tags:\n"
    "```\n"
    "<thinking>\n"
    "...\n"
    "</thinking>\n"
    "<tool_call>\n"
    '{"name": "mobile_use", "arguments": <args-json-object>}\n'
    "</tool_call>\n"
    "```\n"
    "\n"
    "## Action Space\n"
    "\n"
    '{"action": "click", "coordinate": [x, y]}\n'
    '{"action": "long_press", "coordinate": [x, y]}\n'
    '{"action": "type", "text": ""}\n'
    '{"action": "swipe", "direction": "up or down or left or right", "coordinate": [x, y]} # '
    '"coordinate" is optional. Use the "coordinate" if you want to swipe a specific UI element.\n'
    '{"action": "open", "text": "app_name"}\n'
    '{"action": "drag", "start_coordinate": [x1, y1], "end_coordinate": [x2, y2]}\n'
    '{"action": "system_button", "button": "button_name"} # Options: back, home, menu, enter \n'
    '{"action": "wait"}\n'
    '{"action": "terminate", "status": "success or fail"} \n'
    '{"action": "answer", "text": "xxx"} # Use escape characters \\\', \\", and \\n in text part to ensure '
    "we can parse the text in normal python string format.\n"
    '{"action": "ask_user", "text": "xxx"} # you can ask user for more information to complete the task.\n'
    '{"action": "double_click", "coordinate": [x, y]}\n'
    "\n"
)
_TOOLS_HEAD = "## MCP Tools\nYou are also provided with MCP tools, you can use them to complete the task.\n"
_TOOLS_TAIL = (
    "\n"
    "\n"
    "If you want to use MCP tools, you must output as the following format:\n"
    "```\n"
    "<thinking>\n"
    "...\n"
    "</thinking>\n"
    "<tool_call>\n"
    '{"name": <function-name>, "arguments": <args-json-object>}\n'
    "</tool_call>\n"
    "```\n"
)
_NOTE = "## Note\n- Available Apps: `"
_APPS = (
    *("桌面", "Contacts", "Settings", "设置", "Clock", "Maps", "Chrome", "Calendar", "files", "Gallery", "淘店"),
    *("Taodian", "Mattermost", "Mastodon", "Mail", "SMS", "Camera"),
)
_PLAN = (
    "`.\n"
    "- Write a small plan and finally summarize your next action (with its target element) in one "
    "sentence in <thinking></thinking> part."
)


def system_prompt(tools: Sequence[ToolDefinition], more_apps: Iterable[str] = ()) -> str:
    """Return the published prompt, with the `tools` of a task; `more_apps` stand after those that it names."""
    apps = json.dumps([*_APPS, *more_apps], ensure_ascii=False, separators=(",", ":"))
    listed = "\n".join(json.dumps(_as_listed(tool), ensure_ascii=False) for tool in tools)
    between = f"{_TOOLS_HEAD}{listed}{_TOOLS_TAIL}" if listed else ""
    return f"{_HEAD}{between}{_NOTE}{apps}{_PLAN}"


def tool_words(result: ToolResult) -> str:
    """Return what the policy is told of a tool: the content of its answer, written as Python writes it."""
    if not result.success:
        content: object = {"result": f"Failed to call tool {result.name} after 5 attempts: {result.text}"}
    else:
        content = [{"type": "text", "text": result.text, "annotations": None}]
    return f"Tool call result: {content}"


@dataclass(frozen=True, slots=True)
class Unknown:
    """A reply that is no action: the episode is over."""

    why: str


@dataclass(frozen=True, slots=True)
class Nothing:
    """An action that every version of the server refuses: nothing is sent, and the screen is shown again."""


Instead: TypeAlias = Unknown | Nothing


def instead_of(action: Action, why: str) -> Instead | OpenApp | Swipe:
    """Return what replaces a reply that was refused. The server may know an app that is not known here."""
    call = action.tool_calls[0] if action.parse_error is None and len(action.tool_calls) == 1 else None
    if call is None or call.name not in ("open", "type", "swipe"):
        return Unknown(why)
    if call.name == "swipe":
        direction = str(call.arguments.get("direction", "")).lower()
        if direction in ("left", "right") and isinstance(call.arguments.get("coordinate"), (list, tuple)):
            return Swipe(direction)  # type: ignore[arg-type]  # from the middle, wherever it says
        return Unknown(why)
    text = call.arguments.get("text")
    return OpenApp(str(text)) if call.name == "open" and text not in (None, "") else Nothing()


def _as_listed(tool: ToolDefinition) -> dict[str, object]:
    """Return a tool as an MCP client of the version that MobileWorld names (mcp 1.9.4) lists it."""
    return {
        "name": tool.name,
        "description": tool.description,
        "inputSchema": dict(tool.parameters),
        "annotations": None,
    }
