"""The trajectory store: exact round trips, filters, images once, kills, full disks, readers beside the writer."""

import dataclasses
import math
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.storage.episodes import episode, full_trajectory
from uirl.errors import StorageError
from uirl.images import ImageStore, Screenshot
from uirl.storage import TrajectoryStore
from uirl.storage.records import as_stored, decode_header, decode_turn, encode_header, encode_turn, pictures_of
from uirl.storage.summaries import Outcomes, TrajectorySummary
from uirl.types import (
    Action,
    Failure,
    Observation,
    PictureTransform,
    Task,
    ToolCall,
    ToolResult,
    Trajectory,
    Turn,
    Verdict,
)

ROOT = Path(__file__).parents[2]


@pytest.fixture
def store(tmp_path):
    with TrajectoryStore(tmp_path / "trajectories.sqlite") as opened:
        yield opened


def test_every_field_comes_back_exactly(store):
    stored = full_trajectory()
    store.add(stored, step=3, split="eval")
    assert repr(store.get("t-1")) == repr(stored)  # repr: 1, 1.0 and True are equal, their texts are not
    assert store.get("t-1") == stored
    named = named_pictures(stored)
    assert store.get("t-1", pictures=False) == named
    bare = [dataclasses.replace(turn, context_ids=(), response_ids=(), rollout_log_probs=()) for turn in named.turns]
    assert store.get("t-1", pictures=False, tokens=False) == dataclasses.replace(named, turns=bare)
    assert [store.turn("t-1", index) for index in range(3)] == [*named.turns, None]
    assert store.count_turns("t-1") == 2
    shot = stored.turns[0].observation.images[0]
    assert (store.image(shot.hash), store.head_of_image(shot.hash, 3)) == (shot.data, shot.data[:3])
    assert store.head_of_image("x", 3) is None
    assert as_stored(named) == named
    assert pictures_of(named) == [image.hash for image in (*stored.turns[0].observation.images, *stored.final.images)]
    (row,) = store.list()
    assert 0 < row.created <= time.time()
    assert dataclasses.replace(row, created=0.0) == TrajectorySummary(
        *("t-1", 3, "eval", 0.0, "level/1", "screen", "g", "failure", 1 / 3, None, "timeout", 2, "frontier", True)
    )


def named_pictures(trajectory):
    """The trajectory with the hashes of its pictures."""

    def named(seen):
        return dataclasses.replace(seen, images=tuple(image.hash for image in seen.images))

    turns = [dataclasses.replace(turn, observation=named(turn.observation)) for turn in trajectory.turns]
    return dataclasses.replace(trajectory, turns=turns, final=named(trajectory.final))


def test_the_example_above_leaves_no_field_at_its_default():
    made = full_trajectory()
    nouns = [
        made,
        made.task,
        made.turns[0],
        made.turns[0].observation,
        made.turns[0].action,
        made.verdict,
        made.failure,
        made.turns[0].pictures[0],
    ]
    nouns += [made.turns[0].action.tool_calls[0], made.turns[0].observation.tool_results[0]]
    kinds = {Trajectory, Task, Turn, Observation, Action, Verdict, Failure, ToolCall, ToolResult, PictureTransform}
    assert {type(noun) for noun in nouns} == kinds
    for noun in nouns:
        for field in dataclasses.fields(noun):
            if field.default is not dataclasses.MISSING:
                assert getattr(noun, field.name) != field.default, (type(noun), field.name)
            elif field.default_factory is not dataclasses.MISSING and field.name != "id":
                assert getattr(noun, field.name) != field.default_factory(), (type(noun), field.name)


FLOATS = st.floats(allow_nan=False) | st.floats(width=32, allow_nan=False)
INFO = st.dictionaries(
    st.text(st.characters(), max_size=5),
    st.recursive(
        st.none() | st.booleans() | st.integers() | FLOATS | st.text(st.characters(), max_size=5),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
        max_leaves=5,
    ),
    max_size=3,
)


@st.composite
def turns(draw):
    ids = draw(st.lists(st.integers(0, 2**31 - 1), max_size=4))
    log_probs = draw(st.lists(FLOATS, min_size=len(ids), max_size=len(ids)) | st.just([]))
    return Turn(
        observation=Observation(draw(st.text(st.characters())), info=draw(INFO)),
        context_ids=tuple(draw(st.lists(st.integers(-5, 2**31 - 1), max_size=4))),
        response_ids=tuple(ids),
        rollout_log_probs=tuple(log_probs),
        action=Action(draw(st.text()), (ToolCall("f", draw(INFO)),), parse_error=draw(st.none() | st.text())),
        reward=draw(FLOATS),
        info=draw(INFO),
    )


@given(turn=turns())
def test_any_turn_survives_its_row(turn):
    again = decode_turn(encode_turn(turn, (), "here"), picture=str)
    assert repr(again) == repr(turn)


