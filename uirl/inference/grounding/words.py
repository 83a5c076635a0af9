"""The words on the synthetic screens: common words of user interfaces, and words that syllables make."""

from __future__ import annotations

from random import Random

_COMMON = (
    "OK Cancel Submit Save Open Close Next Back Home Search Login Logout Send Delete Edit Copy Paste Print Share Help "
    "About Settings Profile Account Options Tools View File New Add Remove Update Reset Clear Apply Yes No Done Start "
    "Stop Play Pause Upload Download Buy Cart Order Pay Price Total Name Email Phone Address City Country Date Time "
    "Day Week Month Year User Password Message Subject Title Comment Reply Forward Archive Inbox Draft News Sports "
    "Music Video Photo Image Map Travel Food Health Money Books Games Weather World Local Today More Less Show Hide "
    "Filter Sort List Grid Table Chart Report Refresh Load Sign Register Join Follow Like Rate Review Contact Support "
    "Terms Privacy Language English Menu Sun Rain Tree River Stone Paper Glass Light Dark Small Large"
)
COMMON = tuple(_COMMON.split())
"""Some of what buttons, links, fields and headings say."""

_ONSETS = ("", "b", "br", "c", "ch", "d", "dr", "f", "fl", "g", "gr", "h", "j", "k", "l", "m", "n", "p", "pl", "qu",
           "r", "s", "sh", "st", "t", "th", "tr", "v", "w", "x", "y", "z")  # fmt: skip
_VOWELS = ("a", "e", "i", "o", "u", "ea", "ou", "ie")
_CODAS = ("", "", "", "b", "c", "d", "g", "k", "l", "m", "n", "nd", "p", "r", "s", "st", "t", "x")


def invented(rng: Random) -> str:
    """Return a word of one to three syllables, in lower case."""
    count = rng.choice((1, 2, 2, 2, 3))
    return "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in range(count))[:9]


def word(rng: Random) -> str:
    """Return a word in lower case, with a capital, or all in capitals."""
    text = rng.choice(COMMON) if rng.random() < 0.35 else invented(rng)
    case = rng.random()
    return text.lower() if case < 0.45 else text.upper() if case > 0.9 else text[0].upper() + text[1:]


def label(rng: Random, *, longest: int = 14) -> str:
    """Return one word, seldom two or a number, of at most `longest` letters."""
    if rng.random() < 0.08:
        return str(rng.randint(0, 999))
    text = word(rng)
    if rng.random() < 0.15:
        text += " " + word(rng).lower()
    return text[:longest].strip()
