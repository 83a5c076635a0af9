"""Patterns of many words."""

from __future__ import annotations

import re
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