@given(checks=INFO, metrics=st.dictionaries(st.text(), FLOATS, max_size=3), score=FLOATS)
def test_any_header_survives_its_row(checks, metrics, score):
    made = Trajectory(task=Task("t", checks=checks), metrics=metrics, verdict=Verdict(score, False))
    assert repr(decode_header(encode_header(made), [])) == repr(made)


def test_engine_log_probs_take_four_bytes_and_others_eight():
    single, double = (-0.25, float(np.float32(-0.1))), (-0.25, -0.1)
    rows = [encode_turn(Turn(Observation(), (), (1, 2), values), (), "x") for values in (single, double)]
    assert [len(row[3]) for row in rows] == [8, 16]
    assert [decode_turn(row, str).rollout_log_probs for row in rows] == [single, double]


def test_array_scalars_become_numbers_and_tuples_lists_and_nan_stays(store):
    made = episode("a")
    made.turns.append(dataclasses.replace(made.turns[0], reward=math.nan, rollout_log_probs=(math.nan,)))
    made.turns.append(dataclasses.replace(made.turns[0], reward=np.float32(0)))
    info = {
        "a": np.float32(0.5),
        "b": np.int64(3),
        "c": np.bool_(True),
        "d": (1, (2,)),
        "e": np.array(7),
        "zero": np.float32(0),
    }
    made.turns[0] = dataclasses.replace(made.turns[0], info=info, reward=np.float32(0.5), response_ids=(np.int64(3),))
    store.add(made, step=np.int64(1))
    turn, odd, unpaid = store.get("a").turns
    assert repr(turn.info) == repr({"a": 0.5, "b": 3, "c": True, "d": [1, [2]], "e": 7, "zero": 0.0})
    assert repr((turn.reward, turn.response_ids)) == "(0.5, (3,))"
    assert repr((odd.reward, odd.rollout_log_probs, store.list()[0].reward)) == "(nan, (nan,), None)"
    assert repr(unpaid.reward) == "0.0"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"info": {"a": {"b": [1, object()]}}},
            r"trajectory bad: turns\[0\]\.info\.a\.b\[1\] is <object object.*cannot be stored",
        ),
        ({"info": {"a": np.zeros(3)}}, r"info\.a is array.* \(ndarray\); use \.tolist\(\)"),
        ({"info": {3: 4}}, r"info has the key 3 \(int\); expected text keys"),
        ({"context_ids": (2**31,)}, r"turns\[0\]: token ids must be whole numbers below 2\^31"),
        ({"context_ids": (1.5,)}, r"turns\[0\]: token ids must be whole numbers"),
        ({"observation": Observation(images=(3,))}, r"turns\[0\]\.observation\.images: an image must be PIL"),
        ({"context_images": ("nowhere",)}, "names the image nowhere, which it does not carry"),
    ],
)
def test_what_cannot_be_stored_is_named_and_nothing_is_stored(store, change, message):
    bad = episode("bad")
    bad.turns[0] = dataclasses.replace(bad.turns[0], **change)
    with pytest.raises(StorageError, match=message):
        store.add_many([episode("good"), bad], step=1)
    assert store.count() == 0
    store.add(episode("good"), step=1)
    assert store.count() == 1


def test_an_id_is_stored_once(store):
    store.add(episode("a"), step=4)
    with pytest.raises(StorageError, match=r"trajectory 'a' is stored already \(step 4\)"):
        store.add_many([episode("b"), episode("a")], step=5)
    with pytest.raises(StorageError, match="trajectory 'c' is stored already"):
        store.add_many([episode("c"), episode("c")], step=5)
    assert [row.id for row in store.list()] == ["a"]


def test_filters_and_summaries(store):
    assert store.outcomes() == Outcomes(0, 0, 0, 0, (), None, (), None)
    store.add_many([episode("a"), episode("b", success=False, task="z")], step=1)
    store.add(episode("c", success=None), step=2, split="eval")
    store.add(full_trajectory(), step=2)
    mute = dataclasses.replace(episode("d", success=None), task=Task("m", "mute"), group_id="")
    store.add_many([mute, dataclasses.replace(episode("e"), group_id="")], step=5)

    def ids(**conditions):
        return [row.id for row in store.list(**conditions)]

    assert ids() == [trajectory.id for trajectory in store] == ["a", "b", "c", "t-1", "d", "e"]
    assert (ids(step=2), ids(split="eval")) == (["c", "t-1"], ["c"])
    assert ids(success=True) == ["a", "e"]  # 't-1' failed, whatever its verdict
    assert ids(success=False) == ["b", "c"]  # that ended without a word, where the environment speaks
    assert (ids(task_id="z"), ids(group_id="g", step=1), ids(level="frontier")) == (["b"], ["a", "b"], ["t-1"])
    assert (ids(limit=2, newest_first=True), ids(limit=0)) == (["e", "d"], [])
    assert [store.count(), store.count(step=2), store.count(split="train", success=True)] == [6, 2, 2]
    created = min(row.created for row in store.list())
    # of four that are judged two are solved: one of three in group 'g', and 'e', which is a group of its own
    assert store.outcomes() == Outcomes(6, 1, 4, 2, ((1, 1), (1, 3)), (1, 5), ("eval", "train"), created)


