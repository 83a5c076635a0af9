"""What the viewer answers about runs, curves, episodes, pictures and labels."""

from __future__ import annotations

import csv
import io
import json
import os
from urllib.parse import quote

import pytest

from tests.viewer.conftest import get
from tests.viewer.runs import make_run, picture, trajectory, turn
from uirl.storage import TrajectoryStore
from uirl.types import Action, Observation, PictureTransform, ToolCall

HOSTILE = "<script>alert(1)</script>\u2028\"'><img src=x onerror=alert(1)>\ud800"


def test_runs_are_listed_and_new_ones_found(client, run):
    (first,) = get(client, "/api/runs")["runs"]
    assert (first["key"], first["steps"], first["trajectories"], first["training_success"]) == ("first", 3, 3, 0.5)
    make_run(run.parent / "second one")
    assert [one["key"] for one in get(client, "/api/runs")["runs"]] == ["first", "second-one"]
    assert get(client, "/api/runs/none", 404)["error"].startswith("there is no run 'none'")


def test_runs_of_one_name_have_keys_of_their_own(client, run):
    make_run(run.parent / "a b")
    make_run(run.parent / "a!b")
    assert sorted(one["key"] for one in get(client, "/api/runs")["runs"]) == ["a-b", "a-b-2", "first"]


def test_stores_beside_a_run_are_runs_too(client, run):
    with TrajectoryStore(run / "round_00" / "episodes.sqlite") as store:
        store.add(trajectory("x"), step=0)
    (run / "other.sqlite").write_bytes(b"SQLite format 3\0" + bytes(100))
    assert [one["key"] for one in get(client, "/api/runs")["runs"]] == ["first", "first.round_00.episodes.sqlite"]
    assert get(client, "/api/runs/first.round_00.episodes.sqlite/trajectories")["count"] == 1


def test_a_run_says_its_charts_and_config(client):
    shown = get(client, "/api/runs/first")
    assert "screen_suite" in shown["config"]
    charts = {chart["title"]: chart for chart in shown["charts"]}
    assert charts["Success"]["series"] == ["success"]
    assert charts["Success"]["band"] == ["success_low", "success_high"]
    assert charts["Losses"]["series"] == ["policy_loss"]
    assert charts["more"]["series"] == ["trajectories"]


def test_rows_come_from_a_place_on_and_a_replaced_file_says_so(client, run):
    first = get(client, "/api/runs/first/metrics")
    assert [row["step"] for row in first["rows"]] == [1, 2, 3]
    assert first["rows"][0]["success_low"] < 0.5 < first["rows"][0]["success_high"]
    assert get(client, f"/api/runs/first/metrics?since={first['next']}")["rows"] == []
    path = run / "metrics.jsonl"
    with path.open("a") as file:
        file.write('{"step": 4, "time": 1.0, "reward": NaN}\n{"step": 5')  # the last line is not finished
    more = get(client, f"/api/runs/first/metrics?since={first['next']}")
    assert [row["step"] for row in more["rows"]] == [4]
    assert more["rows"][0]["reward"] is None
    rest = path.read_text().splitlines(keepends=True)[:2]
    path.unlink()
    path.write_text("".join(rest) * 9)  # as long as before, with other rows
    again = get(client, f"/api/runs/first/metrics?since={more['next']}")
    assert again.get("restart") is True
    assert get(client, "/api/runs/first/metrics?since=x", 400)["error"].startswith("got since='x'")


def test_metrics_are_a_sheet_of_which_a_spreadsheet_computes_nothing(client, run):
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 4, "time": 4.0, "=1+1": 2.0, '@x","': 3.0}) + "\n")
    header, *rows = csv.reader(io.StringIO(client.get("/api/runs/first/metrics.csv").text))
    assert header[:3] == ["step", "time", "success"]
    assert {"'=1+1", '\'@x","'} <= set(header)
    assert len(rows) == 4


def ids(answer):
    return [row["id"] for row in answer["rows"]]


