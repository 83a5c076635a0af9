"""Programs of PythonTool that use too much memory, time or output, and what is left of a program."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import uirl
from tests.tools.python_programs import PLENTY, run, state, wait_for
from uirl.errors import EnvironmentFailure
from uirl.tools import PythonTool, ToolRegistry, python_process
from uirl.tools.python_process import MAX_OUTPUT_BYTES


def processes() -> Iterator[tuple[int, str]]:
    """(process id, command line) of every child process that a PythonTool started."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_text()
            except OSError:
                continue
            if "uirl.tools.sandbox" in command:
                yield int(entry.name), command


GREEDY = """
def fill(kept):
    while True:
        kept.append([0] * 9)
fill([])
"""


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("while True: pass", "more than 1 s of computing"),
        (
            "import signal; signal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass",
            "more than 1 s of computing",
        ),
        ("9 ** 9 ** 9", "more than 1 s of computing"),
        ("x = bytearray(10 ** 10)", "more than 256 MB of memory"),
        ("x = [0]\nwhile True: x += x", "more than 256 MB of memory"),
        ("import os\nwhile True:\n  os.fork()", "PermissionError"),
        ("while True: print('x' * 1000)", f"more than {MAX_OUTPUT_BYTES} bytes of output"),
    ],
)
def test_bombs_are_stopped_and_told(python: ToolRegistry, code: str, words: str) -> None:
    success, text = run(python, code)
    assert not success
    assert words in text
    assert len(text) <= 8000, "not cut again by the registry, which would lose the reason at its end"


@pytest.mark.parametrize("code", ["x = []\nwhile True: x.append([0] * 9)", GREEDY])
def test_memory_that_runs_out_in_small_pieces_leaves_enough_to_say_so(code: str) -> None:
    success, text = run(ToolRegistry([PythonTool(wall_seconds=PLENTY, memory_mb=64)]), code)
    assert not success
    assert text.endswith("MemoryError\nstopped: more than 64 MB of memory")
    assert "During handling" not in text


@pytest.mark.usefixtures("late_clock")
@pytest.mark.parametrize(
    "code",
    [
        "import time; print('before', flush=True); time.sleep(1000)",
        "import os, time; print('before', flush=True); os.close(1); os.close(2); time.sleep(1000)",
        """
        import threading, time
        print('before', flush=True)
        def hold(): time.sleep(1000)
        while True: threading.Thread(target=hold).start()
        """,
    ],
)
def test_a_program_that_waits_is_stopped(code: str) -> None:
    registry = ToolRegistry([PythonTool(wall_seconds=0.5, memory_mb=128)])
    success, text = run(registry, code)
    assert not success
    assert text.startswith("before")
    assert text.endswith("not finished after 0.5 s")


def test_long_output_keeps_its_end_where_something_went_wrong(python: ToolRegistry) -> None:
    success, text = run(python, "print('start'); print('x' * 50_000); 1 / 0")
    assert not success
    assert text.startswith("start\nxxx")
    assert "more characters)" in text
    assert text.endswith("ZeroDivisionError: division by zero")
    assert run(python, "print('x' * 9000)") == (True, "x" * 8000 + "... (cut, 1000 more characters)")


def test_random_numbers_repeat_with_the_seed() -> None:
    registry = ToolRegistry([PythonTool(wall_seconds=PLENTY)])
    draw = "import random; random.random()"
    registry.reset(7)
    first = run(registry, draw)
    assert run(registry.spawn(), draw) == first
    registry.reset(8)
    assert run(registry, draw) != first


def test_nothing_is_left(monkeypatch: pytest.MonkeyPatch, temporary: Path) -> None:
    registry = ToolRegistry([PythonTool(cpu_seconds=1, wall_seconds=PLENTY)])
    run(registry, "open('a', 'w').write('x')")
    run(registry, "while True: print('x' * 1000)")

    def broken(self: python_process._Watch) -> None:
        raise OSError("broken off")

    monkeypatch.setattr(python_process._Watch, "wait", broken)
    with pytest.raises(EnvironmentFailure, match="broken off"):
        run(registry, "import time; time.sleep(1000)")
    assert list(temporary.iterdir()) == []
    # the child of a killed bubblewrap is killed by the kernel, a moment later
    mine = f'"parent": {os.getpid()}'
    assert wait_for(lambda: not [command for _, command in processes() if mine in command])


def test_the_program_ends_with_the_process_that_started_it(temporary: Path) -> None:
    code = "import time; time.sleep(1000)"
    script = f"from uirl.tools import PythonTool; PythonTool(wall_seconds=900).execute({code!r})"
    environment = {**os.environ, "PYTHONPATH": str(_root()), "TMPDIR": str(temporary)}
    parent = subprocess.Popen([sys.executable, "-c", script], env=environment)
    try:
        child = wait_for(lambda: _sleeping_child(parent.pid))
        parent.kill()
        parent.wait()
        assert wait_for(lambda: state(child) in ("gone", "Z"))
    finally:
        parent.kill()
        parent.wait()


def _root() -> Path:
    return Path(uirl.__file__).parents[1]


def _sleeping_child(parent: int) -> int | None:
    """The child that runs the code itself: it has said that it is ready, and sleeps."""
    for pid, command in processes():
        if f'"parent": {parent}' in command and state(pid) == "S" and "clock_nanosleep" in _wait_channel(pid):
            return pid
    return None


def _wait_channel(pid: int) -> str:
    try:
        number = Path(f"/proc/{pid}/syscall").read_text().split()[0]
    except OSError:
        return ""
    return "clock_nanosleep" if number in ("230", "115") else ""
