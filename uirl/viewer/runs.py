"""The runs that a viewer shows: found in folders, opened when somebody looks, their indices brought up to date."""

from __future__ import annotations

import logging
import math
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from uirl.errors import StorageError
from uirl.runtime.patience import COMMANDS, Patience
from uirl.storage import RunDirectory, TrajectoryStore, clean_run_name
from uirl.storage.database import APPLICATION_ID
from uirl.storage.labels import FILE, LabelStore
from uirl.storage.summaries import Outcomes
from uirl.viewer.files import closed_to_us, is_file, is_folder, opened, read_text
from uirl.viewer.index import WAIT, Index
from uirl.viewer.metrics import Curves, Ends, ends_of
from uirl.viewer.tokens import Vocabulary

_LOG = logging.getLogger(__name__)
T = TypeVar("T")
DEPTH = 3
"""Folders below the one that was named in which runs are looked for: `runs/<name>/round_00`."""
REFUSED = 10.0
"""Seconds for which a store that could not be read is not tried again for the list of runs; and at least so many times
as long as that took."""
LONGEST_READ = 10.0
"""Seconds that one read of a store may take: that of a million episodes takes one."""
MOST_RUNS = 2000
KEPT = 300.0
"""Seconds after which the files of a run that nobody asks for any more are closed: longer than any answer takes."""
EVERY = 1.0
"""Seconds between looks at the stores of the runs that somebody looks at."""
SLICE, PAUSE = 0.2, 0.05
"""Seconds that an index is built without a pause, and of the pause: questions come first."""
_NO_RUNS = ("checkpoints", "tensorboard", "judgements", "lost+found")
_OF_A_RUN = ("config.yaml", "trajectories.sqlite")
_PLANNED = ("num_epochs", "num_iters_per_epoch")


class Run:
    """One run: its folder, or a trajectory store alone. What is opened stays open; a file that was replaced is opened
    anew."""

    def __init__(self, key: str, path: Path, name: str | None = None, patience: Patience = COMMANDS) -> None:
        """`path`: the run directory, or a store (`uirl eval`); `name`: for people; `patience`: how long a read of its
        databases may take."""
        self.key, self.path, self.name = key, path, name or path.name
        self.is_folder = is_folder(path)
        """Whether it is a run directory; else it is a store alone."""
        self.folder = path if self.is_folder else path.parent
        self.directory = RunDirectory(self.folder)
        self.store_path = self.directory.trajectories_path if self.is_folder else path
        self._patience = patience
        labels = self.folder / FILE if self.is_folder else path.with_name(f"{path.stem}.{FILE}")
        self.labels = LabelStore(labels, patience=patience)
        self.metrics_path = self.directory.metrics_path if self.is_folder else path.with_suffix(".metrics.jsonl")
        self.curves = Curves(self.metrics_path)
        self.vocabulary = Vocabulary(self.folder)
        self.used = time.monotonic()
        """When somebody asked for it last."""
        self._lock, self._labelling = threading.Lock(), threading.Lock()
        self._opened: tuple[tuple[Any, ...], TrajectoryStore, Index] | None = None
        self._counted: tuple[tuple[Any, ...], float, Outcomes | int | StorageError] | None = None
        self._kept: dict[str, tuple[Any, Any]] = {}

    @property
    def config_path(self) -> Path:
        """The config it was made with: of a store alone, and of a round of `uirl evolve`, that of the folder around."""
        places = [folder / "config.yaml" for folder in (self.folder, self.folder.parent)]
        return next((path for path in places if is_file(path)), places[0])

    @property
    def has_store(self) -> bool:
        return is_file(self.store_path)

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

    def times(self) -> list[float | None]:
        """Return when each of its files was written last; None: it is not there. A log without content says nothing:
        whoever reads a store makes one."""
        log = Path(f"{self.store_path}-wal")
        return [modified(self.metrics_path), modified(self.store_path), modified(log, least=1)]

    @property
    def is_followed(self) -> bool:
        """Whether its files are open, or read as they grow."""
        return self._opened is not None or self.curves.begun

    def counted(self, until: float = math.inf) -> Outcomes | int:
        """Return what its trajectories came to, of a store alone, and how many there are of a run. The store is opened
        for as long as that takes, and only where it was written since: a list of very many runs keeps none of their
        files open. Raises StorageError where it cannot be read, or would first be opened after `until`."""
        state = _state_of(self.store_path)
        if state[0] is None:
            return 0
        known = self._counted
        if known is not None and known[0] == state and time.monotonic() < known[1]:
            if isinstance(known[2], StorageError):
                raise known[2]
            return known[2]
        began = time.monotonic()
        if began > until:
            raise StorageError("its episodes are not counted yet, other runs took long; look again in a moment")
        try:
            with TrajectoryStore(self.store_path, read_only=True, wait=WAIT, patience=self._patience) as store:
                found = store.count() if self.is_folder else store.outcomes()
        except StorageError as error:
            now = time.monotonic()
            self._counted = state, now + REFUSED * max(1.0, now - began), error
            raise
        self._counted = state, math.inf, found
        return found

    def ends(self) -> Ends:
        """Return both ends of its metrics. Raises StorageError where they cannot be read."""
        return self._read("ends", self.metrics_path, ends_of)

    def planned(self) -> int | None:
        """Return how many updates its config asks for; None: it does not say. Raises StorageError where the config
        cannot be read."""
        return self._read("planned", self.config_path, _planned) if self.is_folder else None

    def _read(self, name: str, path: Path, read: Callable[[Path], T]) -> T:
        """Return what a file says, read where it changed since."""
        state = _state_of(path)
        if name not in self._kept or self._kept[name][0] != state:
            self._kept[name] = state, read(path)
        found: T = self._kept[name][1]
        return found

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
                store = TrajectoryStore(self.store_path, read_only=True, wait=WAIT, patience=self._patience)
                try:
                    index = Index(self.store_path, patience=self._patience)
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
        self._patience = Patience(LONGEST_READ)
        self._runs: dict[str, Run] = {}
        self._key_of: dict[Path, str] = {}
        self._lock = threading.Lock()

    def all(self) -> list[Run]:
        """Return the runs that are there now."""
        found = list(dict.fromkeys(path for root in self.paths for path in runs_under(root)))[:MOST_RUNS]
        with self._lock:
            return [self._run(path) for path in found]

    def get(self, key: str) -> Run | None:
        """Return the run of a key; None: there is none."""
        run = self._runs.get(key)
        if run is None:
            run = {one.key: one for one in self.all()}.get(key)
        return run if run is not None and os.path.lexists(run.path) else None

    def followed(self) -> list[Run]:
        """Return the runs that somebody looks at; those that nobody asked for in the last `KEPT` seconds are closed."""
        since = time.monotonic() - KEPT
        with self._lock:
            followed = [run for run in self._runs.values() if run.is_followed]
        for run in followed:
            if run.used < since:
                run.close()
        return [run for run in followed if run.is_followed]

    def end(self) -> None:
        """Interrupt what is being read of their databases; nothing is read any more."""
        self._patience.end()

    def close(self) -> None:
        """Close every run."""
        self.end()
        for run in list(self._runs.values()):
            run.close()

    def _run(self, path: Path) -> Run:
        if path not in self._key_of:
            key = stem = clean_run_name(name_of(path, self.paths).replace("/", "."))
            number = 1
            while key in self._runs:
                number += 1
                key = f"{stem}-{number}"
            self._key_of[path] = key
            name = name_of(path, self.paths).removesuffix(".sqlite")
            self._runs[key] = Run(key, path, name, self._patience)
        return self._runs[self._key_of[path]]


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


