"""What sandboxes share, without bubblewrap: who is ended, what is heard, and that a trial has an end."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tools.python_programs import state, wait_for
from uirl.environments.desktop.session import Desktop
from uirl.errors import EnvironmentFailure
from uirl.runtime import walls
from uirl.tools.sandbox.room import Room


def test_a_process_is_ended_with_all_that_come_from_it() -> None:
    script = "sleep 1000 & setsid sleep 1000 & wait"
    process = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, start_new_session=True)
    family = wait_for(lambda: len(found := [*walls.tree(process.pid)]) >= 3 and found)
    for _ in range(2):
        walls.end_tree(process)
    assert wait_for(lambda: {state(one) for one in family} <= {"gone", "Z"})


@pytest.mark.parametrize(
    ("said", "number"), [(b"7\n", 7), (b'{\n "child-pid": 12\n}\n', 12), (b"", None), (b'{\n "child-pid": 12', None)]
)
def test_the_number_that_a_program_tells(said: bytes, number: int | None) -> None:
    told, says = os.pipe()
    os.write(says, said)
    os.close(says)
    assert walls.number_told(told) == number


def test_a_program_that_tells_nothing_is_not_waited_for_long() -> None:
    told, says = os.pipe()
    assert walls.number_told(told, 0.01) is None
    os.close(says)


@pytest.mark.parametrize("start", [lambda: Desktop((64, 64), {}), lambda: Room((), memory_mb=64, disk_mb=16)])
def test_a_sandbox_that_could_not_be_started_leaves_no_pipe_open(
    start: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    def out_of_processes(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("uirl.tools.sandbox.room.NEEDED", ())
    monkeypatch.setattr(subprocess, "Popen", out_of_processes)
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(BlockingIOError):
        start()
    assert set(os.listdir("/proc/self/fd")) == before


def test_a_trial_that_hangs_is_a_failure_and_no_reason_to_do_without_walls(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "bwrap").write_text("#!/bin/sh\nexec sleep 1000\n")
    (tmp_path / "bwrap").chmod(0o755)
    assert walls.works(["true"]) is (walls.shutil.which("bwrap") is not None)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(walls, "START_SECONDS", 0.1)
    with pytest.raises(EnvironmentFailure, match=r"ran no program within 0\.1 s"):
        walls.works(walls.bubblewrap(None))
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    assert walls.works(["true"]) is False
