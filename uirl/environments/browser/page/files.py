"""Files of a page: what it asks for in a file chooser, and what it gives as downloads."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import mimetypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uirl.environments.browser.page.problems import Refused, quietly
from uirl.errors import ConfigError

if TYPE_CHECKING:
    from playwright.async_api import Download, FileChooser

    from uirl.environments.browser.page.tab import Tab

MOST_DOWNLOADS = 16
LARGEST_DOWNLOAD = 64 * 2**20
"""Files and bytes that an episode keeps; what is beyond is refused, and the policy is told."""
_LONGEST_NAME = 100


@dataclass(eq=False, slots=True)
class _Running:
    """A download that is under way."""

    name: str
    download: Download
    slow: bool = False
    """It was waited for, and the policy was told that it goes on."""


class PageFiles:
    """Choosers and downloads of the tabs of one page."""

    def __init__(self, notice: Callable[[str], None]) -> None:
        self._notice = notice
        self._offered: Mapping[str, bytes] = {}
        self._keeps = False
        self._chooser: tuple[Tab, FileChooser] | None = None
        self._running: set[_Running] = set()
        self._expected = 0
        self._still = asyncio.Event()
        self._still.set()
        self._work: set[asyncio.Task[None]] = set()
        self.downloads: dict[str, Path] = {}
        """Name -> where it is, of the downloads of this episode that are whole."""

    def listen(self, tab: Tab) -> None:
        """Listen to the events of a tab. What the browser tells at once Playwright tells in a moment."""
        begun: dict[str, str] = {}  # the browser's name -> address

        def on_download(event: Mapping[str, Any]) -> None:
            begun[event["guid"]] = event["url"]
            self._expect()

        def measure(event: Mapping[str, Any]) -> None:
            if max(event["receivedBytes"], event["totalBytes"]) > LARGEST_DOWNLOAD:
                for running in self._running:
                    if running.download.url == begun.get(event["guid"]):
                        self._spawn(running.download.cancel())

        tab.page.on("filechooser", lambda chooser: self._on_chooser(tab, chooser))
        tab.page.on("download", self._on_download)
        tab.session.on("Page.fileChooserOpened", lambda event: self._expect())
        tab.session.on("Page.downloadWillBegin", on_download)
        tab.session.on("Page.downloadProgress", measure)
        self._spawn(tab.session.send("Page.setInterceptFileChooserDialog", {"enabled": True}))

    def _expect(self) -> None:
        self._expected += 1
        self._still.clear()

    def _came(self) -> None:
        self._expected = max(0, self._expected - 1)
        self._set_still()

    def _set_still(self) -> None:
        if not self.busy:
            self._still.set()

    async def begin(self, offered: Mapping[str, str | bytes], keeps: bool) -> None:
        """Begin an episode: set which files may be chosen, and whether downloads are kept or refused.

        Raises ConfigError for a name that is a path.
        """
        self.close()
        for name in offered:
            if not name or Path(name).name != name or "\0" in name:
                raise ConfigError(f"uploads are named as files without a folder, such as 'photo.png'; got {name!r}")
        self._offered = {name: text.encode() if isinstance(text, str) else text for name, text in offered.items()}
        self._keeps = keeps

    @property
    def busy(self) -> bool:
        """A file is asked for or given that nobody was told of, or is under way and was not waited for yet."""
        return self._expected > 0 or any(not running.slow for running in self._running)

    async def ready(self, seconds: float) -> None:
        """Wait until no download is under way, or for `seconds`. A download that takes longer is waited for once."""
        try:
            async with asyncio.timeout(seconds):
                await self._still.wait()
        except TimeoutError:
            if self._running:
                self._notice("a download is still under way")
            self._expected = 0
            for running in self._running:
                running.slow = True
            self._still.set()

    async def choose(self, names: Sequence[str]) -> str | None:
        """Give files to the chooser that is open; return a str where that is impossible."""
        missing = [name for name in names if name not in self._offered]
        if missing:
            offered = ", ".join(self._offered) or "none"
            return f"there is no file {missing[0][:_LONGEST_NAME]!r}; expected of: {offered}"
        if self._chooser is None:
            return "no file chooser is open"
        tab, chooser = self._chooser
        if len(names) > 1 and not chooser.is_multiple():
            return f"the page takes one file; got {len(names)}"
        chosen: Any = [
            {
                "name": name,
                "mimeType": mimetypes.guess_type(name)[0] or "application/octet-stream",
                "buffer": self._offered[name],
            }
            for name in names
        ]
        try:
            await tab.run(lambda: chooser.set_files(chosen, timeout=1000), "giving files to the page")
        except Refused:
            return "the page does not ask for a file any more"
        finally:
            self._chooser = None
        return None

    def close(self) -> None:
        """Remove what the episode has downloaded. Safe to call twice."""
        self._chooser = None
        for path in self.downloads.values():
            with contextlib.suppress(OSError):
                path.unlink()
        for running in self._running:
            self._spawn(running.download.cancel())
        self._running.clear()
        self._expected = 0
        self._still.set()
        self.downloads = {}

    def _on_chooser(self, tab: Tab, chooser: FileChooser) -> None:
        self._came()
        if not self._offered:
            self._notice("the page asks for a file, and there is none to choose")
            return
        self._chooser = tab, chooser
        number = "files" if chooser.is_multiple() else "a file"
        self._notice(f"the page asks for {number}: answer with the action upload, of: {', '.join(self._offered)}")

    def _on_download(self, download: Download) -> None:
        name = Path(download.suggested_filename).name[:_LONGEST_NAME] or "download"
        if not self._keeps:
            self._notice(f"a download was refused: {name}")
            self._spawn(download.cancel())
        elif len(self.downloads) + len(self._running) >= MOST_DOWNLOADS:
            self._notice(f"a download was refused: {name}, after {MOST_DOWNLOADS} others")
            self._spawn(download.cancel())
        else:
            running = _Running(self._free(name), download)
            self._running.add(running)
            self._still.clear()
            self._spawn(self._follow(running))
        self._came()

    async def _follow(self, running: _Running) -> None:
        """Wait for the end of a download."""
        from playwright.async_api import Error

        path = None
        with contextlib.suppress(Error):  # it was cancelled, or its page is gone
            path = Path(await running.download.path())
        if running not in self._running:  # of an earlier episode
            return
        self._running.discard(running)
        size = path.stat().st_size if path is not None else 0
        if path is not None and size <= LARGEST_DOWNLOAD:
            self.downloads[running.name] = path
            self._notice(f"downloaded: {running.name}, {size} bytes")
        else:
            if path is not None:
                path.unlink(missing_ok=True)
            self._notice(f"a download was ended: {running.name}")
        self._set_still()

    def _free(self, name: str) -> str:
        """Return the name, numbered as browsers do where it is taken."""
        taken = {*self.downloads, *(running.name for running in self._running)}
        path = Path(name)
        numbered = (f"{path.stem} ({number}){path.suffix}" for number in itertools.count(1))
        return next(one for one in itertools.chain([name], numbered) if one not in taken)

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(quietly(work))
        self._work.add(task)
        task.add_done_callback(self._work.discard)
