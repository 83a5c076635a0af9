"""PythonTool, with real processes: what a program may do, what it may not, and that nothing of it is left."""

from __future__ import annotations

import asyncio
import os
import platform
import resource
import select
import signal
import struct
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import uirl
from uirl.errors import ConfigError, EnvironmentFailure
from uirl.tools import PythonTool, ToolRegistry, python_runner
from uirl.tools.python_runner import MAX_OUTPUT_BYTES
from uirl.tools.sandbox import seccomp
from uirl.types import ToolCall

HANG_GUARD = 60
PLENTY = 300.0
"""Of wall time, where another limit or none is meant: a second of computing takes a busy machine many."""


@pytest.fixture(scope="module")
def python() -> ToolRegistry:
    return ToolRegistry([PythonTool(cpu_seconds=1, wall_seconds=PLENTY, memory_mb=256)])


def run(registry: ToolRegistry, code: str) -> tuple[bool, Any]:
    return registry.execute_tool("python", code=textwrap.dedent(code))


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


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where the working folders are made."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


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


REFUSED = {
    "socket": "import socket; socket.socket()",
    "connection": "import socket; socket.create_connection(('127.0.0.1', 9), timeout=1)",
    "unix socket": "import socket; socket.socket(socket.AF_UNIX)",
    "raw call": "import ctypes, os; r = ctypes.CDLL(None, use_errno=True).syscall(41 if os.uname().machine == 'x86_64' "
    "else 198, 2, 1, 0); raise PermissionError(ctypes.get_errno()) if r < 0 else SystemExit",
    "fork": "import os; os.fork()",
    "subprocess": "import subprocess; subprocess.run(['true'])",
    "system": "import os; raise PermissionError if os.system('true') else SystemExit",
    "exec": "import os, sys; os.execv(sys.executable, [sys.executable])",
    "kill the parent": "import os; os.kill(os.getppid(), 9)",
    "owner of signals": "import fcntl, os; fcntl.fcntl(os.pipe()[0], fcntl.F_SETOWN, os.getppid())",
    "trace": "import ctypes, os; r = ctypes.CDLL(None, use_errno=True).ptrace(16, os.getppid(), 0, 0); "
    "raise PermissionError(ctypes.get_errno()) if r < 0 else SystemExit",
    "outlive": "import ctypes; r = ctypes.CDLL(None).prctl(1, 0, 0, 0, 0); raise PermissionError if r else SystemExit",
    "shared memory": "from multiprocessing.shared_memory import SharedMemory; SharedMemory(create=True, size=100)",
    "passwords": "open('/etc/passwd').read()",
    "the package": f"open({uirl.__file__!r}).read()",
    "list": "import os; os.listdir('/')",
    "environment of the parent": "import os; open(f'/proc/{os.getppid()}/environ').read()",
    "write above": "import os; open('../escape', 'w')",
    "write the library": "import os; open(os.__file__, 'a')",
    "cut the library": "import os; os.truncate(os.__file__, 0)",
    "rights of the library": "import os; os.chmod(os.__file__, 0)",
    "folder": "import os; os.mkdir('d')",
    "link": "import os; os.symlink('/etc', 'l')",
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_the_kernel_refuses(python: ToolRegistry, what: str) -> None:
    success, text = run(python, REFUSED[what])
    assert not success
    assert "PermissionError" in text


def test_limits_cannot_be_raised(python: ToolRegistry) -> None:
    success, text = run(
        python,
        """
        import resource
        print(resource.getrlimit(resource.RLIMIT_CPU), resource.getrlimit(resource.RLIMIT_AS))
        resource.setrlimit(resource.RLIMIT_CPU, (1, 2))
        """,
    )
    assert not success
    assert text.startswith(f"(1, 2) ({256 << 20}, {256 << 20})\n"), text
    assert "Error" in text


def test_no_variable_of_ours_is_inherited(python: ToolRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "very-secret")
    success, text = run(python, "import os; print(*sorted(os.environ)); print(os.environ)")
    assert success
    assert "very-secret" not in text
    assert text.splitlines()[0] == (
        "HOME LANG MKL_NUM_THREADS OMP_NUM_THREADS OPENBLAS_NUM_THREADS PYTHONHASHSEED PYTHONUTF8 TMPDIR TZ"
    )


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


@pytest.fixture
def late_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of a program starts with its first word: a busy machine starts Python in seconds."""
    original = PythonTool._read

    def read(self: PythonTool, process: subprocess.Popen[bytes]) -> tuple[bytes, str | None]:
        assert select.select([process.stdout], [], [], HANG_GUARD)[0]
        return original(self, process)

    monkeypatch.setattr(PythonTool, "_read", read)


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

    def broken(self: PythonTool, process: subprocess.Popen[bytes]) -> tuple[bytes, str | None]:
        raise OSError("broken off")

    monkeypatch.setattr(PythonTool, "_read", broken)
    with pytest.raises(EnvironmentFailure, match="broken off"):
        run(registry, "import time; time.sleep(1000)")
    assert list(temporary.iterdir()) == []
    assert not [command for _, command in processes() if f'"parent": {os.getpid()}' in command]


def test_the_program_ends_with_the_process_that_started_it(temporary: Path) -> None:
    code = "import time; time.sleep(1000)"
    script = f"from uirl.tools import PythonTool; PythonTool(wall_seconds=900).execute({code!r})"
    environment = {**os.environ, "PYTHONPATH": str(_root()), "TMPDIR": str(temporary)}
    parent = subprocess.Popen([sys.executable, "-c", script], env=environment)
    try:
        child = _wait_for(lambda: _sleeping_child(parent.pid))
        parent.kill()
        parent.wait()
        _wait_for(lambda: _state(child) in ("gone", "Z"))
    finally:
        parent.kill()
        parent.wait()


def _root() -> Path:
    return Path(uirl.__file__).parents[1]


def _sleeping_child(parent: int) -> int | None:
    """The child that runs the code itself: it has said that it is ready, and sleeps."""
    for pid, command in processes():
        if f'"parent": {parent}' in command and _state(pid) == "S" and "clock_nanosleep" in _wait_channel(pid):
            return pid
    return None


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "gone"


def _wait_channel(pid: int) -> str:
    try:
        number = Path(f"/proc/{pid}/syscall").read_text().split()[0]
    except OSError:
        return ""
    return "clock_nanosleep" if number in ("230", "115") else ""


def _wait_for(condition: Any) -> Any:
    deadline = time.monotonic() + HANG_GUARD
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError("it did not come about")


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
    _wait_for(lambda: _state(pid) in ("gone", "Z"))


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


def test_a_slow_start_is_not_taken_for_a_kernel_that_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    boot = "import time; time.sleep(0.3); "
    monkeypatch.setattr("uirl.tools.python_runner._BOOT", boot + python_runner._BOOT)
    tool = PythonTool(wall_seconds=0.2)
    assert tool.wall_seconds == 0.2
    with pytest.raises(EnvironmentFailure, match=r"did not start: stopped: not finished after 0\.2 s"):
        ToolRegistry([tool]).execute_tool("python", code="1")


@pytest.mark.parametrize("options", [{"cpu_seconds": 0}, {"wall_seconds": -1}, {"memory_mb": 0}])
def test_limits_must_be_positive(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="expected a positive number"):
        PythonTool(**options)


ALLOW, REFUSE, NO_SUCH_CALL, KILL = 0x7FFF0000, 0x00050001, 0x00050026, 0x80000000


def verdict(machine: str, number: int, *arguments: int, architecture: int | None = None, network: bool = False) -> int:
    """What the filter for `machine` answers to a call: the program, interpreted."""
    arch = seccomp.ARCHITECTURES[machine][1] if architecture is None else architecture
    data = struct.pack("<iIQ6Q", number, arch, 0, *arguments, *[0] * (6 - len(arguments)))
    program = seccomp.build(machine, network)
    accumulator, position = 0, 0
    while True:
        code, if_true, if_false, constant = program[position]
        position += 1
        if code == 0x20:
            accumulator = struct.unpack_from("<I", data, constant)[0]
        elif code == 0x06:
            return constant
        else:
            holds = {0x15: accumulator == constant, 0x35: accumulator >= constant, 0x45: bool(accumulator & constant)}
            position += if_true if holds[code] else if_false


@pytest.mark.parametrize(
    ("machine", "calls"),
    [
        (
            "x86_64",
            {"read": 0, "socket": 41, "execve": 59, "kill": 62, "clone": 56, "prlimit": 302, "prctl": 157}
            | {"fcntl": 72, "clone3": 435},
        ),
        (
            "aarch64",
            {"read": 63, "socket": 198, "execve": 221, "kill": 129, "clone": 220, "prlimit": 261}
            | {"prctl": 167, "fcntl": 25, "clone3": 435},
        ),
    ],
)
def test_the_filter_on_both_machines(machine: str, calls: dict[str, int]) -> None:
    def ask(name: str, *arguments: int, **options: Any) -> int:
        return verdict(machine, calls[name], *arguments, **options)

    assert ask("read") == ALLOW
    assert [ask(name) for name in ("socket", "execve", "kill")] == [REFUSE] * 3
    assert ask("socket", network=True) == ALLOW
    assert ask("clone3") == NO_SUCH_CALL
    thread, process = 0x3D0F00, 0x1200011  # the flags of pthread_create and of fork
    assert (ask("clone", thread), ask("clone", process)) == (ALLOW, REFUSE)
    assert (ask("prlimit", 0, 7, 0), ask("prlimit", 0, 7, 0x1000), ask("prlimit", 0, 7, 1 << 40)) == (
        ALLOW, REFUSE, REFUSE,
    )  # fmt: skip
    assert (ask("prctl", 15), ask("prctl", 1)) == (ALLOW, REFUSE)
    assert (ask("fcntl", 3, 1), ask("fcntl", 3, 8), ask("fcntl", 3, 15)) == (ALLOW, REFUSE, REFUSE)
    assert ask("read", architecture=0x40000003) == KILL
    assert verdict(machine, 0x40000000 | calls["read"]) == REFUSE
    assert verdict(machine, 10_000) == ALLOW


def test_a_kill_from_outside_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    tool = PythonTool(wall_seconds=PLENTY)
    original = PythonTool._read

    def killed(self: PythonTool, process: subprocess.Popen[bytes]) -> tuple[bytes, str | None]:
        assert process.stdout is not None
        assert os.read(process.stdout.fileno(), 3) == b"up\n"
        os.kill(process.pid, signal.SIGKILL)
        return original(self, process)

    registry = ToolRegistry([tool])
    monkeypatch.setattr(PythonTool, "_read", killed)
    with pytest.raises(EnvironmentFailure, match="killed from outside"):
        run(registry, "print('up', flush=True); import time; time.sleep(1000)")
