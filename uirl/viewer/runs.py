"""The runs that a viewer shows: found in folders, opened when somebody looks."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from uirl.errors import StorageError
from uirl.storage import RunDirectory, TrajectoryStore, clean_run_name
from uirl.storage.database import APPLICATION_ID
from uirl.storage.labels import FILE, LabelStore
from uirl.viewer.curves import Curves
from uirl.viewer.index import Index
from uirl.viewer.tail import newest_rows
from uirl.viewer.vocabulary import Vocabulary

DEPTH = 3
"""Folders below the one that was named in which runs are looked for: `runs/<name>/round_00`."""
MOST_RUNS = 2000
KEPT = 300.0
"""Seconds after which the files of a run that nobody asks for any more are closed: longer than any answer takes."""
END = 1 << 16
"""Bytes at the end of the metrics file in which the newest values are looked for."""
WRITING = 15.0
"""Seconds after its last write during which a run counts as live where its lock cannot be seen."""
T = TypeVar("T")


class Run:
    """One run: its folder, or a trajectory store alone. What is opened stays open; a file that was replaced is opened
    anew."""

    def __init__(self, key: str, path: Path) -> None:
        """`path`: the run directory, or a store (`uirl eval --record`)."""
        self.key, self.path = key, path
        self.folder = path if path.is_dir() else path.parent
        self.directory = RunDirectory(self.folder)
        self.store_path = self.directory.trajectories_path if path.is_dir() else path
        self.labels = LabelStore(self.folder / FILE if path.is_dir() else path.with_name(f"{path.stem}.{FILE}"))
        self.curves = Curves(self.metrics_path)
        self.vocabulary = Vocabulary(self.folder)
        self.used = time.monotonic()
        """When somebody asked for it last."""
        self._lock, self._labelling = threading.Lock(), threading.Lock()
        self._opened: tuple[tuple[Any, ...], TrajectoryStore, Index] | None = None
        self._counted: tuple[tuple[Any, ...], int] | None = None
        self._ends: tuple[tuple[Any, ...], tuple[Mapping[str, Any] | None, Sequence[Mapping[str, Any]]]] | None = None

    @property
    def metrics_path(self) -> Path:
        return self.directory.metrics_path if self.path.is_dir() else self.path.with_suffix(".metrics.jsonl")

    @property
    def config_path(self) -> Path:
        """The config it was made with: of a store alone, and of a round of `uirl evolve`, that of the folder around."""
        places = [folder / "config.yaml" for folder in (self.folder, self.folder.parent)]
        return next((path for path in places if path.is_file()), places[0])

    @property
    def has_store(self) -> bool:
        return self.store_path.is_file()

    @property
    def store(self) -> TrajectoryStore:
        """The trajectories, read-only. Raises StorageError where there are none yet."""
        return self._open()[0]

    @property
    def index(self) -> Index:
        """The index, with the labels as they are now. Raises StorageError where there are no trajectories yet."""
        index = self._open()[1]
        with self._labelling:  # whoever comes while many labels are read waits for them, and shows no old ones
            if self.labels.changed() or not index.labelled:
                index.set_labels({id: label.passed for id, label in self.labels.all().items()})
        return index

    def written(self) -> float:
        """Return when it was written last, in seconds since 1970; 0: never."""
        return max((time for time in self.times() if time is not None), default=0.0)

    def times(self) -> list[float | None]:
        """Return when each of its files was written last; None: it is not there. A log without content says nothing:
        whoever reads a store makes one."""
        log = Path(f"{self.store_path}-wal")
        times = [_modified(path) for path in (self.metrics_path, self.store_path)]
        return [*times, _modified(log) if _size(log) else None]

    @property
    def is_followed(self) -> bool:
        """Whether its files are open, or read as they grow."""
        return self._opened is not None or self.curves.begun

    def count(self) -> int:
        """Return how many trajectories there are. The store is opened for as long as that takes, and only where it was
        written since: a list of very many runs keeps none of their files open. Raises StorageError where it cannot be
        read."""
        state = _state_of(self.store_path)
        if self._counted is None or self._counted[0] != state:
            if state[0] is None:
                return 0
            with TrajectoryStore(self.store_path, read_only=True) as store:
                self._counted = state, store.count()
        return self._counted[1]

    def ends(self) -> tuple[Mapping[str, Any] | None, Sequence[Mapping[str, Any]]]:
        """Return the first row of its metrics (None: there is none) and the newest ones; read where they changed."""
        state = _state_of(self.metrics_path)
        if self._ends is None or self._ends[0] != state:
            self._ends = state, (_first_row(self.metrics_path), newest_rows(self.metrics_path, END))
        return self._ends[1]

    def close(self) -> None:
        """Close what is open. It is opened anew when somebody asks; calling it twice is fine."""
        with self._lock:
            self._close_store()
            self.labels.close()
            self.curves.begun = False

    def _open(self) -> tuple[TrajectoryStore, Index]:
        with self._lock:
            file, written = _state_of(self.store_path)
            if file is None:
                raise StorageError(f"{self.key} has no trajectories yet: {self.store_path.name} is not there")
            if self._opened is not None and self._opened[0] != (file, written if self._opened[1].snapshot else None):
                self._close_store()
            if self._opened is None:
                store = TrajectoryStore(self.store_path, read_only=True)
                try:
                    index = Index(self.store_path)
                except BaseException:
                    store.close()
                    raise
                self._opened = ((file, written if store.snapshot else None), store, index)
            return self._opened[1:]

    def _close_store(self) -> None:
        if self._opened is not None:
            self._opened[1].close()
            self._opened[2].close()
            self._opened = None
            self.vocabulary = Vocabulary(self.folder)


class Runs:
    """The runs under some paths, by key; folders are searched anew each time, as runs begin while somebody looks."""

    def __init__(self, paths: Sequence[str | os.PathLike[str]]) -> None:
        self.paths = [Path(path).resolve() for path in paths]
        self._runs: dict[str, Run] = {}
        self._key_of: dict[Path, str] = {}
        self._lock = threading.Lock()

    def all(self) -> list[Run]:
        """Return the runs that are there now."""
        found = list(dict.fromkeys(path for root in self.paths for path in _runs_under(root)))[:MOST_RUNS]
        with self._lock:
            return [self._run(path) for path in found]

    def get(self, key: str) -> Run | None:
        """Return the run of a key; None: there is none."""
        run = self._runs.get(key)
        if run is None:
            run = {one.key: one for one in self.all()}.get(key)
        return run if run is not None and run.path.exists() else None

    def followed(self) -> list[Run]:
        """Return the runs that somebody looks at; those that nobody asked for in the last `KEPT` seconds are closed."""
        since = time.monotonic() - KEPT
        with self._lock:
            followed = [run for run in self._runs.values() if run.is_followed]
        for run in followed:
            if run.used < since:
                run.close()
        return [run for run in followed if run.is_followed]

    def close(self) -> None:
        """Close every run."""
        for run in list(self._runs.values()):
            run.close()

    def _run(self, path: Path) -> Run:
        if path not in self._key_of:
            key = stem = clean_run_name(_name_of(path, self.paths).replace("/", "."))
            number = 1
            while key in self._runs:
                number += 1
                key = f"{stem}-{number}"
            self._key_of[path] = key
            self._runs[key] = Run(key, path)
        return self._runs[self._key_of[path]]


def describe(run: Run, root_name: str | None = None) -> dict[str, Any]:
    """Return the line of a run in the list. What cannot be read is null, and says why in `problem`."""
    first, newest = run.ends()
    problem = None
    trajectories = 0
    try:
        trajectories = run.count()
    except StorageError as error:
        problem = str(error)
    times = run.times()
    return {
        "key": run.key,
        "path": str(run.path),
        "name": root_name or run.path.name,
        "created": first["time"] if first and "time" in first else _modified(run.directory.config_path),
        "updated": max((moment for moment in times if moment is not None), default=None),
        "live": is_live(run.folder, times),
        "steps": newest[-1]["step"] if newest else 0,
        "trajectories": trajectories,
        "success": _newest(newest, "eval/success", "success"),
        "serve_url": serve_url(run.folder),
        "problem": problem,
    }


def is_live(folder: Path, times: Sequence[float | None] = ()) -> bool:
    """Return whether a process writes to a run now: whether its lock is held. The lock itself is not tried: a run that
    begins at that moment would find it taken."""
    with contextlib.suppress(OSError):
        inode = str((folder / ".lock").stat().st_ino)
        for line in Path("/proc/locks").read_text().splitlines():
            words = line.split()
            if "FLOCK" in words and any(word.rpartition(":")[2] == inode for word in words if word.count(":") == 2):
                return True
    return any(moment is not None and time.time() - moment < WRITING for moment in times)


def serve_url(folder: Path) -> str | None:
    """Return the address of the live view of the run's `uirl serve`, which it writes to `serve.json`; None: there is
    none. Only addresses of pages are believed."""
    try:
        url = json.loads((folder / "serve.json").read_text("utf-8")).get("url")
    except (OSError, ValueError, AttributeError):
        return None
    return url if isinstance(url, str) and url.startswith(("http://", "https://")) else None


def read_text(path: Path, most: int = 1 << 20) -> str:
    """Return the beginning of a text file; empty: it is not there."""
    try:
        with path.open("rb") as file:
            return file.read(most).decode("utf-8", "replace")
    except OSError:
        return ""


def read_object(path: Path) -> dict[str, Any] | None:
    """Return the JSON object of a file; None: there is none."""
    try:
        found = json.loads(read_text(path, 16 << 20))
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _runs_under(root: Path, depth: int = DEPTH) -> Iterator[Path]:
    if root.is_file():
        yield root
        return
    if (root / "config.yaml").is_file() or (root / "trajectories.sqlite").is_file():
        yield root
    yield from (path for path in sorted(root.glob("*.sqlite")) if path.name != "trajectories.sqlite" and is_store(path))
    if depth > 0:
        for folder in _folders(root):
            if folder.name not in ("checkpoints", "tensorboard", "judgements"):
                yield from _runs_under(folder, depth - 1)


def is_store(path: Path) -> bool:
    """Return whether a file is a trajectory store, by the number of the application in SQLite's header."""
    try:
        with path.open("rb") as file:
            header = file.read(72)
    except OSError:
        return False
    return header[68:72] == APPLICATION_ID.to_bytes(4, "big")


