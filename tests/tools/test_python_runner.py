"""PythonTool, with real processes: what a program may do, what it may not, and that nothing of it is left."""

from __future__ import annotations

import asyncio
import os
import platform
import resource
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
from uirl.tools import PythonTool, ToolRegistry, python_process
from uirl.tools.python_process import MAX_OUTPUT_BYTES, Walls
from uirl.tools.sandbox import seccomp
from uirl.types import ToolCall

HANG_GUARD = 60
PLENTY = 300.0
"""Of wall time, where another limit or none is meant: a second of computing takes a busy machine many."""


@pytest.fixture(scope="module")
def python() -> ToolRegistry:
    return ToolRegistry([PythonTool(cpu_seconds=1, wall_seconds=PLENTY, memory_mb=256)])


@pytest.fixture(scope="module", params=["bubblewrap", "another user", "this user"])
def walled(request: pytest.FixtureRequest) -> ToolRegistry:
    """A tool with these walls, where this machine can put them up."""
    walls: Walls = request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("uirl.tools.python_runner.walls_to_try", lambda limits: [walls])
        try:
            tool = PythonTool(cpu_seconds=30, wall_seconds=PLENTY, disk_mb=8)
        except (ConfigError, FileNotFoundError) as error:
            pytest.skip(f"no {walls} here: {str(error).splitlines()[-1]}")
    assert tool.walls == walls
    return ToolRegistry([tool])


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
    "times of the library": "import os; os.utime(os.__file__, (1, 2))",
    "times of an open file": "import os; f = open(os.__file__); os.utime(f.fileno(), (1, 2))",
    "attribute": "import os; os.removexattr(os.__file__, 'user.x')",
    "datagram": "import socket; a, _ = socket.socketpair(type=socket.SOCK_DGRAM); a.sendto(b'x', '\\0somebody')",
    "datagram on a stream": "import socket; a, _ = socket.socketpair(); a.sendto(b'x', '\\0somebody')",
    "processor of the parent": "import os; os.sched_setaffinity(os.getppid(), {0})",
    "priority of the parent": "import os; os.setpriority(os.PRIO_PROCESS, os.getppid(), 10)",
    "signal to the parent": "import signal, os; os.kill(os.getppid(), 0)",
    "signal to all": "import signal, os; os.kill(-1, 0)",
    "signal of a file": "import fcntl, os; fcntl.fcntl(os.pipe()[0], 10, 9)",
    "lock of the library": "import fcntl, os; fcntl.flock(open(os.__file__), fcntl.LOCK_EX)",
    "folder": "import os; os.mkdir('d')",
    "link": "import os; os.symlink('/etc', 'l')",
}


CALLS = {  # name -> numbers on x86_64 and aarch64
    "utime": (132, None), "utimes": (235, None), "futimesat": (261, None), "utimensat": (280, 88),
    "setxattr": (188, 5), "removexattr": (197, 14), "setxattrat": (463, 463), "removexattrat": (466, 466),
    "file_setattr": (469, 469), "shmget": (29, 194), "shmat": (30, 196), "msgsnd": (69, 189), "semop": (65, 193),
    "inotify_init1": (294, 26), "fanotify_init": (300, 262), "sched_setscheduler": (144, 119),
    "sched_setattr": (314, 274), "ioprio_set": (251, 30), "migrate_pages": (256, 238), "kcmp": (312, 272),
    "memfd_create": (319, 279), "process_madvise": (440, 440), "pidfd_open": (434, 434), "io_uring_setup": (425, 425),
    "mount": (165, 40), "open_by_handle_at": (304, 265), "setsid": (112, 157), "personality": (135, 92),
    "timer_create": (222, 107), "rt_sigqueueinfo": (129, 138), "one that does not exist yet": (2000, 2000),
}  # fmt: skip


def test_calls_that_computing_does_not_take_are_refused(walled: ToolRegistry) -> None:
    column = {"x86_64": 0, "aarch64": 1}[platform.machine()]
    numbers = {name: pair[column] for name, pair in CALLS.items() if pair[column] is not None}
    assert run(
        walled,
        f"""
        import ctypes
        libc, let_through = ctypes.CDLL(None, use_errno=True), []
        for name, number in {numbers!r}.items():
            if libc.syscall(number, -1, -1, -1, -1, -1) != -1 or ctypes.get_errno() not in (1, 38):
                let_through.append(name)
        let_through
        """,
    ) == (True, "[]")


