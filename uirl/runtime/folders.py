"""Folders that are whole or absent: written aside, listed in a manifest, synced, then renamed; checked when read."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from uirl.errors import CheckpointError, StorageError
from uirl.runtime.files import require_plain, sha256_of, storage_errors, sync_folder

MANIFEST = "manifest.json"
FORMAT = 1
_ASIDE = ".writing-"
_REPLACED = ".replaced-"


def require_own(target: Path) -> None:
    """Raise CheckpointError where `target` is a file or a link, or a folder that holds what `whole_folder` has not
    written: it would be deleted."""
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise CheckpointError(
            f"{target} is a file, which would be replaced; expected a new folder, or an earlier export"
        )
    if not target.is_dir() or not any(target.iterdir()):
        return
    try:
        own = {MANIFEST, *_listed_files(target)}
    except CheckpointError:
        own = set()
    for path in sorted(p for p in target.rglob("*") if not p.is_dir()):
        if path.relative_to(target).as_posix() not in own:
            raise CheckpointError(
                f"{target} holds {path.relative_to(target)}, which no export has written and which would be deleted; "
                "expected a new folder, or an earlier export as it was"
            )


@contextlib.contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """Yield an empty folder to fill; when the context ends well, that folder stands at `target`.

    A crash leaves at most a hidden folder beside it, which the next call for the same target removes. Raises
    CheckpointError where the disk is full or not writable; what stood at `target` before then still stands.
    """
    work: Path | None = None
    try:
        with _as_checkpoint_error(f"cannot write {target}"):
            target.parent.mkdir(parents=True, exist_ok=True)
            _sweep(target)
            work = Path(tempfile.mkdtemp(prefix=f"{_ASIDE}{target.name}-", dir=target.parent))
            os.chmod(work, 0o755)
            yield work
            seal(work)
            _put(work, target)
    finally:
        if work is not None:
            shutil.rmtree(work, ignore_errors=True)


def check_folder(folder: Path) -> None:
    """Check that every file of the manifest is there and unchanged. Raises CheckpointError that names the first file
    which is not, and what to do."""
    files = _listed_files(folder)
    with _as_checkpoint_error(f"cannot read {folder}"):
        require_plain(folder)
    for name, (size, digest) in files.items():
        path = folder / name
        if not path.is_file():
            raise CheckpointError(damaged(folder, name, "is missing"))
        if path.stat().st_size != size:
            raise CheckpointError(damaged(folder, name, f"has {path.stat().st_size} bytes, expected {size}"))
        if sha256_of(path) != digest:
            raise CheckpointError(damaged(folder, name, "has other contents than were written"))
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        name = path.relative_to(folder).as_posix()
        if name != MANIFEST and name not in files and not path.name.startswith("."):
            raise CheckpointError(damaged(folder, name, "is not in the manifest, so it came later; take it away"))


def _listed_files(folder: Path) -> dict[str, tuple[int, str]]:
    """Return name -> (size in bytes, sha256) of every file that the manifest lists. Raises CheckpointError that names
    the entry of a damaged one."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(damaged(folder, MANIFEST, "is missing")) from error
    except (ValueError, OSError, RecursionError) as error:
        raise CheckpointError(damaged(folder, MANIFEST, f"cannot be read ({error})")) from error
    version = manifest.get("format") if isinstance(manifest, dict) else None
    if type(version) is int and version != FORMAT:
        raise CheckpointError(f"{folder} has format {version}, expected {FORMAT}; read it with the uirl that wrote it")
    listed = manifest.get("files") if isinstance(manifest, dict) else None
    if type(version) is not int or not isinstance(listed, dict) or not listed:
        raise CheckpointError(damaged(folder, MANIFEST, "is no list of files with their format"))
    files = {}
    for name, entry in listed.items():
        size, digest = (entry.get("bytes"), entry.get("sha256")) if isinstance(entry, dict) else (None, None)
        inside = name and not name.startswith("/") and ".." not in name.split("/") and "\0" not in name
        if not inside or type(size) is not int or not isinstance(digest, str):
            raise CheckpointError(damaged(folder, MANIFEST, f"has a damaged entry {name!r}: {entry!r:.80}"))
        files[name] = (size, digest)
    return files


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write named tensors as safetensors. Each is copied out of what it may share."""
    save_file({name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}, path)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file, on the CPU. Raises CheckpointError for a damaged one."""
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(damaged(path.parent, path.name, f"cannot be read ({error})")) from error


