"""The browser process: found, started when first needed, shared by all sessions of an event loop, never left behind."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

from uirl.environments.browser.chromium.cdp import CdpConnection
from uirl.environments.browser.chromium.pipe import PipeEnds
from uirl.environments.browser.page.files import FOLDER
from uirl.environments.browser.page.page import Page
from uirl.errors import ConfigError, EnvironmentFailure, EpisodeTimeout
from uirl.runtime.scratch import ScratchFolder, sweep

EXECUTABLES = ("chromium-headless-shell", "chrome-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""Tried in this order; the headless shell needs about half the CPU of the full browser."""

FLAGS = (
    # No port, which every process of the machine could use to read files and pages through the browser. With the pipe
    # it also ends when our end is closed: where this process is killed with -9, too.
    "--remote-debugging-pipe",
    "--disable-gpu",
    # A process less in the way of every picture. Should it crash, the browser goes with it, and is replaced as such.
    "--in-process-gpu",
    "--hide-scrollbars",
    "--mute-audio",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-extensions",
    "--disable-sync",
    "--disable-breakpad",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-background-timer-throttling",
    "--disable-backgrounding-occluded-windows",
    "--disable-renderer-backgrounding",
    "--disable-features=Translate,MediaRouter,OptimizationHints,AutofillServerCommunication",
    "--disable-smooth-scrolling",
    # Drawing only what changed leaves one pixel column of the old picture now and then.
    "--disable-partial-raster",
    # What is selected would be pasted by a middle click on any other page, those of the neighbours too.
    "--blink-settings=selectionClipboardBufferAvailable=false",
    "--password-store=basic",
    "--use-mock-keychain",
    "--force-color-profile=srgb",
)

_PROFILES = "uirl-chromium-"
_SMALL = (100, 100)
"""Width and height of a page that only shows whether the browser has time."""

DEAD_PROXY = "http://127.0.0.1:9"
"""Where every request goes, loopback included, that is not allowed: nobody listens there."""

SMALL_SHM = 512 * 2**20
"""Bytes of /dev/shm under which pages are shared through the temporary folder (containers often give 64 MiB)."""


MAX_PAGE_MEMORY = 2 << 30
"""Bytes of data (`RLIMIT_DATA`) of a process that runs pages. One that needs more crashes, which is an outcome of its
episode; one that the system kills when the machine has no memory left would be a failure of the machine."""


def find_executable() -> str:
    """Return the path of the browser: `UIRL_CHROMIUM`, else the first of `EXECUTABLES` on the PATH.

    Raises ConfigError with the remedy where there is none.
    """
    named = os.environ.get("UIRL_CHROMIUM")
    if named:
        found = shutil.which(named)
        if found is None:
            raise ConfigError(f"UIRL_CHROMIUM={named!r} is not an executable; name the browser's path, or unset it")
        return found
    for name in EXECUTABLES:
        found = shutil.which(name)
        if found is not None:
            return found
    raise ConfigError(
        "no Chromium found (" + ", ".join(EXECUTABLES) + "); run scripts/install_browser.sh (Debian: apt-get install "
        "chromium-headless-shell), or set UIRL_CHROMIUM to the path of a Chromium or Chrome"
    )


