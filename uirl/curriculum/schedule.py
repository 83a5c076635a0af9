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

    The shares of empty levels go to the others in proportion. No level gets more than `oversampling` times its share of
    the tasks, so that a level of one task is not played over and over; what is over goes to the others too. Where only
    levels without a share have tasks, these are drawn as often as they have tasks. Empty where there are no tasks.
    """
    total = sum(tasks.values())
    sizes = {level: count / total for level, count in tasks.items() if count}
    open_levels = {level: mix[level] for level in sizes if mix.get(level, 0.0) > 0} or dict(sizes)
    capped: dict[str, float] = {}
    while open_levels:
        scale = (1 - sum(capped.values())) / sum(open_levels.values())
        over = {
            n: oversampling * sizes[n] for n, share in open_levels.items() if share * scale > oversampling * sizes[n]
        }
        if not over:
            return capped | {level: share * scale for level, share in open_levels.items()}
        capped |= over
        open_levels = {level: share for level, share in open_levels.items() if level not in over}
    left = sum(capped.values())  # every level is at its cap: the caps decide
    return {level: share / left for level, share in capped.items()}
