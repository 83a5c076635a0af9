"""Stores of an earlier and of a later version, and no room for labels."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.storage.test_versions import WRITTEN_BY_1
from tests.viewer.runs import make_run, trajectory
from uirl.storage.labels import LabelStore

BASE = "/api/runs/old"


@pytest.fixture
def old(run) -> Path:
    made = make_run(run.parent / "old")
    store = made / "trajectories.sqlite"
    for file in made.glob("trajectories.sqlite*"):
        file.unlink()
    with closing(sqlite3.connect(store)) as connection:
        connection.executescript(WRITTEN_BY_1.read_text())
        connection.commit()
    return store


def test_a_store_of_the_first_version_is_shown_and_left_as_it_is(client, old):
    before = old.read_bytes()
    (listed,) = [run for run in client.get("/api/runs").json()["runs"] if run["key"] == "old"]
    assert (listed["trajectories"], listed["problem"]) == (3, None)
    page = client.get(f"{BASE}/trajectories").json()
    assert {row["id"]: (row["success"], row["verdict"], row["level"]) for row in page["rows"]} == {
        "t-1": (True, True, None),
        "b": (False, None, None),
        "c": (None, None, None),
    }
    for filtered, count in (("verdict=true", 1), ("success=false", 1), ("sort=reward", 3), ("level=null", 3)):
        assert client.get(f"{BASE}/trajectories?{filtered}").json()["count"] == count
    assert client.get(f"{BASE}/facets").status_code == 200
    group = page["rows"][0]["group_id"]
    episodes = [f"trajectories/t-1{of}" for of in ("", "/turns/0", "/tokens?turn=0&context=1", "/export.html")]
    for path in [*episodes, f"groups/{group}"]:
        assert client.get(f"{BASE}/{path}").status_code == 200, path
    assert client.put(f"{BASE}/trajectories/b/label", json={"passed": False}).status_code == 200
    assert old.read_bytes() == before


def test_a_store_of_a_later_version_is_named_and_hides_no_other(client, old):
    with closing(sqlite3.connect(old)) as connection:
        connection.execute("PRAGMA user_version = 99")
        connection.commit()
    listed = {run["key"]: run for run in client.get("/api/runs").json()["runs"]}
    assert "schema version 99" in listed["old"]["problem"]
    assert listed["first"]["problem"] is None
    for path in ("trajectories", "trajectories/b", "facets", "groups/g"):
        answer = client.get(f"{BASE}/{path}")
        assert (answer.status_code, "schema version 99" in answer.json()["error"]) == (404, True), path
    assert client.get(f"{BASE}/metrics").json()["rows"] != []


def test_without_room_no_label_is_kept_and_the_reader_is_told(client, run, monkeypatch):
    assert client.put("/api/runs/first/trajectories/b/label", json={"passed": True}).status_code == 200
    opened = LabelStore._open

    def small(self, *, write):
        connection = opened(self, write=write)
        if connection is not None:
            pages = connection.execute("PRAGMA page_count").fetchone()[0]
            connection.execute(f"PRAGMA max_page_count = {pages}")
        return connection

    monkeypatch.setattr(LabelStore, "_open", small)
    long = {"passed": False, "note": "x" * 9000}
    answers = [client.put(f"/api/runs/first/trajectories/{id}/label", json=long) for id in ("b", "c")]
    assert [answer.status_code for answer in answers] == [503, 503]
    assert all("disk is full" in answer.json()["error"] for answer in answers)
    sheet = "id,passed,note\nb,no,\nc,no," + "y" * 9000 + "\n"
    answer = client.post("/api/runs/first/labels.csv", content=sheet, headers={"content-type": "text/csv"})
    assert answer.status_code == 503
    labels = client.get("/api/runs/first/labels.csv").text.splitlines()
    assert [line.split(",")[:2] for line in labels[1:]] == [["b", "true"]], "all of a sheet, or nothing"


def test_a_run_that_is_removed_while_it_is_looked_at_is_gone_and_takes_no_labels(client, run):
    make_run(run.parent / "gone", [trajectory("a")])
    assert client.get("/api/runs/gone/trajectories/a").status_code == 200
    shutil.rmtree(run.parent / "gone")
    for path in ("", "/trajectories", "/trajectories/a", "/trajectories/a/turns/0", "/metrics", "/labels.csv"):
        assert client.get(f"/api/runs/gone{path}").status_code == 404, path
    assert client.put("/api/runs/gone/trajectories/a/label", json={"passed": True}).status_code == 404
    assert not (run.parent / "gone").exists()
