"""Words of texts that leave spaces between words, and of those that do not (Chinese, Japanese, Thai, ...)."""

from __future__ import annotations

import re

MOST = 24
"""Words of a search that count."""
_WORD = re.compile(r"[^\W_]+")
_RUN = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\uff66-\uff9f\U0001b000-\U0001b16f\U00020000-\U000323af]+"
)
"""Thai, Lao, Burmese, Khmer, kana and Han: a run of letters has many words, and nothing says where each begins."""


def spaced(text: str) -> str:
    """Return a text for the index: of a run of letters without spaces every pair of neighbours is a word, and so is the
    last letter. What stands anywhere in a run is found by its pairs."""
    return _RUN.sub(lambda run: f" {' '.join([*_pairs(run[0]), run[0][-1]])} ", text)


def wanted(text: str) -> str | None:
    """Return the words of a search as the index wants them: every word that is typed begins a word of the text; a run
    without spaces stands in it, by its pairs. None: there is no word in it."""
    words: dict[str, None] = {}
    for word in _WORD.findall(_RUN.sub(lambda run: f" {' '.join(_pairs(run[0]) or [run[0]])} ", text)):
        words[f'"{word}"*'] = None
    return " ".join([*words][:MOST]) or None


def _pairs(run: str) -> list[str]:
    return [run[i : i + 2] for i in range(len(run) - 1)]