def test_trajectories_are_filtered_sorted_and_paged(client):
    list_of = "/api/runs/first/trajectories"
    page = get(client, f"{list_of}?limit=2")
    assert (ids(page), page["count"]) == (["c", "b"], 3)
    assert ids(get(client, f"{list_of}?limit=2&after={page['next']}")) == ["a/1"]
    assert page["rows"][1]["success"] is False
    assert page["rows"][0]["success"] is False, "silent, where others are judged"
    assert ids(get(client, f"{list_of}?sort=step&order=asc")) == ["a/1", "b", "c"]
    assert ids(get(client, f"{list_of}?success=true")) == ["a/1"]
    assert ids(get(client, f"{list_of}?success=null")) == []
    assert ids(get(client, f"{list_of}?stop_reason=max_turns&task=other")) == ["b"]
    assert ids(get(client, f"{list_of}?task_prefix=ta&step_from=2")) == ["c"]
    assert ids(get(client, f"{list_of}?failure=any")) == []
    assert ids(get(client, f"{list_of}?group=g&success=")) == ["c", "b", "a/1"]


@pytest.mark.parametrize(
    "query", ["sort=id", "order=up", "limit=0", "limit=x", "success=yes", "after=!", "x=1", "step_to=-1"]
)
def test_what_cannot_be_asked_is_named(client, query):
    assert "expected" in get(client, f"/api/runs/first/trajectories?{query}", 400)["error"]


def test_words_of_goals_and_replies_are_found(client, runs):
    index = runs.get("first").index
    index.catch_up()
    assert not index.read_words(60)
    assert get(client, "/api/runs/first/trajectories")["indexed"] == {"done": 3, "total": 3}
    list_of = "/api/runs/first/trajectories"
    assert ids(get(client, f"{list_of}?q=press+bl")) == ["a/1"]
    assert ids(get(client, f"{list_of}?q=GOAL+other")) == ["b"]
    assert ids(get(client, f"{list_of}?q=%22%29+OR+1")) == []
    assert ids(get(client, f"{list_of}?flag=repeated")) == ["c"]


def test_one_trajectory_has_everything(client):
    shown = get(client, f"/api/runs/first/trajectories/{quote('a/1', safe='')}")
    assert (shown["id"], shown["success"], shown["next"], shown["previous"]) == ("a/1", True, "b", None)
    assert shown["verdict"]["reason"] == "all there"
    assert shown["task"]["goal"] == "goal of task"
    assert shown["turns"][0]["calls"] == ["click"]
    first = get(client, f"/api/runs/first/trajectories/{quote('a/1', safe='')}/turns/0")
    assert first["observation"]["images"] == [shown["turns"][0]["image"]]
    assert first["thought"] == "I think"
    assert first["calls"][0]["result"] == "done"
    assert first["marks"] == [{"kind": "click", "raw": [5, 6], "fed": [5, 6], "image": 0, "text": None}]
    assert first["fed"][0]["raw_size"] == [40, 30]
    picture = client.get(first["fed"][0]["url"])
    assert picture.headers["content-type"] == "image/png"
    raw = client.get(f"/api/runs/first/images/{first['observation']['images'][0]}")
    assert raw.content == picture.content
    assert "immutable" in raw.headers["cache-control"]
    get(client, "/api/runs/first/trajectories/none", 404)
    get(client, "/api/runs/first/trajectories/b/turns/7", 404)
    get(client, "/api/runs/first/fed/b/7/0.png", 404)
    get(client, "/api/runs/first/fed/b/0/7.png", 404)
    get(client, "/api/runs/first/images/0000", 404)


def test_what_hostile_pages_and_policies_write_stays_text(client, run):
    wild = turn(HOSTILE, observation=Observation(HOSTILE, info={"n": float("nan"), "s": HOSTILE}),
                action=Action(HOSTILE, (ToolCall(HOSTILE, {HOSTILE: [1, HOSTILE]}),), HOSTILE, HOSTILE))  # fmt: skip
    make_run(run.parent / "<img src=x>", [trajectory(HOSTILE[:-1], [wild], task=HOSTILE[:-1])])
    listed = get(client, "/api/runs")["runs"]
    key = next(one["key"] for one in listed if one["key"] != "first")
    assert not set(key) & set("<>\"'& ")
    (row,) = get(client, f"/api/runs/{key}/trajectories")["rows"]
    episode = f"/api/runs/{key}/trajectories/{quote(row['id'], safe='')}"
    for answer in (client.get(episode), client.get(f"{episode}/turns/0")):
        assert answer.headers["content-type"] == "application/json"
        answer.text.encode("ascii")
    shown = json.loads(answer.text)
    assert shown["reply"] == HOSTILE
    assert shown["observation"]["info"]["n"] is None


