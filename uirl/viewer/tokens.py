"""The tokens of one turn: their text, what is known of each, and how sure the model was of where it clicked."""

from __future__ import annotations

import itertools
import math
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uirl.errors import StorageError
from uirl.storage import Learned
from uirl.types import Turn
from uirl.viewer.files import read_text
from uirl.viewer.marks import Point, numbers_written, pairs_written, to_pixel
from uirl.viewer.pictures import Fed

LARGEST = 256 << 20
"""Bytes of a tokenizer file that is read."""
WINDOW = 6
"""Tokens before a token that are decoded with it."""
LONGEST_CHARACTER = 4
"""Tokens of one character at most, that of a byte each."""
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
    tokens: list[dict[str, Any]] = []
    if context:
        starts = index == 0 or turn.starts_segment
        before = () if starts else turns[index - 1].response_ids
        words = texts(before, turn.context_ids)
        nothing = dict.fromkeys(FIGURES)
        tokens = [{"id": id, "text": None if words is None else words[i], "mask": 0, **nothing}
                  for i, id in enumerate(turn.context_ids)]  # fmt: skip
    words = texts(turn.context_ids, turn.response_ids)
    columns: list[Any] = [turn.rollout_log_probs or None, *[None] * (len(FIGURES) - 1)]
    if figures is not None:
        columns[1:] = figures.log_probs, figures.advantages, figures.ratio(turn), figures.gap(turn)
        columns[5:] = figures.entropies, figures.weights
    for i, id in enumerate(turn.response_ids):
        values = [None if column is None or not math.isfinite(column[i]) else float(column[i]) for column in columns]
        text = None if words is None else words[i]
        tokens.append({"id": id, "text": text, "mask": 1, **dict(zip(FIGURES, values, strict=True))})
    return tokens


FIGURES = ("log_prob", "learner_log_prob", "advantage", "ratio", "gap", "entropy", "weight")


# -- where it clicked, and how sure it was ---------------------------------------------------------------------------


def coordinates_of(turn: Turn, words: Sequence[str] | None) -> list[Coordinate]:
    """Return the coordinates of the turn's calls in its tokens, x and y of each place in turn; those that are not found
    are left out.

    A number counts where it has the value of the coordinate and stands behind its name (`"x":`, `<parameter=x>`); a
    pair where its numbers stand beside each other behind its name (`"coordinate": [`) or, where they never do, behind
    none; so do numbers whose names are nowhere (`click(123, 45)`). The last such place in the reply counts: the call
    ends it.
    """
    if words is None or len(turn.rollout_log_probs) != len(turn.response_ids):
        return []
    text, starts = "".join(words), [0, *itertools.accumulate(map(len, words))]
    found = []
    for axis, value, span in _spans(text, [call.arguments for call in turn.action.tool_calls]):
        inside = [i for i in range(len(words)) if starts[i] < span[1] and starts[i + 1] > span[0]]
        start, stop = inside[0], inside[-1] + 1
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
        written = numbers_written(arguments)
        named = {
            name: [one for one in numbers if _equals(one, value) and _is_named(text, one.start(), name)]
            for name, _, value in written
        }
        for name, axis, value in reversed(written):
            if named[name]:
                found.append((axis, value, named[name][-1].span()))
        for (x, _, left), (y, _, top) in reversed([*zip(written[::2], written[1::2], strict=False)]):
            pair = None if named[x] or named[y] else _last_pair(text, numbers, "coordinate", (left, top), end)
            if pair is not None:
                found += [("y", top, pair[1]), ("x", left, pair[0])]
                end = pair[0][0]
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
    pairs = itertools.pairwise(coordinates)
    pair = next((one for one in pairs if [each.axis for each in one] == ["x", "y"]), None)
    if pair is None or picture is None or picture.raw_size is None:
        return None
    x, y = pair
    place = to_pixel((x.value, y.value), picture.raw_size, grid)
    if place is None:
        return None
    spread = [
        1 / (math.sqrt(2 * math.pi) * max(one.probability, 1e-6)) * (1 if grid is None else side / grid)
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


# -- their text --------------------------------------------------------------------------------------------------------


class Vocabulary:
    """The tokenizer of a run, looked for when it is first asked for, and again until there is one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._tokenizer: Any = None

    def texts(self, context: Sequence[int], ids: Sequence[int]) -> list[str] | None:
        """Return the text of each of `ids`, which stand behind `context`; None: there is no tokenizer.

        A character that several tokens make stands with the last of them, and the others are empty. An id that the
        tokenizer does not know is empty too.
        """
        tokenizer = self._find()
        if tokenizer is None:
            return None
        known = tokenizer.get_vocab_size(with_added_tokens=True)
        # what stands before decides whether a word begins with a space
        before = [id for id in list(context)[-WINDOW:] if 0 <= id < known]
        told = [id if 0 <= id < known else None for id in ids]
        return _texts(tokenizer.decode, before, told)

    def _find(self) -> Any:
        with self._lock:
            if self._tokenizer is None:
                self._tokenizer = next((t for p in self._places() if (t := _read(p)) is not None), None)
            return self._tokenizer

    def _places(self) -> list[Path]:
        """Return the files that may hold it: of the newest checkpoint, of a run around this one (a round of `uirl
        evolve`), of the model that the config names."""
        folders = [self._folder, *self._folder.parents[:1]]
        places = []
        for folder in folders:
            steps = sorted((folder / "checkpoints").glob("step_*/policy/tokenizer.json"), reverse=True)
            places += steps[:2]
        return places + [Path(name) / "tokenizer.json" for folder in folders for name in _models_of(folder)]


def _models_of(folder: Path) -> list[str]:
    """Return the model folders that the config of a run names, as they can be reached from here."""
    try:
        text = read_text(folder / "config.yaml")
    except StorageError:
        return []
    names = re.findall(r"^  (?:local_path|model_name): ['\"]?([^'\"\n#]+?)['\"]?\s*$", text, re.MULTILINE)
    paths = [Path(name) for name in names if name not in ("null", "~")]
    found = [
        path if path.is_absolute() else base / path for path in paths for base in (Path.cwd(), *folder.parents[:2])
    ]
    return [str(path) for path in found]


def _read(path: Path) -> Any:
    from tokenizers import Tokenizer

    try:
        if not 0 < path.stat().st_size <= LARGEST:
            return None
        return Tokenizer.from_file(str(path))
    except Exception:  # the library raises nothing more exact for a file that is no tokenizer
        return None


def _texts(decode: Callable[..., str], before: Sequence[int], ids: Sequence[int | None]) -> list[str]:
    """Return what each of `ids` adds to the text of those before it."""
    window, texts = list(before), []
    begun = len(window)  # from here on tokens wait for the rest of their character
    for id in ids:
        if id is None:
            texts.append("")
            continue
        window.append(id)
        earlier = decode(window[:begun], skip_special_tokens=False)
        whole = decode(window, skip_special_tokens=False)
        added = whole[len(earlier) :]
        if added.endswith("\ufffd") and len(window) - begun < LONGEST_CHARACTER:
            texts.append("")
            continue
        texts.append(added)
        window = window[-WINDOW:]
        begun = len(window)
    return texts
