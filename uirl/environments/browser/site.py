"""Pages that need no server: a text or a folder, answered to the browser by this process, without a network."""

from __future__ import annotations

import mimetypes
import posixpath
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from uirl.errors import ConfigError
from uirl.runtime.limits import shown

ORIGIN = "http://app.localhost"
"""Where a site without an address of its own stands. The browser never asks the network for it."""


class Site:
    """Files by their path under an origin. Change `files`, and the next load shows it."""

    def __init__(self, files: Mapping[str, bytes | str] | None = None, folder: Path | None = None) -> None:
        """Serve `files`: path such as '/' or '/style.css' -> content. Files of `folder` answer for the other paths."""
        self.origin = ORIGIN
        self.files = dict(files or {})
        self.folder = None if folder is None else folder.resolve()

    def answer(self, url: str) -> tuple[int, str, bytes]:
        """Return status, content type and body of an address; 404 where there is nothing."""
        path = unquote(urlsplit(url).path) or "/"
        if path in self.files:
            content = self.files[path]
            body = content.encode() if isinstance(content, str) else content
            return 200, _content_type(path), body
        found = self._file(path)
        return (404, "text/plain", b"not found") if found is None else (200, _content_type(found[0]), found[1])

    def _file(self, path: str) -> tuple[str, bytes] | None:
        """Return name and content of a file of the folder; None: there is none that can be read."""
        if self.folder is None or "\0" in path:
            return None
        try:
            found = (self.folder / path.lstrip("/")).resolve()
            found = found / "index.html" if found.is_dir() else found
            # After resolving: neither '..' nor a link leads out of the folder.
            return (found.name, found.read_bytes()) if found.is_relative_to(self.folder) else None
        except (OSError, RuntimeError):  # the second: a link that leads to itself
            return None


def read_files(files: Mapping[str, bytes | str], owner: str) -> dict[str, bytes]:
    """Return the files by the path that a browser asks for: 'data.js' is '/data.js'.

    Raises ConfigError for a path that no address leads to, for one that is given twice, and for what is no content.
    """
    found: dict[str, bytes] = {}
    for name, content in files.items():
        path = "/" + unquote(name).removeprefix("./").removeprefix("/") if isinstance(name, str) else ""
        if posixpath.normpath(path) != path or ":/" in path or not {"?", "#", "\\"}.isdisjoint(path):
            raise ConfigError(
                f"{owner}: files has {shown(name, 80)}, which no page can ask for; expected a path such as '/data.json'"
            )
        if path in found:
            raise ConfigError(f"{owner}: files has {path!r} twice; leave one of the two out")
        if not isinstance(content, (str, bytes)):
            raise ConfigError(f"{owner}: files[{name!r}] is {shown(content, 80)}; expected text or bytes")
        found[path] = content.encode() if isinstance(content, str) else content
    return found


def _content_type(path: str) -> str:
    kind = mimetypes.guess_type(path)[0] or ("text/html" if path.endswith("/") else "application/octet-stream")
    return f"{kind}; charset=utf-8" if kind.startswith("text/") or kind.endswith(("javascript", "json")) else kind
