"""How rows of the KV cache change places when sequences come and go. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence, Set


def rows_for_admission(running: int, kept: Sequence[int | None], others: Set[int]) -> tuple[list[int], dict[int, int]]:
    """Return (row of each admitted sequence, moves) so that the admitted take rows [running, running + len(kept)).

    `kept`: the row that each admitted sequence kept, None where it has none; `others`: rows that waiting episodes
    keep, which make way. Moves are {from: to}, all at once.
    """
    region = range(running, running + len(kept))
    rows = [row if row is not None and row in region else -1 for row in kept]
    free = [row for row in region if row not in rows]
    moves: dict[int, int] = {}
    vacated: list[int] = []
    for i, row in enumerate(kept):
        if rows[i] < 0:
            rows[i] = free.pop(0)
            if row is not None:
                moves[row] = rows[i]
                vacated.append(row)
    spare = (row for row in range(region.stop, region.stop + len(others) + len(kept) + 1) if row not in others)
    taken = {row for row in vacated if row >= region.stop}
    for row in sorted(r for r in others if r in region):
        moves[row] = vacated.pop() if vacated else next(r for r in spare if r not in taken)
    return rows, moves


def rows_for_retirement(remaining: Sequence[int], finished: Sequence[int]) -> dict[int, int]:
    """Return the moves {from: to} that close the running rows: sequences beyond the new end exchange rows with
    finished ones before it."""
    end = len(remaining)
    beyond = [row for row in remaining if row >= end]
    before = [row for row in finished if row < end]
    return dict(zip(beyond, before, strict=True)) | dict(zip(before, beyond, strict=True))


def rows_side_by_side(rows: Sequence[int], first: int) -> list[int]:
    """Return where `rows` go so that they take [first, first + len(rows)); those that are there stay."""
    end = first + len(rows)
    free = (row for row in range(first, end) if row not in rows)
    return [row if row < end else next(free) for row in rows]
