"""Which sequences may be padded to one length: the rule for micro-batches, and for the replies of a packed row."""

from __future__ import annotations

from collections.abc import Sequence

PADDING_SHARE = 0.1
"""Of the tokens of a run; with less, sequences of unlike lengths would be more runs."""
PADDING_TOKENS = 256
"""What a run more costs anyway, in tokens."""


def runs_of_like_length(lengths: Sequence[int], budget: float = float("inf")) -> list[list[int]]:
    """Return `lengths`, which fall, in runs that are padded to their first: a run has at most `budget` tokens, and at
    most `PADDING_SHARE` of them is padding, or `PADDING_TOKENS` where that is more. A longer sequence is alone."""
    runs: list[list[int]] = []
    padding = 0
    for length in lengths:
        size = (len(runs[-1]) + 1) * runs[-1][0] if runs else 0
        padding += runs[-1][0] - length if runs else 0
        if not runs or size > budget or padding > max(PADDING_TOKENS, PADDING_SHARE * size):
            runs.append([])
            padding = 0
        runs[-1].append(length)
    return runs