def _state_of(store: Path) -> tuple[tuple[int, int] | None, tuple[Any, ...]]:
    """Return which file is at a path (None: none), and how it and, of a store, its log were last written."""
    statuses: list[os.stat_result | None] = []
    for path in (store, Path(f"{store}-wal")):
        try:
            statuses.append(path.stat())
        except OSError:
            statuses.append(None)
    first = statuses[0]
    written = tuple(
        None if one is None or not one.st_size else (one.st_ino, one.st_size, one.st_mtime_ns) for one in statuses
    )
    return (None if first is None else (first.st_dev, first.st_ino)), written


def _folders(root: Path) -> list[Path]:
    try:
        with os.scandir(root) as entries:
            names = [entry.name for entry in entries if entry.is_dir() and not entry.name.startswith(".")]
    except OSError:
        return []
    return [root / name for name in sorted(names)]


def _name_of(path: Path, roots: Sequence[Path]) -> str:
    """Return the path below the folder that was named, or the folder's own name."""
    names = [path.relative_to(root).as_posix() for root in roots if path != root and path.is_relative_to(root)]
    return min(names, key=len, default=path.stem if path.is_file() else path.name)


def _modified(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _first_row(path: Path) -> Mapping[str, Any] | None:
    try:
        with path.open("rb") as file:
            row = json.loads(file.readline(1 << 20))
    except (OSError, ValueError):
        return None
    return row if isinstance(row, dict) else None


def _newest(rows: Sequence[Mapping[str, Any]], *names: str) -> float | None:
    """Return the newest value of the first name that has one."""
    return next((row[name] for name in names for row in reversed(rows) if row.get(name) is not None), None)