def test_unknown_ids_and_images_are_errors(store):
    for read in (store.get, store.count_turns, store.learned, store.origin, lambda id: store.turn(id, 0)):
        with pytest.raises(StorageError, match="there is no trajectory 'x'"):
            read("x")
    with pytest.raises(StorageError, match="there is no trajectory 'x'"):
        store.set_verdict("x", Verdict(1.0, True))
    with pytest.raises(StorageError, match="there is no image 'x'"):
        store.image("x")


def test_a_verdict_that_comes_later_is_found_by_what_was_found_then(store):
    store.add_many([episode("a", success=False), episode("b")], step=1)
    store.set_verdict("a", Verdict(0.9, True, "late", "eye"))
    assert store.get("a").verdict == Verdict(0.9, True, "late", "eye")
    assert [(row.id, row.success, row.verdict) for row in store.list()] == [("a", True, True), ("b", True, None)]


def test_a_copy_holds_everything_and_replaces_nothing(store, tmp_path):
    store.add(full_trajectory(), step=1)
    store.copy_to(tmp_path / "copy.sqlite")
    with TrajectoryStore(tmp_path / "copy.sqlite", read_only=True) as copy:
        assert [*copy] == [*store]
    with pytest.raises(StorageError, match="exists already; choose another path"):
        store.copy_to(tmp_path / "copy.sqlite")


def test_a_damaged_record_is_named_and_the_others_are_read(store):
    store.add_many([episode("a"), episode("b")], step=1)
    with sqlite3.connect(store.path) as connection:
        for table, key in (("trajectories", "id = 'a'"), ("turns", "trajectory = 1")):
            connection.execute(f"UPDATE {table} SET record = '[]' WHERE {key}")
    for read in (store.get, lambda id: store.turn(id, 0)):
        with pytest.raises(
            StorageError, match=r"trajectory 'a' in .* is damaged \(TypeError: a .* is \[\], expected dict"
        ):
            read("a")
        assert read("b")


def test_an_image_is_kept_once_and_found_by_its_hash(store):
    store.add_many([episode("a", shot=b"same"), episode("b", shot=b"same")], step=1)
    store.add(episode("c", shot=b"same"), step=2)
    with sqlite3.connect(store.path) as connection:
        assert connection.execute("SELECT count(*), sum(length(data)) FROM images").fetchone() == (1, 4)
    assert store.get("c").turns[0].observation.images == (Screenshot(b"same"),)
    # one that is only named comes from the image store, or from before
    images, made = ImageStore(), episode("d")
    shot = images.put(b"remembered")
    made.turns[0] = dataclasses.replace(made.turns[0], context_images=(shot.hash,))
    store.add(made, step=1, images=images)
    assert store.image(shot.hash) == b"remembered"
    store.add(dataclasses.replace(made, id="e"), step=1)
    # what environments hand over is stored as a screenshot
    made.turns[0] = dataclasses.replace(made.turns[0], observation=Observation(images=(np.zeros((2, 2, 3), np.uint8),)))
    store.add(dataclasses.replace(made, id="f"), step=1)
    (shot,) = store.get("f").turns[0].observation.images
    assert shot.open().size == (2, 2)


def test_without_images_their_hashes_remain(tmp_path):
    with TrajectoryStore(tmp_path / "t.sqlite", keep_images=False) as store:
        store.add(full_trajectory(), step=1)
        assert store.get("t-1") == named_pictures(full_trajectory())


def test_a_resume_removes_what_came_after(store):
    store.add(episode("a", shot=b"early"), step=1)
    store.add(episode("b", shot=b"late"), step=3)
    store.add(episode("c", shot=b"both"), step=3)
    store.add(episode("d", shot=b"both"), step=2)  # a straggler of an earlier step
    assert store.truncate_after(2) == 2
    assert [row.id for row in store.list()] == ["a", "d"]
    assert store.image(Screenshot(b"early").hash) == b"early"
    assert store.get("d").turns[0].observation.images == (Screenshot(b"both"),)
    with pytest.raises(StorageError, match="no image"):
        store.image(Screenshot(b"late").hash)
    with sqlite3.connect(store.path) as connection:
        assert connection.execute("SELECT count(*) FROM turns").fetchone() == (2,)
    store.add(episode("b", shot=b"late"), step=3)
    assert store.count() == 3


