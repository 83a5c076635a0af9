"""The record of a run: what stays of it when the run begins again or goes on, and what its picture shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.training.test_loop import settings
from uirl import TrajectoryStore, read_metrics
from uirl.images import ImageStore
from uirl.training.record.record import RunRecord
from uirl.training.record.run_state import RunState
from uirl.types import Observation, Trajectory, Turn


def opened(folder: Path, state: RunState | None, *, resume: bool = True) -> RunRecord:
    config = settings(folder)
    config.checkpoint.resume = resume
    record = RunRecord(config, ImageStore())
    record.start(state)
    return record


def episode(name: str, group: str = "") -> Trajectory:
    return Trajectory(id=name, group_id=group or name, turns=[Turn(Observation("look"), reward=1.0)])


def test_where_a_run_can_be_watched_is_found_in_its_folder_while_that_is_so(tmp_path: Path) -> None:
    record = opened(tmp_path, None, resume=False)
    views = ["http://a/view", "http://b/view"]
    record.link(views)
    assert record.directory.read_json("serve.json") == {"url": views[0], "urls": views}
    record.link([])
    record.link([])
    assert not (record.path / "serve.json").exists()
    record.close()


@pytest.fixture
def left(tmp_path: Path) -> Path:
    """Where a run left two steps of its warm start and three updates, an episode for each and one before them."""
    record = opened(tmp_path, None, resume=False)
    for step in (1, 2):
        record.log(step, {"loss": 0.5}, "warm_start")
    for step in range(4):
        record.add([episode(f"episode-{step}")], step=step, split="train")
        if step:
            record.log(step, {"reward": 1.0})
    record.close()
    return tmp_path


@pytest.mark.parametrize(
    ("state", "warm", "steps", "episodes"),
    [
        # killed before the first checkpoint
        (None, [], [], []),
        (RunState(step=2), [1, 2], [1, 2], [0, 1, 2]),
        # the row of the last step is written down once more
        (RunState(step=2, pending={"reward": 1.0}), [1, 2], [1], [0, 1, 2]),
        (RunState(warming={"step": 1, "row": None}), [1], [], [0]),
        (RunState(warming={"step": 2, "row": {"loss": 0.5}}), [1], [], [0]),
    ],
)
def test_what_a_run_will_do_again_is_dropped(
    left: Path, state: RunState | None, warm: list[int], steps: list[int], episodes: list[int]
) -> None:
    record = opened(left, state)
    record.close()
    assert [row["warm_start/step"] for row in read_metrics(record.directory.metrics_path, "warm_start")] == warm
    assert [row["step"] for row in read_metrics(record.directory.metrics_path)] == steps
    store = TrajectoryStore(record.directory.trajectories_path, read_only=True)
    assert sorted(row.id for row in store.list()) == [f"episode-{step}" for step in episodes]
    store.close()


@pytest.mark.parametrize("success", [0.25, None])
def test_the_curve_goes_from_the_first_evaluation_to_the_last(
    left: Path, success: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(
        "uirl.training.record.record.draw_curve", lambda path, rows, **said: drawn.append((path, rows, said))
    )
    record = opened(left, RunState(step=3))
    summary = {"model": "tiny", "algorithm": "grpo", "seed": 3, "controls": {"blind": 0.5}}
    ends = {"success_before": success, "reward_before": 0.75, "success_after": 0.5, "reward_after": 1.5, "episodes": 96}
    record.finish(summary | ends)
    record.close()
    ((path, rows, said),) = drawn
    assert path == record.path / "learning_curve.png"
    assert rows[0] == {"episodes_total": 0, "eval/success": success, "eval/reward": 0.75}
    assert [row["step"] for row in rows[1:-1]] == [1, 2, 3]
    assert rows[-1] == {"episodes_total": 96, "eval/success": 0.5, "eval/reward": 1.5}
    assert said == {"title": "tiny in guess_number, grpo, seed 3", "controls": {"blind": 0.5}}
    kept = record.summary()
    assert kept is not None
    assert kept["reward_before"] == 0.75


async def test_episodes_that_end_are_written_soon_each_under_its_step(tmp_path: Path) -> None:
    record = opened(tmp_path, None, resume=False)
    record.add_soon(episode("a"), step=1, split="train")
    record.add_soon(episode("b"), step=2, split="train")
    record.add_soon(episode("eval-000000-0", "eval-000000"), step=2, split="eval")
    assert not record.holds("eval")
    record.flush()
    assert [record.holds(label) for label in ("eval", "eval@2")] == [True, False]
    with TrajectoryStore(record.directory.trajectories_path, read_only=True) as store:
        kept = [(line.id, line.step, line.split) for line in store.list()]
        assert kept == [("a", 1, "train"), ("b", 2, "train"), ("eval-000000-0", 2, "eval")]
    record.add_soon(episode("c"), step=2, split="train")
    record.forget_after(1)  # the newest too, which waited
    record.close()
    with TrajectoryStore(record.directory.trajectories_path, read_only=True) as store:
        assert [line.id for line in store.list()] == ["a"]


async def test_what_waits_is_written_when_the_record_is_closed(tmp_path: Path) -> None:
    record = opened(tmp_path, None, resume=False)
    record.add_soon(episode("a"), step=1, split="train")
    record.close()
    with TrajectoryStore(record.directory.trajectories_path, read_only=True) as store:
        assert [line.id for line in store.list()] == ["a"]
