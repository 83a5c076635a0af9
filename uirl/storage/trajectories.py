"""The trajectory store: everything that happened in a run, in one SQLite file that others may read while it grows."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from uirl.errors import StorageError
from uirl.images import ImageStore, Screenshot, screenshot
from uirl.runtime.patience import COMMANDS, Patience
from uirl.runtime.sqlite import transaction
from uirl.storage.database import WAIT, connect, database_errors
from uirl.storage.learned import KINDS, Learned, LearnedTokens, decode_learned, encode_learned
from uirl.storage.records import (
    TurnRow,
    decode_header,
    decode_turn,
    encode_header,
    encode_turn,
    expected,
    plain,
    with_verdict,
)
from uirl.storage.summaries import (
    COLUMNS,
    READ_SUMMARY,
    SUMMARY,
    Outcomes,
    TrajectorySummary,
    in_columns,
    outcomes_of,
    settle_silent,
    speakers_of,
    summary_of,
)
from uirl.success import is_silent, mark_unsolved, speaks
from uirl.types import Trajectory, Turn, Verdict

Rows = Sequence[tuple[Any, ...]]
TURN = "CAST(record AS TEXT), CAST(context_ids AS BLOB), CAST(response_ids AS BLOB), CAST(log_probs AS BLOB)"
"""Columns of a `TurnRow`."""


class TrajectoryStore:
    """Trajectories with their screenshots, each image once, read back exactly as they were stored.

    Tuples in free mappings (`info`, `checks`, arguments) come back as lists, array scalars as Python numbers. One
    process writes (any of its threads), any number read. What `add` or `add_many` has returned from survives a kill.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        read_only: bool = False,
        keep_images: bool = True,
        origin: Mapping[str, Any] | None = None,
        wait: float = WAIT,
        patience: Patience = COMMANDS,
    ) -> None:
        """Open the file at `path`.

        Args:
            path: The SQLite file, made where it is missing.
            read_only: For a process that only reads; the file must exist.
            keep_images: Store the bytes of screenshots; false: their hashes alone, which then stand in the
                observations that `get` returns.
            origin: Where what is added now comes from, as plain data: versions of software, the model. None: nobody
                says.
            wait: Seconds for which it waits where another process holds the file.
            patience: How long a read may take with `read_only`.

        Raises:
            StorageError: The file cannot be opened, is something else, or was written by a later version.
        """
        self.path = Path(path)
        self._keep_images = keep_images
        self._origin = None if origin is None else json.dumps(plain(origin, "the origin"), sort_keys=True)
        self._lock = threading.RLock()
        self._connection = connect(self.path, read_only=read_only, wait=wait, patience=patience)
        self._speakers: set[str] | None = None
        """None: not looked up yet."""

    @property
    def snapshot(self) -> bool:
        """Whether this is the store as it was when it was opened, since its folder cannot be written."""
        return self._connection.snapshot

    @property
    def speakers(self) -> set[str]:
        """Environments that report success, as far as this store has seen (`uirl.success`)."""
        with self._lock, database_errors(f"cannot read {self.path}", self._connection):
            if self._speakers is None:
                self._speakers = speakers_of(self._connection)
            return set(self._speakers)

    def hear(self, environments: Iterable[str]) -> None:
        """Take these environments as ones that say what success is: their episodes that ended without a word are
        unsolved from now on, those that are stored already too. Committed on return."""
        with self._lock, database_errors(f"cannot write {self.path}"):
            fresh = set(environments) - self.speakers
            with transaction(self._connection):
                settle_silent(self._connection, fresh)
            self._speakers = self.speakers | fresh

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
        heard = {one.task.environment for one in trajectories if speaks(one)}
        speakers = self.speakers | heard
        for trajectory in trajectories:
            turns.append([_turn_row(trajectory, i, pictures, wanted) for i in range(len(trajectory.turns))])
            summary = TrajectorySummary.of(trajectory, int(step), split, speakers)
            final = () if trajectory.final is None else trajectory.final.images
            named = _hashes(final, pictures, wanted, f"trajectory {trajectory.id}: final")
            headers.append((*in_columns(summary), encode_header(trajectory, named)))
        with self._lock, database_errors(f"cannot store trajectories in {self.path}"):
            if self._keep_images:
                self._find(wanted - pictures.keys(), pictures, images)
            self._write(headers, turns, pictures if self._keep_images else {}, int(step))
            self.hear(heard)

    def get(self, id: str, *, pictures: bool = True, tokens: bool = True) -> Trajectory:
        """Return the trajectory as it was stored, unsolved where `hear` has made it so; with `pictures=False` the
        hashes of its pictures stand in their place, with `tokens=False` its turns have no ids and no log-probs, so that
        a long episode costs little memory. Raises `StorageError` for an unknown id."""
        picture: Callable[[str], Screenshot | str] = self._picture if pictures else str
        with self._lock, database_errors(f"cannot read {self.path}", self._connection):
            query = "SELECT number, record, success FROM trajectories WHERE id = ?"
            row = self._connection.execute(query, (id,)).fetchone()
            if row is None:
                raise self._unknown(id)
            columns = TURN if tokens else "CAST(record AS TEXT), x'', x'', x''"
            turns = self._connection.execute(
                f"SELECT {columns} FROM turns WHERE trajectory = ? ORDER BY position", (row[0],)
            ).fetchall()
            with self._damage(id):
                found = decode_header(row[1], [decode_turn(turn, picture) for turn in turns], picture)
            if row[2] is not None and is_silent(found):
                mark_unsolved(found)
            return found

    def turn(self, id: str, index: int) -> Turn | None:
        """Return one turn of a trajectory as it was stored, hashes in place of its pictures; None: it has fewer turns.
        Raises `StorageError` for an unknown id."""
        with self._lock, database_errors(f"cannot read {self.path}", self._connection):
            row = self._connection.execute(
                f"SELECT {TURN} FROM turns WHERE trajectory = ? AND position = ?", (self._number(id), index)
            ).fetchone()
            with self._damage(id):
                return None if row is None else decode_turn(row, str)

    def count_turns(self, id: str) -> int:
        """Return how many turns of a trajectory are stored. Raises `StorageError` for an unknown id."""
        with self._lock, database_errors(f"cannot read {self.path}", self._connection):
            query = "SELECT count(*) FROM turns WHERE trajectory = ?"
            return int(self._connection.execute(query, (self._number(id),)).fetchone()[0])

    def set_verdict(self, id: str, verdict: Verdict) -> None:
        """Replace the verdict of a stored trajectory, committed on return: judged later, it is found by what was found
        then. Raises `StorageError` for an unknown id."""
        with self._lock, database_errors(f"cannot store a verdict in {self.path}"), transaction(self._connection):
            row = self._connection.execute("SELECT record FROM trajectories WHERE id = ?", (id,)).fetchone()
            if row is None:
                raise self._unknown(id)
            self._connection.execute(
                "UPDATE trajectories SET record = ?, success = ?, verdict = ? WHERE id = ?",
                (with_verdict(row[0], verdict), verdict.passed, verdict.passed, id),
            )

    def add_learned(self, learned: Iterable[LearnedTokens], *, step: int, version: int) -> None:
        """Store what update `step` made of stored trajectories, all in one transaction, committed on return.

        `version`: of the learner's weights when it began. Raises StorageError for a trajectory that is not stored.
        """
        rows = [(one.trajectory_id, (int(step), int(version), *encode_learned(one))) for one in learned]
        places = ", ".join("?" * (2 + len(KINDS)))
        query = f"INSERT OR REPLACE INTO learned SELECT number, {places} FROM trajectories WHERE id = ?"
        what = f"cannot store the learner's figures in {self.path}"
        with self._lock, database_errors(what), transaction(self._connection):
            for id, values in rows:
                if not self._connection.execute(query, (*values, id)).rowcount:
                    raise self._unknown(id)

    def learned(self, id: str) -> dict[int, Learned]:
        """Return turn -> what the newest update that learned from the trajectory made of it; empty: none did, or its
        figures were not kept. Raises StorageError for an unknown id."""
        columns = ", ".join(KINDS)
        with self._lock, database_errors(f"cannot read {self.path}", self._connection):
            number = self._number(id)
            row = self._connection.execute(
                f"SELECT step, version, {columns} FROM learned WHERE trajectory = ? ORDER BY step DESC LIMIT 1",
                (number,),
            ).fetchone()
            if row is None:
                return {}
            counts = self._connection.execute(
                "SELECT length(response_ids) / 4 FROM turns WHERE trajectory = ? ORDER BY position", (number,)
            ).fetchall()
        return decode_learned(row[0], row[1], row[2:], [count for (count,) in counts])

    def origin(self, id: str) -> dict[str, Any] | None:
        """Return where a trajectory comes from (versions of software, the model); None: it was not recorded. Raises
        StorageError for an unknown id."""
        with self._lock, database_errors(f"cannot read {self.path}", self._connection):
            row = self._connection.execute(
                "SELECT record FROM origins WHERE number = (SELECT origin FROM trajectories WHERE number = ?)",
                (self._number(id),),
            ).fetchone()
        return None if row is None else self._origin_in(row[0])

    def origins(self) -> Sequence[dict[str, Any]]:
        """Return every origin of a trajectory in this store, the oldest first: a run that is resumed may have
        several."""
        with self._lock, database_errors(f"cannot read {self.path}", self._connection):
            rows = self._connection.execute("SELECT record FROM origins ORDER BY number").fetchall()
        return [self._origin_in(record) for (record,) in rows]

    def image(self, hash: str) -> bytes:
        """Return the encoded picture with this hash. Raises `StorageError` where it was not kept."""
        with self._lock, database_errors(f"cannot read {self.path}", self._connection):
            picture = self._picture(hash)
        if isinstance(picture, str):
            raise StorageError(
                f"there is no image {hash!r} in {self.path}; were screenshots kept (logging.store_images)?"
            )
        return picture.data

    def head_of_image(self, hash: str, count: int) -> bytes | None:
        """Return the first `count` bytes of a picture without reading the others; None: it was not kept."""
        with self._lock, database_errors(f"cannot read {self.path}", self._connection):
            row = self._connection.execute("SELECT rowid FROM images WHERE hash = ?", (hash,)).fetchone()
            if row is None:
                return None
            with self._connection.blobopen("images", "data", row[0], readonly=True) as blob:
                return blob.read(count)

    def list(
        self,
        *,
        step: int | None = None,
        split: str | None = None,
        success: bool | None = None,
        task_id: str | None = None,
        group_id: str | None = None,
        level: str | None = None,
        limit: int | None = None,
        newest_first: bool = False,
    ) -> Sequence[TrajectorySummary]:
        """Return summaries of the trajectories that fit every condition given, in the order they were stored."""
        where, values = _conditions(
            step=step, split=split, success=success, task_id=task_id, group_id=group_id, level=level
        )
        order = "DESC" if newest_first else "ASC"
        query = f"SELECT {READ_SUMMARY} FROM trajectories{where} ORDER BY number {order} LIMIT ?"
        with self._lock, database_errors(f"cannot read {self.path}", self._connection):
            rows = self._connection.execute(query, (*values, -1 if limit is None else limit)).fetchall()
        return [summary_of(row) for row in rows]

    def __iter__(self) -> Iterator[Trajectory]:
        """Return every trajectory, oldest first, one in memory at a time."""
        for summary in self.list():
            yield self.get(summary.id)

    def count(self, *, step: int | None = None, split: str | None = None, success: bool | None = None) -> int:
        """Return how many trajectories fit every condition given."""
        where, values = _conditions(step=step, split=split, success=success)
        with self._lock, database_errors(f"cannot read {self.path}", self._connection):
            return int(self._connection.execute(f"SELECT count(*) FROM trajectories{where}", values).fetchone()[0])

    def outcomes(self) -> Outcomes:
        """Return what all trajectories came to, in numbers."""
        with self._lock, database_errors(f"cannot read {self.path}", self._connection):
            return outcomes_of(self._connection)

    def truncate_after(self, step: int) -> int:
        """Remove the trajectories of later steps, with the images that only they show and what later updates learned,
        and return how many: a run that resumes after `step` collects them again."""
        with self._lock, database_errors(f"cannot remove trajectories from {self.path}"), transaction(self._connection):
            self._connection.execute(
                "DELETE FROM turns WHERE trajectory IN (SELECT number FROM trajectories WHERE step > ?)", (step,)
            )
            self._connection.execute(
                "DELETE FROM learned WHERE step > ? OR trajectory IN (SELECT number FROM trajectories WHERE step > ?)",
                (step, step),
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
            places, origin = ", ".join("?" * (len(COLUMNS) + 3)), self._number_of_origin()
            self._connection.executemany(
                f"INSERT INTO trajectories (number, origin, {SUMMARY}, record) VALUES ({places})",
                [(first + i, origin, *row) for i, row in enumerate(headers)],
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

    def _number_of_origin(self) -> int | None:
        if self._origin is None:
            return None
        self._connection.execute("INSERT OR IGNORE INTO origins (record) VALUES (?)", (self._origin,))
        row = self._connection.execute("SELECT number FROM origins WHERE record = ?", (self._origin,)).fetchone()
        return int(row[0])

    def _number(self, id: str) -> int:
        row = self._connection.execute("SELECT number FROM trajectories WHERE id = ?", (id,)).fetchone()
        if row is None:
            raise self._unknown(id)
        return int(row[0])

    def _origin_in(self, record: Any) -> dict[str, Any]:
        try:
            return expected(dict, json.loads(record), "an origin")
        except (ValueError, TypeError, RecursionError) as error:
            raise StorageError(f"an origin in {self.path} is damaged: {error}; the episodes are readable") from error

    @contextlib.contextmanager
    def _damage(self, id: str) -> Iterator[None]:
        """Turn whatever decoding a record raises into a `StorageError` that names the trajectory."""
        try:
            yield
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            raise StorageError(
                f"the record of trajectory {id!r} in {self.path} is damaged ({type(error).__name__}: {error}); "
                "the others are still readable"
            ) from error

    def _unknown(self, id: str) -> StorageError:
        return StorageError(f"there is no trajectory {id!r} in {self.path}; list() shows what there is")

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
        row = self._connection.execute("SELECT CAST(data AS BLOB) FROM images WHERE hash = ?", (hash,)).fetchone()
        return hash if row is None else Screenshot(row[0] or b"", hash)


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