def test_a_thread_waits_for_the_transaction_of_another(store, monkeypatch):
    inside = threading.Event()
    check = store._refuse_stored

    def slow_check(ids):
        inside.set()
        time.sleep(0.1)
        check(ids)

    monkeypatch.setattr(store, "_refuse_stored", slow_check)
    other = threading.Thread(target=store.add, args=(episode("a"),), kwargs={"step": 1})
    other.start()
    assert inside.wait(60)
    store.add(episode("b"), step=1)
    other.join()
    assert [row.id for row in store.list()] == ["a", "b"]


def test_readers_and_a_second_writer_beside_the_first(store):
    store.add(episode("a"), step=1)
    with sqlite3.connect(store.path) as reader, TrajectoryStore(store.path) as other:
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM trajectories").fetchone() == (1,)
        other.add(episode("b"), step=1)
        store.add(episode("c"), step=1)
        assert reader.execute("SELECT count(*) FROM trajectories").fetchone() == (1,)
        reader.rollback()
        assert [row.id for row in other.list()] == ["a", "b", "c"]


def test_a_reader_cannot_write_and_needs_a_file(tmp_path):
    with pytest.raises(StorageError, match="there is no trajectory store at"):
        TrajectoryStore(tmp_path / "none.sqlite", read_only=True)
    assert os.listdir(tmp_path) == []
    TrajectoryStore(tmp_path / "t.sqlite").close()
    with TrajectoryStore(tmp_path / "t.sqlite", read_only=True) as reader:
        with pytest.raises(StorageError, match="it is read-only here"):
            reader.add(episode("a"), step=1)
        assert reader.count() == 0


WRITER = """
import sys
from tests.storage.episodes import episode
from uirl.storage import TrajectoryStore
store = TrajectoryStore(sys.argv[1])
for i in range(100_000):
    store.add(episode(str(i), shot=b"%d" % i * 2000), step=i)
    print(i, flush=True)
"""


@pytest.mark.parametrize("after", [1, 40])
def test_a_kill_loses_at_most_the_episode_in_flight(tmp_path, after):
    path = tmp_path / "t.sqlite"
    command = [sys.executable, "-c", WRITER, path]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        for _ in range(after):
            writer.stdout.readline()
        writer.send_signal(signal.SIGKILL)
        said = after + len(writer.stdout.read().split())
    assert writer.returncode == -signal.SIGKILL
    with TrajectoryStore(path) as store:
        ids = [row.id for row in store.list()]
        assert ids in ([str(i) for i in range(said)], [str(i) for i in range(said + 1)])
        for id in ids[-3:]:
            assert store.get(id) == episode(id, shot=id.encode() * 2000)
        store.add(episode("again"), step=0)


FULL = """
import resource, sys
from tests.storage.episodes import episode
from uirl.errors import StorageError
from uirl.storage import TrajectoryStore
store = TrajectoryStore(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
for i in range(1000):
    try:
        store.add(episode(str(i), shot=b"%d" % i * 5000), step=i)
    except StorageError as error:
        print(error)
        break
assert store.count() == i and store.get(str(i - 1)).id == str(i - 1)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
store.add(episode(str(i), shot=b"%d" % i * 5000), step=i)
print(i)
"""


def test_a_full_disk_is_a_clear_error_and_what_was_stored_stays(tmp_path):
    path = tmp_path / "t.sqlite"
    command = [sys.executable, "-c", FULL, path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    message, last = done.stdout.splitlines()
    assert message.startswith(f"cannot store trajectories in {path}")
    assert "the disk is full" in message
    assert "still readable" in message
    with TrajectoryStore(path, read_only=True) as store:
        assert [row.id for row in store.list()] == [str(i) for i in range(int(last) + 1)]
        assert store.get(last) == episode(last, shot=last.encode() * 5000)


def test_other_files_and_other_versions_are_refused_and_left_alone(tmp_path):
    text = tmp_path / "text"
    text.write_text("hello, this is no database at all, whatever its name says" * 100)
    with pytest.raises(StorageError, match="it is no SQLite file"):
        TrajectoryStore(text)
    other = tmp_path / "other.sqlite"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE mine (x)")
    with pytest.raises(StorageError, match="but no trajectory store"):
        TrajectoryStore(other)
    with sqlite3.connect(other) as connection:
        assert connection.execute("SELECT name FROM sqlite_schema").fetchall() == [("mine",)]
    newer = tmp_path / "newer.sqlite"
    TrajectoryStore(newer).close()
    with sqlite3.connect(newer) as connection:
        connection.execute("PRAGMA user_version = 9")
    for read_only in (True, False):
        with pytest.raises(StorageError, match="schema version 9, this version of uirl reads 1 to 2"):
            TrajectoryStore(newer, read_only=read_only)
