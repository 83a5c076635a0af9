"""Reductions, the metrics file under kills, full disks and resumes, and how sure a success rate is."""

import json
import math
import random
import signal
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from uirl.errors import StorageError
from uirl.metrics import (
    Metrics,
    MetricsLogger,
    TensorBoardTracker,
    WandbTracker,
    pass_at_k,
    read_metrics,
    reduction_of,
    success_interval,
)

ROOT = Path(__file__).parents[1]


def reduced(*calls, **kwargs):
    metrics = Metrics()
    for call in calls:
        metrics.add(*call, **kwargs)
    return metrics.reduce()


@pytest.mark.parametrize(
    ("name", "reduction"),
    [
        ("success", "mean"),
        ("policy_loss", "mean"),
        ("reward/max", "max"),
        ("response_tokens_min", "min"),
        ("tokens_total", "sum"),
        ("time/rollout", "sum"),
        ("count/episodes", "sum"),
        ("time/tokens_per_second", "rate"),
        ("policy_version", "last"),
        ("learning_rate", "last"),
        ("climax", "mean"),
        ("summary", "mean"),
    ],
)
def test_the_table_of_reductions(name, reduction):
    assert reduction_of(name) == reduction


def test_golden_reductions():
    # mean: (1*1 + 4*2) / (1 + 2) = 3; rate: (100 + 300) tokens / (1 + 3) seconds = 100
    assert reduced(("loss", 1, 1), ("loss", 4, 2)) == {"loss": 3.0}
    assert reduced(("tokens_per_second", 100, 1), ("tokens_per_second", 300, 3)) == {"tokens_per_second": 100.0}
    assert reduced(("x_sum", 1), ("x_sum", 4)) == {"x_sum": 5.0}
    assert reduced(("x_max", -3), ("x_max", -4)) == {"x_max": -3.0}
    assert reduced(("x_min", 3), ("x_min", 4)) == {"x_min": 3.0}
    assert reduced(("version", 3), ("version", 2)) == {"version": 2.0}
    assert reduced(("loss", 3), ("loss", 5), reduction="max") == {"loss": 5.0}


def test_no_evidence_is_none_and_not_zero():
    assert reduced(("success", None)) == {"success": None}
    assert reduced(("success", None), ("success", True), ("success", False)) == {"success": 0.5}
    assert reduced(("loss", 3, 0.0)) == {"loss": None}
    assert Metrics().reduce() == {}


def test_numbers_that_are_not_finite_become_none_and_are_counted():
    row = reduced(("loss", 1), ("loss", math.nan), ("x_max", math.inf), ("fine", 2))
    assert row == {"loss": None, "x_max": None, "fine": 2.0, "metrics/nonfinite": 2.0}
    assert reduced(("x_sum", 1.7e308), ("x_sum", 1.7e308)) == {"x_sum": None, "metrics/nonfinite": 1.0}


@given(
    pairs=st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(0, 1e6)), min_size=1, max_size=20),
    seed=st.integers(0, 2**32),
    cut=st.integers(0, 20),
)
def test_the_order_of_arrival_and_the_merge_of_parts_change_no_digit(pairs, seed, cut):
    shuffled = random.Random(seed).sample(pairs, len(pairs))
    for name in ("mean", "a_sum", "a_max", "a_min", "a_per_second"):
        whole, left, right = Metrics(), Metrics(), Metrics()
        for pair in pairs:
            whole.add(name, *pair)
        for i, pair in enumerate(shuffled):
            (left if i < cut else right).add(name, *pair)
        left.merge(right)
        assert left.reduce() == whole.reduce()


def test_array_scalars_are_numbers_and_texts_are_not():
    assert reduced(("a", np.float32(0.5)), ("a", np.int64(1)), ("a", np.array(0.0))) == {"a": 0.5}
    for bad in ("1.0", [1.0, 2.0], {}):
        with pytest.raises(TypeError, match="metric 'a' must be a number"):
            Metrics().add("a", bad)


def test_a_changed_reduction_and_a_negative_weight_are_refused():
    metrics = Metrics()
    metrics.add("a", 1)
    with pytest.raises(ValueError, match="already reduced by 'mean', got 'sum'"):
        metrics.add("a", 1, reduction="sum")
    with pytest.raises(ValueError, match="weight must be 0 or more"):
        metrics.add("a", 1, weight=-1)


def test_clear_and_prefix():
    metrics = Metrics()
    metrics.add_all({"success": 1.0, "turns": 2}, prefix="eval/")
    assert metrics.reduce() == {"eval/success": 1.0, "eval/turns": 2.0}
    assert len(metrics) == 2
    metrics.clear()
    assert metrics.reduce() == {}


def test_rows_are_json_lines_that_come_back(tmp_path):
    path = tmp_path / "run" / "metrics.jsonl"
    with MetricsLogger(path) as logger:
        logger.log(1, {"loss": 0.1 + 0.2, "eval": None})
        written = logger.log(2, {"loss": math.nan, "metrics/nonfinite": 1, "x": -math.inf})
    assert written == {"loss": None, "metrics/nonfinite": 3.0, "x": None}
    first, second = (json.loads(line) for line in path.read_text().splitlines())
    assert first["loss"] == 0.1 + 0.2
    assert first["eval"] is None
    assert first["step"] == 1
    assert first["time"] > 1e9
    assert second["loss"] is None
    assert read_metrics(path) == [first, second]


def test_a_file_of_another_run_is_not_continued_by_accident(tmp_path):
    path = tmp_path / "metrics.jsonl"
    MetricsLogger(path).log(1, {"a": 1})
    with pytest.raises(StorageError, match="already holds metrics of another run"):
        MetricsLogger(path)


