"""Rows of the cache change places without losing what they hold."""

from __future__ import annotations

import random

from uirl.inference.embedded.scheduler import rows_for_admission, rows_for_retirement


def test_admission_rows_are_contiguous_and_lose_nothing() -> None:
    rng = random.Random(0)
    for _ in range(300):
        running = rng.randint(0, 5)
        kept = rng.sample(range(running, running + 12), rng.randint(0, 8))
        returning = rng.sample(kept, rng.randint(0, len(kept)))
        mine = [*returning, *[None] * rng.randint(0 if returning else 1, 4)]
        rng.shuffle(mine)
        others = set(kept) - set(returning)
        rows, moves = rows_for_admission(running, mine, others)
        assert sorted(rows) == list(range(running, running + len(mine)))
        for row, before in zip(rows, mine, strict=True):
            assert before is None or moves.get(before, before) == row
        after = [moves.get(row, row) for row in others]
        assert not set(after) & set(rows)
        assert len(set(after)) == len(after)
        assert min(after, default=running) >= running


def test_retirement_closes_the_gap_by_exchange() -> None:
    # rows 0..4 running, 1 and 4 finish: row 3 takes the place of row 1, which takes row 3
    assert rows_for_retirement([0, 2, 3], [1, 4]) == {3: 1, 1: 3}
