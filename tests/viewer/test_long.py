"""Trajectories of very many turns: a page and a step of it read what they show, not the whole episode."""

from __future__ import annotations

import io
import sqlite3
from contextlib import closing
from typing import Any

import pytest
from PIL import Image

from tests.viewer.runs import make_run, picture, trajectory, turn
from uirl.images import Screenshot
from uirl.storage import TrajectoryStore
from uirl.types import Observation, PictureTransform, ToolResult
from uirl.viewer.pictures import SMALL, Sizes, StoredTurns, fed_pictures

LONG = "a line of a page\n" * 3000
HALF = PictureTransform((40, 30), (20, 15))


@pytest.fixture
def address(client, run) -> str:
    """A trajectory of 60 turns: every other picture is shown without being fed again, every answer is long."""
    told = ToolResult("click", {}, True, LONG)
    turns = []
    for number in range(30):
        shot = picture(f"rgb({number}, 0, 0)")
        turns.append(turn("go", shot, pictures=(HALF,), tool_results=(told,), starts_segment=number == 0))
        turns.append(turn("on", observation=Observation(LONG, (shot,)), tool_results=(told,), context_images=()))
    made = make_run(run.parent / "long", [trajectory("t", turns)])
    with TrajectoryStore(made / "trajectories.sqlite") as store:
        store.add(trajectory("never", []), step=9)
    return "/api/runs/long/trajectories/t"


@pytest.fixture
def read(monkeypatch) -> list[Any]:
    """What is read of the stores: "all" of an episode, numbers of turns, hashes of whole pictures."""
    seen: list[Any] = []

    def watch(name: str, what: Any) -> None:
        whole = getattr(TrajectoryStore, name)
        monkeypatch.setattr(
            TrajectoryStore, name, lambda self, *args, **more: (seen.append(what(*args)), whole(self, *args, **more))[1]
        )

    watch("get", lambda id: "all")
    watch("turn", lambda id, index: index)
    watch("image", lambda hash: hash)
    return seen


def test_the_page_of_an_episode_holds_no_texts_and_reads_no_pictures(client, address, read):
    answer = client.get(address)
    shown = answer.json()
    assert len(shown["turns"]) == 60
    assert len(answer.content) < 30_000  # LONG alone is 51 000
    assert shown["turns"][3]["text"] == LONG[:60]
    assert shown["turns"][3]["image"] == shown["turns"][2]["image"]
    assert shown["opening"] == "look"
    assert read == ["all"]


@pytest.mark.parametrize("part", ["turns/41", "tokens?turn=41", "tokens?turn=41&context=1"])
def test_a_step_reads_its_turn_and_what_it_rests_on(client, address, read, part):
    assert client.get(f"{address}/{part}").status_code == 200
    assert set(read) == {41, 40}  # the turn, and the one that fed its picture


def test_a_picture_as_it_was_fed_is_all_that_is_read(client, address, read):
    (fed,) = client.get(f"{address}/turns/41").json()["fed"]
    assert fed["fed_size"] == [20, 15]
    read.clear()
    assert client.get(fed["url"]).status_code == 200
    assert read == [41, 40, fed["hash"]]


def test_a_turn_has_its_texts_whole(client, address):
    shown = client.get(f"{address}/turns/41").json()
    assert shown["observation"]["text"] == LONG
    assert shown["calls"][0]["result"] == LONG
    assert shown["context_tokens"] == 2
    assert client.get(f"{address}/turns/60").json()["error"] == "got turn 60, the trajectory has 60"


def test_stored_turns_are_those_of_the_trajectory(client, address, run):
    with TrajectoryStore(run.parent / "long" / "trajectories.sqlite", read_only=True) as store:
        whole = store.get("t", pictures=False).turns
        turns = StoredTurns(store, "t", 60)
        assert list(turns) == whole
        assert turns[58:] == whole[58:]
        sizes = Sizes(store)
        assert all(fed_pictures(turns, i, sizes) == fed_pictures(whole, i, sizes) for i in range(60))
        assert store.turn("t", 60) is None
        assert store.get("t", tokens=False).turns[7].response_ids == ()


def encoded(kind: str, **how: Any) -> Screenshot:
    out = io.BytesIO()
    Image.effect_noise((300, 200), 60).convert("RGB").save(out, format=kind, **how)
    return Screenshot(out.getvalue())


@pytest.mark.parametrize(
    ("kind", "how", "whole"),
    [("PNG", {}, False), ("JPEG", {}, False), ("JPEG", {"exif": bytes(60_000)}, True), ("WEBP", {}, True)],
)
def test_a_size_is_read_from_the_head_of_a_picture_where_it_stands_there(client, run, read, kind, how, whole):
    shot = encoded(kind, **how)
    with TrajectoryStore(run / "trajectories.sqlite") as store:
        store.add(trajectory("p", [turn("x", shot)]), step=9)
        sizes = Sizes(store)
        assert sizes.of(shot.hash) == (300, 200)
        assert sizes.of("none") is None
    assert read == ([shot.hash] if whole else [])


def test_a_small_picture_has_the_shape_of_the_large_one(client, run):
    tall, tiny = picture("red", (1080, 2400)), picture("blue", (40, 30))
    with TrajectoryStore(run / "trajectories.sqlite") as store:
        store.add(trajectory("p", [turn("x", tall), turn("x", tiny)]), step=9)
    answer = client.get(f"/api/runs/first/images/{tall.hash}/small")
    assert "immutable" in answer.headers["cache-control"]
    with Image.open(io.BytesIO(answer.content)) as small:
        assert small.size == (65, SMALL[1])
    assert client.get(f"/api/runs/first/images/{tiny.hash}/small").content == tiny.data
    assert client.get("/api/runs/first/images/0000/small").status_code == 404


def test_nothing_that_was_looked_at_holds_the_log_of_the_store(client, run):
    """A reader that keeps a transaction open lets the log of a training run grow without end."""
    shot = picture(size=(300, 200))
    with TrajectoryStore(run / "trajectories.sqlite") as store:
        store.add(trajectory("p", [turn("x", shot), turn("y", shot)]), step=9)
        one = "/api/runs/first/trajectories/p"
        parts = [one, f"{one}/turns/1", f"{one}/tokens?turn=1&context=1", f"{one}/export.html"]
        parts += ["/api/runs", "/api/runs/first/trajectories?q=x", "/api/runs/first/facets", "/api/runs/first/groups/g"]
        parts += [f"/api/runs/first/images/{shot.hash}{small}" for small in ("", "/small")]
        parts += [client.get(f"{one}/turns/1").json()["fed"][0]["url"]]
        for part in parts:
            assert client.get(part).status_code == 200, part
        store.add(trajectory("q", [turn("x", shot)]), step=10)
        with closing(sqlite3.connect(store.path, timeout=30)) as other:
            assert other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone() == (0, 0, 0)


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP"])
def test_a_picture_that_was_fed_as_it_is_is_not_drawn_anew(client, run, form, monkeypatch):
    out = io.BytesIO()
    Image.new("RGB", (60, 40), "teal").save(out, format=form)
    make_run(run.parent / "forms", [trajectory("t", [turn("r", Screenshot(out.getvalue()))])])
    monkeypatch.setattr(Screenshot, "open", lambda *_: pytest.fail("a picture of fifty megapixels would take seconds"))
    answer = client.get("/api/runs/forms/fed/t/0/0.png")
    assert (answer.status_code, answer.content) == (200, out.getvalue())
    assert answer.headers["content-type"] == f"image/{form.lower()}"
