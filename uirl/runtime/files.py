"""Files that are whole or absent: the one place that knows how to replace a file so that no crash leaves half of it."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path

from uirl.errors import StorageError

_REMEDIES = {
    errno.ENOSPC: "the disk is full: free some space or point the run at another disk; a run goes on with --resume",
    errno.EDQUOT: "the disk quota is used up: free some space; a run goes on with --resume",
    errno.EFBIG: "the file reached the size limit of this process (ulimit -f): raise it; a run goes on with --resume",
    errno.EACCES: "this user may not write there: choose another directory or fix the permissions",
    errno.EROFS: "the file system is read-only: choose another directory",
    errno.EISDIR: "that is a folder: name a file",
    errno.EINVAL: "name a file that may be replaced",
    errno.ENOTDIR: "a part of that path is a file: choose another directory",
}


@contextlib.contextmanager
def storage_errors(what: str) -> Iterator[None]:
    """Turn an `OSError` of the context into a `StorageError` that says what failed and what to do."""
    try:
        yield
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0, "what was written before is still readable")
        raise StorageError(f"{what}: {error.strerror or error}; {remedy}") from error


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_atomically(path: str | os.PathLike[str], data: str | bytes | Iterable[str]) -> None:
    """Replace `path` by `data` (text as UTF-8), so that a reader or a crash sees the old file or the new one, whole.

    `data` that is too much to be held at once comes in pieces, an iterable of texts. The bytes are on the disk before
    the name changes, and the folder is made where it is missing. Raises `StorageError` where that fails; the old file
    then stands and no temporary file is left.
    """
    target = Path(path)
    with storage_errors(f"cannot write {target}"):
        target = _followed(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
        # the kernel applies the umask: asking for it means changing it, under the files of other threads
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
        try:
            with os.fdopen(handle, "wb") as file:
                for piece in (data,) if isinstance(data, (str, bytes)) else data:
                    file.write(piece.encode("utf-8") if isinstance(piece, str) else piece)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        sync_folder(target.parent)


def require_writable(path: str | os.PathLike[str]) -> None:
    """Raise StorageError where `write_atomically` could not write `path`, before the work whose result it is."""
    target = Path(path)
    with storage_errors(f"cannot write {target}"):
        target = _followed(target)
        home = next(folder for folder in target.absolute().parents if folder.exists())
        if not home.is_dir():
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if not os.access(home, os.W_OK | os.X_OK):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))


def _followed(target: Path) -> Path:
    """Return where links lead from `target`. Raises OSError for what is there and cannot be replaced: a folder, a pipe,
    a device."""
    if target.is_dir():
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
    if target.exists() and not target.is_file():
        raise OSError(errno.EINVAL, "it is no regular file")
    return Path(os.path.realpath(target)) if target.is_symlink() else target


def leads_out(path: str | os.PathLike[str], folder: str | os.PathLike[str]) -> bool:
    """Return whether links on the way to `path`, which is named below `folder`, lead out of it."""
    return not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def require_plain(folder: Path) -> None:
    """Raise StorageError where something in a folder is a link out of it, a pipe, a socket or a device: what somebody
    else handed over must neither show nor change files elsewhere."""
    for here, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(here, name)
            if path.is_symlink() and leads_out(path, folder):
                raise StorageError(
                    f"{path} is a link out of {folder}; copy there what it leads to, or name that place in the config"
                )
            if name in files and not path.is_symlink() and not path.is_file():
                raise StorageError(f"{path} is no plain file; expected one that a run wrote. Move it away")


def cache_folder(part: str) -> Path:
    """Return a folder of the user's for `part` of this package, whose files can be deleted at any time; made where it
    is missing. Raises OSError where that cannot be, as for a user without a home."""
    try:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError as error:
        raise FileNotFoundError(str(error)) from None
    folder = Path(home) / "uirl" / part
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def sync_folder(folder: Path) -> None:
    """Make renames and new names in `folder` survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
