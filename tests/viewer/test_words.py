"""What a search finds: words by their beginning, and what stands anywhere in a text without spaces."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import quote

import pytest

from tests.viewer.runs import make_run, trajectory, turn
from uirl.types import Task
from uirl.viewer import index as module
from uirl.viewer.words import spaced, wanted


def test_a_run_without_spaces_is_its_pairs_and_its_last_letter():
    assert spaced("a 蓝牙功 b") == "a  蓝牙 牙功 功  b"
    assert spaced("plain words") == "plain words"
    assert wanted("蓝牙功") == '"蓝牙"* "牙功"*'
    assert wanted("wifi蓝") == '"wifi"* "蓝"*'
    assert wanted("same same") == '"same"*'
    assert wanted("… !") is None


@pytest.fixture
def words(run, client, runs):
    goals = {
        "zh": "请打开设置应用并关闭蓝牙功能",
        "ja": "設定アプリを開いてブルートゥースを切る",
        "th": "ปิดบลูทูธในการตั้งค่า",
        "de": "Öffne die Straße über-all naïve",
        "mixed": "打开Wi-Fi和蓝牙",
    }
    episodes = [replace(trajectory(id), task=Task(id, goal=goal)) for id, goal in goals.items()]
    make_run(run.parent / "words", [*episodes, trajectory("long", [turn("w " * 15_000 + "needle")], task="long")])
    index = runs.get("words").index
    index.catch_up()
    assert not index.read_words(60)

    def found(text):
        answer = client.get(f"/api/runs/words/trajectories?sort=number&order=asc&q={quote(text)}").json()
        return [row["id"] for row in answer["rows"]], answer

    return found


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("蓝牙", ["zh", "mixed"]),
        ("牙", ["zh", "mixed"]),
        ("能", ["zh"]),
        ("关闭蓝牙", ["zh"]),
        ("蓝关", []),
        ("wi 蓝牙", ["mixed"]),
        ("ブルートゥース", ["ja"]),
        ("アプリ", ["ja"]),
        ("บลูทูธ", ["th"]),
        ("strasse", []),
        ("straße", ["de"]),
        ("naive", ["de"]),
        ("all", ["de"]),
    ],
)
def test_words_are_found_in_every_script(words, text, ids):
    assert words(text)[0] == ids


def test_what_is_beyond_the_part_that_is_searched_is_said(words):
    ids, answer = words("needle")
    assert (ids, answer["clipped"]) == ([], {"episodes": 1, "characters": module.MOST_WORDS})
    assert "clipped" not in words("")[1]
