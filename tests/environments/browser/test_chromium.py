"""The browser process: found, shared, restarted, and never left behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import io
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from PIL import Image

from tests.patience import PATIENCE
from uirl.environments.browser.process import MAX_PAGE_MEMORY, Chromium, find_executable
from uirl.errors import ConfigError, EnvironmentFailure, EpisodeTimeout

NOISE = """(() => {
    document.body.style.margin = 0;
    const canvas = document.createElement('canvas');
    [canvas.width, canvas.height] = [1080, 2400];
    const context = canvas.getContext('2d'), data = context.createImageData(1080, 2400);
    for (let i = 0, x = 1; i < data.data.length; i++) {
        x = Math.imul(x, 1103515245) + 12345;
        data.data[i] = i % 4 == 3 ? 255 : x >> 16 & 255;
    }
    context.putImageData(data, 0, 0);
    document.body.replaceChildren(canvas);
})()"""
"""A script that fills a page with what cannot be made small."""


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


async def test_pages_share_one_process_and_free_their_contexts() -> None:
    browser = Chromium.shared()
    assert browser is Chromium.shared()
    assert browser.pid is None, "it starts with the first page"
    pages = await asyncio.gather(*(browser.new_page(100, 100) for _ in range(5)))
    assert browser.starts == 1
    connection = await browser._connected()
    assert len((await connection.call("Target.getBrowserContexts"))["browserContextIds"]) == 5
    await asyncio.gather(*(page.close() for page in pages))
    assert (await connection.call("Target.getBrowserContexts"))["browserContextIds"] == []


async def test_a_killed_browser_fails_its_pages_and_is_started_again() -> None:
    browser = Chromium.shared()
    pages = await asyncio.gather(*(browser.new_page(100, 100) for _ in range(3)))
    first = browser.pid
    assert first is not None
    waiting = [asyncio.create_task(page.evaluate("new Promise(() => {})")) for page in pages]
    await asyncio.sleep(0.05)
    os.killpg(first, signal.SIGKILL)
    for outcome in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(outcome, EnvironmentFailure)
    for page in pages:
        await page.close()
    new = await asyncio.gather(*(browser.new_page(100, 100) for _ in range(3)))
    assert await new[0].evaluate("1 + 1") == 2
    assert browser.starts == 2
    assert ended(first)


async def test_processes_of_pages_may_not_fill_the_machine_and_the_browser_itself_has_no_such_limit() -> None:
    browser = Chromium.shared()
    page = await browser.new_page(200, 200)
    assert browser.pid is not None
    limits: dict[bool, set[str]] = {True: set(), False: set()}
    for pid in running(browser.pid):
        arguments = Path(f"/proc/{pid}/cmdline").read_text()
        size = next(row for row in Path(f"/proc/{pid}/limits").read_text().splitlines() if "Max data size" in row)
        limits["--type=renderer" in arguments].add(size.split()[3])
    assert limits[True] == {str(MAX_PAGE_MEMORY)}
    assert "unlimited" in limits[False]
    await page.close()


async def test_close_leaves_no_process_and_no_profile() -> None:
    browser = Chromium()
    await browser.new_page(100, 100)
    group, process = browser.pid, browser._process
    assert group is not None
    assert process is not None
    assert process._profile.is_dir()
    assert len(running(group)) >= 3
    await browser.close()
    assert ended(group)
    assert not process._profile.exists()
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


async def test_no_process_of_the_browser_listens_and_nobody_else_holds_its_pipes() -> None:
    browser = Chromium.shared()
    page = await browser.new_page(100, 100)
    bystander = subprocess.Popen(["sleep", "60"], close_fds=False)
    try:
        assert await page.evaluate("1 + 1") == 2
        assert browser.pid is not None
        assert browser._process is not None
        with socket.socket() as control:  # one that is found
            control.bind(("127.0.0.1", 0))
            control.listen()
            assert open_files(os.getpid()) & listening()
        members = tree(browser.pid)
        assert len(members) >= 3
        assert not set().union(*(open_files(pid) for pid in members)) & listening()
        ends = {os.readlink(f"/proc/self/fd/{end.fileno()}") for end in browser._process._ends}
        assert len(ends) == 2
        # the start script that some systems put before the browser has them as well
        named = {pid for pid in members if b"--type=" not in Path(f"/proc/{pid}/cmdline").read_bytes()}
        assert {pid for pid in members if ends & open_files(pid)} <= named
        assert not ends & open_files(bystander.pid)
    finally:
        bystander.kill()
        bystander.wait()


async def test_a_forked_process_does_not_keep_the_pipes() -> None:
    browser = Chromium.shared()
    await browser.new_page(100, 100)
    assert browser._process is not None
    pid = os.fork()
    if pid == 0:  # in the child: nothing may run on from here
        os._exit(0 if all(end.closed for end in browser._process._ends) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert not any(end.closed for end in browser._process._ends)


async def test_a_large_picture_comes_whole() -> None:
    page = await Chromium.shared().new_page(1080, 2400)
    await page.evaluate(NOISE)
    captured = await asyncio.gather(*(page.screenshot() for _ in range(3)))
    assert all(len(picture) > 4 << 20 for picture in captured), "noise cannot be made small: more than a pipe holds"
    picture = Image.open(io.BytesIO(captured[0])).convert("RGB")
    assert picture.size == (1080, 2400)
    assert len(picture.crop((0, 2300, 1080, 2400)).getcolors(108_000) or ()) > 1000


async def test_a_browser_killed_while_it_sends_a_picture() -> None:
    browser = Chromium.shared()
    page = await browser.new_page(1080, 2400)
    await page.evaluate(NOISE)  # a picture of more than one piece
    group = browser.pid
    assert group is not None
    waiting = [asyncio.create_task(page.screenshot()) for _ in range(4)]
    wire = (await browser._connected())._wire
    arrived = wire.data_received

    def kill_at_the_first_piece(data: bytes) -> None:
        arrived(data)
        if wire._held:
            os.killpg(group, signal.SIGKILL)

    wire.data_received = kill_at_the_first_piece  # type: ignore[method-assign]
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert any(isinstance(outcome, EnvironmentFailure) for outcome in outcomes)
    assert await (await browser.new_page(100, 100)).evaluate("1 + 1") == 2
    assert browser.starts == 2


async def start_shared() -> int:
    """The process group of this event loop's browser, with a page open."""
    await Chromium.shared().new_page(100, 100)
    group = Chromium.shared().pid
    assert group is not None
    return group