def test_a_picture_that_is_none_is_never_a_page(client, run):
    from uirl.images import Screenshot

    with TrajectoryStore(run / "trajectories.sqlite") as store:
        page = Screenshot(b"<html><script>alert(1)</script>")
        store.add(trajectory("p", [turn("x", page)]), step=9)
    answer = client.get(f"/api/runs/first/images/{page.hash}")
    assert answer.headers["content-type"] == "application/octet-stream"
    small = client.get(f"/api/runs/first/images/{page.hash}/small")
    assert small.headers["content-type"] == "application/octet-stream"
    (fed,) = get(client, "/api/runs/first/trajectories/p/turns/0")["fed"]
    assert fed["raw_size"] is None
    get(client, fed["url"], 400)


def test_a_label_is_kept_found_and_removed(client, run):
    place = "/api/runs/first/trajectories/a%2F1/label"
    label = client.put(place, json={"passed": False, "error_step": 1, "note": "wrong row"}).json()
    assert (label["passed"], label["error_step"], label["note"]) == (False, 1, "wrong row")
    assert label["time"] > 0
    assert get(client, "/api/runs/first/trajectories/a%2F1")["label"] == label
    assert ids(get(client, "/api/runs/first/trajectories?label=failed")) == ["a/1"]
    assert ids(get(client, "/api/runs/first/trajectories?label=none")) == ["c", "b"]
    assert client.delete(place).json() == {"removed": True}
    assert ids(get(client, "/api/runs/first/trajectories?label=failed")) == []
    assert (run / "labels.sqlite").is_file()


@pytest.mark.parametrize(
    "label", [[], {"passed": 1}, {"passed": "true"}, {"error_step": 2}, {"error_step": -1}, {"error_step": True},
              {"note": 3}, {"other": 1}, {"note": "x" * 10_001}]
)  # fmt: skip
def test_what_is_no_label_is_refused(client, label):
    answer = client.put("/api/runs/first/trajectories/a%2F1/label", json=label)
    assert answer.status_code == 400
    assert "got" in answer.json()["error"]


def test_labels_go_out_and_come_in_as_a_sheet(client):
    client.put("/api/runs/first/trajectories/b/label", json={"passed": True, "note": "=1+1"})
    sheet = client.get("/api/runs/first/labels.csv").text
    assert "'=1+1" in sheet  # a spreadsheet does not compute it
    client.delete("/api/runs/first/trajectories/b/label")
    headers = {"content-type": "text/csv"}
    post = client.post("/api/runs/first/labels.csv", content=sheet + "nobody,false,,\n", headers=headers)
    assert post.json() == {"read": 1, "unknown": ["nobody"]}
    assert get(client, "/api/runs/first/trajectories/b")["label"]["note"] == "=1+1"
    bad = client.post("/api/runs/first/labels.csv", content="id,passed\nb,maybe\n", headers=headers)
    assert "line 2" in bad.json()["error"]


def test_a_resumed_run_is_read_anew(client, run):
    assert get(client, "/api/runs/first/trajectories")["count"] == 3
    with TrajectoryStore(run / "trajectories.sqlite") as store:
        store.truncate_after(1)
        store.add(trajectory("b", success=True, task="again"), step=2)
    found = get(client, "/api/runs/first/trajectories")
    assert [(row["id"], row["task_id"]) for row in found["rows"]] == [("b", "again"), ("a/1", "task")]