def modified(path: Path, least: int = 0) -> float | None:
    """Return when a file was written last, in seconds since 1970; None: it is not there, cannot be looked at, or has
    fewer bytes than `least`."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime if status.st_size >= least else None


def _planned(path: Path) -> int | None:
    text = read_text(path)
    counts = [re.search(rf"^  {name}: (\d{{1,12}})$", text, re.MULTILINE) for name in _PLANNED]
    numbers = [int(found[1]) for found in counts if found is not None]
    return math.prod(numbers) if len(numbers) == len(counts) else None


# -- where runs are --------------------------------------------------------------------------------------------------


def runs_under(root: Path, depth: int = DEPTH) -> Iterator[Path]:
    """Return the runs at a path and below it. A folder that this user may not look into may be one: it counts, and
    `closed` says why nothing of it is shown."""
    if is_file(root):
        yield root
        return
    try:
        names = os.listdir(root)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError:
        yield root
        return
    if any(name in names and not is_folder(root / name) for name in _OF_A_RUN):
        yield root
    stores = sorted(name for name in names if name.endswith(".sqlite") and name not in _OF_A_RUN)
    yield from (root / name for name in stores if is_store(root / name))
    if depth > 0:
        for name in sorted(names):
            if not name.startswith(".") and name not in _NO_RUNS and is_folder(root / name):
                yield from runs_under(root / name, depth - 1)


def closed(path: Path) -> StorageError | None:
    """Return why this user may not look into a folder; None: that goes, or it is no folder."""
    try:
        if is_folder(path):
            with os.scandir(path):
                (path / ".").stat()  # to list it asks for r, to look at what stands in it for x
    except OSError as error:
        return closed_to_us(path, error)
    return None


def is_store(path: Path) -> bool:
    """Return whether a file is a trajectory store, by the number of the application in SQLite's header."""
    try:
        with opened(path) as file:
            header = file.read(72)
    except (OSError, StorageError):
        return False
    return header[68:72] == APPLICATION_ID.to_bytes(4, "big")


def name_of(path: Path, roots: Sequence[Path]) -> str:
    """Return the path below the folder that was named, or the folder's own name."""
    names = [path.relative_to(root).as_posix() for root in roots if path != root and path.is_relative_to(root)]
    return min(names, key=len, default=path.stem if is_file(path) else path.name)


# -- what follows them -----------------------------------------------------------------------------------------------


class Indexing:
    """A thread that keeps the indices of the runs that somebody looked at up to date."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._stopped = threading.Event()
        self._failed: set[str] = set()
        self._not_before: dict[str, float] = {}
        """Key of a run that could not be read -> when it is tried again: later, the longer that took."""
        self._thread = threading.Thread(target=self._follow, name="uirl-view-index", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, and wait for the end."""
        self._stopped.set()
        self._thread.join(10)

    def _follow(self) -> None:
        while not self._stopped.is_set():
            busy = [self._work_on(run) for run in self._runs.followed()]
            self._stopped.wait(PAUSE if any(busy) else EVERY)

    def _work_on(self, run: Run) -> bool:
        """Bring one index further; return whether there is more to do."""
        began = time.monotonic()
        if began < self._not_before.get(run.key, 0.0):
            return False
        try:
            more = run.curves.begun and run.curves.catch_up(SLICE)
            if not run.has_store:
                return more
            index = run.index
            index.catch_up(SLICE)
            return index.read_words(SLICE) or more
        except StorageError:  # gone, locked or being replaced: the page that asks is told, and a later look tries again
            now = time.monotonic()
            self._not_before[run.key] = now + 10 * (now - began)
            return False
        except Exception:  # one run must not end the index of all others
            if run.key not in self._failed:
                self._failed.add(run.key)
                _LOG.exception("the index of %s cannot be brought up to date; its list may lack what is new", run.key)
            return False
