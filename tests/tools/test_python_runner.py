"""PythonTool, with real processes: what a program returns and is told, its limits, and what is left of it."""

from __future__ import annotations

import asyncio
import os
import platform
import resource
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import uirl
from tests.tools.python_programs import PLENTY, run, state, wait_for
from uirl.errors import ConfigError, EnvironmentFailure
from uirl.runtime.scratch import RAM_DISK
from uirl.tools import PythonTool, ToolRegistry, python_runner
from uirl.tools.sandbox.watch import MAX_OUTPUT_BYTES, Watch
from uirl.types import ToolCall


@pytest.mark.parametrize(
    ("code", "result"),
    [
        ("print('hi')\n1 + 1", "hi\n2"),
        ("x = 3\nx", "3"),
        ("'text'", "'text'"),
        ("print('ü 東 🙂')", "ü 東 🙂"),
        ("x = 3", "(no output; print what you want to see)"),
        ("", "(no output; print what you want to see)"),
        ("None", "(no output; print what you want to see)"),
        ("import sys; print('a', file=sys.stderr); print('b', flush=True)", "a\nb"),
        ("import sys; print('a'); sys.exit(0)", "a"),
        ("__name__, dir()", "('__main__', ['__builtins__', '__name__'])"),
        ("import sys; [m for m in sys.modules if 'uirl' in m], sys.argv", "([], ['<code>'])"),
        ("import os; os.listdir('.')", "[]"),
        ("open('a.txt', 'w').write('x'); open('a.txt').read()", "'x'"),
        ("from dataclasses import dataclass\n@dataclass\nclass P:\n  x: int\nP(1)", "P(x=1)"),
        ("import asyncio\nasync def f(): return 3\nasyncio.run(f())", "3"),
        ("import threading\nt = threading.Thread(target=print, args=('t',)); t.start(); t.join()", "t"),
        ("import hashlib, decimal, sqlite3, json; sqlite3.connect('d.db').execute('select 1').fetchall()", "[(1,)]"),
    ],
)
def test_what_a_program_prints_and_its_last_value(python: ToolRegistry, code: str, result: str) -> None:
    assert run(python, code) == (True, result)


def test_sets_print_in_the_same_order_in_every_run(python: ToolRegistry) -> None:
    assert len({run(python, "set('abcdefghijklmnop')") for _ in range(3)}) == 1


def test_mistakes_come_back_with_their_traceback(python: ToolRegistry) -> None:
    success, text = run(python, "print('before')\ndef f():\n    return 1 / 0\nf()")
    assert not success
    assert text == (
        'before\nTraceback (most recent call last):\n  File "<code>", line 4, in <module>\n    f()\n'
        '  File "<code>", line 3, in f\n    return 1 / 0\n           ~~^~~\nZeroDivisionError: division by zero'
    )


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("x = ", "SyntaxError"),
        ("def f(): f()\nf()", "RecursionError"),
        ("class A:\n  def __repr__(self): raise KeyError('no')\nA()", "KeyError: 'no'"),
        ("import sys; sys.exit('why')", "why"),
        ("import sys; sys.exit(97)", "ended with status 97"),
        ("import os; os._exit(5)", "ended with status 5"),
        ("import ctypes; ctypes.string_at(0)", "crashed (SIGSEGV)"),
        ("input()", "EOFError"),
        ("import os; os.lseek(0, 0, 0); assert os.read(0, 9) == b''; input()", "EOFError"),
        ("import uirl", "No module named 'uirl'"),
        ("import numpy", "No module named 'numpy'"),
        ("\0", "null bytes"),
        ("open('big', 'wb').write(bytes(3 << 20))", "File too large"),
    ],
)
def test_everything_the_program_does_wrong_is_told_to_it(python: ToolRegistry, code: str, words: str) -> None:
    success, text = run(python, code)
    assert not success
    assert words in text


def test_half_a_character_is_told(python: ToolRegistry) -> None:
    success, text = python.execute_tool("python", code="'\ud800'")
    assert not success
    assert "half a character" in text


async def test_parallel_episodes_run_side_by_side(python: ToolRegistry) -> None:
    calls = [python.spawn().call(ToolCall("python", {"code": f"{i} * {i}"})) for i in range(12)]
    assert [result.result for result in await asyncio.gather(*calls)] == [str(i * i) for i in range(12)]


def test_many_open_files_do_not_matter(python: ToolRegistry) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    opened = []
    try:
        opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
        assert run(python, "1 + 1") == (True, "2")
    finally:
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_installed_packages_where_they_are_allowed() -> None:
    registry = ToolRegistry([PythonTool(packages=True, wall_seconds=PLENTY)])
    assert run(registry, "import numpy as np; (np.arange(6).reshape(2, 3) @ np.ones(3)).tolist()") == (
        True,
        "[3.0, 12.0]",
    )


