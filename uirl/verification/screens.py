"""Which screenshots of an episode a judge sees, and how large: a hundred of 1080 x 2400 pixels fit no request."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

from uirl.images import Screenshot
from uirl.runtime.limits import InputError
from uirl.verification.evidence import Evidence


@dataclass(frozen=True, slots=True)
class ScreenLimits:
    """How many screenshots a judge sees, and of which size."""

    key: int = 6
    """With the verdict."""
    looked_at: int = 24
    """To choose the key ones from."""
    batch: int = 8
    """In one request of the choice."""
    size: int = 1280
    """Longest side of a key screenshot, in pixels."""
    thumbnail: int = 512
    """Longest side where they are chosen."""


MOST_BYTES = 2**20
"""Of a picture that is sent as it was captured: six PNGs of 1280 x 1280 pixels may take 30 MB, as JPEG 2 MB."""


@dataclass(frozen=True, slots=True)
class Screen:
    """One screenshot of an episode."""

    number: int
    """Turns before it, from 0."""
    image: Screenshot


@dataclass(slots=True)
class ScreenCounts:
    """What became of the screenshots of one episode."""

    taken: int = 0
    repeated: int = 0
    """The same picture as another one."""
    missing: int = 0
    """Not kept, or no picture."""
    left_out: int = 0
    """Never shown to the judge."""
    shrunk: int = 0
    """Shown with fewer pixels or, as JPEG, with fewer bytes."""


def screens_of(evidence: Evidence, limits: ScreenLimits, counts: ScreenCounts) -> list[Screen]:
    """Return the screenshots from which the key ones are chosen, in their order: different ones, at most
    `limits.looked_at`, evenly spaced, with the last one always."""
    record = evidence.trajectory
    named = [(i, image) for i, turn in enumerate(record.turns) for image in turn.observation.images[-1:]]
    if record.final is not None:
        named += [(len(record.turns), image) for image in record.final.images[-1:]]
    counts.taken = len(named)
    newest: dict[str, tuple[int, object]] = {}
    for number, image in named:
        newest.pop(_hash(image), None)  # of equal ones the last: what stood there in the end
        newest[_hash(image)] = (number, image)
    different = sorted(newest.values(), key=lambda pair: pair[0])
    counts.repeated = counts.taken - len(different)
    chosen = spaced(different, limits.looked_at)
    counts.left_out = len(different) - len(chosen)
    found = [(number, evidence.picture(image)) for number, image in chosen]
    screens = [Screen(number, image) for number, image in found if image is not None]
    counts.missing += len(found) - len(screens)
    return screens


def spaced(items: Sequence[tuple[int, object]], count: int) -> list[tuple[int, object]]:
    """Return at most `count` of the items, evenly spaced, first and last among them (of one: the last)."""
    if len(items) <= count:
        return list(items)
    if count == 1:
        return [items[-1]]
    return [items[round(i * (len(items) - 1) / (count - 1))] for i in range(count)]


def shown_at(screen: Screen, size: int, counts: ScreenCounts) -> bytes | None:
    """Return the encoded picture with its longest side at most `size` pixels; None: it is no picture, which counts as
    missing."""
    try:
        width, height = screen.image.read_size()
        if max(width, height) <= size and len(screen.image.data) <= MOST_BYTES:
            screen.image.open()  # what cannot be decoded is not sent on
            return screen.image.plain()
        picture = screen.image.open()
    except InputError:
        counts.missing += 1
        return None
    from PIL import Image

    counts.shrunk += 1
    scale = min(1.0, size / max(width, height))
    picture = picture.resize((max(1, round(width * scale)), max(1, round(height * scale))), Image.Resampling.BILINEAR)
    buffer = io.BytesIO()
    picture.save(buffer, format="JPEG", quality=88)
    return buffer.getvalue()


def key_screens(screens: Sequence[Screen], scores: dict[int, int], count: int) -> list[Screen]:
    """Return the `count` screens of the highest scores, in their order, the last one always; of equal scores the
    later."""
    ranked = sorted(screens[:-1], key=lambda screen: (scores.get(screen.number, 0), screen.number), reverse=True)
    return sorted([*ranked[: count - 1], *screens[-1:]], key=lambda screen: screen.number)


def _hash(image: object) -> str:
    return image if isinstance(image, str) else getattr(image, "hash", None) or repr(id(image))
