"""The metrics file under kills, full disks and resumes."""

import errno
import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from uirl.errors import StorageError
from uirl.metrics import MetricsLogger, read_metrics

ROOT = Path(__file__).parents[2]


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


def test_a_row_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    """Writes that take a part of what they are given; on a full disk the second one takes nothing."""
    path, real, full = tmp_path / "metrics.jsonl", os.write, False

    def write(handle: int, data: bytes) -> int:
        if full and path.stat().st_size > before:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(handle, data[:7])

    with MetricsLogger(path) as logger:
        monkeypatch.setattr(os, "write", write)
        logger.log(1, {"name": 1})
        full, before = True, path.stat().st_size
        with pytest.raises(StorageError, match=r"cannot append to .*: No space left on device"):
            logger.log(2, {"name": 2})
        full = False
        logger.log(3, {"name": 3})
    assert [(row["step"], row["name"]) for row in read_metrics(path)] == [(1, 1), (3, 3)]


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