def test_installed_packages_on_the_ram_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(dir=RAM_DISK) as folder:
        (Path(folder) / "of_the_ram_disk.py").write_text("found = 7")
        paths = {**sysconfig.get_paths(), "purelib": folder}
        monkeypatch.setattr("sysconfig.get_paths", lambda: paths)
        registry = ToolRegistry([PythonTool(packages=True, wall_seconds=PLENTY)])
        assert run(registry, "import of_the_ram_disk; of_the_ram_disk.found") == (True, "7")


def test_network_where_it_is_allowed() -> None:
    registry = ToolRegistry([PythonTool(allow_network=True, wall_seconds=PLENTY)])
    assert run(registry, "import socket; socket.socket().fileno() > 0") == (True, "True")
    assert run(registry, "import os; os.fork()")[0] is False


def test_files_where_they_are_allowed(temporary: Path) -> None:
    (temporary / "a").write_text("mine")
    registry = ToolRegistry([PythonTool(allow_files=True, wall_seconds=PLENTY)])
    assert run(registry, f"open({str(temporary / 'a')!r}).read()") == (True, "'mine'")
    assert run(registry, "import socket; socket.socket()")[0] is False
    assert run(registry, "import os\nfor _ in range(1100):\n  os.mkdir('d'); os.chdir('d')\n1") == (True, "1")
    assert [entry.name for entry in temporary.iterdir()] == ["a"], "folders too deep for shutil.rmtree are removed"


@pytest.mark.usefixtures("late_clock")
def test_trusted_code_has_limits_alone() -> None:
    registry = ToolRegistry([PythonTool(allow_network=True, allow_files=True, wall_seconds=2.0)])
    assert run(registry, "import subprocess; subprocess.run(['echo', 'x'], capture_output=True).stdout") == (
        True,
        "b'x\\n'",
    )
    success, text = run(registry, "import subprocess; print(subprocess.Popen(['sleep', '1000']).pid, flush=True)")
    assert not success
    pid = int(text.split()[0])
    wait_for(lambda: state(pid) in ("gone", "Z"))


def test_a_platform_that_cannot_confine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    for options in ({}, {"allow_network": True}, {"allow_files": True}):
        with pytest.raises(ConfigError, match=r"this is linux on riscv64\. Use Linux, or PythonTool\(allow_network"):
            PythonTool(**options)  # type: ignore[arg-type]
    PythonTool(allow_network=True, allow_files=True)


def test_a_kernel_that_refuses_is_found_when_the_tool_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child cannot confine itself: the tool is refused, and later runs are ours, never the program's."""
    tool = PythonTool()
    monkeypatch.setattr("uirl.tools.python_runner._BOOT", "raise OSError('no Landlock here')  # {root!r}")
    with pytest.raises(ConfigError, match=r"(?s)code cannot be confined here: .*no Landlock here"):
        PythonTool()
    with pytest.raises(EnvironmentFailure, match=r"(?s)did not start: .*no Landlock here"):
        ToolRegistry([tool]).execute_tool("python", code="1")


def test_a_slow_start_takes_no_time_from_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    boot = "import time; time.sleep(2.5); "
    monkeypatch.setattr("uirl.tools.python_runner._BOOT", boot + python_runner._BOOT)
    registry = ToolRegistry([PythonTool(wall_seconds=2)])
    assert run(registry, "1") == (True, "1")
    monkeypatch.setattr("uirl.tools.python_runner._LONGEST_START", 0.2)
    with pytest.raises(EnvironmentFailure, match=r"did not start: stopped: not finished after 0\.2 s"):
        registry.execute_tool("python", code="1")


@pytest.mark.parametrize("options", [{"cpu_seconds": 0}, {"wall_seconds": -1}, {"memory_mb": 0}])
def test_limits_must_be_positive(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="expected a positive number"):
        PythonTool(**options)


# -- too much of something, and what is left --------------------------------------------------------------------------


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
        ("x = bytearray(10 ** 10)", "more than 256 MB of memory"),
        ("x = [0]\nwhile True: x += x", "more than 256 MB of memory"),
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

    def broken(self: Watch) -> None:
        raise OSError("broken off")

    monkeypatch.setattr(Watch, "wait", broken)
    with pytest.raises(EnvironmentFailure, match="broken off"):
        run(registry, "import time; time.sleep(1000)")
    assert list(temporary.iterdir()) == []
    # the child of a killed bubblewrap is killed by the kernel, a moment later
    mine = f'"parent": {os.getpid()}'
    assert wait_for(lambda: not [command for _, command in processes() if mine in command])


def test_the_program_ends_with_the_process_that_started_it(temporary: Path) -> None:
    code = "import time; time.sleep(1000)"
    script = f"from uirl.tools import PythonTool; PythonTool(wall_seconds=900).execute({code!r})"
    environment = {**os.environ, "PYTHONPATH": str(Path(uirl.__file__).parents[1]), "TMPDIR": str(temporary)}
    parent = subprocess.Popen([sys.executable, "-c", script], env=environment)
    try:
        child = wait_for(lambda: _sleeping_child(parent.pid))
        parent.kill()
        parent.wait()
        assert wait_for(lambda: state(child) in ("gone", "Z"))
    finally:
        parent.kill()
        parent.wait()


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
