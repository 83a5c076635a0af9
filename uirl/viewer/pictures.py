"""Pictures of an episode: what the environment showed, and what the model was fed."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

from uirl.errors import StorageError
from uirl.images import Screenshot, media_type
from uirl.runtime.limits import InputError
from uirl.storage import TrajectoryStore, fed_picture
from uirl.types import PictureTransform, Turn

Size = tuple[int, int]
HEAD = 4096
"""Bytes of a picture that are read for its size."""
SMALL = (280, 144)
"""Width and height of a small picture, in pixels: twice those of the strip."""


@dataclass(frozen=True, slots=True)
class Fed:
    """One picture of a turn, and what became of it on the way into the model."""

    hash: str
    raw_size: Size | None
    """None: the picture was not kept, or is none."""
    transform: PictureTransform | None = None
    """None: nobody recorded it, and the picture is shown as it was."""

    @property
    def fed_size(self) -> Size | None:
        return self.raw_size if self.transform is None else self.transform.fed_size

    def to_fed(self, places: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
        """Return pixels of the raw picture as pixels of the fed one: the place of their middles."""
        if self.transform is None:
            return list(places)
        moved = [self.transform.to_fed(x + 0.5, y + 0.5) for x, y in places]
        return [(x - 0.5, y - 0.5) for x, y in moved]


class Sizes:
    """Sizes of the pictures of one store, each header read once."""

    def __init__(self, store: TrajectoryStore) -> None:
        self._store = store
        self._known: dict[str, Size | None] = {}

    def of(self, hash: str) -> Size | None:
        """Return width and height; None: the picture was not kept, or is none."""
        if hash not in self._known:
            try:
                self._known[hash] = self._read(hash)
            except (StorageError, InputError):
                self._known[hash] = None
        return self._known[hash]

    def _read(self, hash: str) -> Size | None:
        head = self._store.head_of_image(hash, HEAD)
        if head is None:
            return None
        try:
            return Screenshot(head, hash).read_size()
        except InputError:  # the header is longer (a JPEG with a preview), or the decoder wants all of it (WebP)
            return Screenshot(self._store.image(hash), hash).read_size()


class StoredTurns(Sequence[Turn]):
    """The turns of one stored trajectory, each read when it is first asked for: one turn of a long episode is cheap."""

    def __init__(self, store: TrajectoryStore, id: str, count: int) -> None:
        self._store, self._id, self._count = store, id, count
        self._read: dict[int, Turn] = {}

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Turn: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Turn]: ...
    def __getitem__(self, index: int | slice) -> Turn | Sequence[Turn]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._count))]
        if index not in self._read:
            if not 0 <= index < self._count:
                raise IndexError(f"got turn {index}, the trajectory has {self._count}")
            turn = self._store.turn(self._id, index)
            if turn is None:
                raise StorageError(f"turn {index} of trajectory {self._id!r} is missing; the others are still readable")
            self._read[index] = turn
        return self._read[index]


def fed_pictures(turns: Sequence[Turn], index: int, sizes: Sizes) -> list[Fed]:
    """Return the pictures that the turn `index` put before the model: those whose placeholders stand in its context;
    of a turn without any those that were shown, as an earlier turn may have fed them already."""
    turn = turns[index]
    hashes = turn.context_images or tuple(turn.observation.images)
    known = _transforms(turns, index, set(hashes))
    return [Fed(hash, sizes.of(hash), known.get(hash)) for hash in hashes]


def _transforms(turns: Sequence[Turn], index: int, wanted: set[str]) -> dict[str, PictureTransform | None]:
    """Return what is recorded of the way into the model of the wanted pictures, in the turn itself or before it: back
    to where its segment begins, or to where all are known."""
    known: dict[str, PictureTransform | None] = {}
    for turn in map(turns.__getitem__, range(index, -1, -1)):
        for hash, transform in zip(turn.context_images, turn.pictures, strict=False):
            known.setdefault(hash, transform)
        if turn.starts_segment or known.keys() >= wanted:
            break
    return known


def fed_data(store: TrajectoryStore, fed: Fed) -> bytes:
    """Return the picture that the model was fed: as it was stored where it was fed as it is, else as a PNG. Raises
    StorageError where the raw one was not kept, and InputError where it cannot be decoded, or is not the one that was
    fed."""
    data = store.image(fed.hash)
    if fed.transform is None and media_type(data).startswith("image/"):
        return data
    picture = Screenshot(data, fed.hash).open()
    if fed.transform is not None:
        try:
            picture = fed_picture(picture, fed.transform)
        except ValueError as error:
            raise InputError(str(error)) from None
    out = io.BytesIO()
    picture.convert("RGB").save(out, format="PNG", compress_level=1)
    return out.getvalue()


def small_picture(data: bytes) -> bytes:
    """Return an encoded picture no larger than `SMALL`; one that is no larger, or is none, as it is."""
    try:
        picture = Screenshot(data).open()
    except InputError:
        return data
    if picture.width <= SMALL[0] and picture.height <= SMALL[1]:
        return data
    picture.thumbnail(SMALL)
    out = io.BytesIO()
    picture.save(out, format="JPEG", quality=85)
    return out.getvalue()
