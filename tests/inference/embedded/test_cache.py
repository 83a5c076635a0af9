"""Rows of the attention cache change places: few of them one by one, many at once, and only what was written."""

import random

import pytest
import torch

from uirl.inference.embedded.cache import FEW, SlotCache

ROWS, WRITTEN, LENGTH = 2 * FEW + 2, 5, 64


def filled() -> SlotCache:
    """A cache of one layer in which the first tokens of all rows are written."""
    cache = SlotCache(torch.device("cpu"))
    cache.reserve(ROWS, LENGTH)
    rows = torch.arange(ROWS).repeat_interleave(WRITTEN)
    columns = torch.arange(WRITTEN).repeat(ROWS)
    valid = torch.ones(ROWS, WRITTEN, dtype=torch.bool)
    cache.aim(slice(0, ROWS), rows, columns, valid, WRITTEN)
    cache.update(torch.randn(ROWS, 2, WRITTEN, 3), torch.randn(ROWS, 2, WRITTEN, 3), 0)
    return cache


def held(cache: SlotCache) -> torch.Tensor:
    cache.aim(slice(0, ROWS), torch.tensor([0]), torch.tensor([WRITTEN]), None, WRITTEN)
    return torch.stack([pool[:ROWS, :, :WRITTEN] for pool in (cache._keys[0], cache._values[0])], 1).clone()


@pytest.mark.parametrize("count", [1, 2, FEW, FEW + 1, ROWS])
def test_moves_are_done_all_at_once(count: int) -> None:
    for seed in range(20):
        draw = random.Random(seed)
        cache = filled()
        before = held(cache)
        moves = dict(zip(draw.sample(range(ROWS), count), draw.sample(range(ROWS), count), strict=True))
        cache.move(moves)
        expected = before.clone()
        for source, target in moves.items():
            expected[target] = before[source]
        assert torch.equal(held(cache), expected), moves


def test_what_was_not_written_is_not_moved() -> None:
    cache = filled()
    cache._keys[0][3, :, WRITTEN:] = 7.0
    cache.move({3: 4})
    assert not cache._keys[0][4, :, WRITTEN:].any()
    assert torch.equal(cache._keys[0][4, :, :WRITTEN], cache._keys[0][3, :, :WRITTEN])


def test_rows_that_grow_token_by_token_are_seldom_copied() -> None:
    cache, lengths = SlotCache(torch.device("cpu")), set()
    for length in range(1, 20_000):
        cache.reserve(4, length)
        lengths.add(cache.length)
        assert length <= cache.length <= length * 9 / 8 + 64
    assert len(lengths) < 60


def test_near_the_limit_rows_grow_by_what_still_fits() -> None:
    cache, lengths = SlotCache(torch.device("cpu"), max_tokens=16 * 1100), set()
    for length in range(1000, 1089, 8):
        cache.reserve(16, length)
        lengths.add(cache.length)
    assert lengths == {1024, 1088}
