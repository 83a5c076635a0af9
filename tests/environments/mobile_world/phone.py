"""A drawn Android phone: four apps, a home screen, and fingers that arrive as adb would bring them."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from PIL import Image, ImageDraw, ImageFont

WIDTH, HEIGHT = 1080, 2400
ICONS = {"Settings": (270, 900), "SMS": (810, 900), "Clock": (270, 1400), "Contacts": (810, 1400)}
FIELD, SEND = (60, 2150, 800, 2300), (840, 2150, 1040, 2300)
NAMES = ("Anna", "Berta", "Carl", "Dora", "Emil", "Frida", "Gustav", "Hanna", "Ida", "Zoe")
LINE, FIRST, SHOWN = 200, 400, 5
"""Height of a contact, where the first stands, and how many are on the screen."""
LAUNCHED = {
    "contacts": "Contacts",
    "settings": "Settings",
    "设置": "Settings",
    "clock": "Clock",
    "sms": "SMS",
    "桌面": "home",
}
"""What opens something here; other apps that the server knows open an empty screen."""


@dataclass
class Phone:
    """What it shows, what was done to it, and what the task left in it."""

    screen: str = "home"
    focus: bool = False
    draft: str = ""
    sent: list[str] = field(default_factory=list)
    first: int = 0
    """Index of the topmost contact."""
    opened: str = ""
    answer: str | None = None

    def tap(self, x: int, y: int) -> str:
        if self.screen == "home":
            for name, (left, top) in ICONS.items():
                if abs(x - left) <= 130 and abs(y - top) <= 130:
                    self.screen = name
        elif self.screen == "SMS":
            self.focus = _inside(FIELD, x, y)
            if _inside(SEND, x, y):
                self._send()
        elif self.screen == "Contacts":
            self.opened = self._contact(y) or self.opened
        return ""

    def swipe(self, x: int, y: int, to_x: int, to_y: int) -> str:
        if self.screen != "Contacts":
            return ""
        if abs(to_y - y) > abs(to_x - x):
            self.first = min(max(self.first + (SHOWN if to_y < y else -SHOWN), 0), len(NAMES) - SHOWN)
        return ""

    def type(self, text: str) -> str:
        if self.focus:
            self.draft += text
        return "Broadcast completed: result=0"

    def key(self, name: str) -> str:
        if name == "KEYCODE_ENTER" and self.focus:
            self._send()
        elif name in ("KEYCODE_HOME", "KEYCODE_BACK"):
            self.screen, self.focus = "home", False
        return ""

    def launch(self, app: str) -> str:
        self.screen, self.focus = LAUNCHED.get(app, "empty"), False
        return "Events injected: 1"

    def picture(self) -> bytes:
        """The screen as PNG."""
        return _draw(self.screen, self.focus, self.draft, tuple(self.sent), self.first, self.opened)

    def _send(self) -> None:
        if self.draft:
            self.sent.append(self.draft)
        self.draft = ""

    def _contact(self, y: int) -> str:
        line = (y - FIRST) // LINE
        return NAMES[self.first + line] if 0 <= line < SHOWN else ""


@dataclass(frozen=True)
class Problem:
    """One task of the suite."""

    goal: str
    check: Callable[[Phone], tuple[float, str]]
    tags: tuple[str, ...] = ("lang-en",)
    apps: tuple[str, ...] = ()


def _message(phone: Phone) -> tuple[float, str]:
    if phone.sent == ["on my way"]:
        return 1.0, "the message was sent"
    return (0.5, "another message was sent") if phone.sent else (0.0, "no message was sent")


def _answered(text: str) -> Callable[[Phone], tuple[float, str]]:
    return lambda phone: (float(phone.answer is not None and text in phone.answer), f"the answer is {phone.answer!r}")


PROBLEMS: dict[str, Problem] = {
    "OpenSettingsTask": Problem(
        "Open the settings.", lambda phone: (float(phone.screen == "Settings"), phone.screen), apps=("Settings",)
    ),
    "SendMessageTask": Problem("Send Anna the message: on my way", _message, apps=("SMS", "Contacts")),
    "ReadClockTask": Problem("What time does the clock show?", _answered("7:45"), apps=("Clock",)),
    "FindZoeTask": Problem(
        "Open the contact Zoe.", lambda phone: (float(phone.opened == "Zoe"), phone.opened), apps=("Contacts",)
    ),
    "AskColourTask": Problem(
        "Tell me my favourite colour.", _answered("teal"), ("lang-en", "agent-user-interaction"), ("Settings",)
    ),
    "AddTask": Problem("What is 19 + 23? Use the tool.", _answered("42"), ("lang-en", "agent-mcp"), ("MCP-adder",)),
    "ReadAnArxivPageTask": Problem("Which paper?", _answered("?"), ("lang-cn", "agent-mcp"), ("MCP-arXiv", "Mail")),
}


ANDROID_WORLD = {"ContactsOpenContact": PROBLEMS["FindZoeTask"]}
"""The tasks of the other suite."""


def listed(problems: dict[str, Problem] = PROBLEMS) -> list[dict[str, Any]]:
    """As `/task/list` shows them."""
    return [{"name": name, "tags": list(p.tags), "apps": list(p.apps)} for name, p in problems.items()]


def _inside(box: tuple[int, int, int, int], x: int, y: int) -> bool:
    return box[0] <= x <= box[2] and box[1] <= y <= box[3]


@lru_cache(maxsize=64)
def _draw(screen: str, focus: bool, draft: str, sent: tuple[str, ...], first: int, opened: str) -> bytes:
    image = Image.new("RGB", (WIDTH, HEIGHT), {"home": "#20304a"}.get(screen, "white"))
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(60)
    if screen == "home":
        for name, (x, y) in ICONS.items():
            draw.rounded_rectangle((x - 130, y - 130, x + 130, y + 130), 40, fill="#5f8dd3")
            draw.text((x - 120, y - 30), name, fill="white", font=font)
    else:
        draw.text((60, 150), screen, fill="black", font=font)
    if screen == "SMS":
        for line, text in enumerate(sent):
            draw.text((500, 400 + 100 * line), text, fill="#2060a0", font=font)
        draw.rectangle(FIELD, outline="#2060a0" if focus else "grey", width=6)
        draw.text((FIELD[0] + 20, FIELD[1] + 40), draft, fill="black", font=font)
        draw.rectangle(SEND, fill="#2060a0")
        draw.text((SEND[0] + 20, SEND[1] + 40), "Send", fill="white", font=font)
    if screen == "Clock":
        draw.text((380, 1000), "7:45", fill="black", font=ImageFont.load_default(160))
    if screen == "Contacts":
        for line, name in enumerate(NAMES[first : first + SHOWN]):
            draw.text((100, FIRST + LINE * line + 60), name, fill="red" if name == opened else "black", font=font)
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", compress_level=1)
    return buffer.getvalue()
