"""The record of a run: what stays of it when the run begins again or goes on, and what its picture shows."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes

from tests.training.test_loop import settings
from uirl import TrajectoryStore, read_metrics
from uirl.errors import StorageError
from uirl.images import ImageStore
from uirl.training.record.record import RunRecord, WrittenTogether, draw_curve
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


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Any]]:
    """Label -> points of each line that is drawn."""
    seen: dict[str, list[Any]] = {}
    plot, line = Axes.plot, Axes.axhline

    def note_plot(axes: Axes, x: Any, y: Any, **style: Any) -> Any:
        seen[style["label"]] = list(zip(x, y, strict=True))
        return plot(axes, x, y, **style)

    def note_line(axes: Axes, y: float, **style: Any) -> Any:
        seen[style["label"]] = [y, style["linestyle"]]
        return line(axes, y, **style)

    monkeypatch.setattr(Axes, "plot", note_plot)
    monkeypatch.setattr(Axes, "axhline", note_line)
    return seen


ROWS = [
    {"episodes_total": 16, "success": 0.25, "reward": 9.0},
    {"episodes_total": 32, "success": 0.5, "eval/success": 0.75, "reward": 9.0},
    {"episodes_total": 48, "success": None, "eval/success": None, "reward": 9.0},
]


def test_success_over_episodes_beside_the_controls(tmp_path: Path, drawn: dict[str, list[Any]]) -> None:
    path = tmp_path / "curve.png"
    assert draw_curve(path, ROWS, title="run", controls={"blind": 0.1, "mute": 0.05})
    assert drawn == {
        "success while training": [(16, 0.25), (32, 0.5)],
        "success in evaluations": [(32, 0.75)],
        "control: blind (0.10)": [0.1, "--"],
        "control: mute (0.05)": [0.05, ":"],
    }
    assert path.read_bytes().startswith(b"\x89PNG")


def test_without_success_the_reward_is_drawn(tmp_path: Path, drawn: dict[str, list[Any]]) -> None:
    rows = [{"episodes_total": 16, "success": None, "reward": 2.0}, {"episodes_total": 32, "eval/reward": 3.0}]
    assert draw_curve(tmp_path / "curve.png", rows, title="run")
    assert drawn == {"reward while training": [(16, 2.0)], "reward in evaluations": [(32, 3.0)]}


@pytest.mark.parametrize("rows", [[], [{"episodes_total": 16, "success": None, "reward": None}]])
def test_nothing_to_draw_leaves_no_picture(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    assert not draw_curve(tmp_path / "curve.png", rows, title="run")
    assert not list(tmp_path.iterdir())


class Disk:
    """Takes all episodes of a write or none: those named in `bad` fit nowhere."""

    def __init__(self, bad: set[str] = frozenset()) -> None:  # type: ignore[assignment]
        self.bad, self.writes = bad, []  # type: tuple[set[str], list[list[str]]]

    def write(self, trajectories: Sequence[Trajectory]) -> None:
        names = [t.id for t in trajectories]
        for name in names:
            if name in self.bad:
                raise StorageError(f"no room for {name}")
        self.writes.append(names)


async def test_what_ends_in_one_turn_of_the_loop_is_one_write_in_the_next() -> None:
    disk = Disk()
    together = WrittenTogether(disk.write)
    for name in "abc":
        together.add(Trajectory(id=name))
    assert disk.writes == []
    await asyncio.sleep(0)
    assert disk.writes == [["a", "b", "c"]]
    together.add(Trajectory(id="d"))
    await asyncio.sleep(0)
    assert disk.writes == [["a", "b", "c"], ["d"]]


async def test_flush_writes_at_once_and_once() -> None:
    disk = Disk()
    together = WrittenTogether(disk.write)
    together.add(Trajectory(id="a"))
    together.flush()
    assert disk.writes == [["a"]]
    together.flush()
    await asyncio.sleep(0)
    assert disk.writes == [["a"]]


@pytest.mark.parametrize("heard_by", ["add", "flush"])
async def test_what_cannot_be_written_takes_no_other_with_it_and_is_raised_once(heard_by: str) -> None:
    disk = Disk(bad={"b"})
    together = WrittenTogether(disk.write)
    for name in "abc":
        together.add(Trajectory(id=name))
    await asyncio.sleep(0)
    assert disk.writes == [["a"], ["c"]]
    with pytest.raises(StorageError, match="no room for b"):
        together.add(Trajectory(id="d")) if heard_by == "add" else together.flush()
    together.flush()
    assert disk.writes == [["a"], ["c"]]


async def test_one_that_cannot_be_written_is_not_tried_twice() -> None:
    tried: list[str] = []

    def write(trajectories: Sequence[Trajectory]) -> None:
        tried.extend(t.id for t in trajectories)
        raise StorageError("the disk is full")

    together = WrittenTogether(write)
    together.add(Trajectory(id="a"))
    with pytest.raises(StorageError, match="full"):
        together.flush()
    assert tried == ["a"]
