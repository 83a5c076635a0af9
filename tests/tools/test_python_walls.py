"""What a program of PythonTool may not do: files, processes, the network and the environment around it."""

from __future__ import annotations

import ast
import os
import platform
from pathlib import Path

import pytest

import uirl
from tests.tools.python_programs import PLENTY, run
from uirl.errors import ConfigError
from uirl.tools import PythonTool, ToolRegistry
from uirl.tools.python_runner import Walls


@pytest.fixture(scope="module", params=["bubblewrap", "this user"])
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


def test_what_the_kernel_refuses(walled: ToolRegistry) -> None:
    success, told = run(
        walled,
        f"""
        met = {{}}
        for what, code in {REFUSED!r}.items():
            try:
                met[what] = exec(code, {{}})
            except BaseException as error:
                met[what] = f"{{type(error).__name__}}: {{error}}"
        met
        """,
    )
    assert success, told
    # bubblewrap does not show what may not be read, and shows the rest read-only
    refusals = ("PermissionError", "FileNotFoundError", "Read-only file system")
    met = ast.literal_eval(told)
    assert met.keys() == REFUSED.keys()
    assert not {what: one for what, one in met.items() if not any(word in str(one) for word in refusals)}


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