def test_a_resume_drops_later_rows_and_a_torn_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with MetricsLogger(path) as logger:
        for step in (1, 2, 3, 4):
            logger.log(step, {"a": step})
    with path.open("a") as file:
        file.write('{"step": 5, "a"')
    assert [row["step"] for row in read_metrics(path)] == [1, 2, 3, 4]
    with MetricsLogger(path, resume_after=2) as logger:
        logger.log(3, {"a": 30})
    assert [(row["step"], row["a"]) for row in read_metrics(path)] == [(1, 1), (2, 2), (3, 30)]
    assert [p.name for p in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_a_torn_line_alone_is_dropped_before_the_next_row(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "a": 1}\n{"step": 2')
    with MetricsLogger(path, resume_after=9) as logger:
        logger.log(2, {"a": 2})
    assert [row["step"] for row in read_metrics(path)] == [1, 2]


def test_a_resume_without_a_file_begins_one(tmp_path):
    with MetricsLogger(tmp_path / "metrics.jsonl", resume_after=3) as logger:
        logger.log(4, {"a": 1})
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 1


def test_damage_before_the_last_line_is_an_error_with_its_place(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"ste\n{"step": 3}\n')
    with pytest.raises(StorageError, match="line 2 is no row of metrics"):
        read_metrics(path)
    with pytest.raises(StorageError, match="cannot read"):
        read_metrics(tmp_path / "none.jsonl")


def test_a_row_after_close_and_reserved_names_are_refused(tmp_path):
    logger = MetricsLogger(tmp_path / "metrics.jsonl")
    with pytest.raises(ValueError, match="may not be called 'step'"):
        logger.log(1, {"step": 2})
    logger.close()
    logger.close()
    with pytest.raises(StorageError, match="is closed"):
        logger.log(1, {})


FULL = """
import resource, sys
from uirl.errors import StorageError
from uirl.metrics import MetricsLogger
logger = MetricsLogger(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (150, resource.RLIM_INFINITY))
for step in range(10):
    try:
        logger.log(step, {"name": step})
    except StorageError as error:
        print(error)
        break
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
logger.log(99, {"name": 99})
"""


def test_a_full_disk_is_a_clear_error_and_leaves_whole_rows(tmp_path):
    path = tmp_path / "metrics.jsonl"
    done = subprocess.run([sys.executable, "-c", FULL, path], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "cannot append to" in done.stdout
    assert "limit" in done.stdout
    steps = [row["step"] for row in read_metrics(path)]
    assert steps == [*range(len(steps) - 1), 99]
    assert len(steps) >= 3


KILLED = """
import os, signal, sys
from uirl.metrics import MetricsLogger
logger = MetricsLogger(sys.argv[1])
logger.log(1, {"a": 1})
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_kill_loses_no_finished_row(tmp_path):
    done = subprocess.run([sys.executable, "-c", KILLED, tmp_path / "m.jsonl"], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL
    assert [row["step"] for row in read_metrics(tmp_path / "m.jsonl")] == [1]


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
        ("wandb", lambda: WandbTracker("project", "run", {}), r"uirl\[wandb\]"),
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


def test_the_metrics_load_no_torch(tmp_path):
    code = (
        "import sys; from uirl.metrics import MetricsLogger, TensorBoardTracker; "
        f"MetricsLogger({str(tmp_path / 'm')!r}, trackers=[TensorBoardTracker({str(tmp_path)!r})]).log(1, {{'a': 1}}); "
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_wilson_interval_golden():
    # p = 0.5, n = 10, z = 1.96: z^2/n = 0.38415; half = 1.96 / 1.38415 * sqrt(0.025 + 0.0096037) = 0.263413
    low, high = success_interval(5, 10)
    assert low == pytest.approx(0.236587, abs=1e-5)
    assert high == pytest.approx(0.763413, abs=1e-5)
    # 0 of 10: centre = half = 0.192073 / 1.38415, so the interval is [0, 0.277533]
    assert success_interval(0, 10) == (0.0, pytest.approx(0.277533, abs=1e-5))
    assert success_interval(10, 10) == (pytest.approx(0.722467, abs=1e-5), 1.0)


@given(n=st.integers(1, 5000), share=st.floats(0, 1))
def test_the_interval_holds_the_rate_and_mirrors(n, share):
    successes = round(share * n)
    low, high = success_interval(successes, n)
    assert 0 <= low <= successes / n <= high <= 1
    assert high > low
    mirrored = success_interval(n - successes, n)
    assert (1 - high, 1 - low) == pytest.approx(mirrored, abs=1e-12)


def test_pass_at_k_golden_and_by_counting():
    # 5 tries, 2 successes, 2 draws: 1 - C(3,2)/C(5,2) = 1 - 3/10
    assert pass_at_k(5, 2, 2) == pytest.approx(0.7)
    assert pass_at_k(4, 1, 1) == 0.25
    assert pass_at_k(4, 0, 4) == 0.0
    assert pass_at_k(4, 1, 4) == 1.0
    for n, c, k in [(6, 2, 3), (7, 3, 2), (5, 5, 1)]:
        draws = list(combinations([1] * c + [0] * (n - c), k))
        assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, draws)) / len(draws))


@pytest.mark.parametrize("call", [lambda: success_interval(0, 0), lambda: success_interval(3, 2)])
def test_no_episodes_are_no_rate(call):
    with pytest.raises(ValueError, match="0 <= successes <= n"):
        call()


def test_pass_at_k_needs_k_tries():
    with pytest.raises(ValueError, match="evaluate each task at least 5 times"):
        pass_at_k(4, 1, 5)
