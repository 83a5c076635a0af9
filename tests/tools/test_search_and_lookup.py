"""SearchTool and LookupTool."""

from __future__ import annotations

import math
from typing import Any

import pytest

from uirl.errors import ConfigError
from uirl.tools import LookupTool, SearchTool, ToolRegistry

CITIES = [
    {"title": "Paris", "text": "Paris is the capital of France. Paris lies on the Seine."},
    {"title": "Berlin", "text": "Berlin is the capital of Germany."},
    ("Lyon", "Lyon is a city in France."),
    "Tokyo 東京 is the capital of Japan.",
]


def search(query: str, **options: Any) -> Any:
    success, result = ToolRegistry([SearchTool(CITIES, **options)]).execute_tool("search", query=query)
    assert success
    return result


def test_the_best_documents_come_first() -> None:
    assert [hit["title"] for hit in search("Seine, FRANCE")] == ["Paris", "Lyon"]
    assert [hit["title"] for hit in search("germany")] == ["Berlin"]
    assert search("Mars") == []
    assert len(search("the", top_k=1)) == 1


def test_the_score_is_bm25() -> None:
    documents = ["a b", "a a c d"]
    # N = 2, n(a) = 2: idf = log(1 + 0.5 / 2.5); lengths 2 and 4, average 3.
    idf = math.log(1.2)
    first = idf * 1 * 2.5 / (1 + 1.5 * (0.25 + 0.75 * 2 / 3))
    second = idf * 2 * 2.5 / (2 + 1.5 * (0.25 + 0.75 * 4 / 3))
    hits = SearchTool(documents).execute("a")
    assert [(hit["text"], hit["score"]) for hit in hits] == [("a a c d", round(second, 3)), ("a b", round(first, 3))]


def test_equal_scores_keep_the_order_of_the_documents() -> None:
    tool = SearchTool([(str(i), "same words") for i in range(20)], top_k=5)
    assert [hit["title"] for hit in tool.execute("words")] == ["0", "1", "2", "3", "4"]


def test_scripts_without_spaces_are_searched_by_character() -> None:
    assert [hit["text"] for hit in search("京都 東")] == [CITIES[3]]


def test_long_texts_are_shown_around_the_first_word() -> None:
    text = "x " * 300 + "needle " + "y " * 300
    [hit] = SearchTool([text], snippet_chars=40).execute("needle")
    # 40 characters, a quarter of them before the word
    assert hit["text"] == "..." + "x " * 5 + "needle " + "y " * 11 + "y..."


def test_a_query_without_words_is_a_mistake() -> None:
    registry = ToolRegistry([SearchTool(CITIES)])
    success, text = registry.execute_tool("search", query="?!")
    assert not success
    assert "has no words" in text


@pytest.mark.parametrize(
    ("documents", "words"),
    [
        ([], "no documents"),
        ([3], "expected a text"),
        ([{"body": "x"}], "expected a text"),
        ([("a",)], "expected a text"),
    ],
)
def test_documents_of_another_form_are_refused(documents: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        SearchTool(documents)


def test_parallel_episodes_share_one_index() -> None:
    registry = ToolRegistry([SearchTool(CITIES), LookupTool({"a": 1})])
    other = registry.spawn()
    assert other["search"] is registry["search"]
    assert other["lookup"] is registry["lookup"]


def test_lookup() -> None:
    registry = ToolRegistry([LookupTool({"Ada": {"age": 36}, "nobody": None}, name="people", description="Ages.")])
    assert registry.schemas()[0]["function"]["description"] == "Ages."
    assert registry.execute_tool("people", key="Ada") == (True, {"age": 36})
    assert registry.execute_tool("people", key="nobody") == (True, None)
    assert registry.execute_tool("people", key="Adda") == (False, "no entry 'Adda'; did you mean 'Ada'?")
    assert registry.execute_tool("people", key="zzz") == (False, "no entry 'zzz'")
    with pytest.raises(ConfigError, match="expected text keys"):
        LookupTool({1: 2})  # type: ignore[dict-item]
