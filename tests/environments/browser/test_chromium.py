"""The browser process: found, shared, restarted, and never left behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.environments.browser.miniwob_pages import contexts
from tests.patience import PATIENCE
from uirl.environments.browser import process
from uirl.environments.browser.page import Page
from uirl.environments.browser.process import MAX_PAGE_MEMORY, Chromium, find_executable
from uirl.errors import ConfigError, EnvironmentFailure, EpisodeTimeout


def running(group: int) -> list[int]:
    """Processes of a process group that are still at work (not zombies)."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, _, its_group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(its_group) == group and state != "Z":
                found.append(int(entry.name))
    return found


def ended(group: int, seconds: float = 30.0) -> bool:
    """Whether nothing of a group is left; waits for it up to `seconds`: what was killed takes a moment to be gone."""
    deadline = time.monotonic() + seconds
    while running(group) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not running(group)


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_the_named_browser_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    named = script(tmp_path / "my-browser", "exit 0")
    monkeypatch.setenv("UIRL_CHROMIUM", named)
    assert find_executable() == named
    monkeypatch.setenv("UIRL_CHROMIUM", str(tmp_path / "nothing"))
    with pytest.raises(ConfigError, match="UIRL_CHROMIUM"):
        find_executable()


def test_a_machine_without_browser_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("UIRL_CHROMIUM", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"scripts/install_browser\.sh"):
        find_executable()
    script(tmp_path / "chromium", "exit 0")
    script(tmp_path / "chromium-headless-shell", "exit 0")
    assert Path(find_executable()).name == "chromium-headless-shell"


async def test_a_page_that_nobody_waits_for_any_more_leaves_no_context(monkeypatch: pytest.MonkeyPatch) -> None:
    browser = Chromium.shared()
    await browser.new_page(100, 100)
    before = await contexts(browser)
    for pause in (0.0, 0.0, 0.002, 0.005, 0.01):  # wherever its opening is then
        opening = asyncio.create_task(browser.new_page(100, 100))
        await asyncio.sleep(pause)
        opening.cancel()

    async def never(*_: object, **__: object) -> None:
        raise EpisodeTimeout("it draws too late")

    with monkeypatch.context() as patch:
        patch.setattr(Page, "settle", never)
        assert not await browser.hangs()
    await asyncio.sleep(0.05)
    async with asyncio.timeout(PATIENCE):
        while await contexts(browser) != before:
            await asyncio.sleep(0.01)


async def test_a_clipboard_whose_opening_broke_off_works_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from playwright.async_api import Error
    from playwright.async_api import Page as TheirPage

    async def broken(*_: object) -> None:
        raise Error("broken off")

    browser = Chromium.shared()
    for step in ("route", "goto"):
        with monkeypatch.context() as patch:
            patch.setattr(TheirPage, step, broken)
            with pytest.raises(EnvironmentFailure, match="the clipboard: broken off"):
                async with browser.clipboard("one"):
                    pass
    async with browser.clipboard("two"):
        assert browser._clipboard.url == process._CLIPBOARD
    assert await contexts(browser) == 1


async def test_a_killed_driver_fails_its_pages_and_is_started_again() -> None:
    browser = Chromium.shared()
    page = await browser.new_page(100, 100)
    first, driver = browser.pid, process._drivers[asyncio.get_running_loop()].process
    waiting = asyncio.create_task(page.evaluate("new Promise(() => {})"))
    await asyncio.sleep(0.05)
    driver.kill()
    with pytest.raises(EnvironmentFailure):
        await waiting
    await page.close()
    assert await (await browser.new_page(100, 100)).evaluate("1 + 1") == 2
    assert (browser.starts, ended(first)) == (2, True)


async def test_processes_of_pages_may_not_fill_the_machine_and_the_browser_itself_has_no_such_limit() -> None:
    browser = Chromium.shared()
    page = await browser.new_page(200, 200)
    limits: dict[bool, set[str]] = {True: set(), False: set()}
    for pid in running(browser.pid):
        arguments = Path(f"/proc/{pid}/cmdline").read_text()
        size = next(row for row in Path(f"/proc/{pid}/limits").read_text().splitlines() if "Max data size" in row)
        limits["--type=renderer" in arguments].add(size.split()[3])
    assert limits[True] == {str(MAX_PAGE_MEMORY)}
    assert "unlimited" in limits[False]
    await page.close()


def profile_of(group: int) -> Path:
    """The folder of a browser, from its command line."""
    words = Path(f"/proc/{group}/cmdline").read_text().split("\0")
    return Path(next(word for word in words if word.startswith("--user-data-dir=")).partition("=")[2])


