"""Rows of the KV cache: what one holds, and how they change places when sequences come and go. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from itertools import takewhile

from uirl.images import Screenshot
from uirl.inference.base import GenerationRequest

ImageSpans = Callable[[Sequence[int], Sequence[Screenshot]], Sequence[tuple[int, int]]]
"""(prompt ids, images) -> the places [start, end) of each image's placeholders."""


@dataclass(slots=True)
class FilledRow:
    """What a turn left in its row, or has there so far."""

    row: int
    ids: tuple[int, ...]
    said: tuple[int, ...]
    """These, and what the turn sampled after them."""
    images: tuple[str, ...]
    """Hashes of the pictures, in order."""
    prompts: tuple[int, int]
    """`opening` and `prompt` of the sequence that filled it."""
    shares: bool
    """All of it was computed by the weights that sample now: others may copy it."""
    next_position: int
    """Rotary position of the token that follows."""


def goes_on(kept: FilledRow, request: GenerationRequest) -> bool:
    """Return whether a request continues all that the row's turn fed and sampled, in one sample with it."""
    return not request.starts_segment and request.prompt_ids[: len(kept.said)] == kept.said


def reusable(kept: FilledRow, ids: Sequence[int], images: Sequence[Screenshot], image_spans: ImageSpans | None) -> int:
    """Return how many leading tokens of a row serve a prompt: at most all but its last, never a part of a picture, and
    no picture that is another one now. `image_spans`: None for a text model."""
    n = min(len(kept.ids), len(ids) - 1)
    if ids[:n] != kept.ids[:n]:
        n = next(i for i in range(n) if ids[i] != kept.ids[i])
    if image_spans is None or not images:
        return n
    pairs = zip(images, kept.images, strict=False)
    same = sum(1 for _ in takewhile(lambda pair: pair[0].hash == pair[1], pairs))
    if n == len(kept.ids) and same == len(kept.images):
        return n  # it goes on from there, and every picture of a row has ended
    for number, (start, end) in enumerate(image_spans(ids, images)):
        if start < n and (number >= same or end > n):
            return start
    return n


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
