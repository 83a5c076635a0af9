"""The viewer's copy of a list: rows that change, files that are damaged; and what a search finds."""

from __future__ import annotations

import os
import shutil
import sqlite3
import threading
import time
from dataclasses import replace
from urllib.parse import quote

import pytest

from tests.folders import unwritable
from tests.patience import PATIENCE
from tests.viewer.conftest import client_of, get
from tests.viewer.runs import make_run, passed, trajectory, turn
from uirl.storage import TrajectoryStore
from uirl.storage.labels import Label, LabelStore
from uirl.types import Task, Verdict
from uirl.viewer.index import MOST_WORDS, Index, spaced, wanted
from uirl.viewer.runs import Indexing, Runs

MANY = 8
LIST = "/api/runs/first/trajectories"


@pytest.fixture
def index(tmp_path):
    run = make_run(tmp_path / "run", [trajectory(f"t{i}", [turn(f"word{i}")]) for i in range(MANY)])
    made = Index(run / "trajectories.sqlite")
    yield made
    made.close()


def meanwhile(index, name, act):
    """Let `act` happen once, right behind the next call of a method of `index`."""
    method = getattr(index, name)

    def called(*values):
        setattr(index, name, method)
        found = method(*values)
        act()
        return found

    setattr(index, name, called)


def test_a_thread_keeps_nothing_that_it_read_before_another_forgot_everything(index):
    index.catch_up(60)

    def collect_anew():
        with TrajectoryStore(index.store) as store:
            store.truncate_after(2)
            store.add(trajectory("new", [turn("fresh")]), step=3)
        index.catch_up(60)

    meanwhile(index, "_words", collect_anew)
    while index.read_words(60):
        pass
    index.catch_up(60)
    assert index.size == (3, 3, 3)
    assert index.read("SELECT count(*) FROM words WHERE words MATCH 'word3'") == [(0,)]
    assert index.read("SELECT rowid FROM words WHERE words MATCH 'word1'") == [(2,)]
    assert index.read("SELECT id FROM rows ORDER BY number") == [("t0",), ("t1",), ("new",)]


def test_a_verdict_that_is_replaced_later_is_listed_filtered_and_counted(client, run):
    assert [row["verdict"] for row in get(client, LIST)["rows"]] == [None, None, True]
    assert get(client, f"{LIST}?verdict=false")["count"] == 0
    assert get(client, "/api/runs/first/facets")["task_id"] == [["task", 2], ["other", 1]]
    with TrajectoryStore(run / "trajectories.sqlite") as store:
        store.set_verdict("b", Verdict(1.0, True))
        store.set_verdict("a/1", Verdict(0.0, False))
    page = get(client, LIST)
    assert [(row["verdict"], row["success"]) for row in page["rows"]] == [(None, False), (True, True), (False, False)]
    assert [row["id"] for row in get(client, f"{LIST}?verdict=false")["rows"]] == ["a/1"]
    assert [row["id"] for row in get(client, f"{LIST}?success=true")["rows"]] == ["b"]
    assert get(client, "/api/runs/first/facets")["success"] == [[False, 2], [True, 1]]


def test_rows_on_a_page_are_right_before_all_others_were_looked_at(client, run, monkeypatch):
    get(client, LIST)
    monkeypatch.setattr(Index, "_look_again", lambda self: None)
    with TrajectoryStore(run / "trajectories.sqlite") as store:
        store.set_verdict("b", Verdict(1.0, True))
    assert [row["verdict"] for row in get(client, LIST)["rows"]] == [None, True, True]


def test_a_label_of_another_viewer_is_listed(client, run):
    assert get(client, f"{LIST}?label=passed")["count"] == 0
    theirs = LabelStore(run / "labels.sqlite")
    theirs.set("b", Label(True))
    assert [row["id"] for row in get(client, f"{LIST}?label=passed")["rows"]] == ["b"]
    theirs.set("b", Label(False))
    assert get(client, f"{LIST}?label=passed")["count"] == 0
    theirs.close()


def test_one_who_asks_while_labels_are_read_has_them_too(runs, monkeypatch):
    run = runs.get("first")
    run.index.catch_up(60)
    run.labels.set("b", Label(True))
    every, reading, go_on = run.labels.all, threading.Event(), threading.Event()

    def slowly():
        reading.set()
        go_on.wait(60)
        return every()

    monkeypatch.setattr(run.labels, "all", slowly)
    found = []
    first = threading.Thread(target=lambda: run.index)  # as the thread that follows the run
    asked = threading.Thread(target=lambda: found.extend(run.index.read("SELECT id, passed FROM labelled")))
    first.start()
    reading.wait(60)
    asked.start()
    asked.join(0.3)
    go_on.set()
    for thread in (first, asked):
        thread.join(60)
    assert found == [("b", 1)]
    runs.close()


def test_a_damaged_episode_is_named_and_the_others_are_shown(client, run):
    with sqlite3.connect(run / "trajectories.sqlite") as store:
        store.execute("UPDATE turns SET record = '{\"obser' WHERE trajectory = 2")
    deadline = time.monotonic() + PATIENCE
    while get(client, LIST)["indexed"]["done"] < 3:
        assert time.monotonic() < deadline
    assert [row["flags"] for row in get(client, LIST)["rows"]] == [["repeated"], ["unreadable"], []]
    assert "damaged" in get(client, f"{LIST}/b", 404)["error"]
    assert get(client, f"{LIST}/c")["id"] == "c"


