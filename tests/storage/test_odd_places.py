"""Stores whose text or place is odd: half a surrogate pair in a name, a folder that cannot be written."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.folders import unwritable
from tests.storage.episodes import episode, full_trajectory
from uirl.errors import StorageError
from uirl.runtime.limits import in_column
from uirl.storage import LearnedTokens, TrajectoryStore, export_sft
from uirl.types import Failure, Verdict

HALF = "half \ud800 of a pair"
ESCAPED = "half \\ud800 of a pair"


@pytest.fixture
def store(tmp_path):
    with TrajectoryStore(tmp_path / "run" / "trajectories.sqlite") as opened:
        yield opened


def test_half_a_pair_is_an_escape_in_a_column():
    assert in_column("plain é 😀") == "plain é 😀"
    assert in_column(HALF) == in_column(ESCAPED) == ESCAPED
    assert in_column("\ud83d\ude00") == "😀"  # two halves that belong together, as JSON reads them


def test_every_text_of_a_trajectory_may_hold_half_a_pair(store):
    odd = replace(
        full_trajectory(f"id {HALF}"),
        task=replace(full_trajectory().task, id=HALF, environment=HALF, goal=HALF),
        group_id=HALF,
        stop_reason=HALF,
        level=HALF,
        failure=Failure(HALF, HALF),
    )
    store.add(odd, step=1, split=HALF)
    assert store.get(odd.id) == odd
    (line,) = store.list(split=HALF, task_id=HALF, group_id=HALF, level=HALF)
    said = (line.task_id, line.environment, line.group_id, line.stop_reason, line.level, line.failure, line.split)
    assert said == (ESCAPED,) * 7
    assert store.get(line.id) == odd  # the line's id finds it too
    with pytest.raises(StorageError, match="stored already"):
        store.add(odd, step=1)
    store.set_verdict(odd.id, Verdict(1.0, True, HALF, HALF))
    assert store.get(odd.id).verdict == Verdict(1.0, True, HALF, HALF)
    assert store.learned(odd.id) == {}
    assert store.origin(odd.id) is None
    with pytest.raises(StorageError, match="no trajectory"):
        store.get(f"other {HALF}")
    with pytest.raises(StorageError, match="no image"):
        store.image(HALF)


def test_what_was_learned_of_an_odd_id_is_kept(store):
    import numpy as np

    odd = replace(full_trajectory(HALF))
    store.add(odd, step=1)
    tokens = sum(len(turn.response_ids) for turn in odd.turns)
    store.add_learned([LearnedTokens(HALF, np.ones(tokens, np.float32))], step=1, version=0)
    assert store.learned(HALF)[0].advantages == (1.0, 1.0)


def copied(source: Path, target: Path) -> Path:
    """Copy a run as it lies on the disk while it is written: the newest episodes are in the log alone."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*-shm"))
    return target


@pytest.mark.parametrize("with_log", [True, False], ids=["with its log", "without a log"])
def test_a_store_is_read_from_a_folder_that_cannot_be_written(store, tmp_path, with_log):
    store.add(episode("first"), step=1)
    store.add(episode("second"), step=2)
    if not with_log:
        store.close()
    run = copied(store.path.parent, tmp_path / "copy" / "run")
    assert (run / "trajectories.sqlite-wal").exists() == with_log
    with unwritable(run) as mounted, TrajectoryStore(mounted / "trajectories.sqlite", read_only=True) as there:
        assert [line.id for line in there.list()] == ["first", "second"]
        assert there.get("second") == episode("second")
        with pytest.raises(StorageError, match="read-only"):
            there.set_verdict("second", Verdict(1.0, True))


def test_an_exported_line_has_no_half_of_a_pair(store, tmp_path):
    odd = replace(episode(f"id {HALF}"), task=replace(episode("x").task, id=HALF))
    store.add(odd, step=1)
    assert export_sft(store, tmp_path / "examples.jsonl") == 1
    line = json.loads((tmp_path / "examples.jsonl").read_text())
    assert (line["id"], line["task"]) == (f"id {ESCAPED}", ESCAPED)
