"""What TensorBoard and Weights & Biases get. MLflow and Trackio are tried whole in tests/clients."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from uirl.errors import StorageError
from uirl.metrics import TRACKERS, MetricsLogger, TensorBoardTracker, WandbTracker, read_metrics

ROOT = Path(__file__).parents[2]


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder)).Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_tensorboard_reads_what_was_written_and_a_resume_replaces_later_steps(tmp_path):
    with MetricsLogger(tmp_path / "m.jsonl", trackers=[TensorBoardTracker(tmp_path / "tb")]) as logger:
        for step in (1, 2, 3):
            logger.log(step, {"loss": step / 2, "eval": None})
    assert scalars(tmp_path / "tb") == {"loss": [(1, 0.5), (2, 1.0), (3, 1.5)]}
    tracker = TensorBoardTracker(tmp_path / "tb", resume_after=1)
    with MetricsLogger(tmp_path / "m.jsonl", resume_after=1, trackers=[tracker]) as logger:
        logger.log(2, {"loss": 7.0})
    assert scalars(tmp_path / "tb") == {"loss": [(1, 0.5), (2, 7.0)]}


def test_a_full_disk_is_told_with_what_to_do(tmp_path, monkeypatch):
    from tensorboard.summary.writer import event_file_writer

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(event_file_writer, "EventFileWriter", full)
    with pytest.raises(StorageError, match=r"cannot write to .*tb: No space left on device; the disk is full"):
        TensorBoardTracker(tmp_path / "tb")


def test_the_tenth_file_of_a_second_is_read_after_the_ninth(tmp_path, monkeypatch):
    from tensorboard.summary.writer import event_file_writer

    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(9))
    for last, loss in ((None, 1.0), (1, 2.0)):
        tracker = TensorBoardTracker(tmp_path, resume_after=last)
        for step in range((last or 0) + 1, 4):
            tracker.log(step, {"loss": loss})
        tracker.close()
    assert scalars(tmp_path) == {"loss": [(1, 1.0), (2, 2.0), (3, 2.0)]}


def test_the_steps_of_a_phase_are_an_axis_of_their_own(tmp_path):
    path, board = tmp_path / "m.jsonl", tmp_path / "tb"
    with MetricsLogger(path, trackers=[TensorBoardTracker(board)]) as logger:
        for step in (1, 2, 3):
            logger.log(step, {"loss": float(step)}, "warm_start")
        for step in (1, 2):
            logger.log(step, {"loss": 7.0})
    assert [(row["step"], row["loss"]) for row in read_metrics(path)] == [(1, 7.0), (2, 7.0)]
    assert [(row["warm_start/step"], row["warm_start/loss"]) for row in read_metrics(path, "warm_start")] == [
        (1, 1.0),
        (2, 2.0),
        (3, 3.0),
    ]
    # the third step of the warm start stays although updates after the first are dropped
    with MetricsLogger(path, resume_after=1, trackers=[TensorBoardTracker(board, resume_after=1)]) as logger:
        logger.log(2, {"loss": 8.0})
    assert scalars(board) == {"loss": [(1, 7.0), (2, 8.0)]}
    assert scalars(board / "warm_start") == {"warm_start/loss": [(1, 1.0), (2, 2.0), (3, 3.0)]}
    assert len(read_metrics(path, "warm_start")) == 3
    # a run that goes on within the warm start drops what came later there
    back = {"warm_start": 1}
    tracker = TensorBoardTracker(board, resume_after=0, phase_after=back)
    with MetricsLogger(path, resume_after=0, phase_after=back, trackers=[tracker]) as logger:
        logger.log(2, {"loss": 9.0}, "warm_start")
    assert read_metrics(path) == []
    assert [row["warm_start/loss"] for row in read_metrics(path, "warm_start")] == [1.0, 9.0]
    assert scalars(board / "warm_start") == {"warm_start/loss": [(1, 1.0), (2, 9.0)]}


@pytest.mark.parametrize(
    ("module", "make", "remedy"),
    [
        *((name, lambda name=name: TRACKERS[name]("project", "run", {}), rf"uirl\[{name}\]") for name in TRACKERS),
        ("tensorboard.compat.proto", lambda: TensorBoardTracker("tb"), "pip install tensorboard"),
    ],
)
def test_a_missing_package_says_how_to_get_it(monkeypatch, module, make, remedy):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=remedy):
        make()


def test_wandb_gets_rows_without_missing_values(monkeypatch):
    seen: list = []

    class Run:
        def define_metric(self, name, step_metric):
            seen.append((name, step_metric))

        def log(self, row):
            seen.append(row)

        def finish(self):
            seen.append("finished")

    class FakeWandb:
        @staticmethod
        def init(**kwargs):
            seen.append(kwargs)
            return Run()

    monkeypatch.setitem(sys.modules, "wandb", FakeWandb)
    tracker = WandbTracker("p", "r", {"a": 1}, resume=True)
    tracker.log(25, {"warm_start/loss": 2.0}, "warm_start")
    tracker.log(3, {"loss": 1.0, "eval": None})
    tracker.close()
    assert seen == [
        {"project": "p", "name": "r", "id": "r", "config": {"a": 1}, "resume": "allow"},
        ("*", "step"),
        ("warm_start/*", "warm_start/step"),
        {"warm_start/step": 25, "warm_start/loss": 2.0},
        {"step": 3, "loss": 1.0},
        "finished",
    ]


def test_a_server_of_others_that_is_down_ends_no_run(tmp_path, caplog):
    class Down:
        def log(self, *_):
            raise ConnectionError("no route to host")

        def close(self):
            raise ConnectionError("no route to host")

    with MetricsLogger(tmp_path / "m.jsonl", trackers=[Down(), TensorBoardTracker(tmp_path / "tb")]) as logger:
        logger.log(1, {"loss": 2.0})
    assert scalars(tmp_path / "tb") == {"loss": [(1, 2.0)]}
    assert [row["loss"] for row in read_metrics(tmp_path / "m.jsonl")] == [2.0]
    assert caplog.text.count("no route to host") == 2


def test_the_metrics_load_no_torch(tmp_path):
    code = (
        "import sys; from uirl.metrics import MetricsLogger, TensorBoardTracker; "
        f"MetricsLogger({str(tmp_path / 'm')!r}, trackers=[TensorBoardTracker({str(tmp_path)!r})]).log(1, {{'a': 1}}); "
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