def test_a_damaged_store_is_named(client, run):
    get(client, LIST)
    path = run / "trajectories.sqlite"
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data[:100] + b"\xff" * (len(data) - 100))
    assert "damaged" in get(client, f"{LIST}/b", 404)["error"]
    (listed,) = get(client, "/api/runs")["runs"]
    assert "damaged" in listed["problem"]
    path.write_bytes(data)
    os.utime(path)
    assert get(client, "/api/runs/first/metrics")["rows"]


def test_a_run_that_is_removed_and_made_anew_is_followed(client, run):
    get(client, LIST)
    client.put(f"{LIST}/b/label", json={"passed": True})
    shutil.rmtree(run)
    assert get(client, "/api/runs")["runs"] == []
    get(client, LIST, 404)
    make_run(run, [trajectory("z", verdict=passed())])
    assert [(row["id"], row["label"]) for row in get(client, LIST)["rows"]] == [("z", None)]
    assert client.put(f"{LIST}/z/label", json={"passed": False}).status_code == 200
    assert (run / "labels.sqlite").is_file()


def test_a_run_on_a_mount_that_is_read_only_is_shown_and_not_labelled(run):
    with unwritable(run) as mounted, client_of(Runs([mounted])) as client:
        assert [row["id"] for row in get(client, LIST)["rows"]] == ["c", "b", "a/1"]
        assert get(client, f"{LIST}/b")["id"] == "b"
        assert get(client, "/api/runs/first")["charts"]
        put = client.put(f"{LIST}/b/label", json={"passed": True})
        assert put.status_code == 503
        assert "labels.sqlite" in put.json()["error"]


def test_one_run_that_fails_does_not_end_the_index_of_the_others(run, monkeypatch, caplog):
    make_run(run.parent / "second", [trajectory("x")])
    runs = Runs([run.parent])
    for one in runs.all():
        assert one.index.size[0] == 0
    copy = Index.catch_up

    def fails(self, seconds=0.3):
        if self.store.parent.name == "first":
            raise RuntimeError("a fault of ours")
        copy(self, seconds)

    monkeypatch.setattr(Index, "catch_up", fails)
    indexing = Indexing(runs)
    monkeypatch.setattr("uirl.viewer.runs.EVERY", 0.01)
    indexing.start()
    deadline = time.monotonic() + PATIENCE
    while runs.get("second").index.size[:2] != (1, 1):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    indexing.stop()
    assert caplog.text.count("the index of first cannot be brought up to date") == 1
    runs.close()


def steps_of_a_look(index):
    """Return how much SQLite does when the index looks for news, in tens of its instructions."""
    steps = []
    for connection in (index._source, index._connection):
        connection.set_progress_handler(lambda: steps.append(1), 10)
    index.catch_up(60)
    index.read_words(60)
    return len(steps)


def test_a_look_at_a_store_that_stands_still_costs_the_same_whatever_its_size(tmp_path):
    """A training run is beside it, and it is looked at every second."""
    work = []
    for count in (100, 1000):
        run = make_run(tmp_path / str(count))
        with TrajectoryStore(run / "trajectories.sqlite") as store:
            store.add_many([trajectory(f"t{i}") for i in range(count)], step=1)
        index = Index(run / "trajectories.sqlite")
        while index.size[:2] != (count, count):
            index.catch_up(60)
            index.read_words(60)
        index.catch_up(60)
        work.append(steps_of_a_look(index))
        index.close()
    assert work[1] < 1.5 * work[0]


def test_rows_that_come_while_it_looks_are_no_loss(index):
    index.catch_up(60)
    epoch = index.read("SELECT epoch FROM state")
    with TrajectoryStore(index.store) as store:
        for number in range(4):
            meanwhile(index, "_from_store", lambda number=number: store.add(trajectory(f"new{number}"), step=9))
            index.catch_up(60)
    assert index.read("SELECT epoch FROM state") == epoch
    assert index.size[0] == MANY + 4


def test_names_with_half_a_pair_lead_to_their_pages(client, run):
    odd = trajectory("id \ud800/x", task="task \ud800", group_id="group \ud800")
    with TrajectoryStore(run / "trajectories.sqlite") as store:
        store.add(odd, step=9)
    row = get(client, LIST)["rows"][0]
    assert (row["id"], row["group_id"]) == ("id \\ud800/x", "group \\ud800")
    shown = get(client, f"{LIST}/{quote(row['id'], safe='')}")
    assert (shown["id"], shown["group_id"], shown["task"]["id"]) == (row["id"], row["group_id"], "task \\ud800")
    group = get(client, f"/api/runs/first/groups/{quote(row['group_id'], safe='')}")
    assert (group["group_id"], group["members"][0]["id"]) == (row["group_id"], row["id"])
    assert get(client, f"{LIST}?task={quote('task ' + chr(92) + 'ud800')}")["count"] == 1
    put = client.put(f"{LIST}/{quote(row['id'], safe='')}/label", json={"passed": True})
    assert put.status_code == 200
    assert get(client, f"{LIST}?label=passed")["count"] == 1


# -- words ------------------------------------------------------------------------------------------------------------


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
    assert (ids, answer["clipped"]) == ([], {"episodes": 1, "characters": MOST_WORDS})
    assert "clipped" not in words("")[1]