def test_no_run_leaves_a_word_for_the_next(walled: ToolRegistry) -> None:
    times = os.stat(os.__file__).st_mtime_ns
    success, text = run(walled, "import os; open('a', 'w').close(); os.utime(os.__file__, (1, 2))")
    assert not success
    assert "PermissionError" in text
    assert os.stat(os.__file__).st_mtime_ns == times
    assert run(walled, "import os; os.listdir('.')") == (True, "[]")


def test_ordinary_programs_run_behind_all_walls(walled: ToolRegistry) -> None:
    code = """
        import asyncio, concurrent.futures, os, random, signal, socket, sqlite3, tempfile, threading, time
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            total = sum(pool.map(lambda n: n * n, range(100)))
        a, b = socket.socketpair()
        a.send(b"pair")
        asyncio.run(asyncio.sleep(0.01))
        heard = []
        signal.signal(signal.SIGALRM, lambda *_: heard.append("alarm"))
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        while not heard:
            time.sleep(0.001)
        signal.signal(signal.SIGUSR1, lambda *_: heard.append("own"))
        signal.raise_signal(signal.SIGUSR1)
        with tempfile.NamedTemporaryFile(dir=".") as file:
            file.write(b"x")
        open("b", "w").close(); os.rename("b", "c"); os.remove("c")
        base = sqlite3.connect("base"); base.execute("create table t (n)"); base.commit()
        total, b.recv(9), heard, os.cpu_count() > 0, len(os.urandom(3))
        """
    assert run(walled, code) == (True, "(328350, b'pair', ['alarm', 'own'], True, 3)")


WRITES = "for n in range(40):\n  open(f'{n}', 'wb').write(bytes(1 << 20))"
HELD = (
    "kept = []\nfor n in range(40):\n  f = open('a', 'wb', 0); f.write(bytes(1 << 20)); kept.append(f); os.remove('a')"
)
MAPPED = (
    "kept = []\nfor n in range(40):\n  f = open('a', 'w+b', 0); f.write(bytes(1 << 20))\n"
    "  kept.append(mmap.mmap(f.fileno(), 0)); f.close(); os.remove('a')"
)
ODDLY_NAMED = (
    "import ctypes\nlibc = ctypes.CDLL(None)\nlibc.mmap.restype = ctypes.c_void_p\nfor n in range(40):\n"
    "  f = os.open('a\\x0cb', os.O_RDWR | os.O_CREAT); os.write(f, bytes(1 << 20))\n"
    "  libc.mmap(None, 1 << 20, 1, 1, f, ctypes.c_long(0)); os.close(f); os.remove('a\\x0cb')"
)
BEHIND_A_DEAD_LEADER = (
    "import ctypes, threading\ndef hold():\n time.sleep(0.2)\n try:\n  "
    + HELD.replace("\n", "\n  ")
    + "\n  time.sleep(2)\n except OSError as error:\n  print(error, flush=True); os._exit(1)\n os._exit(0)\n"
    "threading.Thread(target=hold).start()\nctypes.CDLL(None).pthread_exit(None)"
)
EMPTY = "for n in range(10_000):\n  open(f'{n}', 'wb').close()"


@pytest.mark.parametrize("code", [WRITES, HELD, MAPPED, ODDLY_NAMED, BEHIND_A_DEAD_LEADER])
def test_files_have_a_limit_together(walled: ToolRegistry, code: str, temporary: Path) -> None:
    success, text = run(walled, f"import mmap, os, time\n{code}\nwhile True: time.sleep(1)")
    assert not success
    assert "stopped: more than 8 MB of files" in text or "No space left on device" in text
    assert list(temporary.iterdir()) == []


def test_empty_files_count_where_they_are_on_the_disk() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("uirl.tools.python_runner.walls_to_try", lambda limits: ["this user"])
        registry = ToolRegistry([PythonTool(cpu_seconds=30, wall_seconds=PLENTY, disk_mb=8)])
    success, text = run(registry, f"import time\n{EMPTY}\nwhile True: time.sleep(1)")
    assert (success, text) == (False, "stopped: more than 8 MB of files")