async def test_pages_share_one_process_and_close_leaves_nothing_of_it() -> None:
    assert Chromium.shared() is Chromium.shared()
    browser = Chromium()
    assert browser.pid is None, "it starts with the first page"
    pages = await asyncio.gather(*(browser.new_page(100, 100) for _ in range(5)))
    assert (browser.starts, await contexts(browser)) == (1, 5)
    await asyncio.gather(*(page.close() for page in pages))
    assert await contexts(browser) == 0
    await browser.new_page(100, 100)
    group = browser.pid
    profile = profile_of(group)
    assert profile.is_dir()
    assert len(running(group)) >= 3
    await browser.close()
    assert ended(group)
    assert not profile.exists()
    await browser.close()
    page = await browser.new_page(100, 100)
    assert await page.evaluate("1 + 1") == 2
    await browser.close()


def tree(root: int) -> set[int]:
    """A process and everything under it."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found = {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def open_files(pid: int) -> set[str]:
    """What the descriptors of a process lead to, such as 'socket:[123]'."""
    found = set()
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                found.add(os.readlink(entry))
    return found


def listening() -> set[str]:
    """The sockets of this machine that wait for TCP connections."""
    rows = [row.split() for name in ("tcp", "tcp6") for row in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return {f"socket:[{row[9]}]" for row in rows if row[3] == "0A"}


async def test_no_process_of_the_browser_listens() -> None:
    browser = Chromium.shared()
    page = await browser.new_page(100, 100)
    assert await page.evaluate("1 + 1") == 2
    with socket.socket() as control:  # one that is found
        control.bind(("127.0.0.1", 0))
        control.listen()
        assert open_files(os.getpid()) & listening()
    members = tree(browser.pid)
    assert len(members) >= 3
    assert not set().union(*(open_files(pid) for pid in members)) & listening()


async def test_a_forked_process_does_not_keep_the_pipe() -> None:
    await Chromium.shared().new_page(100, 100)
    driver = process._drivers[asyncio.get_running_loop()]
    pid = os.fork()
    if pid == 0:  # in the child: nothing may run on from here
        os._exit(0 if driver.pipe.closed else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert not driver.pipe.closed


async def start_shared() -> int:
    """The process group of this event loop's browser, with a page open."""
    await Chromium.shared().new_page(100, 100)
    group = Chromium.shared().pid
    return group


# its reader is destroyed while it waits, which is what somebody does who closes a loop like that
@pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")
def test_the_browser_ends_with_its_event_loop_also_where_that_was_closed_without_ending_its_tasks() -> None:
    loop = asyncio.new_event_loop()
    group = loop.run_until_complete(start_shared())
    loop.close()
    assert running(group)
    other = asyncio.run(start_shared())  # the next one that asks for a browser clears up
    assert [ended(group), ended(other)] == [True, True]
    gc.collect()


ORPHAN = """
import asyncio, os, signal, sys
from uirl.environments.browser.process import Chromium

loop = asyncio.new_event_loop()
browser = Chromium()
loop.run_until_complete(browser.new_page(100, 100))
print(browser.pid, flush=True)
sys.stdin.readline()
if sys.argv[1] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("how", ["killed", "ended without closing its event loop"])
def test_the_browser_ends_with_its_process(how: str) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", ORPHAN, how], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    group = int(child.stdout.readline())
    profile = profile_of(group)
    assert profile.is_dir()
    child.communicate("\n", timeout=PATIENCE)
    assert child.returncode == (-signal.SIGKILL if how == "killed" else 0)
    assert ended(group)
    deadline = time.monotonic() + PATIENCE
    while profile.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not profile.exists()


async def test_a_browser_that_cannot_start_says_what_it_said(tmp_path: Path) -> None:
    browser = Chromium(executable=script(tmp_path / "broken", "echo no display here >&2; exit 3"))
    with pytest.raises(EnvironmentFailure, match=r"(?s)no display here"):
        await browser.new_page(100, 100)


async def test_a_browser_that_crashes_while_it_starts_is_started_again(tmp_path: Path) -> None:
    launches, real = tmp_path / "launches", find_executable()
    crash = f'echo >> {launches}; if [ $(wc -l < {launches}) = 1 ]; then kill -SEGV $$; fi; exec {real} "$@"'
    # a machine on which all tests run at once may take long to read a browser from its disk
    browser = Chromium(executable=script(tmp_path / Path(real).name, crash), start_timeout=120)
    page = await browser.new_page(100, 100)
    assert await page.evaluate("1 + 1") == 2
    assert (launches.read_text(), browser.starts) == ("\n\n", 1), "two launches, of which one came up"
    await browser.close()


def test_a_browser_that_never_gets_ready_is_ended(tmp_path: Path) -> None:
    browser = Chromium(executable=script(tmp_path / "slow", "sleep 60"), start_timeout=0.5)

    async def start() -> None:
        with pytest.raises(EpisodeTimeout, match="not ready"):
            await browser.new_page(100, 100)
        assert browser.pid is None

    asyncio.run(start())  # with its event loop, at the latest
    deadline = time.monotonic() + 20.0  # Playwright alone would take 30 s
    while subprocess.run(["pgrep", "-f", f"{tmp_path}/slow"], capture_output=True, check=False).returncode == 0:
        assert time.monotonic() < deadline
        time.sleep(0.05)
