"""Keys and texts -> the events of a keyboard, as a page sees them from a person's."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

Event = dict[str, Any]
"""Parameters of one `Input.dispatchKeyEvent`."""

MODIFIER_BITS = {"alt": 1, "ctrl": 2, "meta": 4, "shift": 8}
PASTE = frozenset(map(frozenset, [("ctrl", "v"), ("ctrl", "shift", "v"), ("shift", "insert"), ("meta", "v")]))
COPY = frozenset(map(frozenset, [("ctrl", "c"), ("ctrl", "insert"), ("meta", "c")]))
CUT = frozenset(map(frozenset, [("ctrl", "x"), ("shift", "delete"), ("meta", "x")]))
"""Keys that are down together."""
SELECTED = """(() => {
  const field = document.activeElement;
  if (!field || typeof field.selectionStart !== 'number') return String(getSelection());
  return field.type === 'password' ? '' : field.value.slice(field.selectionStart, field.selectionEnd);
})()"""
"""JavaScript: the text that a copy would take."""

_NAMED = {  # name: (key, code, virtual key code, text)
    "ctrl": ("Control", "ControlLeft", 17, ""), "alt": ("Alt", "AltLeft", 18, ""),
    "shift": ("Shift", "ShiftLeft", 16, ""), "meta": ("Meta", "MetaLeft", 91, ""),
    "enter": ("Enter", "Enter", 13, "\r"), "tab": ("Tab", "Tab", 9, ""), "escape": ("Escape", "Escape", 27, ""),
    "backspace": ("Backspace", "Backspace", 8, ""), "delete": ("Delete", "Delete", 46, ""),
    "insert": ("Insert", "Insert", 45, ""), "space": (" ", "Space", 32, " "), "home": ("Home", "Home", 36, ""),
    "end": ("End", "End", 35, ""), "pageup": ("PageUp", "PageUp", 33, ""),
    "pagedown": ("PageDown", "PageDown", 34, ""), "left": ("ArrowLeft", "ArrowLeft", 37, ""),
    "up": ("ArrowUp", "ArrowUp", 38, ""), "right": ("ArrowRight", "ArrowRight", 39, ""),
    "down": ("ArrowDown", "ArrowDown", 40, ""),
    **{f"f{number}": (f"F{number}", f"F{number}", 111 + number, "") for number in range(1, 13)},
}  # fmt: skip

_SIGNS = {  # unshifted sign: (its shifted one, code, virtual key code)
    "`": ("~", "Backquote", 192), "-": ("_", "Minus", 189), "=": ("+", "Equal", 187), "[": ("{", "BracketLeft", 219),
    "]": ("}", "BracketRight", 221), "\\": ("|", "Backslash", 220), ";": (":", "Semicolon", 186),
    "'": ('"', "Quote", 222), ",": ("<", "Comma", 188), ".": (">", "Period", 190), "/": ("?", "Slash", 191),
    **{digit: (sign, f"Digit{digit}", 48 + int(digit)) for digit, sign in zip("1234567890", "!@#$%^&*()", strict=True)},
    **{chr(number + 32): (chr(number), f"Key{chr(number)}", number) for number in range(ord("A"), ord("Z") + 1)},
}  # fmt: skip
_LAYOUT = {
    **{plain: (code, number, False) for plain, (_, code, number) in _SIGNS.items()},
    **{shifted: (code, number, True) for shifted, code, number in _SIGNS.values()},
}
"""Character -> code and virtual key code of its key on a US keyboard, and whether it needs shift."""


def modifier_bits(keys: Iterable[str]) -> int:
    """Return the bits of those of the keys that are modifiers."""
    return sum(MODIFIER_BITS[key] for key in set(keys) & set(MODIFIER_BITS))


def chord(keys: Sequence[str], held: int = 0) -> Iterator[Event]:
    """Yield the events of keys pressed together, named as in `uirl.environments.ui.keys`, modifiers first.

    `held`: bits of the modifiers that are held already.
    """
    for key in keys[:-1]:
        yield hold(key, True, held)
        held |= MODIFIER_BITS[key]
    yield hold(keys[-1], True, held)
    yield hold(keys[-1], False, held)
    for key in reversed(keys[:-1]):
        held &= ~MODIFIER_BITS[key]
        yield hold(key, False, held)


def hold(key: str, down: bool, modifiers: int) -> Event:
    """Return the event of one key that is pressed or released; `modifiers`: bits of those that are held beside it."""
    if not down:
        return _event("keyUp", key, modifiers)
    held = modifiers | MODIFIER_BITS.get(key, 0)
    # With ctrl, alt or meta a key writes nothing.
    writes = _text(key, held) and not held & ~MODIFIER_BITS["shift"]
    return _event("keyDown" if writes else "rawKeyDown", key, held)


def apart(text: str) -> list[str]:
    """Return a text in pieces: its line breaks and tabs, and what stands between them."""
    return [piece for piece in re.split(r"(\r\n|[\n\r\t])", text) if piece]


def typing(text: str) -> Iterator[Event]:
    """Yield the events of a text, character by character; a line break is Enter, a tab is Tab."""
    for character in text.replace("\r\n", "\n"):
        if character in "\n\r\t":
            yield from chord(("tab" if character == "\t" else "enter",))
            continue
        code, number, shifted = _LAYOUT.get(character, ("Space", 32, False) if character == " " else ("", 0, False))
        event = {
            "key": character,
            "code": code,
            "windowsVirtualKeyCode": number,
            "modifiers": MODIFIER_BITS["shift"] if shifted else 0,
        }
        yield {"type": "keyDown", "text": character, "unmodifiedText": character, **event}
        yield {"type": "keyUp", **event}


def _event(kind: str, key: str, held: int) -> Event:
    text = _text(key, held)
    if key in _NAMED:
        name, code, number, _ = _NAMED[key]
    else:
        (code, number, _), name = _LAYOUT[key], text
    event = {"type": kind, "key": name, "code": code, "windowsVirtualKeyCode": number, "modifiers": held}
    return event | ({"text": text, "unmodifiedText": text} if kind == "keyDown" else {})


def _text(key: str, held: int) -> str:
    """Return the text that a key writes."""
    if key in _NAMED:
        return _NAMED[key][3]
    return _SIGNS[key][0] if held & MODIFIER_BITS["shift"] and key in _SIGNS else key
