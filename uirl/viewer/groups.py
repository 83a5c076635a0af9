"""The siblings of a group side by side: aligned by what they saw, with the turns at which failed ones left the way."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

from uirl.errors import StorageError
from uirl.images import Screenshot
from uirl.runtime.limits import InputError
from uirl.types import Observation, Trajectory
from uirl.verification.fork import ForkFinder, screens_of_turns
from uirl.verification.similarity import ScreenMatch, ScreenMatcher, difference_hash
from uirl.viewer.runs import Run

MOST_MEMBERS = 64
MOST_TURNS = 200
"""Turns of one member that are aligned."""
Same = Callable[[Observation, Observation], bool]


class Screens(ForkFinder):
    """Compares what siblings saw, like `ForkFinder`, with an answer at once for most pairs: equal hashes are the same
    picture, and perceptual hashes far apart are not. Those are kept while the run is open."""

    def __init__(self, run: Run) -> None:
        match = ScreenMatch()
        super().__init__(ScreenMatcher(match), run.store.image)
        self._store, self._hashes, self._distance = run.store, run.index.perceptual, match.hash_distance
        self._known: dict[tuple[Any, ...], bool] = {}

    def same(self, a: Observation, b: Observation) -> bool:
        if a.state_key is None or b.state_key is None:
            if a.text != b.text or len(a.images) != len(b.images):
                return False
            if any(self._apart(x, y) for x, y in zip(a.images, b.images, strict=True)):
                return False
        pair = (id(a), id(b))
        if pair not in self._known:
            self._known[pair] = super().same(a, b)
        return self._known[pair]

    def hash(self, picture: str) -> int | None:
        """Return the perceptual hash of a picture; None: it was not kept, or is none."""
        if picture not in self._hashes:
            try:
                self._hashes[picture] = difference_hash(Screenshot(self._store.image(picture), picture).open())
            except (StorageError, InputError):
                self._hashes[picture] = None
        return self._hashes[picture]

    def _apart(self, a: str, b: str) -> bool:
        if a == b:
            return False
        first, second = self.hash(a), self.hash(b)
        return first is None or second is None or (first ^ second).bit_count() > self._distance


def group(run: Run, group_id: str) -> dict[str, Any] | None:
    """Return the first members of a group with their turns, the columns in which equal screens stand (and between them
    what only one of them saw), and where failed members left the way of successful ones; `count` and `solved` are of
    all members. None: there is no such group."""
    every = run.store.list(group_id=group_id)
    rows = every[:MOST_MEMBERS]
    if not rows:
        return None
    # under an id that links take
    members = [replace(run.store.get(row.id, pictures=False, tokens=False), id=row.id) for row in rows]
    screens = Screens(run)
    seen = [screens_of_turns(one)[:MOST_TURNS] for one in members]
    aligned = align(seen, screens.same)
    places = packed(aligned)
    forks = find_forks(members, screens, places)
    width = 1 + max((column for one in places for column in one), default=-1)
    columns: list[dict[str, int | None]] = [dict.fromkeys(one.id for one in members) for _ in range(width)]
    for one, mine in zip(members, places, strict=True):
        for index, column in enumerate(mine):
            columns[column][one.id] = index
    seen_in: list[set[int]] = [set() for _ in range(width)]
    for new, old in zip(itertools.chain(*places), itertools.chain(*aligned), strict=True):
        seen_in[new].add(old)
    first = min((fork["column"] for fork in forks), default=None)
    pairs = [[fork["failed"], fork["successful"]] for fork in forks]
    return {
        "group_id": rows[0].group_id,
        "task_id": rows[0].task_id,
        "count": len(every),
        "solved": sum(row.success is True for row in every),
        "members": [_member(run, one, screens) for one in members],
        "fork": None if first is None else {"step": first, "pairs": pairs},
        "forks": forks,
        "columns": [
            {"screens": column, "same": len(screen) == 1} for column, screen in zip(columns, seen_in, strict=True)
        ],
    }


def align(seen: Sequence[Sequence[Observation]], same: Same) -> list[list[int]]:
    """Return for each member the column of each of its screens, growing from left to right.

    Members are laid upon the columns of those before them, so that as many screens as possible stand in a column of the
    same screen (longest common subsequence); a screen that no column has makes one of its own.
    """
    columns: list[Observation] = []
    places: list[list[int]] = []
    for screens in seen:
        matched = _common(screens, columns, same)
        merged: list[tuple[int | None, int | None]] = []
        at = 0
        for index in range(len(screens)):
            column = matched.get(index)
            if column is not None:
                merged += [(None, left) for left in range(at, column)]
                merged.append((index, column))
                at = column + 1
            else:
                merged.append((index, None))
        merged += [(None, left) for left in range(at, len(columns))]
        moved = {old: new for new, (_, old) in enumerate(merged) if old is not None}
        places = [[moved[column] for column in mine] for mine in places]
        places.append([new for new, (index, _) in enumerate(merged) if index is not None])
        columns = [columns[old] if old is not None else screens[index or 0] for index, old in merged]
    return places


def packed(places: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the columns of `align` with those that only one member has pushed together: between two columns of screens
    that several saw, as many as one member needs. Sixteen that part would else stand in hundreds of columns."""
    seen_by = Counter(column for mine in places for column in mine)
    owner = {column: member for member, mine in enumerate(places) for column in mine}
    moved: dict[int, int] = {}
    free, further = 0, dict.fromkeys(range(len(places)), 0)  # free columns: of all, and of each member
    for column in sorted(seen_by):
        if seen_by[column] > 1:
            moved[column] = max(free, *further.values())
            free = moved[column] + 1
        else:
            moved[column] = max(free, further[owner[column]])
            further[owner[column]] = moved[column] + 1
    return [[moved[column] for column in mine] for mine in places]


