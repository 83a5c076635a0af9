"""Replies that went wrong as text: garbled, or the same over and over."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence

REPEATED, GARBLED = "repeated", "garbled"
LOOPS = 4
"""Times that a piece stands behind itself before a reply counts as repeated."""
LEAST = 48
"""Characters that the repeated pieces have together at least."""
LONGEST = 400
"""Characters of the longest piece that is looked for."""
DENSE, PACKED = 400, 10
"""Text of at least so many characters that packs into less than a tenth says one thing over and over."""
PROBE = 12
"""Characters that are looked for again."""
SAME = 3
"""Equal replies in a row before an episode counts as repeated."""
WINDOW = 4000
"""Characters at the end of a reply that are looked at: most loops go on until the reply is cut."""
_STRANGE = re.compile("[\ufffd\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ue000-\uf8ff]")
_WORD = re.compile(r"[^\W\d_]{3,}")
_SCRIPTS = ((0x0041, 0x024F), (0x0370, 0x03FF), (0x0400, 0x052F), (0x0530, 0x058F), (0x0590, 0x05FF),
            (0x0600, 0x06FF), (0x0900, 0x0DFF), (0x10A0, 0x10FF))  # fmt: skip
"""Latin, Greek, Cyrillic, Armenian, Hebrew, Arabic, those of India, Georgian: writing systems that leave spaces between
words and so do not stand within one word. (Chinese, Japanese, Korean and Thai do, beside Latin.)"""


def flags_of_reply(text: str) -> tuple[str, ...]:
    """Return the flags of one reply, of 'repeated' and 'garbled'.

    'repeated': a piece stands behind itself `LOOPS` times or more, or long text packs into less than a tenth.
    'garbled': more than one character in fifty is no text (control, private use, half of a pair, U+FFFD), or writing
    systems change within three words or more, a fifth of all.
    """
    tail = text[-WINDOW:].rstrip()
    found = ((REPEATED, _packs(tail) or loops(tail)), (GARBLED, _is_garbled(tail)))
    return tuple(name for name, there in found if there)


def flags_of(replies: Sequence[str]) -> tuple[str, ...]:
    """Return the flags of an episode: those of its replies, and 'repeated' where `SAME` equal replies follow each
    other."""
    found = {flag for reply in replies for flag in flags_of_reply(reply)}
    if longest_row(replies) >= SAME:
        found.add(REPEATED)
    return tuple(flag for flag in (REPEATED, GARBLED) if flag in found)


def longest_row(replies: Sequence[str]) -> int:
    """Return how many equal replies that are not empty stand in a row at most."""
    longest = row = 0
    previous = ""
    for reply in replies:
        row = row + 1 if reply and reply == previous else int(bool(reply))
        longest, previous = max(longest, row), reply
    return longest


def loops(text: str) -> bool:
    """Return whether a piece of 1 to `LONGEST` characters stands behind itself, `LOOPS` times and `LEAST` characters in
    all. Where a short probe stands again, their distance may be the length of such a piece."""
    for place in range(0, len(text) - PROBE, PROBE):
        probe, end = text[place : place + PROBE], place + PROBE + LONGEST
        again = text.find(probe, place + 1, end)
        while again != -1:
            period = again - place
            if _run(text, place, period) >= max(LOOPS * period, LEAST):
                return True
            again = text.find(probe, again + 1, end)
    return False


def _run(text: str, place: int, period: int) -> int:
    """Return how many characters around `place` repeat with this period."""
    begin, end = place, place + period
    while begin > 0 and text[begin - 1] == text[begin - 1 + period]:
        begin -= 1
    while end < len(text) and text[end] == text[end - period]:
        end += 1
    return end - begin


def _packs(text: str) -> bool:
    return len(text) >= DENSE and len(zlib.compress(text.encode("utf-8", "replace"))) * PACKED < len(text)


def _is_garbled(text: str) -> bool:
    if len(_STRANGE.findall(text)) * 50 > len(text):
        return True
    if text.isascii():
        return False
    words = _WORD.findall(text)
    mixed = sum(len({_script(character) for character in word} - {None}) > 1 for word in words)
    return mixed >= 3 and mixed * 5 > len(words)


def _script(character: str) -> int | None:
    code = ord(character)
    return next((i for i, (low, high) in enumerate(_SCRIPTS) if low <= code <= high), None)
