"""The tokens of one turn with every figure that is known of them, and how sure the model was of where it clicked."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from uirl.storage import Learned
from uirl.types import Turn
from uirl.viewer.marks import Point, numbers_written, pairs_written, to_pixel
from uirl.viewer.pictures import Fed

_NUMBER = re.compile(r"(?<![\w.])-?\d++(?:\.\d++)?(?![\d.]*\d)")  # gives nothing back: linear for every reply


@dataclass(frozen=True, slots=True)
class Coordinate:
    """A number of a place, as it stands in the tokens of a reply."""

    start: int
    stop: int
    """Tokens from `start` to before `stop`."""
    axis: str
    """'x' or 'y'."""
    value: float
    probability: float
    """That these tokens are sampled one behind the other: exp of the sum of their log-probs."""

    def to_dict(self) -> dict[str, Any]:
        """Return what the page is answered."""
        return {name: getattr(self, name) for name in self.__slots__}


def tokens_of(
    turns: Sequence[Turn],
    index: int,
    texts: Callable[[Sequence[int], Sequence[int]], list[str] | None],
    figures: Learned | None = None,
    *,
    context: bool = False,
) -> list[dict[str, Any]]:
    """Return the tokens of a turn, those that it was fed first where `context` asks for them.

    Args:
        turns: Of the episode.
        index: Of one of them.
        texts: (ids before, ids) -> the text of each id; None: there is no tokenizer.
        figures: What the newest update made of the turn; None: nothing.
        context: The tokens that were fed since the reply before, too.
    """
    turn = turns[index]
    fed = _plain(turn.context_ids, texts(_before(turns, index), turn.context_ids)) if context else []
    words = texts(turn.context_ids, turn.response_ids)
    columns = {"log_prob": turn.rollout_log_probs or None} | _learned(turn, figures)
    sampled = []
    for i, id in enumerate(turn.response_ids):
        values = {name: None if column is None else _finite(column[i]) for name, column in columns.items()}
        sampled.append({"id": id, "text": None if words is None else words[i], "mask": 1, **values})
    return [*fed, *sampled]


FIGURES = ("log_prob", "learner_log_prob", "advantage", "ratio", "gap", "entropy", "weight")


def _learned(turn: Turn, figures: Learned | None) -> dict[str, Any]:
    if figures is None:
        return dict.fromkeys(FIGURES[1:])
    return {
        "learner_log_prob": figures.log_probs,
        "advantage": figures.advantages,
        "ratio": figures.ratio(turn),
        "gap": figures.gap(turn),
        "entropy": figures.entropies,
        "weight": figures.weights,
    }


def _plain(ids: Sequence[int], words: list[str] | None) -> list[dict[str, Any]]:
    nothing = dict.fromkeys(FIGURES)
    return [{"id": id, "text": None if words is None else words[i], "mask": 0, **nothing} for i, id in enumerate(ids)]


def _before(turns: Sequence[Turn], index: int) -> Sequence[int]:
    starts = index == 0 or turns[index].starts_segment
    return () if starts else turns[index - 1].response_ids


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


# -- where it clicked, and how sure it was ---------------------------------------------------------------------------


def coordinates_of(turn: Turn, words: Sequence[str] | None) -> list[Coordinate]:
    """Return the coordinates of the turn's calls in its tokens, x and y of each place in turn; those that are not found
    are left out.

    A number counts where it has the value of the coordinate and stands behind its name (`"x":`, `<parameter=x>`); a
    pair where its numbers stand beside each other behind its name (`"coordinate": [`) or, where they never do, behind
    none. The last such place in the reply counts: the call ends it.
    """
    if words is None or len(turn.rollout_log_probs) != len(turn.response_ids):
        return []
    text, starts = "".join(words), _starts(words)
    found = []
    for axis, value, span in _spans(text, [call.arguments for call in turn.action.tool_calls]):
        start, stop = _tokens_between(starts, *span)
        probability = math.exp(min(0.0, math.fsum(turn.rollout_log_probs[start:stop])))
        found.append(Coordinate(start, stop, axis, value, probability))
    return found


Span = tuple[int, int]
"""Characters from here to before there."""
_BESIDE = re.compile(r"[\"'\s]*+,?[\"'\s]*+")
"""What stands between the numbers of a pair."""


def _spans(text: str, calls: Sequence[Mapping[str, Any]]) -> list[tuple[str, float, Span]]:
    """Return (axis, value, characters) of the coordinates in the arguments of `calls` that stand in `text`."""
    numbers = list(_NUMBER.finditer(text))
    found: list[tuple[str, float, Span]] = []
    end = len(text)
    for arguments in reversed(calls):
        for name, (x, y) in reversed(pairs_written(arguments)):
            pair = _last_pair(text, numbers, name, (x, y), end)
            if pair is not None:
                found += [("y", y, pair[1]), ("x", x, pair[0])]
                end = pair[0][0]
        for name, axis, value in reversed(numbers_written(arguments)):
            behind = [one for one in numbers if _equals(one, value) and _is_named(text, one.start(), name)]
            if behind:
                found.append((axis, value, behind[-1].span()))
    return found[::-1]


def _last_pair(
    text: str, numbers: Sequence[re.Match[str]], name: str, place: Point, end: int
) -> tuple[Span, Span] | None:
    """Return where x and y of the last such pair before `end` stand, one behind `name` before all others."""
    pairs = [
        (x, y)
        for x, y in itertools.pairwise(numbers)
        if _equals(x, place[0]) and _equals(y, place[1]) and _BESIDE.fullmatch(text, x.end(), y.start())
    ]
    named = [pair for pair in pairs if _is_named(text, pair[0].start(), name, opening=r"\s*[\[(]\s*")]
    behind = named or [pair for pair in pairs if pair[1].end() <= end]
    return (behind[-1][0].span(), behind[-1][1].span()) if behind else None


def _is_named(text: str, start: int, name: str, opening: str = r"\s*") -> bool:
    """Return whether `name` and a sign stand before the character `start`."""
    pattern = rf"(?<!\w){name}(?:[\"']?\s*[:=]|>){opening}[\"']?$"
    return re.search(pattern, text[max(0, start - 60) : start]) is not None


def _equals(written: re.Match[str], value: float) -> bool:
    return math.isclose(float(written[0]), value, abs_tol=1e-9)


def heat_of(
    coordinates: Sequence[Coordinate], picture: Fed | None, at: int | None, grid: int | None
) -> dict[str, Any] | None:
    """Return the heat patch of the first place, in pixels of the fed picture; None: there is none.

    The radius is the standard deviation of the normal distribution that puts the probability of the sampled number on
    that number: sigma = 1 / (sqrt(2 pi) p) units of the coordinate. It is a guess from one sample: the probabilities of
    the other numbers are not recorded.
    """
    pair = next(((x, y) for x, y in _pairs(coordinates)), None)
    if pair is None or picture is None or picture.raw_size is None:
        return None
    x, y = pair
    place = to_pixel((x.value, y.value), picture.raw_size, grid)
    if place is None:
        return None
    spread = [
        _sigma(one.probability) * (1 if grid is None else side / grid)
        for one, side in zip(pair, picture.raw_size, strict=True)
    ]
    radius = [min(one, float(side)) for one, side in zip(spread, picture.raw_size, strict=True)]
    middle, corner = picture.to_fed([place, (place[0] + radius[0], place[1] + radius[1])])
    rx, ry = abs(corner[0] - middle[0]), abs(corner[1] - middle[1])
    return {
        "image": at,
        "x": middle[0],
        "y": middle[1],
        "radius": math.sqrt(rx * ry),
        "radius_x": rx,
        "radius_y": ry,
        "probability": x.probability * y.probability,
    }


def _sigma(probability: float) -> float:
    return 1 / (math.sqrt(2 * math.pi) * max(probability, 1e-6))


def _pairs(coordinates: Sequence[Coordinate]) -> Iterator[tuple[Coordinate, Coordinate]]:
    for first, second in itertools.pairwise(coordinates):
        if (first.axis, second.axis) == ("x", "y"):
            yield first, second


def _starts(words: Sequence[str]) -> list[int]:
    starts, at = [], 0
    for word in words:
        starts.append(at)
        at += len(word)
    return [*starts, at]


def _tokens_between(starts: Sequence[int], begin: int, end: int) -> tuple[int, int]:
    """Return the tokens that hold the characters from `begin` to `end`."""
    inside = [i for i in range(len(starts) - 1) if starts[i] < end and starts[i + 1] > begin]
    return inside[0], inside[-1] + 1
