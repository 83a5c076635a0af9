"""The trajectory store: everything that happened in a run, in one SQLite file that others may read while it grows."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, Self

from uirl.errors import StorageError
from uirl.images import ImageStore, Screenshot, screenshot
from uirl.storage.database import connect, database_errors, transaction
from uirl.storage.records import TurnRow, decode_header, decode_turn, encode_header, encode_turn, with_verdict
from uirl.types import Trajectory, Turn, Verdict

Rows = Sequence[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class TrajectorySummary:
    """One line about a stored trajectory, for lists and choices."""

    id: str
    step: int
    """Update of the run that it was collected for."""
    split: str
    created: float
    """When it was stored, in seconds since 1970."""
    task_id: str
    environment: str
    group_id: str
    stop_reason: str | None
    reward: float | None
    """Total reward; None: it was NaN."""
    success: bool | None
    """None: nobody said."""
    failure: str | None
    """Kind of the failure; None: the episode is evidence."""
    turns: int

    @staticmethod
    def of(trajectory: Trajectory, step: int, split: str) -> TrajectorySummary:
        """Return the line about a trajectory that is stored now."""
        reward = trajectory.total_reward()
        return TrajectorySummary(
            id=trajectory.id,
            step=step,
            split=split,
            created=time.time(),
            task_id=trajectory.task.id,
            environment=trajectory.task.environment,
            group_id=trajectory.group_id,
            stop_reason=trajectory.stop_reason,
            reward=reward if reward == reward else None,
            success=trajectory.success,
            failure=trajectory.failure.kind if trajectory.failure else None,
            turns=len(trajectory.turns),
        )


_COLUMNS = tuple(field.name for field in fields(TrajectorySummary))
_IN_COLUMNS = attrgetter(*_COLUMNS)  # `astuple` would copy what is nested
_SUMMARY = ", ".join(_COLUMNS)


class TrajectoryStore:
    """Trajectories with their screenshots, each image once, read back exactly as they were stored.

    Tuples in free mappings (`info`, `checks`, arguments) come back as lists, array scalars as Python numbers. One
    process writes (any of its threads), any number read. What `add` or `add_many` has returned from survives a kill.
    """

    def __init__(self, path: str | os.PathLike[str], *, read_only: bool = False, keep_images: bool = True) -> None:
        """Open the file at `path`.

        Args:
            path: The SQLite file, made where it is missing.
            read_only: For a process that only reads; the file must exist.
            keep_images: Store the bytes of screenshots; false: their hashes alone, which then stand in the
                observations that `get` returns.

        Raises:
            StorageError: The file cannot be opened, is something else, or has another schema version.
        """
        self.path = Path(path)
        self._keep_images = keep_images
        self._lock = threading.RLock()
        self._connection = connect(self.path, read_only=read_only)

    def add(self, trajectory: Trajectory, *, step: int, split: str = "train", images: ImageStore | None = None) -> None:
        """Store one trajectory, committed on return. See `add_many`."""
        self.add_many([trajectory], step=step, split=split, images=images)

    def add_many(
        self, trajectories: Sequence[Trajectory], *, step: int, split: str = "train", images: ImageStore | None = None
    ) -> None:
        """Store all of them in one transaction, committed on return; on an error, none.

        Args:
            trajectories: Finished episodes, failures included.
            step: Update they were collected for; `truncate_after` goes by it.
            split: 'train', 'eval', 'demo', ...
            images: Where to find images that turns name by hash and do not carry.

        Raises:
            StorageError: A value that cannot be stored, an image that is nowhere, an id that is stored already, a full
                disk. What was stored before is untouched.
        """
        pictures: dict[str, bytes] = {}
        wanted: set[str] = set()
        headers, turns = [], []
        for trajectory in trajectories:
            turns.append([_turn_row(trajectory, i, pictures, wanted) for i in range(len(trajectory.turns))])
            summary = TrajectorySummary.of(trajectory, int(step), split)
            final = () if trajectory.final is None else trajectory.final.images
            named = _hashes(final, pictures, wanted, f"trajectory {trajectory.id}: final")
            headers.append((*_IN_COLUMNS(summary), encode_header(trajectory, named)))
        with self._lock, database_errors(f"cannot store trajectories in {self.path}"):
            if self._keep_images:
                self._find(wanted - pictures.keys(), pictures, images)
            self._write(headers, turns, pictures if self._keep_images else {}, int(step))

    def get(self, id: str) -> Trajectory:
        """Return the trajectory as it was stored. Raises `StorageError` for an unknown id."""
        with self._lock, database_errors(f"cannot read {self.path}"):
            row = self._connection.execute("SELECT number, record FROM trajectories WHERE id = ?", (id,)).fetchone()
            if row is None:
                raise StorageError(f"there is no trajectory {id!r} in {self.path}; list() shows what there is")
            turns = self._connection.execute(
                "SELECT record, context_ids, response_ids, log_probs FROM turns WHERE trajectory = ? ORDER BY position",
                (row[0],),
            ).fetchall()
            return decode_header(row[1], [decode_turn(turn, self._picture) for turn in turns], self._picture)

    def set_verdict(self, id: str, verdict: Verdict) -> None:
        """Replace the verdict of a stored trajectory, committed on return: judged later, it is found by what was found
        then. Raises `StorageError` for an unknown id."""
        with self._lock, database_errors(f"cannot store a verdict in {self.path}"), transaction(self._connection):
            row = self._connection.execute("SELECT record FROM trajectories WHERE id = ?", (id,)).fetchone()
            if row is None:
                raise StorageError(f"there is no trajectory {id!r} in {self.path}; list() shows what there is")
            self._connection.execute(
                "UPDATE trajectories SET record = ?, success = ? WHERE id = ?",
                (with_verdict(row[0], verdict), verdict.passed, id),
            )

    def image(self, hash: str) -> bytes:
        """Return the encoded picture with this hash. Raises `StorageError` where it was not kept."""
        with self._lock, database_errors(f"cannot read {self.path}"):
            picture = self._picture(hash)
        if isinstance(picture, str):
            raise StorageError(
                f"there is no image {hash!r} in {self.path}; were screenshots kept (logging.store_images)?"
            )
        return picture.data

    def list(
        self,
        *,
        step: int | None = None,
        split: str | None = None,
        success: bool | None = None,
        task_id: str | None = None,
        group_id: str | None = None,
        limit: int | None = None,
        newest_first: bool = False,
    ) -> Sequence[TrajectorySummary]:
        """Return summaries of the trajectories that fit every condition given, in the order they were stored."""
        where, values = _conditions(step=step, split=split, success=success, task_id=task_id, group_id=group_id)
        order = "DESC" if newest_first else "ASC"
        query = f"SELECT {_SUMMARY} FROM trajectories{where} ORDER BY number {order} LIMIT ?"
        with self._lock, database_errors(f"cannot read {self.path}"):
            rows = self._connection.execute(query, (*values, -1 if limit is None else limit)).fetchall()
        summaries = [TrajectorySummary(*row) for row in rows]
        return [one if one.success is None else replace(one, success=bool(one.success)) for one in summaries]

    def __iter__(self) -> Iterator[Trajectory]:
        """Return every trajectory, oldest first, one in memory at a time."""
        for summary in self.list():
            yield self.get(summary.id)

    def count(self, *, step: int | None = None, split: str | None = None, success: bool | None = None) -> int:
        """Return how many trajectories fit every condition given."""
        where, values = _conditions(step=step, split=split, success=success)
        with self._lock, database_errors(f"cannot read {self.path}"):
            return int(self._connection.execute(f"SELECT count(*) FROM trajectories{where}", values).fetchone()[0])

    def truncate_after(self, step: int) -> int:
        """Remove the trajectories of later steps, with the images that only they show, and return how many: a run that
        resumes after `step` collects them again."""
        with self._lock, database_errors(f"cannot remove trajectories from {self.path}"), transaction(self._connection):
            self._connection.execute(
                "DELETE FROM turns WHERE trajectory IN (SELECT number FROM trajectories WHERE step > ?)", (step,)
            )
            self._connection.execute("DELETE FROM images WHERE step > ?", (step,))
            return self._connection.execute("DELETE FROM trajectories WHERE step > ?", (step,)).rowcount

    def copy_to(self, path: str | os.PathLike[str]) -> None:
        """Write a store with everything that is in this one to `path`, where no file may be yet."""
        target = Path(path)
        if target.exists():
            raise StorageError(f"{target} exists already; choose another path for the copy")
        with self._lock, database_errors(f"cannot copy {self.path} to {target}"):
            copy = sqlite3.connect(target)
            try:
                self._connection.backup(copy)
            finally:
                copy.close()

    def close(self) -> None:
        """Close the file. Calling it twice is fine."""
        with self._lock:
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _find(self, wanted: set[str], pictures: dict[str, bytes], images: ImageStore | None) -> None:
        """Put the bytes of images that no turn carries into `pictures`; those stored earlier need none."""
        for hash in sorted(wanted):
            stored = self._connection.execute("SELECT 1 FROM images WHERE hash = ?", (hash,)).fetchone()
            if stored is not None:
                continue
            try:
                if images is None:
                    raise KeyError("no image store was given")
                pictures[hash] = images.get(hash).data
            except KeyError as error:
                raise StorageError(
                    f"a turn names the image {hash}, which it does not carry: {error.args[0]}; pass the image store of "
                    "the episode as images="
                ) from None

    def _write(self, headers: Rows, turns: Sequence[Sequence[TurnRow]], pictures: dict[str, bytes], step: int) -> None:
        with transaction(self._connection):
            first = self._connection.execute("SELECT coalesce(max(number), 0) + 1 FROM trajectories").fetchone()[0]
            self._refuse_stored([row[0] for row in headers])
            places = ", ".join("?" * (len(_COLUMNS) + 2))
            self._connection.executemany(
                f"INSERT INTO trajectories (number, {_SUMMARY}, record) VALUES ({places})",
                [(first + i, *row) for i, row in enumerate(headers)],
            )
            self._connection.executemany(
                "INSERT INTO turns VALUES (?, ?, ?, ?, ?, ?)",
                [(first + i, at, *row) for i, rows in enumerate(turns) for at, row in enumerate(rows)],
            )
            self._connection.executemany(
                "INSERT INTO images VALUES (?, ?, ?) ON CONFLICT (hash) DO UPDATE SET step = excluded.step "
                "WHERE excluded.step < images.step",
                [(hash, step, data) for hash, data in pictures.items()],
            )

    def _refuse_stored(self, ids: Sequence[str]) -> None:
        seen: set[str] = set()
        for id in ids:
            row = self._connection.execute("SELECT step FROM trajectories WHERE id = ?", (id,)).fetchone()
            if row is not None or id in seen:
                raise StorageError(
                    f"trajectory {id!r} is stored already{f' (step {row[0]})' if row else ''}; every episode needs "
                    "an id of its own, and a resumed run calls truncate_after(step) first"
                )
            seen.add(id)

    def _picture(self, hash: str) -> Screenshot | str:
        row = self._connection.execute("SELECT data FROM images WHERE hash = ?", (hash,)).fetchone()
        return hash if row is None else Screenshot(bytes(row[0]), hash)


def _turn_row(trajectory: Trajectory, index: int, pictures: dict[str, bytes], wanted: set[str]) -> TurnRow:
    """Return the row of a turn; the bytes it carries go into `pictures`, the hashes it only names into `wanted`."""
    turn: Turn = trajectory.turns[index]
    where = f"trajectory {trajectory.id}: turns[{index}]"
    hashes = _hashes(turn.observation.images, pictures, wanted, f"{where}.observation")
    wanted.update(turn.context_images)
    return encode_turn(turn, hashes, where)


def _hashes(images: Sequence[Any], pictures: dict[str, bytes], wanted: set[str], where: str) -> Sequence[str]:
    """Return the hashes of an observation's pictures: bytes that it carries go into `pictures`, the others into
    `wanted`."""
    hashes = []
    for picture in images:
        if isinstance(picture, str):
            wanted.add(picture)
            hashes.append(picture)
            continue
        try:
            image = screenshot(picture)
        except TypeError as error:
            raise StorageError(f"{where}.images: {error}") from error
        pictures[image.hash] = image.data
        hashes.append(image.hash)
    return hashes


def _conditions(**wanted: Any) -> tuple[str, tuple[Any, ...]]:
    conditions = {name: value for name, value in wanted.items() if value is not None}
    where = " AND ".join(f"{name} = ?" for name in conditions)
    return (f" WHERE {where}" if where else ""), tuple(conditions.values())
