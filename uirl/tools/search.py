"""`SearchTool`: the best documents for a query, in memory. `LookupTool`: the value of a key."""

from __future__ import annotations

import heapq
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from uirl.errors import ConfigError
from uirl.runtime.limits import shown
from uirl.tools.base import Tool, ToolError

K1, B = 1.5, 0.75
"""How fast repeated words stop counting, and how much long documents pay."""
MOST_KEYS_COMPARED = 1000
"""In larger tables a wrong key gets no suggestion: the comparison would take longer than the call."""

# Scripts without spaces: every character is a word. Elsewhere a run of letters and digits is one.
_UNSPACED = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af"
_WORD = re.compile(f"[{_UNSPACED}]|[^\\W_{_UNSPACED}]+")

Document = str | tuple[str, str] | Mapping[str, str]


class SearchTool(Tool):
    """Documents by BM25: score(q, d) = sum over words of q of idf * f * (k1 + 1) / (f + k1 * (1 - b + b * |d| / avg)).

    Okapi BM25 as in Robertson and Zaragoza, 2009, with idf = log(1 + (N - n + 0.5) / (n + 0.5)). Titles are searched
    with the text. Equal scores keep the order of the documents.
    """

    name = "search"
    description = "Searches the documents and returns the best, each with title, text and score."
    runs_inline = True

    def __init__(self, documents: Iterable[Document], *, top_k: int = 3, snippet_chars: int = 300) -> None:
        """Index `documents`: texts, (title, text) pairs, or mappings with 'text' and 'title'.

        `top_k`: results at most. `snippet_chars`: characters of a text that are shown, around the first word found.
        Raises ConfigError for documents of another form.
        """
        if top_k < 1 or snippet_chars < 1:
            raise ConfigError(f"SearchTool got top_k={top_k}, snippet_chars={snippet_chars}; expected at least 1")
        self.top_k, self.snippet_chars = top_k, snippet_chars
        self._documents = [_read_document(document) for document in documents]
        if not self._documents:
            raise ConfigError("SearchTool got no documents; expected at least one")
        self._lengths: list[int] = []
        self._postings: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for number, (title, text) in enumerate(self._documents):
            words = _words(f"{title}\n{text}")
            self._lengths.append(len(words))
            for word, count in Counter(words).items():
                self._postings[word].append((number, count))
        self._average = max(1.0, sum(self._lengths) / len(self._lengths))

    def execute(self, query: str) -> list[dict[str, Any]]:
        """Return the best documents, best first; empty where no word is found.

        Args:
            query: A few words.
        """
        words = set(_words(query))
        if not words:
            raise ToolError(f"the query {query[:40]!r} has no words; expected e.g. the name of what you look for")
        scores = self._scores(words)
        best = heapq.nsmallest(self.top_k, scores.items(), key=lambda item: (-item[1], item[0]))
        return [self._result(number, score, words) for number, score in best]

    def __deepcopy__(self, memo: dict[int, Any]) -> SearchTool:
        return self  # nothing of it changes: parallel episodes share it

    def _scores(self, words: set[str]) -> dict[int, float]:
        scores: dict[int, float] = defaultdict(float)
        for word in sorted(words):  # a fixed order of summation, for equal digits in every process
            postings = self._postings.get(word, ())
            idf = math.log(1 + (len(self._documents) - len(postings) + 0.5) / (len(postings) + 0.5))
            for number, count in postings:
                length = 1 - B + B * self._lengths[number] / self._average
                scores[number] += idf * count * (K1 + 1) / (count + K1 * length)
        return scores

    def _result(self, number: int, score: float, words: set[str]) -> dict[str, Any]:
        title, text = self._documents[number]
        return {"title": title, "text": self._snippet(text, words), "score": round(score, 3)}

    def _snippet(self, text: str, words: set[str]) -> str:
        if len(text) <= self.snippet_chars:
            return text
        first = next((match.start() for match in _WORD.finditer(text) if match[0].casefold() in words), 0)
        start = max(0, min(first - self.snippet_chars // 4, len(text) - self.snippet_chars))
        end = start + self.snippet_chars
        return ("..." if start else "") + text[start:end] + ("..." if end < len(text) else "")


def _words(text: str) -> list[str]:
    return [word.casefold() for word in _WORD.findall(text)]


def _read_document(document: Any) -> tuple[str, str]:
    if isinstance(document, str):
        return "", document
    if isinstance(document, Mapping) and set(document) <= {"title", "text"} and "text" in document:
        document = (document.get("title", ""), document["text"])
    if isinstance(document, tuple) and len(document) == 2 and all(isinstance(part, str) for part in document):
        return document
    raise ConfigError(
        f"SearchTool got the document {shown(document, 80)}; expected a text, (title, text), or a dict with 'text' "
        "and 'title'"
    )


class LookupTool(Tool):
    """The value of a key in a table; a key that is not there is a `ToolError` that names near ones."""

    name = "lookup"
    description = "Returns the value of a key."
    runs_inline = True

    def __init__(self, table: Mapping[str, Any], name: str = "lookup", description: str = "") -> None:
        """Serve `table`: text keys and plain data. `description` empty: says only that it looks up keys."""
        wrong = [key for key in table if not isinstance(key, str)]
        if wrong:
            raise ConfigError(f"LookupTool got the key {shown(wrong[0], 40)}; expected text keys")
        self.name, self.description = name, description or type(self).description
        self._table = dict(table)

    def execute(self, key: str) -> Any:
        """Return the value of a key.

        Args:
            key: Exactly as it is written in the table.
        """
        if key in self._table:
            return self._table[key]
        near = get_close_matches(key[:100], self._table, n=1) if len(self._table) <= MOST_KEYS_COMPARED else []
        raise ToolError(f"no entry {key[:60]!r}" + (f"; did you mean {near[0]!r}?" if near else ""))

    def __deepcopy__(self, memo: dict[int, Any]) -> LookupTool:
        return self  # nothing of it changes: parallel episodes share it
