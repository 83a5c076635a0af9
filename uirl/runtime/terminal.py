"""Text that reaches a terminal."""

from __future__ import annotations

import unicodedata
from pathlib import Path

_TURNS_TEXT_ROUND = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


def visible(text: str) -> str:
    """Return the text with its control characters as '\\x1b', but for line ends and tabs."""
    if text.isprintable():
        return text
    return "".join(c.encode("unicode_escape").decode() if _is_control(c) else c for c in text)


def short(path: Path) -> Path:
    """Return a path as a person writes it: below the folder where the process is, without that."""
    try:
        return path.relative_to(Path.cwd())
    except (ValueError, FileNotFoundError):  # it is elsewhere; the folder is gone
        return path


def _is_control(c: str) -> bool:
    return c not in "\n\t" and (unicodedata.category(c) in ("Cc", "Cs") or c in _TURNS_TEXT_ROUND)