def test_the_browser_ends_with_its_event_loop() -> None:
    groups = [asyncio.run(start_shared()) for _ in range(2)]
    assert groups[0] != groups[1]
    assert [ended(group) for group in groups] == [True, True]


# its reader is destroyed while it waits, which is what somebody does who closes a loop like that
@pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")
def test_the_browser_ends_with_an_event_loop_that_was_closed_without_ending_its_tasks() -> None:
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
loop.run_until_complete(Chromium().new_page(100, 100))
from uirl.environments.browser import process as chromium
process = next(iter(chromium._running))
print(process.pid, process._profile, flush=True)
if sys.argv[1] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("how", ["killed", "ended without closing its event loop"])
def test_the_browser_ends_with_its_process(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # a folder of its own: other tests start browsers too, and each clears up what it finds
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    child = subprocess.run(
        [sys.executable, "-c", ORPHAN, how], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert child.returncode == (-signal.SIGKILL if how == "killed" else 0), child.stderr
    group, profile = child.stdout.split()
    assert ended(int(group))
    if how == "killed":
        assert Path(profile).exists(), "nobody was left to remove it"
        asyncio.run(start_shared())  # the next browser of this machine does
    assert not Path(profile).exists()


async def test_a_browser_that_cannot_start_says_what_it_said(tmp_path: Path) -> None:
    browser = Chromium(executable=script(tmp_path / "broken", "echo no display here >&2; exit 3"))
    with pytest.raises(EnvironmentFailure, match=r"(?s)code 3.*no display here"):
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


async def test_a_browser_that_never_gets_ready_is_ended(tmp_path: Path) -> None:
    browser = Chromium(executable=script(tmp_path / "slow", "sleep 60"), start_timeout=0.5)
    opening = asyncio.create_task(browser.new_page(100, 100))
    while browser.pid is None:
        await asyncio.sleep(0)
    group = browser.pid
    assert running(group)
    with pytest.raises(EpisodeTimeout, match="not ready"):
        await opening
    assert ended(group)
    assert browser.pid is None