def _common(screens: Sequence[Observation], columns: Sequence[Observation], same: Same) -> dict[int, int]:
    """Return index of a screen -> column of the same screen, in order, as many as can be. Of equally many the earliest
    screens count: siblings begin together."""
    n, m = len(screens), len(columns)
    best = [[0] * (m + 1) for _ in range(n + 1)]
    equal = [[same(a, b) for b in columns] for a in screens]
    for i in reversed(range(n)):
        for j in reversed(range(m)):
            best[i][j] = best[i + 1][j + 1] + 1 if equal[i][j] else max(best[i + 1][j], best[i][j + 1])
    found, i, j = {}, 0, 0
    while i < n and j < m:
        if equal[i][j]:
            found[i] = j
            i, j = i + 1, j + 1
        elif best[i + 1][j] >= best[i][j + 1]:
            i += 1
        else:
            j += 1
    return found


def find_forks(
    members: Sequence[Trajectory], finder: ForkFinder, places: Sequence[Sequence[int]]
) -> list[dict[str, Any]]:
    """Return where each failed member left the way of a successful one: `at` and `other` are the turns of both,
    `column` is where they stand."""
    successes = [one for one in members if one.failure is None and one.success is True]
    forks = []
    for one, mine in zip(members, places, strict=True):
        failed = one.success is False and one.failure is None
        fork = finder.find(one, successes) if failed else None
        if fork is not None and fork.at < len(mine):
            both = {"failed": one.id, "successful": fork.successful, "at": fork.at, "other": fork.other}
            forks.append({**both, "column": mine[fork.at]})
    return forks


def _member(run: Run, one: Trajectory, screens: Screens) -> dict[str, Any]:
    label = run.labels.get(one.id)
    advantages = [value for turn in run.store.learned(one.id).values() for value in turn.advantages]
    return {
        "id": one.id,
        "success": one.success,
        "reward": one.total_reward(),
        "advantage": math.fsum(advantages) / len(advantages) if advantages else None,
        "verdict": None if one.verdict is None else asdict(one.verdict),
        "failure": None if one.failure is None else asdict(one.failure),
        "stop_reason": one.stop_reason,
        "label": None if label is None else label.to_dict(),
        "turns": [
            _turn(turn.observation, i, screens, turn.action.text, turn.reward)
            for i, turn in enumerate(one.turns[:MOST_TURNS])
        ],
        "played": len(one.turns),
        "final": None if one.final is None else _turn(one.final, len(one.turns), screens, "", 0.0),
    }


def _turn(seen: Observation, index: int, screens: Screens, text: str, reward: float) -> dict[str, Any]:
    shown = screens.hash(seen.images[-1]) if seen.images else None
    return {
        "index": index,
        "hash": None if shown is None else f"{shown:016x}",
        "action_text": text,
        "observation_text": seen.text,
        "images": list(seen.images),
        "reward": reward,
    }
