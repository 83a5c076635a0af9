"""Names of keys: what policies write, in the many spellings they learned -> one name per key."""

from __future__ import annotations

from uirl.errors import did_you_mean
from uirl.runtime.limits import shown

MODIFIERS = ("ctrl", "alt", "shift", "meta")
NAMED_KEYS = (
    "enter", "tab", "escape", "backspace", "delete", "insert", "space", "home", "end", "pageup", "pagedown",
    "left", "right", "up", "down", *(f"f{number}" for number in range(1, 13)),
)  # fmt: skip
"""Keys that write no character of their own; all others are called by their character."""

_OTHER_NAMES = {
    "control": "ctrl", "controlleft": "ctrl", "ctl": "ctrl", "option": "alt", "cmd": "meta", "command": "meta",
    "super": "meta", "win": "meta", "windows": "meta", "return": "enter", "kpenter": "enter", "esc": "escape",
    "del": "delete", "ins": "insert", "bksp": "backspace", "spacebar": "space", "pgup": "pageup", "prior": "pageup",
    "pgdn": "pagedown", "pgdown": "pagedown", "next": "pagedown", "arrowleft": "left", "arrowright": "right",
    "arrowup": "up", "arrowdown": "down", "plus": "+", "minus": "-", "controlright": "ctrl", "controlormeta": "ctrl",
    "altleft": "alt", "altright": "alt", "shiftleft": "shift", "shiftright": "shift", "metaleft": "meta",
    "metaright": "meta", "backquote": "`", "equal": "=", "bracketleft": "[", "bracketright": "]", "backslash": "\\",
    "semicolon": ";", "quote": "'", "comma": ",", "period": ".", "slash": "/",
    **{f"digit{number}": str(number) for number in range(10)},
    **{f"key{letter}": letter for letter in "abcdefghijklmnopqrstuvwxyz"},
}  # fmt: skip
_KNOWN = (*MODIFIERS, *NAMED_KEYS)


def read_chord(text: str) -> tuple[str, ...]:
    """Return the keys of a chord such as 'ctrl+a', 'Return', 'Page_Down' or 'ctrl++': modifiers, then at most one key.

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
    return stripped.split("+")


def _read_key(part: str) -> str:
    written = part.strip() or part
    if written == " ":
        return "space"
    name = written.lower() if len(written) == 1 else written.lower().replace("_", "").replace(" ", "")
    name = _OTHER_NAMES.get(name, name)
    if name in _KNOWN or (len(name) == 1 and " " < name <= "~"):
        return name
    if not written:
        raise ValueError("keys is a chord such as 'enter' or 'ctrl+a'; got an empty name between two '+'")
    raise ValueError(f"unknown key {shown(written, 40)}; {did_you_mean(name[:40], _KNOWN)}")
