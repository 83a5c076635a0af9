"""The browser process: found, started when first needed, shared by all sessions of an event loop, never left behind."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from weakref import WeakSet

from uirl.environments.browser.page import Page
from uirl.environments.browser.tab import quietly
from uirl.errors import ConfigError, EnvironmentFailure, EpisodeTimeout

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext, CDPSession, Playwright

EXECUTABLES = ("chromium-headless-shell", "chrome-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""Tried in this order; the headless shell needs about half the CPU of the full browser."""
FLAGS = (
    # A process less in the way of every picture. Should it crash, the browser goes with it, and is replaced as such.
    *("--disable-gpu", "--in-process-gpu", "--disable-smooth-scrolling"),
    # Drawing only what changed leaves one pixel column of the old picture now and then.
    "--disable-partial-raster",
    # What is selected would be pasted by a middle click on any other page, those of the neighbours too.
    "--blink-settings=selectionClipboardBufferAvailable=false",
)
"""Beside those that Playwright gives."""
DEAD_PROXY = "http://127.0.0.1:9"
"""Where every request goes, loopback included, that is not allowed: nobody listens there."""
MAX_PAGE_MEMORY = 2 << 30
"""Bytes of data (`RLIMIT_DATA`) of a process that runs pages. One that needs more crashes, which is an outcome of its
episode; one that the system kills when the machine has no memory left would be a failure of the machine."""
_CLIPBOARD = "http://localhost/clipboard"
"""Of a page of ours, which alone may write the browser's clipboard."""


def find_executable() -> str | None:
    """Return the path of the browser: `UIRL_CHROMIUM`, else the first of `EXECUTABLES` on the PATH; None: Playwright's.

    Raises ConfigError with the remedy where there is none.
    """
    try:
        import playwright  # noqa: F401
    except ImportError as error:
        raise ConfigError("pages need Playwright; pip install 'uirl[browser]'") from error
    named = os.environ.get("UIRL_CHROMIUM")
    if named and Path(named).name.lower().startswith(("firefox", "webkit", "safari", "minibrowser")):
        raise ConfigError(
            f"UIRL_CHROMIUM={named!r}: pages are played in Chromium or Chrome alone, whose protocol gives them a world "
            "apart; name one of these, or unset it"
        )
    found = next(filter(None, map(shutil.which, [named] if named else EXECUTABLES)), None)
    if named and found is None:
        raise ConfigError(f"UIRL_CHROMIUM={named!r} is not an executable; name the browser's path, or unset it")
    own = os.environ.get("PLAYWRIGHT_BROWSERS_PATH", "0")
    if own in ("", "0"):
        cache = {"darwin": "Library/Caches", "win32": "AppData/Local"}.get(sys.platform, ".cache")
        own = str(Path.home() / cache / "ms-playwright")
    if found is None and not any(Path(own).glob("chromium*/*")):
        raise ConfigError(
            "no Chromium found (" + ", ".join(EXECUTABLES) + "); run `playwright install chromium` (Debian: "
            "scripts/install_browser.sh, or apt-get install chromium-headless-shell), or set UIRL_CHROMIUM to the path "
            "of a Chromium or Chrome"
        )
    return found


