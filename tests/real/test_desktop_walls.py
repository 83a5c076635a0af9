"""What programs of a session can do who run whatever they like: nothing that counts, and nothing is left of it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from uirl.environments.desktop import session
from uirl.environments.desktop.environment import DesktopEnvironment
from uirl.environments.desktop.session import Desktop
from uirl.environments.desktop.x11 import Connection, DisplayLost
from uirl.runtime.walls import tree
from uirl.types import Action

pytestmark = pytest.mark.real
DONE = Action.of("terminate", status="success")
TOOLS = ("sh", "ls", "cat", "dd", "ln", "mkfifo", "sleep", "mkdir", "find")


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions have a shell with some tools, which no task gives them."""
    monkeypatch.setattr(session, "PROGRAMS", (*session.PROGRAMS, *TOOLS))


@pytest.fixture
def desktop(shell: None) -> Iterator[Desktop]:
    made = Desktop((640, 480), {"Documents/a.txt": b"a"})
    yield made
    made.close()


def run(desktop: Desktop, script: str, seconds: float = 20.0) -> str:
    command = desktop.inside("sh", "-c", script)
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, **desktop.user)
    return done.stdout + done.stderr


def test_a_session_has_no_shell_no_network_and_sees_nobody() -> None:
    desktop = Desktop((640, 480), {})
    with pytest.raises(DisplayLost, match="opened no window"):
        desktop.open("sh")
    inside = desktop._inside()
    for space in ("net", "pid", "ipc", "user", "mnt"):
        assert Path(f"/proc/{inside}/ns/{space}").readlink() != Path(f"/proc/self/ns/{space}").readlink()
    interfaces = Path(f"/proc/{inside}/net/dev").read_text().splitlines()[2:]
    assert [line.split(":")[0].strip() for line in interfaces] == ["lo"]
    assert "CapEff:\t0000000000000000" in Path(f"/proc/{inside}/status").read_text()
    desktop.close()


def test_only_the_home_can_be_written_and_little_of_the_machine_is_seen(desktop: Desktop) -> None:
    assert set(run(desktop, "ls -A /").split()) <= {
        "bin",
        "dev",
        "etc",
        "home",
        "lib",
        "lib64",
        "sbin",
        "tmp",
        "usr",
        "var",
    }
    assert "Read-only" in run(desktop, "echo x > /etc/x; echo x > /usr/share/x")
    assert run(desktop, "ls /home /tmp/.X11-unix").split() == ["/home:", "user", "/tmp/.X11-unix:", "X0"]


def test_a_full_disk_a_fork_bomb_and_strange_files_are_outcomes(desktop: Desktop) -> None:
    assert "No space" in run(desktop, "dd if=/dev/zero of=big bs=1M count=100 2>&1 || cat /dev/urandom > big")
    run(desktop, "ln -s /etc/passwd link; mkfifo pipe; ln -s / root")
    home = desktop.read_home()
    assert home["Documents/a.txt"] == b"a"
    assert [home[name] for name in ("big", "link", "pipe", "root")] == [None] * 4
    assert "fork" in run(desktop, "i=0; while [ $i -lt 200 ]; do sleep 30 >/dev/null 2>&1 & i=$((i+1)); done")
    assert desktop.settle()


def test_a_killed_window_manager_ends_the_episode_unsolved_and_the_next_one_is_whole(shell: None) -> None:
    env = DesktopEnvironment(tasks=("editor-append",))
    first = env.reset(seed=3)
    assert env._desktop is not None
    run(env._desktop, "kill -9 -1")
    result = env.step(Action.of("click", x=1, y=1))
    while not result.done:  # the kernel may need a moment, in which a step still ends well
        result = env.step(Action.of("click", x=1, y=1))
    assert (result.terminated, result.reward, result.observation.info["success"]) == (True, 0.0, False)
    assert "lost" in result.observation.info
    again = env.reset(seed=3)
    assert again.text == first.text
    env.close()


def test_a_forged_file_of_settings_does_not_show_a_number(shell: None) -> None:
    env = DesktopEnvironment(tasks=("calculator-add",))
    env.reset(seed=1)
    assert env._desktop is not None
    assert env._instance is not None
    forged = f'remembered_valuex="{env._instance.display}"'
    run(env._desktop, f"mkdir -p .config/galculator; echo '{forged}' > .config/galculator/galculator.conf")
    assert env.step(DONE).reward == 0.0
    env.close()


def test_a_display_takes_nobody_without_its_cookie(desktop: Desktop) -> None:
    with pytest.raises(DisplayLost, match="refused"):
        Connection(Path(f"/proc/{desktop._inside()}/root/tmp/.X11-unix/X0"), bytes(16), 5.0)


def test_nothing_is_left_of_a_desktop(desktop: Desktop) -> None:
    run(desktop, "for i in 1 2 3; do sleep 1000 >/dev/null 2>&1 & done")
    assert not desktop._scratch.path.exists()  # while it runs, too
    processes = [one for process in desktop._processes.values() for one in tree(process.pid)]
    assert len(processes) > 5
    desktop.close()
    end = time.monotonic() + 20  # the kernel ends a namespace a moment after its first process
    while any(Path(f"/proc/{process}").exists() for process in processes):
        assert time.monotonic() < end
        time.sleep(0.01)
