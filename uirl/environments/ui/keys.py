"""Names of keys: what policies write, in the many spellings they learned -> one name per key."""

from __future__ import annotations

import re

from uirl.errors import did_you_mean
from uirl.runtime.limits import shown

_APART = re.compile(r"[\s-]+")
MODIFIERS = ("ctrl", "alt", "shift", "meta")
NAMED_KEYS = (
    "enter", "tab", "escape", "backspace", "delete", "insert", "space", "home", "end", "pageup", "pagedown",
    "left", "right", "up", "down", *(f"f{number}" for number in range(1, 13)),
)  # fmt: skip
"""Keys that write no character of their own; all others are called by their character."""

_OTHER_NAMES = {
    "return": "enter", "kpenter": "enter", "esc": "escape", "del": "delete", "ins": "insert", "bksp": "backspace",
    "spacebar": "space", "pgup": "pageup", "prior": "pageup",
    "pgdn": "pagedown", "pgdown": "pagedown", "next": "pagedown", "arrowleft": "left", "arrowright": "right",
    "arrowup": "up", "arrowdown": "down", "plus": "+", "minus": "-", "controlormeta": "ctrl", "backquote": "`",
    "equal": "=", "bracketleft": "[", "bracketright": "]", "backslash": "\\", "semicolon": ";",
    "quote": "'", "comma": ",", "period": ".", "slash": "/",
    **{f"digit{number}": str(number) for number in range(10)},
    **{f"key{letter}": letter for letter in "abcdefghijklmnopqrstuvwxyz"},
}  # fmt: skip
for _name, _key in (
    *((key, key) for key in MODIFIERS), ("control", "ctrl"), ("ctl", "ctrl"), ("option", "alt"), ("cmd", "meta"),
    ("command", "meta"), ("super", "meta"), ("win", "meta"), ("windows", "meta"), ("os", "meta"),
):  # fmt: skip
    _OTHER_NAMES |= {_name + side: _key for side in ("", "l", "r", "left", "right")}
_OTHER_NAMES |= {
    "exclam": "!", "at": "@", "numbersign": "#", "dollar": "$", "percent": "%", "asciicircum": "^", "ampersand": "&",
    "asterisk": "*", "parenleft": "(", "parenright": ")", "underscore": "_", "braceleft": "{", "braceright": "}",
    "bar": "|", "colon": ":", "quotedbl": '"', "less": "<", "greater": ">", "question": "?", "asciitilde": "~",
    "grave": "`", "apostrophe": "'",
}  # fmt: skip
"""As X11 names them."""
_KNOWN = (*MODIFIERS, *NAMED_KEYS)


def read_chord(text: str) -> tuple[str, ...]:
    """Return the keys of a chord such as 'ctrl+a', 'Control_L+a', 'ctrl a', 'Ctrl-A', 'Return', 'Page_Down' or
    'ctrl++': modifiers, then at most one key.

    Letters count as their lower case: 'ctrl+A' is 'ctrl+a', with shift it is written 'ctrl+shift+a'. Raises ValueError
    with a sentence for the policy.
    """
    keys = [_read_key(part) for part in _split(text)]
    others = [key for key in keys if key not in MODIFIERS]
    if len(others) > 1:
        raise ValueError(f"a chord holds one key beside {', '.join(MODIFIERS)}; got {' and '.join(others)[:40]}")
    return (*dict.fromkeys(key for key in keys if key in MODIFIERS), *others)


def _split(text: str) -> list[str]:
    stripped = text.strip() or text
    if stripped == "+" or stripped.endswith("++"):
        return [*stripped[:-1].strip("+").split("+"), "+"] if stripped[:-1].strip("+") else ["+"]
    parts = stripped.split("+")
    if len(parts) == 1:
        # 'ctrl a' and 'Ctrl-A' begin with a modifier; 'page down' and '-' are keys
        first, *rest = _APART.split(stripped, maxsplit=1)
        if rest and rest[0] and _name_of(first) in MODIFIERS:
            return [first, *_split(rest[0])]
    return parts


def _name_of(written: str) -> str:
    name = written.lower() if len(written) == 1 else written.lower().replace("_", "").replace(" ", "")
    return _OTHER_NAMES.get(name, name)


def _read_key(part: str) -> str:
    written = part.strip() or part
    if written == " ":
        return "space"
    name = _name_of(written)
    if name in _KNOWN or (len(name) == 1 and " " < name <= "~"):
        return name
    if not written:
        raise ValueError("keys is a chord such as 'enter' or 'ctrl+a'; got an empty name between two '+'")
    raise ValueError(f"unknown key {shown(written, 40)}; {did_you_mean(name[:40], _KNOWN)}")
