"""Output that is gone: a reader that left, a full disk, a terminal that hung up, descriptors that are closed."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.conftest import QUICK
from uirl.storage import RunDirectory, TrajectoryStore

pytestmark = pytest.mark.slow

SECONDS = 300
UIRL = [sys.executable, "-m", "uirl"]
LONG = ["training.num_epochs=1", "training.num_iters_per_epoch=100000"]
SHORT = ["training.num_epochs=1", "training.num_iters_per_epoch=2"]
ENVIRONMENT = {**os.environ, "HF_HUB_OFFLINE": "1"}


def train(folder: Path, length: list[str]) -> list[str]:
    return [*UIRL, "train", *QUICK, *length, f"logging.runs_dir={folder}", "logging.run_name=run"]


@contextmanager
def ending(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Kill a process that does not end, so that the test does."""
    try:
        yield
    finally:
        process.kill()
        process.wait()


def read_until(handle: int, word: bytes) -> None:
    seen = b""
    while word not in seen:
        part = os.read(handle, 4096)
        assert part, seen
        seen += part


@pytest.mark.parametrize("streams", ["stdout", "both"])
def test_a_run_whose_reader_left_goes_on_and_ends_when_it_is_asked_to(tmp_path: Path, streams: str) -> None:
    reader, writer = os.pipe()
    errors = subprocess.STDOUT if streams == "both" else subprocess.DEVNULL
    process = subprocess.Popen(train(tmp_path, LONG), stdout=writer, stderr=errors, env=ENVIRONMENT)
    os.close(writer)
    with ending(process):
        read_until(reader, b"step ")
        os.close(reader)  # as a pager that is left, or `| tail` that Ctrl-C ends first
        metrics, pause = tmp_path / "run" / "metrics.jsonl", threading.Event()
        before = len(metrics.read_text().splitlines())
        for _ in range(10 * SECONDS):
            if len(metrics.read_text().splitlines()) > before + 20:
                break
            assert process.poll() is None, "it went on without a reader"
            pause.wait(0.1)
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 130
    with TrajectoryStore(tmp_path / "run" / "trajectories.sqlite", read_only=True) as store:
        assert store.count() > 0


@pytest.mark.parametrize("where", ["full", "closed", "closed but for stdin"])
def test_a_run_outlives_its_output(tmp_path: Path, where: str) -> None:
    redirected = {"full": ">/dev/full 2>/dev/full", "closed": "<&- >&- 2>&-", "closed but for stdin": ">&- 2>&-"}[where]
    command = ["sh", "-c", f'"$@" {redirected}', "sh", *train(tmp_path, SHORT)]
    ended = subprocess.run(command, env=ENVIRONMENT, timeout=SECONDS, check=False)
    assert ended.returncode == 0
    run = RunDirectory.open(tmp_path / "run")
    assert run.read_json("summary.json")["steps"] == 2
    rows = [json.loads(line) for line in run.metrics_path.read_text().splitlines()]  # nothing that is printed is there
    assert [row["step"] for row in rows][-2:] == [1, 2]


def test_a_terminal_that_hangs_up_stops_the_run(tmp_path: Path) -> None:
    child, terminal = pty.fork()
    if child == 0:
        os.execve(sys.executable, train(tmp_path, LONG), {**ENVIRONMENT, "TERM": "xterm"})
    try:
        read_until(terminal, b"step ")
        os.close(terminal)
        result: list[int] = []
        waiting = threading.Thread(target=lambda: result.append(os.waitpid(child, 0)[1]), daemon=True)
        waiting.start()
        waiting.join(SECONDS)
        assert [os.waitstatus_to_exitcode(status) for status in result] == [130]
    finally:
        if not result:
            os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("command", [["environments"], ["environments", "screen_suite"], ["--help"], ["plan"]], ids=str)
@pytest.mark.parametrize("where", [">/dev/full", ">&-", "2>&-", ">/dev/full 2>/dev/full"])
def test_no_command_fails_over_output_that_cannot_be_written(command: list[str], where: str) -> None:
    shell = ["sh", "-c", f'"$@" {where}', "sh", *UIRL, *command]
    ended = subprocess.run(shell, env=ENVIRONMENT, timeout=SECONDS, check=False, capture_output=True)
    assert (ended.returncode, b"Traceback" in ended.stderr) == (0, False)
