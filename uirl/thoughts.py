"""How the public families write a thought within a reply: one table, for parsers, chat templates and judges."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable
from typing import Any


def any_of(words: Iterable[str]) -> str:
    """Return a pattern for the longest of `words` at a place, in time that does not grow with their number."""
    tree: dict[str, Any] = {}
    for word in words:
        node = tree
        for letter in word:
            node = node.setdefault(letter, {})
        node[""] = {}
    return _pattern_of(tree) or r"(?!)"


def _pattern_of(node: dict[str, Any]) -> str:
    branches = [re.escape(letter) + _pattern_of(below) for letter, below in sorted(node.items()) if letter]
    if not branches:
        return ""
    text = branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"
    return f"(?:{text})?" if "" in node else text


_TAGS = ("think", "thinking", "thought", "reasoning", "seed:think", "mm:think")
"""Tags of Qwen, DeepSeek, GLM, Nemotron; MAI-UI; EXAONE; others; Seed-OSS; MiniMax."""
_PAIRS = (
    *((f"<{tag}>", f"</{tag}>") for tag in _TAGS),
    ("[THINK]", "[/THINK]"),  # Magistral
    ("<|begin_of_thought|>", "<|end_of_thought|>"),  # OpenThinker, Sky-T1
    ("<|START_THINKING|>", "<|END_THINKING|>"),  # Cohere
    ("<|inner_prefix|>", "<|inner_suffix|>"),  # Apertus
    ("◁think▷", "◁/think▷"),  # Kimi
    ("<|channel>thought", "<channel|>"),  # Gemma 4
    ("<unused94>thought", "<unused95>"),  # MedGemma
)
_CHANNELS = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>")
"""gpt-oss writes a message on a channel of its own: a thought on 'analysis', an answer on 'final'."""
_ANALYSIS = "<|channel|>analysis<|message|>"
_OTHER_CHANNEL = r"<\|channel\|>(?:final|commentary)[^<>]{0,200}(?:<\|constrain\|>[^<>]{0,80})?<\|message\|>"
_GRANITE = ("Here is my thought process:", "Here is my response:")
"""Words alone: they count where the reply begins with the first."""

MARKS = frozenset({*(word for pair in _PAIRS for word in pair), *_CHANNELS, "<|channel>", "<unused94>"})
"""What may be a control token of its own: without it, a reply does not tell its thought from its answer."""
_BEGINS, _ENDS = zip(*_PAIRS, strict=True)
END_OF_THOUGHT = re.compile(f"{any_of(_ENDS)}|{_OTHER_CHANNEL}")
_MARK = re.compile(f"{any_of([*_BEGINS, *_ENDS, _ANALYSIS])}|{_OTHER_CHANNEL}")
_OPENS = frozenset({*_BEGINS, _ANALYSIS})


class Thoughts:
    """Where thoughts begin and end in one reply, read once."""

    def __init__(self, text: str) -> None:
        marks = list(_MARK.finditer(text))
        self._starts = [mark.start() for mark in marks]
        self._ends = [-1 if mark[0] in _OPENS else mark.end() for mark in marks]
        self.in_words = 0
        """Where a thought ends that is opened and closed by words alone (Granite); 0: the reply does not begin so; -1:
        it is not closed."""
        if text.lstrip().startswith(_GRANITE[0]):
            at = text.find(_GRANITE[1])
            self.in_words = at + len(_GRANITE[1]) if at >= 0 else -1

    def skip(self, start: int, position: int) -> tuple[int, int]:
        """Return (where the last thought before a call at `position` ends, or -1; where to read on).

        `position` -1: there is no call. To read on: from `start`, or where a thought begins to end that is open at the
        call; -1: it never does."""
        first = bisect_left(self._starts, start)
        behind = len(self._starts) if position < 0 else bisect_left(self._starts, position)
        before = range(behind - 1, first - 1, -1)
        last = next((i for i in before if self._ends[i] >= 0), first - 1)
        closed = self._ends[last] if last >= first else -1
        if last + 1 >= behind:
            return closed, start
        following = next((i for i in range(behind, len(self._ends)) if self._ends[i] >= 0), -1)
        return closed, self._starts[following] if following >= 0 else -1


def next_end_of_thought(text: str, start: int, stop: int) -> int:
    """Return where the next end of a thought in `text[start:stop]` begins; -1: there is none."""
    match = END_OF_THOUGHT.search(text, start, stop)
    return match.start() if match else -1


def end_of_thought(text: str, thoughts: Thoughts | None = None) -> int:
    """Return where the thought that a reply without calls begins with ends; 0: there is none. One that is never closed
    goes to the end. `thoughts`: those of `text`, where they were read before."""
    thoughts = thoughts or Thoughts(text)
    if thoughts.in_words:
        return thoughts.in_words if thoughts.in_words > 0 else len(text)
    end = max(thoughts.skip(0, -1)[0], 0)
    mark = _MARK.match(text[end:].lstrip())
    return len(text) if mark is not None and mark[0] in _OPENS else end


def split_thought(text: str) -> tuple[str, str]:
    """Return (thought without its marks, answer) of a reply without calls."""
    end = end_of_thought(text)
    return bare_thought(text[:end]), text[end:].lstrip() if end else text


def bare_thought(thought: str) -> str:
    """Return a thought without the marks around it."""
    thought = _MARK.sub("", thought)
    for word in _CHANNELS:
        thought = thought.replace(word, "")
    return thought.removeprefix(_GRANITE[0]).removesuffix(_GRANITE[1]).strip()
