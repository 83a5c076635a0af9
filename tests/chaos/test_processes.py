"""Processes of a run are found by what they inherited, and no others are killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos import processes
from tests.environments.remote.running import until

SLEEP = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
PARENT = [sys.executable, "-S", "-c", f"import subprocess; subprocess.Popen({SLEEP!r}, start_new_session=True)"]


@pytest.fixture
def mark() -> Iterator[str]:
    token = uuid.uuid4().hex
    yield token
    for pid in processes.marked(token):
        processes.kill(pid, token)


def test_a_grandchild_whose_parent_is_gone_is_found_and_killed(mark: str) -> None:
    subprocess.run(PARENT, env={**os.environ, processes.MARK: mark}, check=True)
    (pid,) = until(lambda: processes.marked(mark))
    assert "time.sleep(600)" in processes.describe(pid)
    assert processes.marked(mark, besides=[pid]) == []
    assert processes.kill(pid, mark)
    until(lambda: not processes.marked(mark))
    assert not processes.kill(pid, mark)
    assert processes.describe(pid) == f"{pid} (gone)"


def test_a_number_that_belongs_to_another_process_is_left_alone(mark: str) -> None:
    with subprocess.Popen(SLEEP) as other:
        assert not processes.kill(other.pid, mark)
        assert other.poll() is None
        other.kill()


def test_the_table_of_a_run(tmp_path: Path) -> None:
    assert processes.read_table(tmp_path) == []
    with subprocess.Popen(SLEEP) as there:
        rows = [
            {"name": "learner", "role": "learner", "state": "running", "pid": os.getpid()},
            {"name": "actor-0", "role": "actor", "state": "running", "pid": there.pid},
            {"name": "actor-1", "role": "actor", "state": "starting", "pid": None},
            {"name": "actor-2", "role": "actor", "state": "ready", "pid": os.getpid(), "host": "another-machine"},
        ]
        (tmp_path / "processes.json").write_text(json.dumps({"processes": rows}))
        learner, actor = processes.read_table(tmp_path)
        assert (learner.role, actor.name, actor.pid) == ("learner", "actor-0", there.pid)
        there.kill()
        there.wait()
        assert [one.name for one in processes.read_table(tmp_path)] == ["learner"]
    (tmp_path / "processes.json").write_text("half a fi")
    assert processes.read_table(tmp_path) == []


def test_a_zombie_is_not_alive() -> None:
    child = subprocess.Popen([sys.executable, "-S", "-c", ""])
    until(lambda: not processes.is_alive(child.pid))
    assert child.returncode is None  # nobody waited for it
    child.wait()
