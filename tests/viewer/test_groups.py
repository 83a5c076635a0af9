"""Siblings side by side: columns of equal screens, forks, and what stands beside them."""

from __future__ import annotations

import io
from urllib.parse import quote

from PIL import Image, ImageDraw

from tests.viewer.runs import make_run, trajectory, turn
from uirl.images import Screenshot
from uirl.types import Action, Observation, ToolCall
from uirl.viewer.groups import align, packed


def seen(name: str) -> Observation:
    return Observation(name, state_key=name)


def episode(id: str, screens: str, success: bool, clicks: str = ""):
    """An episode that sees one screen per letter, the last at the end, and presses the letters of `clicks`."""
    turns = [
        turn(observation=seen(letter), action=Action(press, (ToolCall("press", {"key": press}),)), context_images=())
        for letter, press in zip(screens[:-1], clicks or screens[1:], strict=True)
    ]
    return trajectory(id, turns, success=success, final=seen(screens[-1]), group_id="g/1")


def aligned(*rows: str, pack: bool = False) -> list[str]:
    """Each member as a line of letters, with '-' where a column shows it nothing."""
    places = align([[seen(letter) for letter in row] for row in rows], lambda a, b: a.text == b.text)
    places = packed(places) if pack else places
    width = 1 + max(column for mine in places for column in mine)
    lines = [["-"] * width for _ in rows]
    for line, row, mine in zip(lines, rows, places, strict=True):
        for letter, column in zip(row, mine, strict=True):
            line[column] = letter
    return ["".join(line) for line in lines]


def test_equal_screens_stand_below_each_other():
    assert aligned("abcd", "abcd") == ["abcd", "abcd"]
    assert aligned("abcd", "abxd") == ["ab-cd", "abx-d"]
    assert aligned("abc", "aabc", "ac") == ["a-bc", "aabc", "a--c"]
    assert aligned("", "ab") == ["--", "ab"]
    assert aligned("aab", "ab", "axab") == ["a-ab", "a--b", "axab"]


def test_what_only_one_saw_stands_beside_what_others_saw_meanwhile():
    assert aligned("abcd", "abxd", pack=True) == ["abcd", "abxd"]
    assert aligned("a1234z", "a56z", "a7", pack=True) == ["a1234z", "a56--z", "a7----"]
    assert aligned("abc", "axyc", "ac", pack=True) == ["ab-c", "axyc", "a--c"]
    assert aligned("12ab", "3b", "4a5b", pack=True) == ["12a-b", "3---b", "4-a5b"]
    assert aligned("", "ab", pack=True) == ["--", "ab"]
    parting = [f"o{chr(200 + i)}{chr(300 + i)}" for i in range(16)]
    assert max(map(len, aligned(*parting))) == 33
    assert aligned(*parting, pack=True) == parting


def ask(client, run, episodes):
    make_run(run.parent / "grouped", episodes)
    answer = client.get(f"/api/runs/grouped/groups/{quote('g/1', safe='')}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_failed_member_leaves_the_way_of_a_successful_one(client, run):
    shown = ask(client, run, [episode("good", "abcd", True), episode("bad", "abxy", False)])
    assert [one["id"] for one in shown["members"]] == ["good", "bad"]
    columns = [column["screens"] for column in shown["columns"]]
    assert columns[:2] == [{"good": 0, "bad": 0}, {"good": 1, "bad": 1}]
    assert shown["fork"] == {"step": 1, "pairs": [["bad", "good"]]}
    assert shown["forks"][0] == {"failed": "bad", "successful": "good", "at": 1, "other": 1, "column": 1}
    assert shown["members"][1]["turns"][1]["action_text"] == "x"


def test_without_a_success_there_is_no_fork(client, run):
    shown = ask(client, run, [episode("one", "abc", False), episode("two", "abd", False)])
    assert shown["fork"] is None
    assert client.get("/api/runs/grouped/groups/none").status_code == 404


def drawn(clock: int, button: str) -> Screenshot:
    """A screen with a clock in its corner that differs each time, in few pixels."""
    picture = Image.new("RGB", (320, 240), "white")
    draw = ImageDraw.Draw(picture)
    draw.rectangle((40, 60, 280, 200), fill=button)
    draw.point((300 + clock, 4), fill="lightgray")
    out = io.BytesIO()
    picture.save(out, format="PNG")
    return Screenshot(out.getvalue())


def test_screens_are_compared_by_what_they_show(client, run):
    def member(id, clock, colors, success):
        turns = [turn("press", drawn(clock + i, color)) for i, color in enumerate(colors)]
        return trajectory(id, turns, success=success, group_id="g/1")

    shown = ask(client, run, [member("a", 0, ["red", "blue"], True), member("b", 5, ["red", "black"], False)])
    assert shown["columns"] == [
        {"screens": {"a": 0, "b": 0}, "same": True},
        {"screens": {"a": 1, "b": 1}, "same": False},
    ]
    assert len(shown["members"][0]["turns"][0]["hash"]) == 16


def test_a_group_that_is_larger_than_what_is_aligned_is_counted_whole(client, run, monkeypatch):
    monkeypatch.setattr("uirl.viewer.groups.MOST_MEMBERS", 4)
    make_run(run.parent / "large", [episode(f"e{i}", "ab", i % 2 == 0) for i in range(9)])
    found = client.get("/api/runs/large/groups/g%2F1").json()
    assert (len(found["members"]), found["count"], found["solved"]) == (4, 9, 5)
