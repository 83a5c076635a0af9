"""Files of a page: what it asks for in a file chooser, and what it gives as downloads."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import mimetypes
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uirl.environments.browser.tab import Refused, Tab
from uirl.errors import ConfigError

if TYPE_CHECKING:
    from playwright.async_api import Download, FileChooser

MOST_DOWNLOADS = 16
LARGEST_DOWNLOAD = 64 * 2**20
"""Files and bytes that an episode keeps; what is beyond is refused, and the policy is told."""
_LONGEST_NAME = 100


class PageFiles:
    """Choosers and downloads of the tabs of one page."""

    def __init__(self, notice: Callable[[str], None], spawn: Callable[[Awaitable[Any]], None]) -> None:
        self._notice = notice
        self._spawn = spawn
        self._offered: Mapping[str, bytes] = {}
        self._keeps = False
        self._chooser: tuple[Tab, FileChooser] | None = None
        self._running: dict[str, Download] = {}
        self._slow: set[str] = set()  # those that were waited for: the policy was told that they go on
        self._expected = 0  # what the browser told at once, and Playwright tells in a moment
        self.downloads: dict[str, Path] = {}
        """Name -> where it is, of the downloads of this episode that are whole."""

    def listen(self, tab: Tab) -> None:
        begun: dict[str, str] = {}  # the browser's name of a download -> address

        def expect(event: Mapping[str, Any]) -> None:
            self._expected += 1
            if "guid" in event:
                begun[event["guid"]] = event["url"]

        def measure(event: Mapping[str, Any]) -> None:
            if max(event["receivedBytes"], event["totalBytes"]) > LARGEST_DOWNLOAD:
                for download in self._running.values():
                    if download.url == begun.get(event["guid"]):
                        self._spawn(download.cancel())

        tab.page.on("filechooser", lambda chooser: self._on_chooser(tab, chooser))
        tab.page.on("download", self._on_download)
        tab.session.on("Page.fileChooserOpened", expect)
        tab.session.on("Page.downloadWillBegin", expect)
        tab.session.on("Page.downloadProgress", measure)
        self._spawn(tab.session.send("Page.setInterceptFileChooserDialog", {"enabled": True}))

    def begin(self, offered: Mapping[str, str | bytes], keeps: bool) -> None:
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
        return self._expected > 0 or not self._slow.issuperset(self._running)

    async def ready(self, seconds: float) -> None:
        """Wait until no download is under way, or for `seconds`. A download that takes longer is waited for once."""
        try:
            async with asyncio.timeout(seconds):
                while self.busy:
                    await asyncio.sleep(0.01)
        except TimeoutError:
            if self._running:
                self._notice("a download is still under way")
            self._expected = 0
            self._slow.update(self._running)

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
        self._chooser = None
        kinds = [mimetypes.guess_type(name)[0] or "application/octet-stream" for name in names]
        pairs = zip(names, kinds, strict=True)
        chosen: Any = [{"name": name, "mimeType": kind, "buffer": self._offered[name]} for name, kind in pairs]
        try:
            await tab.run(lambda: chooser.set_files(chosen, timeout=1000), "giving files to the page")
        except Refused:
            return "the page does not ask for a file any more"
        return None

    def close(self) -> None:
        """Remove what the episode has downloaded. Safe to call twice."""
        self._chooser = None
        for path in self.downloads.values():
            with contextlib.suppress(OSError):
                path.unlink()
        for download in self._running.values():
            self._spawn(download.cancel())
        self._running, self._slow, self._expected, self.downloads = {}, set(), 0, {}

    def _on_chooser(self, tab: Tab, chooser: FileChooser) -> None:
        self._expected = max(0, self._expected - 1)
        if not self._offered:
            self._notice("the page asks for a file, and there is none to choose")
            return
        self._chooser = tab, chooser
        number = "files" if chooser.is_multiple() else "a file"
        self._notice(f"the page asks for {number}: answer with the action upload, of: {', '.join(self._offered)}")

    def _on_download(self, download: Download) -> None:
        self._expected = max(0, self._expected - 1)
        name = Path(download.suggested_filename).name[:_LONGEST_NAME] or "download"
        if self._keeps and len(self.downloads) + len(self._running) < MOST_DOWNLOADS:
            path = Path(name)
            numbered = (f"{path.stem} ({number}){path.suffix}" for number in itertools.count(1))  # as browsers do
            name = next(n for n in itertools.chain([name], numbered) if n not in {*self.downloads, *self._running})
            self._running[name] = download
            self._spawn(self._follow(name, download))
        else:
            reason = f", after {MOST_DOWNLOADS} others" if self._keeps else ""
            self._notice(f"a download was refused: {name}{reason}")
            self._spawn(download.cancel())

    async def _follow(self, name: str, download: Download) -> None:
        from playwright.async_api import Error

        path = None
        with contextlib.suppress(Error):  # it was cancelled, or its page is gone
            path = Path(await download.path())
        if self._running.get(name) is not download:  # of an earlier episode
            return
        del self._running[name]
        self._slow.discard(name)
        size = path.stat().st_size if path is not None else 0
        if path is not None and size <= LARGEST_DOWNLOAD:
            self.downloads[name] = path
            self._notice(f"downloaded: {name}, {size} bytes")
            return
        if path is not None:
            path.unlink(missing_ok=True)
        self._notice(f"a download was ended: {name}")