OWN_DEATHS = {
    "killed itself": ("import os; os.kill(os.getpid(), 9)", "was killed (SIGKILL)"),
    "a timer": ("import signal, time; signal.setitimer(signal.ITIMER_REAL, 0.01); time.sleep(1000)", "SIGALRM"),
    "a real-time signal": ("import os; os.kill(os.getpid(), 40)", "crashed (signal 40)"),
    "the last real-time signal": ("import os; os.kill(os.getpid(), 64)", "crashed (SIGRTMAX)"),
    "abort": ("import os; os.abort()", "crashed (SIGABRT)"),
    "another thread": ("import signal, threading, time; threading.Thread(target=lambda: signal.pthread_kill("
                       "threading.main_thread().ident, 9)).start(); time.sleep(1000)", "was killed (SIGKILL)"),
    "a status like a signal's": ("import os; os._exit(200)", "200"),
    "its own files": ("import os; os.closerange(0, 64); os._exit(3)", "ended with status 3"),
    "a broken interpreter": ("import sys; sys.stdout = None; sys.excepthook = None; 1 / 0", ""),
}  # fmt: skip


@pytest.mark.parametrize("how", OWN_DEATHS)
def test_a_program_that_ends_its_own_process_made_a_mistake(walled: ToolRegistry, how: str) -> None:
    """Never a failure of the environment: an episode could be lost without paying."""
    code, words = OWN_DEATHS[how]
    success, text = run(walled, code)
    assert not success
    assert words in text


@pytest.mark.usefixtures("late_clock")
def test_a_program_that_stops_itself_is_out_of_time() -> None:
    registry = ToolRegistry([PythonTool(wall_seconds=0.2)])
    success, text = run(registry, "import os; print('x', flush=True); os.kill(os.getpid(), 19)")
    assert (success, text) == (False, "x\nstopped: not finished after 0.2 s")


def test_unix_sockets_stay_closed_where_the_network_is_allowed() -> None:
    registry = ToolRegistry([PythonTool(allow_network=True, wall_seconds=PLENTY)])
    for code in (
        "import socket; socket.socket(socket.AF_UNIX)",
        "import socket; socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
        "import socket; a, _ = socket.socketpair(type=socket.SOCK_DGRAM); a.sendto(b'x', '\\0somebody')",
    ):
        success, text = run(registry, code)
        assert not success
        assert "PermissionError" in text


@pytest.mark.parametrize("what", REFUSED)
def test_what_the_kernel_refuses(python: ToolRegistry, what: str) -> None:
    success, text = run(python, REFUSED[what])
    assert not success
    # bubblewrap does not show what may not be read, and shows the rest read-only
    assert any(word in text for word in ("PermissionError", "FileNotFoundError", "Read-only file system"))