class Chromium:
    """One browser process, started at the first page, restarted at the next page after it died.

    Belongs to the event loop that started it and ends with it. `Chromium.shared()` is the one that the environments
    of an event loop use together. The network is closed to its pages, but for the origins it was made for.
    """

    def __init__(
        self,
        *,
        allow: Iterable[str] = (),
        scale: float = 1.0,
        executable: str | None = None,
        timeout: float = 10.0,
        start_timeout: float = 30.0,
    ) -> None:
        """Create a browser that is not started yet.

        `allow`: origins (scheme://host:port) that its pages may reach. `scale`: pixels of a picture per CSS pixel.
        `executable`: path; None: `find_executable()` when it starts. `timeout`: limit in seconds of one protocol call.
        `start_timeout`: limit of the start.
        """
        self.allowed = tuple(sorted(allow))
        self.scale = float(scale)
        self.timeout = timeout
        self.start_timeout = start_timeout
        self.starts = 0
        """How many browsers came up: one more than those that ended while they were in use and were replaced."""
        self._executable = executable
        self._connection: CdpConnection | None = None
        self._process: _BrowserProcess | None = None
        self._starting = asyncio.Lock()
        self._pages: WeakValueDictionary[str, Page] = WeakValueDictionary()  # by context
        self._attached: dict[str, str] = {}  # target of a page that is being opened -> its session

    @classmethod
    def shared(cls, allow: Iterable[str] = (), scale: float = 1.0) -> Chromium:
        """Return the browser of the running event loop in this process; one per set of allowed origins and scale."""
        for key in [key for key in _shared if key[0].is_closed()]:
            process = _shared.pop(key)._process
            if process is not None:  # the loop was closed without ending its tasks, so nobody ended the browser
                process.stop()
        key = asyncio.get_running_loop(), frozenset(allow), float(scale)
        if key not in _shared:
            _shared[key] = cls(allow=key[1], scale=key[2])
        return _shared[key]

    @property
    def pid(self) -> int | None:
        """Leader of the browser's process group; None: not running."""
        return None if self._process is None else self._process.pid

    async def new_page(self, width: int, height: int) -> Page:
        """Return a page of `width` x `height` CSS pixels in a context of its own: it shares no cookie and no storage.

        Starts the browser where it does not run. Raises EnvironmentFailure or EpisodeTimeout where it cannot.
        """
        page = await Page.open(await self._connected(), width, height, self._attached.pop)
        self._pages[page.context] = page
        return page

    async def hangs(self, late: asyncio.Future[Any] | None = None) -> bool:
        """Return whether the page hangs, and not the browser or a busy machine.

        It does where another page is opened, draws and is closed in the time that one call has, and `late`, the answer
        that the page owes, has not come meanwhile (None: it owes none).
        """
        connection = self._connection
        if connection is None or connection.lost is not None:
            return False
        try:
            async with asyncio.timeout(connection.timeout):
                other = await self.new_page(*_SMALL)
                await other.settle(drawn=True)
                await other.close()
            return late is None or not late.done()
        except (TimeoutError, EpisodeTimeout, EnvironmentFailure):
            return False

    async def close(self) -> None:
        """End the browser and free its profile. The next page starts another."""
        async with self._starting:
            if self._connection is not None:
                await self._connection.close()

    async def _connected(self) -> CdpConnection:
        async with self._starting:
            if self._connection is None or self._connection.lost is not None:
                try:
                    self._connection = await self._start()
                except EnvironmentFailure:  # one start in a thousand or so ends in a crash of the browser
                    self._connection = await self._start()
            return self._connection

    async def _start(self) -> CdpConnection:
        flags = [*network_flags(self.allowed), f"--force-device-scale-factor={self.scale:g}"]
        process = _BrowserProcess(self._executable or find_executable(), flags)
        self._process = process
        try:
            connection = await process.connect(
                self.start_timeout, timeout=self.timeout, on_lost=lambda: self._stopped(process)
            )
        except BaseException:
            self._stopped(process)
            raise
        try:
            connection.on(None, "Target.attachedToTarget", self._on_target)
            connection.on(None, "Target.targetInfoChanged", self._on_change)
            connection.on(None, "Target.targetCrashed", self._on_crash)
            connection.on(None, "Target.targetDestroyed", self._on_close)
            pages = {"filter": [{"type": "page"}]}
            await connection.call("Target.setDiscoverTargets", {"discover": True, **pages})
            # What a page opens waits until we have prepared it.
            waiting = {"autoAttach": True, "waitForDebuggerOnStart": True, "flatten": True}
            await connection.call("Target.setAutoAttach", waiting | pages)
            self._attached.clear()  # of the tab that the browser started with
        except BaseException as error:
            connection.end(f"it failed at its start: {error!r}")
            raise
        self.starts += 1
        return connection

    def _on_target(self, event: Mapping[str, Any]) -> None:
        found = event["targetInfo"]
        page = self._pages.get(found.get("browserContextId", ""))
        if page is not None:
            page.tabs.adopt(found["targetId"], event["sessionId"], found["url"])
        else:
            self._attached[found["targetId"]] = event["sessionId"]

    def _on_change(self, event: Mapping[str, Any]) -> None:
        found = event["targetInfo"]
        page = self._pages.get(found.get("browserContextId", ""))
        if page is not None:
            page.tabs.renamed(found["targetId"], found)

    def _on_crash(self, event: Mapping[str, Any]) -> None:
        for page in list(self._pages.values()):
            page.crashed(event["targetId"], killed=event["status"] == "killed")

    def _on_close(self, event: Mapping[str, Any]) -> None:
        self._attached.pop(event["targetId"], None)
        for page in list(self._pages.values()):
            page.gone(event["targetId"])

    def _stopped(self, process: _BrowserProcess) -> None:
        process.stop()
        if self._process is process:
            self._process = None