def test_a_run_without_trajectories_yet_is_shown(client, run):
    empty = run.parent / "empty"
    empty.mkdir()
    (empty / "config.yaml").write_text("x: 1\n")
    assert get(client, "/api/runs/empty")["steps"] == 0
    assert get(client, "/api/runs/empty/trajectories")["rows"] == []
    assert get(client, "/api/runs/empty/metrics") == {"rows": [], "next": 0}


def test_coordinates_on_a_grid_become_pixels(client, run):
    made = make_run(
        run.parent / "grid",
        [
            trajectory(
                "g",
                [turn("x", picture(size=(400, 200)), action=Action("x", (ToolCall("click", {"x": 500, "y": 999}),)))],
            )
        ],
        config="environment:\n  name: browser\n  options:\n    coordinates: grid_999\n",
    )
    assert made.is_dir()
    shown = get(client, "/api/runs/grid/trajectories/g/turns/0")
    assert shown["marks"][0]["raw"] == [200, 199]


@pytest.mark.parametrize(
    ("said", "url"),
    [
        ('{"url": "http://127.0.0.1:9000/view"}', "http://127.0.0.1:9000/view"),
        ('{"url": "javascript:alert(1)"}', None),
        ('{"url": 5}', None),
        ("[]", None),
        ("{", None),
    ],
)
def test_the_live_view_of_a_server_of_environments_is_linked(client, run, said, url):
    (run / "serve.json").write_text(said)
    assert get(client, "/api/runs")["runs"][0]["serve_url"] == url
    assert get(client, "/api/runs/first")["serve_url"] == url


def test_a_picture_that_was_fed_otherwise_has_another_address(client, run):
    shot = picture("red", (56, 56))
    urls = []
    for name, size in (("one", (28, 28)), ("two", (14, 14))):
        changed = turn("x", shot, pictures=(PictureTransform((56, 56), size),))
        make_run(run.parent / name, [trajectory("a", [changed])])
        (fed,) = get(client, f"/api/runs/{name}/trajectories/a/turns/0")["fed"]
        urls.append(fed["url"])
    assert len({url.rpartition("?")[2] for url in urls}) == 2
    assert "immutable" in client.get(urls[0]).headers["cache-control"]
    stale = urls[0].replace("/one/", "/two/")  # the address of what was there before the run was made anew
    assert client.get(stale).headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    "id", ["x/tokens", "x/turns/0", "x/label", "x/export.html", "..", ".", "a%2Fb", "a/b/", "q?x#y"]
)
def test_an_id_may_look_like_an_address(client, run, id):
    make_run(run.parent / "odd", [trajectory(id), trajectory("x")])
    place = f"/api/runs/odd/trajectories/{quote(f'{chr(0)}{id}' if id in ('.', '..') else id, safe='')}"
    shown = get(client, place)
    assert shown["id"] == id
    assert get(client, f"{place}/turns/0")["index"] == 0
    assert get(client, f"{place}/tokens?turn=0")["turn"] == 0
    assert client.put(f"{place}/label", json={"passed": True}).status_code == 200
    assert client.get(f"{place}/export.html").status_code == 200
    for fed in get(client, f"{place}/turns/0")["fed"]:
        assert client.get(fed["url"]).status_code in (200, 404)


@pytest.mark.parametrize(
    "path",
    [
        "trajectories?after=WzEsMTAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMF0",
        "trajectories?sort=step&after=WzEwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAsMV0",
        "trajectories/b/turns/" + "1" * 5000,
        "trajectories/b/turns/-1",
        "fed/b/" + "1" * 5000 + "/0.png",
        "trajectories/b/tokens?turn=" + "1" * 5000,
    ],
)
def test_numbers_beyond_all_bounds_are_refused(client, path):
    assert client.get(f"/api/runs/first/{path}").status_code in (400, 404)


def test_a_run_whose_folder_has_no_name_in_utf_8_is_shown(client, run):
    odd = os.fsdecode(b"bad\xffbytes")
    make_run(run.parent / odd, [trajectory("a")])
    (key,) = [one["key"] for one in get(client, "/api/runs")["runs"] if one["key"] != "first"]
    assert get(client, f"/api/runs/{key}/trajectories")["count"] == 1
    assert get(client, f"/api/runs/{key}/trajectories/a")["id"] == "a"