class Chromium:
    """One browser process, started at the first page, restarted at the next page after it died.

    Belongs to the event loop that started it and ends with it. `Chromium.shared()` is the one that the environments
    of an event loop use together. The network is closed to its pages, but for the origins it was made for.
    """

    starts = 0
    """How many browsers came up: one more than those that ended while they were in use and were replaced."""
    pid: int | None = None
    """Leader of the browser's process group; None: not running."""
    _browser: Browser | None = None
    _session: CDPSession | None = None  # of the browser itself
    _clipboard: Any = None  # the page that writes it

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
        `executable`: path; None: `find_executable()` when it starts. `timeout`: limit in seconds of one call.
        `start_timeout`: limit of the start.
        """
        self.allowed = tuple(sorted(allow))
        self.scale = float(scale)
        self.timeout = timeout
        self.start_timeout = start_timeout
        self._executable = executable
        self._starting = asyncio.Lock()
        self._pasting = asyncio.Lock()
        self._pages: WeakSet[Page] = WeakSet()

    @classmethod
    def shared(cls, allow: Iterable[str] = (), scale: float = 1.0) -> Chromium:
        """Return the browser of the running event loop in this process; one per set of allowed origins and scale."""
        key = frozenset(allow), float(scale)
        return _driver().browsers.setdefault(key, cls(allow=key[0], scale=key[1]))

    async def new_page(self, width: int, height: int, *, downloads: bool = False) -> Page:
        """Return a page of `width` x `height` CSS pixels in a context of its own: it shares no cookie and no storage.

        `downloads`: they can be kept. Starts the browser where it does not run. Raises EnvironmentFailure or
        EpisodeTimeout where it cannot.
        """
        browser = await self._connected()
        opening = asyncio.create_task(Page.open(browser, self, width, height, downloads))
        try:
            async with _within(2 * self.timeout, "a new page"):
                page = await asyncio.shield(opening)
        except (EpisodeTimeout, asyncio.CancelledError) as error:
            opening.add_done_callback(_discard)  # the browser goes on making it
            if isinstance(error, EpisodeTimeout):
                await self.probe()
            raise
        self._pages.add(page)
        return page

    async def hangs(self, late: asyncio.Future[Any] | None = None) -> bool:
        """Return whether the page hangs, and not the browser or a busy machine: another page opens, draws and closes in
        the time that one call has, and `late`, the answer that the page owes (None: none), has not come meanwhile."""
        if self._browser is None or not self._browser.is_connected():
            return False
        other: Page | None = None
        try:
            async with asyncio.timeout(self.timeout):
                other = await self.new_page(100, 100)
                await other.settle(drawn=True)
                await other.close()
            return late is None or not late.done()
        except (TimeoutError, EpisodeTimeout, EnvironmentFailure):
            return False
        finally:
            if other is not None:
                other.discard()

    async def probe(self) -> None:
        """End the browser where it does not answer a request of its own: for after a call that timed out."""
        try:
            async with _within(self.timeout, "the browser"):
                if self._session is not None:
                    await self._session.send("Browser.getVersion")
        except (EnvironmentFailure, EpisodeTimeout):
            self._kill()

    async def close(self) -> None:
        """End the browser and free its profile. The next page starts another."""
        async with self._starting:
            browser, self._browser = self._browser, None
            if browser is not None:
                with contextlib.suppress(EnvironmentFailure, EpisodeTimeout):
                    async with _within(self.timeout, "the end"):
                        await browser.close()
            self._kill()

    async def close_window(self, target: str) -> None:
        """Close a window by the browser's name for it; it may be gone."""
        if self._session is not None:
            with contextlib.suppress(EnvironmentFailure, EpisodeTimeout):  # it goes with the context
                async with _within(self.timeout, "a window"):
                    await self._session.send("Target.closeTarget", {"targetId": target})

    async def free(self, context: BrowserContext) -> None:
        """Free a context with all its pages, also where they hang or the browser is gone."""
        try:
            async with asyncio.timeout(self.timeout):
                await quietly(context.close())
        except TimeoutError as error:
            await self.probe()  # a browser that answers nobody is ended, and the context with it
            if self.pid is not None:
                raise EpisodeTimeout(f"a page was not closed within {self.timeout:g} s") from error

    @contextlib.asynccontextmanager
    async def clipboard(self, text: str) -> AsyncIterator[None]:
        """Hold the browser's clipboard, which all pages share, with this text in it."""
        async with self._pasting:
            browser = await self._connected()
            async with _within(self.timeout, "the clipboard"):
                if self._clipboard is None or self._clipboard.is_closed():
                    self._clipboard = await browser.new_page(permissions=["clipboard-write"])
                page = self._clipboard
                if page.url != _CLIPBOARD:  # also where an earlier call broke off
                    await page.route(_CLIPBOARD, lambda route: route.fulfill(body="", content_type="text/html"))
                    await page.goto(_CLIPBOARD)
                await page.evaluate("text => navigator.clipboard.writeText(text)", text)
            yield

    async def _connected(self) -> Browser:
        async with self._starting:
            if _driver().ended:  # Playwright does not say so of its browsers
                self._kill()
            if self._browser is None or not self._browser.is_connected():
                try:
                    self._browser = await self._start()
                except EnvironmentFailure:  # one start in a thousand or so ends in a crash of the browser
                    self._browser = await self._start()
            return self._browser

    async def _start(self) -> Browser:
        from playwright.async_api import Error
        from playwright.async_api import TimeoutError as LateError

        self._clipboard = None
        executable = self._executable or find_executable()
        driver = await _driver().playwright()
        # where a page has a scale of its own, one click in ten is lost
        args = [*FLAGS, *network_flags(self.allowed), f"--force-device-scale-factor={self.scale:g}"]
        if sys.platform == "linux" and shutil.which("prlimit") is not None:
            # The zygote is forked into every process that runs pages. The browser's own keeps the pictures of all.
            args.append(f"--zygote-cmd-prefix=prlimit --data={MAX_PAGE_MEMORY}:")
        signals: Any = dict.fromkeys(("handle_sigint", "handle_sigterm", "handle_sighup"), False)
        try:
            browser = await driver.chromium.launch(
                executable_path=executable,
                args=args,
                timeout=self.start_timeout * 1000,
                # Chromium refuses to run as root with its sandbox
                chromium_sandbox=not (hasattr(os, "geteuid") and os.geteuid() == 0),
                **signals,
            )
        except LateError as error:
            late = f"{executable} was not ready within {self.start_timeout:g} s; is the machine overloaded?"
            raise EpisodeTimeout(late) from error
        except Error as error:
            said = error.message[-600:]
            raise EnvironmentFailure(
                f"{executable} ended before it was ready: {said}; does it run by hand with --no-sandbox?"
            ) from error
        async with _within(self.start_timeout, "the browser's beginning"):
            session = await browser.new_browser_cdp_session()
            processes = (await session.send("SystemInfo.getProcessInfo"))["processInfo"]
            pid = next(process["id"] for process in processes if process["type"] == "browser")
            self.pid = os.getpgid(pid) if hasattr(os, "getpgid") else pid
            browser.on("disconnected", lambda _: self._stopped(browser))
            for what in ("Created", "InfoChanged", "Crashed", "Destroyed"):
                session.on(f"Target.target{what}", functools.partial(self._tell, what))
            await session.send("Target.setDiscoverTargets", {"discover": True, "filter": [{"type": "page"}]})
        self._session = session
        self.starts += 1
        return browser

    def _tell(self, what: str, event: Mapping[str, Any]) -> None:
        for page in list(self._pages):
            page.on_target(what, event)

    def _stopped(self, browser: Browser) -> None:
        if self._browser is browser or self._browser is None:
            self._kill()
        for page in list(self._pages):
            if page.context.browser is browser:
                for tab in page.tabs:
                    tab.end(EnvironmentFailure("the browser ended"))

    def _kill(self) -> None:
        pid, self.pid = self.pid, None
        self._browser = self._session = None
        if pid is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # nobody is left: the polite way worked
                end, how = (os.killpg, signal.SIGKILL) if hasattr(os, "killpg") else (os.kill, signal.SIGTERM)
                end(pid, how)