class _BrowserProcess:
    """The process group of one browser and its temporary profile."""

    def __init__(self, executable: str, more_flags: Sequence[str]) -> None:
        self.executable = executable
        self._owner = os.getpid()
        sweep(_PROFILES)
        sweep(FOLDER)
        self._scratch = ScratchFolder(_PROFILES)
        self._profile = self._scratch.path
        self._log = self._profile / "browser.log"
        self._last_words = ""
        # The shell puts our two pipes where the browser looks for them: descriptors 3 and 4.
        wiring = 'exec "$@" 3<&0 4>&1 0</dev/null 1>/dev/null'
        flags = [*_flags(executable, self._profile), *more_flags]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", wiring, "sh", executable, *flags, "about:blank"],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._ends = PipeEnds(answers=self._process.stdout, calls=self._process.stdin)
        _running.add(self)
        # after the folder's own clean-up was registered, so that the browser is ended before
        atexit.register(self.stop)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def connect(self, start_timeout: float, *, timeout: float, on_lost: Callable[[], None]) -> CdpConnection:
        """Return a connection to the browser, which answers. Raises EnvironmentFailure where it ends before."""
        connection = await CdpConnection.open(self._ends, timeout=timeout, on_lost=on_lost)
        try:
            await connection.call("Browser.getVersion", timeout=start_timeout)
        except EpisodeTimeout as error:
            connection.end("the browser was not ready in time")
            raise EpisodeTimeout(
                f"{self.executable} was not ready within {start_timeout:g} s; is the machine overloaded?"
            ) from error
        except EnvironmentFailure as error:
            raise EnvironmentFailure(
                f"{self.executable} ended with code {self._process.returncode} before it was ready: "
                f"{self._last_words or 'no output'}; does it run by hand with --no-sandbox?"
            ) from error
        except BaseException:
            connection.end("its start was cut off")
            raise
        return connection

    def close_pipes(self) -> None:
        """Close our ends of the pipes, which tells the browser to end."""
        for end in self._ends:
            end.close()

    def stop(self) -> None:
        """End the whole group, after a second by force, and remove the profile. Safe to call twice."""
        if self not in _running or os.getpid() != self._owner:
            return
        _running.discard(self)
        atexit.unregister(self.stop)
        self.close_pipes()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        with contextlib.suppress(ProcessLookupError):  # nobody is left where the polite way worked
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        with contextlib.suppress(OSError):  # somebody emptied the temporary folder
            self._last_words = self._log.read_text(errors="replace").strip()[-600:]
        self._scratch.close()


def network_flags(allowed: Sequence[str]) -> list[str]:
    """Return the flags that close the network but for these origins: no proxy around it, no names, no UDP."""
    hosts = {"127.0.0.1", *(urlsplit(origin).hostname or "" for origin in allowed)}
    exclude = "".join(f" , EXCLUDE {host}" for host in sorted(hosts))
    return [
        f"--proxy-server={DEAD_PROXY}",
        f"--proxy-bypass-list={';'.join(('<-loopback>', *allowed))}",
        f"--host-resolver-rules=MAP * ~NOTFOUND{exclude}",
        "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
        "--disable-quic",
    ]


def _flags(executable: str, profile: Path) -> list[str]:
    flags = [*FLAGS, f"--user-data-dir={profile}"]
    if "headless-shell" not in Path(executable).name:
        flags.append("--headless=new")
    if os.geteuid() == 0:
        flags.append("--no-sandbox")  # Chromium refuses to run as root with its sandbox
    shm = Path("/dev/shm")
    if not shm.is_dir() or shutil.disk_usage(shm).total < SMALL_SHM:
        flags.append("--disable-dev-shm-usage")
    if shutil.which("prlimit") is not None:
        # The zygote is forked into every process that runs pages. The browser's own process keeps the pictures of all.
        flags.append(f"--zygote-cmd-prefix=prlimit --data={MAX_PAGE_MEMORY}:")
    return flags


_shared: dict[tuple[asyncio.AbstractEventLoop, frozenset[str], float], Chromium] = {}
_running: set[_BrowserProcess] = set()


def _leave_to_the_parent() -> None:
    # A copy of the pipe in a forked process would keep the browser alive after us.
    for process in _running:
        process.close_pipes()
    _running.clear()


os.register_at_fork(after_in_child=_leave_to_the_parent)
