"""Pictures that several processes share: files named by the hash of what is in them, written once, read by all.

A picture that two processes put is one file. A reader sees a whole picture or none, whoever is killed: a file gets its
name when it is whole, and its bytes are held against that name when they are read.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import platform
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from uirl.errors import ContractError, StorageError
from uirl.images import ImageStore, Screenshot
from uirl.runtime.files import storage_errors, write_atomically
from uirl.runtime.scratch import ScratchFolder, home_with_room, sweep

_LOG = logging.getLogger(__name__)

ROOM = 4 * 1024**3
"""Bytes that the RAM disk must have free to be chosen."""
IN_MEMORY = 64 * 1024**2
"""Bytes of pictures that a `SharedImageStore` keeps in memory too."""
_PREFIX = "uirl-pictures-"
_HASH = re.compile("[0-9a-f]{32}")
_OURS = re.compile(r"[0-9a-f]{32}(\.going|\.[0-9a-f]{8}\.tmp)?")
_GOING = ".going"
_ATTEMPTS = 10
_CLOCK_STEP = 0.05
"""Seconds by which the clock that stamps files may be behind the one that people read."""


class SharedPictures:
    """The pictures in `folder`, which is made where it is missing. Any number of processes may use it at once.

    Raises StorageError where the folder cannot be made. Threads may share one object.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder).absolute()  # whoever is told of it may be in another folder
        self._scratch: ScratchFolder | None = None
        with storage_errors(f"cannot make the folder of pictures {self.folder}"):
            self.folder.mkdir(parents=True, exist_ok=True)
            if not self._identity.exists():
                write_atomically(self._identity, secrets.token_hex(16))

    @classmethod
    def make(cls, parent: str | os.PathLike[str] | None = None) -> SharedPictures:
        """Make a new folder in `parent` (None: the RAM disk, or the system's temporary folder where that has less than
        `ROOM`). It goes with this process; what killed processes left in the same place goes now."""
        home = home_with_room(ROOM) if parent is None else Path(parent)
        with storage_errors(f"cannot make a folder for pictures in {home}"):
            home.mkdir(parents=True, exist_ok=True)
            # a folder that several machines see: only the locks of our own are to be trusted
            prefix = f"{_PREFIX}{re.sub('[^A-Za-z0-9.]', '_', platform.node())}-"
            sweep(prefix, home)
            scratch = ScratchFolder(prefix, home)
        pictures = cls(scratch.path)
        pictures._scratch = scratch
        return pictures

    def identity(self) -> str:
        """Return what tells this folder from all others, also from one of the same name on another machine. Raises
        StorageError where the folder is gone."""
        with storage_errors(f"cannot read {self._identity}"):
            return self._identity.read_text(encoding="ascii")

    def put(self, image: Screenshot) -> None:
        """Write `image`, or touch the file of one that is there: `forget_before` keeps it from now on.

        Raises StorageError where it cannot be written, and ContractError where its hash is not that of its bytes.
        """
        if not _HASH.fullmatch(image.hash):
            raise ContractError(f"got a picture with hash {image.hash!r:.80}; expected 32 hexadecimal digits")
        path = self._path(image.hash)
        with storage_errors(f"cannot write a picture of {len(image.data)} bytes to {self.folder} (actors.pictures)"):
            if self._touch(path, len(image.data)):
                return
            if Screenshot(image.data).hash != image.hash:
                raise ContractError(
                    f"got a picture whose hash is {image.hash}, but its {len(image.data)} bytes have "
                    f"{Screenshot(image.data).hash}; leave the hash out where a Screenshot is made"
                )
            for _ in range(_ATTEMPTS):
                self._write(path, image.data)
                if self._touch(path, len(image.data)):
                    return
        raise StorageError(
            f"pictures disappear from {self.folder} as soon as they are written: another program clears that folder; "
            "name one that is left alone"
        )

    def get(self, hash: str) -> Screenshot:
        """Return the picture. Raises KeyError where it is not there or damaged, StorageError where the disk fails.

        A damaged file is removed, so that the picture can be put again.
        """
        if _HASH.fullmatch(hash):
            path = self._path(hash)
            # one that `forget_before` looks at has another name for a moment; it may be back before we look there
            for place in (path, _aside(path), path):
                with storage_errors(f"cannot read {place}"):
                    try:
                        data = place.read_bytes()
                    except FileNotFoundError:
                        continue
                    if Screenshot(data).hash == hash:
                        return Screenshot(data, hash)
                    place.unlink(missing_ok=True)
                _LOG.warning(
                    "picture %s was damaged (%d bytes); removed, so that it can be put again", place, len(data)
                )
        raise KeyError(f"picture {hash!r:.80} is not in {self.folder}")

    def forget_before(self, when: float) -> int:
        """Remove the pictures that nobody put since `when` (seconds, as `time.time` counts); return how many.

        One process at a time: where another is at it, this returns 0. Raises StorageError.
        """
        gone = 0
        limit = when - _CLOCK_STEP
        with storage_errors(f"cannot forget pictures in {self.folder}"), self._alone() as alone:
            if not alone:
                return 0
            for entry in self._files():
                with contextlib.suppress(FileNotFoundError):  # of a write that ended meanwhile
                    stat = entry.stat(follow_symlinks=False)
                    if stat.st_mtime < limit or entry.name.endswith(_GOING):
                        gone += _remove_if_old(Path(entry.path), limit)
        return gone

    def close(self) -> None:
        """Remove the folder, where this object made it. Calling it twice is fine."""
        if self._scratch is not None:
            self._scratch.close()

    @property
    def _identity(self) -> Path:
        return self.folder / "identity"

    def _path(self, hash: str) -> Path:
        return self.folder / hash[:2] / hash

    def _touch(self, path: Path, size: int) -> bool:
        """Return whether the file is there, whole, and safe from `forget_before` until now."""
        try:
            os.utime(path)
            return path.stat().st_size == size
        except FileNotFoundError:
            return False

    def _write(self, path: Path, data: bytes) -> None:
        if not self.folder.is_dir():
            raise StorageError(f"the folder of pictures {self.folder} is gone: did the process that made it end?")
        path.parent.mkdir(exist_ok=True)
        temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
        # no sync: what a power cut leaves of it does not fit its name, and the run is over anyway
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.replace(temporary, path)
        except FileNotFoundError:
            pass  # it took so long that it was forgotten; the caller sees that it is not there
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise

    def _files(self) -> Iterator[os.DirEntry[str]]:
        for folder in os.scandir(self.folder):
            if len(folder.name) == 2 and folder.is_dir(follow_symlinks=False):
                yield from (entry for entry in os.scandir(folder) if _OURS.fullmatch(entry.name))

    @contextlib.contextmanager
    def _alone(self) -> Iterator[bool]:
        handle = os.open(self.folder / "forgetting", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield True
        except BlockingIOError:
            yield False
        finally:
            os.close(handle)


class SharedImageStore(ImageStore):
    """An image store whose pictures lie in `shared`, with the newest `room` bytes of them in memory as well."""

    def __init__(self, shared: SharedPictures, room: int = IN_MEMORY) -> None:
        super().__init__(room)
        self.shared = shared

    def put(self, picture: Any) -> Screenshot:
        image = super().put(picture)
        self.shared.put(image)
        return image

    def get(self, hash: str) -> Screenshot:
        try:
            return super().get(hash)
        except KeyError:
            return super().put(self.shared.get(hash))

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        """Hold nothing: pictures stay until `forget_before`, and memory keeps the newest `room` bytes all the same."""
        yield

    def forget_before(self, moment: float) -> int:
        return self.shared.forget_before(moment)

    def close(self) -> None:
        self.shared.close()


def _aside(path: Path) -> Path:
    return path.with_name(path.name + _GOING)


def _remove_if_old(path: Path, when: float) -> bool:
    """Remove a file that was not touched since `when`, also where somebody touches it meanwhile.

    It goes aside first: a touch came before that, and is seen here, or it comes after, finds no file and writes one.
    Readers look aside too.
    """
    name = path.name
    if not _HASH.fullmatch(name.removesuffix(_GOING)):
        path.unlink()  # what a killed process was writing
        return False
    aside = path
    if not name.endswith(_GOING):
        aside = _aside(path)
        os.rename(path, aside)
    if aside.stat().st_mtime < when:
        aside.unlink()
        return True
    os.utime(aside)  # it takes the place of what somebody may have put just now
    os.rename(aside, path.with_name(name.removesuffix(_GOING)))
    return False
