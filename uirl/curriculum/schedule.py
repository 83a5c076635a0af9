"""The mix of the levels: how it moves over a run, and how much of it a level can take."""

from __future__ import annotations

from collections.abc import Mapping

from uirl.curriculum.levels import LEVELS


def progress_of(value: float, start: float, end: float) -> float:
    """Return how far `value` is on the way from `start` to `end`, within [0, 1]. Raises ValueError for no way."""
    if not end > start:
        raise ValueError(f"expected end above start, got {start} to {end}")
    return min(1.0, max(0.0, (value - start) / (end - start)))


def mixed(initial: Mapping[str, float], final: Mapping[str, float], progress: float) -> dict[str, float]:
    """Return level -> share: `initial` at a progress of 0, `final` at 1, between them a weighted mean. Both are made to
    sum to 1 first; a level that is left out has 0."""
    ends = [{level: mix.get(level, 0.0) / sum(mix.values()) for level in LEVELS} for mix in (initial, final)]
    return {level: (1 - progress) * ends[0][level] + progress * ends[1][level] for level in LEVELS}


def shares(mix: Mapping[str, float], tasks: Mapping[str, int], oversampling: float) -> dict[str, float]:
    """Return level -> share of the draws, summing to 1, for the levels that have tasks.

    No level gets more than `oversampling` times its share of the tasks, so that a level of one task is not played over
    and over. What is over, and the share of an empty level, goes to the nearest level with room; of two equally near
    ones to the one nearer to a success of 1/2, since there is more to learn. Where only levels without a share have
    tasks, these are drawn as often as they have tasks. Empty where there are no tasks.
    """
    total = sum(tasks.values())
    sizes = {level: count / total for level, count in tasks.items() if count}
    if not any(mix.get(level, 0.0) > 0 for level in sizes):
        return sizes
    room = {level: oversampling * sizes[level] for level in sizes if mix.get(level, 0.0) > 0}
    given, whole = dict.fromkeys(room, 0.0), sum(mix.values())
    left = {level: share / whole for level, share in mix.items() if share > 0}
    for wave in range(len(LEVELS)):  # each level keeps what it has room for before others hand theirs on
        for level in left:
            for other in _by_nearness(level)[: wave + 1]:
                part = min(left[level], room.get(other, 0.0))
                if part > 0:
                    given[other], room[other], left[level] = given[other] + part, room[other] - part, left[level] - part
    taken = sum(given.values())  # below 1 where every level is at its cap: the caps decide
    return {level: share / taken for level, share in given.items()}


def _by_nearness(level: str) -> list[str]:
    """Return all levels, the nearest to `level` first."""
    order = list(LEVELS)
    middle, at = (len(order) - 1) / 2, order.index(level)
    return sorted(order, key=lambda other: (abs(order.index(other) - at), abs(order.index(other) - middle)))