def _discard(opening: asyncio.Task[Page]) -> None:
    """Close a page that came after whoever asked for it had given up."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result().discard()


@contextlib.asynccontextmanager
async def _within(seconds: float, what: str) -> AsyncIterator[None]:
    """Raise EnvironmentFailure for what Playwright raises, and EpisodeTimeout where it takes longer."""
    from playwright.async_api import Error

    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise EpisodeTimeout(f"{what}: the browser did not answer within {seconds:g} s") from error
    except Error as error:
        raise EnvironmentFailure(f"{what}: {error.message.splitlines()[0]}") from error


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


class _Driver:
    """Playwright of one event loop: its own process (Node.js), which starts and ends the browsers."""

    process: asyncio.subprocess.Process | None = None
    pipe: Any = None
    """Our end of the one into it."""
    _started: asyncio.Future[Playwright] | None = None

    def __init__(self) -> None:
        self.browsers: dict[tuple[frozenset[str], float], Chromium] = {}
        """Those that environments share, by the origins that they may reach and by scale."""

    async def playwright(self) -> Playwright:
        """Start it where it does not run. Raises EnvironmentFailure where it cannot."""
        if self._started is None or self.ended:
            self.process = None
            self._started = asyncio.ensure_future(self._start())
        try:
            return await asyncio.shield(self._started)
        except Exception as error:  # whatever it is, the next page may have better luck
            self._started = None
            raise EnvironmentFailure(f"Playwright did not start: {error}") from error

    async def _start(self) -> Playwright:
        from playwright.async_api import async_playwright

        manager: Any = async_playwright()
        driver: Playwright = await manager.start()
        self.process = process = manager._client._transport._proc
        self.pipe = process.stdin.get_extra_info("pipe")
        self._keeper = asyncio.create_task(_until_the_loop_ends(process), name="playwright")
        return driver

    @property
    def ended(self) -> bool:
        """Whether its process is gone, and with it every browser it had started."""
        return self.process is not None and self.process.returncode is not None

    def leave(self) -> None:
        """Close our end of its pipe, by which it ends, and its browsers with it. Needs no event loop."""
        if self.pipe is not None:
            with contextlib.suppress(OSError):
                self.pipe.close()


async def _until_the_loop_ends(driver: Any) -> None:
    """End a driver's process when the event loop ends: the loop cancels this task, and gives no other notice."""
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        driver.stdin.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(10.0):
                await driver.wait()


def _driver() -> _Driver:
    """Return that of the running event loop."""
    for closed in [known for known in _drivers if known.is_closed()]:
        _drivers.pop(closed).leave()  # somebody closed the loop without ending its tasks
    return _drivers.setdefault(asyncio.get_running_loop(), _Driver())


_drivers: dict[asyncio.AbstractEventLoop, _Driver] = {}


def _leave_to_the_parent() -> None:
    # A copy of the pipe in a forked process would keep the driver alive after us.
    for driver in _drivers.values():
        driver.leave()
    _drivers.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_the_parent)
