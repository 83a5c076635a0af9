"""Characters of a run's texts that cannot be seen, or that turn round what stands beside them: shown as their codes."""

from __future__ import annotations

import re

_NEVER = (
    "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f"
    "\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff"
)
_BETWEEN = "[^\x00-\u02af\u2000-\u206f\\s]"
UNSEEN = re.compile(
    f"[{_NEVER}]"
    # joiners belong between letters of some scripts and between emoji, a selector of a glyph behind what it selects
    f"|[\u200c\u200d](?!{_BETWEEN})|(?<!{_BETWEEN})[\u200c\u200d]"
    "|(?<![^\\s\ufe00-\ufe0f])[\ufe00-\ufe0f]"
)
"""Control characters but for tabs and line ends, and whatever has no glyph: marks of direction, soft hyphens, spaces
without width, joiners where nothing is joined, tags. `lib/format.js` of the pages has the same."""


def visible(text: str) -> str:
    """Return a text with its characters that cannot be seen as their codes: `\\u202e`, `\\u{e0041}`."""
    return UNSEEN.sub(_code, text)


def _code(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"\\u{number:04x}" if number < 1 << 16 else f"\\u{{{number:x}}}"
