"""Files of a page: what it asks for in a file chooser, and what it gives as downloads, in a folder of the episode."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uirl.environments.browser.chromium.cdp import CdpConnection, Refused
from uirl.errors import ConfigError
from uirl.runtime.scratch import ScratchFolder

FOLDER = "uirl-pages-"
MOST_DOWNLOADS = 16
LARGEST_DOWNLOAD = 64 * 2**20
"""Files and bytes that an episode keeps; what is beyond is refused, and the policy is told."""
_LONGEST_NAME = 100


@dataclass(frozen=True, slots=True)
class Chooser:
    """A file chooser that a page has opened: nobody sees it, and nothing waits for it."""

    session: str
    node: int
    several: bool


@dataclass(slots=True)
class _Download:
    """One that is under way."""

    name: str
    session: str
    slow: bool = False
    """It was waited for, and the policy was told that it goes on."""


class PageFiles:
    """Choosers and downloads of the tabs of one page."""

    def __init__(self, connection: CdpConnection, context: str, notice: Callable[[str], None]) -> None:
        self._connection = connection
        self._context = context
        self._notice = notice
        self._folder: ScratchFolder | None = None
        self._offered: Mapping[str, bytes] = {}
        self._keeps = False
        self._chooser: Chooser | None = None
        self._running: dict[str, _Download] = {}  # by the browser's name
        self._still = asyncio.Event()
        self._still.set()
        self.downloads: dict[str, Path] = {}
        """Name -> where it is, of the downloads of this episode that are whole."""

    def listen(self, session: str) -> None:
        """Listen to the events of a tab, or of a frame in a process of its own."""
        on = self._connection.on
        on(session, "Page.fileChooserOpened", lambda event: self._on_chooser(session, event))
        on(session, "Page.downloadWillBegin", lambda event: self._on_download(session, event))
        on(session, "Page.downloadProgress", self._on_progress)

    async def begin(self, offered: Mapping[str, str | bytes], keeps: bool) -> None:
        """Begin an episode: set which files may be chosen, and whether downloads are kept or refused.

        Raises ConfigError for a name that is a path.
        """
        self.close()
        for name in offered:
            if not name or Path(name).name != name or "\0" in name:
                raise ConfigError(f"uploads are named as files without a folder, such as 'photo.png'; got {name!r}")
        self._offered = {name: text.encode() if isinstance(text, str) else text for name, text in offered.items()}
        if keeps:
            self._folder = ScratchFolder(FOLDER)
        if keeps or self._keeps:
            await self._connection.call("Browser.setDownloadBehavior", self.behaviour(keeps))
        self._keeps = keeps

    @property
    def busy(self) -> bool:
        """A download is under way that was not waited for yet."""
        return any(not download.slow for download in self._running.values())

    async def ready(self, seconds: float) -> None:
        """Wait until no download is under way, or for `seconds`. A download that takes longer is waited for once."""
        try:
            async with asyncio.timeout(seconds):
                await self._still.wait()
        except TimeoutError:
            for download in self._running.values():
                download.slow = True
            self._still.set()
            self._notice("a download is still under way")

    def left(self, session: str) -> None:
        """End the downloads of a closed tab, whose session reports on them no more."""
        for guid in [guid for guid, download in self._running.items() if download.session == session]:
            self._cancel(guid)
            self._ended(guid)

    async def choose(self, names: Sequence[str]) -> str | None:
        """Give files to the chooser that is open; return a str where that is impossible."""
        chooser = self._chooser
        missing = [name for name in names if name not in self._offered]
        if missing:
            offered = ", ".join(self._offered) or "none"
            return f"there is no file {missing[0][:_LONGEST_NAME]!r}; expected of: {offered}"
        if chooser is None:
            return "no file chooser is open"
        if len(names) > 1 and not chooser.several:
            return f"the page takes one file; got {len(names)}"
        paths = [str(self._written(name)) for name in names]
        try:
            chosen = {"files": paths, "backendNodeId": chooser.node}
            await self._connection.call("DOM.setFileInputFiles", chosen, session=chooser.session)
        except Refused:
            return "the page does not ask for a file any more"
        finally:
            self._chooser = None
        return None

    def close(self) -> None:
        """Remove the folder of the episode. Safe to call twice."""
        self._chooser = None
        self._running.clear()
        self._still.set()
        self.downloads = {}
        folder, self._folder = self._folder, None
        if folder is not None:
            folder.close()

    def behaviour(self, keeps: bool) -> dict[str, Any]:
        """Return the parameters of `Browser.setDownloadBehavior`."""
        if not keeps or self._folder is None:
            return {"behavior": "deny", "browserContextId": self._context}
        where = {"behavior": "allowAndName", "downloadPath": str(self._folder.path)}
        return where | {"browserContextId": self._context}

    def _written(self, name: str) -> Path:
        """Write the file to the disk, where the browser reads it; return its path."""
        if self._folder is None:
            self._folder = ScratchFolder(FOLDER)
        path = self._folder.path / "offered" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(self._offered[name])
        return path

    def _on_chooser(self, session: str, event: Mapping[str, Any]) -> None:
        several = event["mode"] == "selectMultiple"
        if not self._offered or "backendNodeId" not in event:
            self._notice("the page asks for a file, and there is none to choose")
            return
        self._chooser = Chooser(session, event["backendNodeId"], several)
        number = "files" if several else "a file"
        self._notice(f"the page asks for {number}: answer with the action upload, of: {', '.join(self._offered)}")

    def _on_download(self, session: str, event: Mapping[str, Any]) -> None:
        name = Path(event["suggestedFilename"]).name[:_LONGEST_NAME] or "download"
        if not self._keeps:
            self._notice(f"a download was refused: {name}")
        elif len(self.downloads) + len(self._running) >= MOST_DOWNLOADS:
            self._notice(f"a download was refused: {name}, after {MOST_DOWNLOADS} others")
            self._cancel(event["guid"])
        else:
            self._running[event["guid"]] = _Download(self._free(name), session)
            self._still.clear()

    def _on_progress(self, event: Mapping[str, Any]) -> None:
        guid = event["guid"]
        download = self._running.get(guid)
        if download is None:
            return
        large = max(event["receivedBytes"], event["totalBytes"]) > LARGEST_DOWNLOAD
        if event["state"] == "inProgress":
            if large:
                self._cancel(guid)
            return
        if event["state"] == "completed" and self._folder is not None and not large:
            del self._running[guid]
            self.downloads[download.name] = self._folder.path / guid
            self._notice(f"downloaded: {download.name}, {event['receivedBytes']:.0f} bytes")
        else:
            self._ended(guid)
        if not self.busy:
            self._still.set()

    def _ended(self, guid: str) -> None:
        name = self._running.pop(guid).name
        if self._folder is not None:
            (self._folder.path / guid).unlink(missing_ok=True)
        self._notice(f"a download was ended: {name}")
        if not self.busy:
            self._still.set()

    def _free(self, name: str) -> str:
        """Return the name, numbered as browsers do where it is taken."""
        taken = {*self.downloads, *(download.name for download in self._running.values())}
        path = Path(name)
        numbered = (f"{path.stem} ({number}){path.suffix}" for number in itertools.count(1))
        return next(one for one in itertools.chain([name], numbered) if one not in taken)

    def _cancel(self, guid: str) -> None:
        self._connection.post("Browser.cancelDownload", {"guid": guid, "browserContextId": self._context})