def test_limits_cannot_be_raised(python: ToolRegistry) -> None:
    success, text = run(
        python,
        """
        import resource
        print(resource.getrlimit(resource.RLIMIT_CPU), resource.getrlimit(resource.RLIMIT_AS))
        assert max(resource.getrlimit(resource.RLIMIT_NPROC)) == 4096
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
    """The time of a program starts with its first word: a busy machine may take long to come to it."""
    original = python_process._Watch._deadline

    def deadline(self: python_process._Watch) -> float:
        if self.began is not None and not self.output:
            self.began = time.monotonic()
        return original(self)

    monkeypatch.setattr(python_process._Watch, "_deadline", deadline)


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
    monkeypatch.setattr("uirl.tools.python_process._BOOT", "raise OSError('no Landlock here')  # {root!r}")
    with pytest.raises(ConfigError, match=r"(?s)code cannot be confined here: .*no Landlock here"):
        PythonTool()
    with pytest.raises(EnvironmentFailure, match=r"(?s)did not start: .*no Landlock here"):
        ToolRegistry([tool]).execute_tool("python", code="1")


def test_a_slow_start_takes_no_time_from_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    boot = "import time; time.sleep(2.5); "
    monkeypatch.setattr("uirl.tools.python_process._BOOT", boot + python_process._BOOT)
    registry = ToolRegistry([PythonTool(wall_seconds=2)])
    assert run(registry, "1") == (True, "1")
    monkeypatch.setattr("uirl.tools.python_process._LONGEST_START", 0.2)
    with pytest.raises(EnvironmentFailure, match=r"did not start: stopped: not finished after 0\.2 s"):
        registry.execute_tool("python", code="1")


@pytest.mark.parametrize("options", [{"cpu_seconds": 0}, {"wall_seconds": -1}, {"memory_mb": 0}])
def test_limits_must_be_positive(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="expected a positive number"):
        PythonTool(**options)


ALLOW, REFUSE, NO_SUCH_CALL, KILL = 0x7FFF0000, 0x00050001, 0x00050026, 0x80000000


def verdict(machine: str, number: int, *arguments: int, architecture: int | None = None, network: bool = False) -> int:
    """What the filter for `machine` answers to a call: the program, interpreted."""
    arch = seccomp.ARCHITECTURES[machine][1] if architecture is None else architecture
    data = struct.pack("<iIQ6Q", number, arch, 0, *arguments, *[0] * (6 - len(arguments)))
    program = seccomp.build(machine, network, False, 77)
    accumulator, position = 0, 0
    while True:
        code, if_true, if_false, constant = program[position]
        position += 1
        if code == 0x20:
            accumulator = struct.unpack_from("<I", data, constant)[0]
        elif code == 0x54:
            accumulator &= constant
        elif code == 0x06:
            return constant
        else:
            holds = {0x15: accumulator == constant, 0x35: accumulator >= constant}
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
    assert [ask("socket", family, network=True) for family in (1, 2, 10, 16)] == [REFUSE, ALLOW, ALLOW, REFUSE]
    assert (ask("kill", 77, 9), ask("kill", 78, 9), ask("kill", 0, 9)) == (ALLOW, REFUSE, REFUSE)
    assert ask("clone3") == NO_SUCH_CALL
    thread, process = 0x3D0F00, 0x1200011  # the flags of pthread_create and of fork
    assert (ask("clone", thread), ask("clone", process)) == (ALLOW, REFUSE)
    assert ask("clone", thread & ~0x400) == REFUSE  # a thread with a table of files of its own
    assert (ask("prlimit", 0, 7, 0), ask("prlimit", 0, 7, 0x1000), ask("prlimit", 0, 7, 1 << 40)) == (
        ALLOW, REFUSE, REFUSE,
    )  # fmt: skip
    assert (ask("prctl", 15), ask("prctl", 1)) == (ALLOW, REFUSE)
    assert (ask("fcntl", 3, 1), ask("fcntl", 3, 8), ask("fcntl", 3, 15)) == (ALLOW, REFUSE, REFUSE)
    assert ask("read", architecture=0x40000003) == KILL
    assert verdict(machine, 0x40000000 | calls["read"]) == REFUSE
    assert verdict(machine, 10_000) == NO_SUCH_CALL
    known = {number for table in seccomp_tables() for number in [table[list(seccomp.ARCHITECTURES).index(machine)]]}
    for number in set(range(seccomp._NEWEST + 1)) - known:
        assert verdict(machine, number) == REFUSE


def seccomp_tables() -> list[tuple[int | None, int | None]]:
    """The numbers of all calls that are named."""
    return [*seccomp._ALLOWED.values(), *seccomp._NETWORK.values(), *seccomp._SOME.values()]


HEADER = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")


@pytest.mark.skipif(not HEADER.exists(), reason="no kernel headers")
def test_the_numbers_are_those_of_the_kernel() -> None:
    lines = (line.split() for line in HEADER.read_text().splitlines() if line.startswith("#define __NR_"))
    numbers = {name.removeprefix("__NR_"): int(number) for _, name, number in lines}
    for table in (seccomp._ALLOWED, seccomp._NETWORK, seccomp._FILES, seccomp._SOME):
        for name, (number, _) in table.items():
            assert number == numbers.get(name, number), name


def test_a_kill_cannot_be_told_from_the_programs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    original = python_process._Watch._read

    def killed(self: python_process._Watch, end: int) -> bool:
        os.kill(self._process.pid, signal.SIGKILL)
        return original(self, end)

    registry = ToolRegistry([PythonTool(wall_seconds=PLENTY)])
    monkeypatch.setattr(python_process._Watch, "_read", killed)
    success, text = run(registry, "print('up', flush=True); import time; time.sleep(1000)")
    assert (success, text) == (False, "up\nthe program was killed (SIGKILL); the memory limit is 512 MB")