def write_json(path: Path, value: Any) -> None:
    """Write `value` as JSON. Raises TypeError or ValueError where it is not plain data; NaN is not."""
    path.write_text(json.dumps(value, indent=1, allow_nan=False), encoding="utf-8")


def read_json(path: Path) -> Any:
    """Return the value in a JSON file. Raises CheckpointError for a damaged one."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(damaged(path.parent, path.name, f"cannot be read ({error})")) from error


def damaged(folder: Path, name: str, what: str) -> str:
    """Return the message about a checkpoint whose file `name` is damaged, with the older ones to load instead."""
    older = [p.name for p in finished_folders(folder.parent) if p.name != folder.name]
    remedy = f"load an older one: {', '.join(older[::-1][:3])}" if older else "there is no other one beside it"
    return f"checkpoint {folder} is damaged: {name} {what}; {remedy}"


def finished_folders(directory: Path) -> list[Path]:
    """Return the checkpoints in `directory`, oldest first, by the number at the end of their name; not checked."""
    if not directory.is_dir():
        return []
    checkpoints = [p for p in directory.iterdir() if not p.name.startswith(".") and (p / MANIFEST).is_file()]
    return sorted((p for p in checkpoints if number_of(p) is not None), key=lambda p: (number_of(p), p.name))


def number_of(folder: Path) -> int | None:
    """Return the number at the end of a folder's name; None where it ends otherwise."""
    digits = folder.name[len(folder.name.rstrip("0123456789")) :]
    return int(digits) if digits else None


def seal(work: Path) -> None:
    """Write the manifest and make every file survive a power cut."""
    files = sorted(p for p in work.rglob("*") if p.is_file())
    listed = {p.relative_to(work).as_posix(): {"bytes": p.stat().st_size, "sha256": sha256_of(p)} for p in files}
    write_json(work / MANIFEST, {"format": FORMAT, "files": listed})
    for path in [*files, work / MANIFEST]:
        os.chmod(path, 0o644)  # the writer of safetensors lets only the owner read
        with open(path, "rb") as file:
            os.fsync(file.fileno())
    for path in [*(p for p in work.rglob("*") if p.is_dir()), work]:
        sync_folder(path)


def _put(work: Path, target: Path) -> None:
    """Rename `work` to `target`. A folder that stands there goes aside first and is deleted last."""
    old = target.parent / f"{_REPLACED}{target.name}"
    if target.exists():
        os.rename(target, old)
    os.rename(work, target)
    sync_folder(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def _sweep(target: Path) -> None:
    """Remove what a crash left; bring back the old folder where the crash came between the two renames."""
    old = target.parent / f"{_REPLACED}{target.name}"
    if old.exists() and not target.exists():
        os.rename(old, target)
    shutil.rmtree(old, ignore_errors=True)
    for path in target.parent.glob(f"{_ASIDE}{target.name}-*"):
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _as_checkpoint_error(what: str) -> Iterator[None]:
    try:
        with storage_errors(what):
            yield
    except StorageError as error:
        raise CheckpointError(str(error)) from error
    except SafetensorError as error:
        # the writer of safetensors reports a full disk in words of its own
        raise CheckpointError(
            f"{what}: {error}; is the disk full? Free some space, then continue with --resume"
        ) from error


def tensor_text(tensor: Tensor) -> str:
    """Return a byte tensor `[N]` as hex, for JSON."""
    return bytes(tensor.to(torch.uint8).tolist()).hex()


def text_tensor(text: str) -> Tensor:
    """Return the byte tensor `[N]` of the text that `tensor_text` gave."""
    return torch.tensor(list(bytes.fromhex(text)), dtype=torch.uint8)
