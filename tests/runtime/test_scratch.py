"""Temporary folders: gone with their process, however it ends, and never another's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from uirl.runtime.scratch import ScratchFolder, sweep

PROGRAM = """
import sys
from pathlib import Path
from uirl.runtime.scratch import ScratchFolder
folder = ScratchFolder("uirl-test-", Path(sys.argv[1]))
(folder.path / "full").mkdir()
(folder.path / "full" / "file").write_text("x")
print(folder.path, flush=True)
sys.stdin.read()
"""


def test_a_folder_goes_when_it_is_closed_and_when_nobody_holds_it(tmp_path: Path) -> None:
    folder = ScratchFolder("uirl-test-", tmp_path)
    path = folder.path
    assert path.name.startswith("uirl-test-")
    assert path.stat().st_mode & 0o777 == 0o700
    folder.close()
    folder.close()
    assert not path.exists()
    path = ScratchFolder("uirl-test-", tmp_path).path
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_swept_and_what_lives_is_not(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    path = Path(child.stdout.readline().strip())
    sweep("uirl-test-", tmp_path)
    assert (path / "full" / "file").is_file()
    os.kill(child.pid, signal.SIGKILL)
    child.communicate()
    sweep("uirl-other-", tmp_path)
    assert path.is_dir()
    sweep("uirl-test-", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_ends_takes_its_folder_along(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], input="", text=True, check=True, capture_output=True)
    assert list(tmp_path.iterdir()) == []


def test_a_forked_process_leaves_the_folder_to_its_parent(tmp_path: Path) -> None:
    folder = ScratchFolder("uirl-test-", tmp_path)
    child = os.fork()
    if child == 0:
        folder.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert folder.path.is_dir()
    folder.close()
    assert not folder.path.exists()


def test_folders_without_a_lock_of_ours_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "uirl-test-mine").mkdir()
    (tmp_path / "uirl-test-file").write_text("x")
    (tmp_path / "uirl-test-link").mkdir()
    (tmp_path / "uirl-test-link" / "lock").symlink_to(tmp_path / "uirl-test-file")
    theirs = tmp_path / "uirl-test-theirs"
    theirs.mkdir()
    (theirs / "lock").write_text("")
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    sweep("uirl-test-", tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "uirl-test-file", "uirl-test-link", "uirl-test-mine", "uirl-test-theirs",
    ]  # fmt: skip
