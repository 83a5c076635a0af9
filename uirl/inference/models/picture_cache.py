"""What an image processor made of pictures, by their content: each goes through it once.

How many tokens a picture takes, and where, is asked long after its pixels were fed; it is small and kept apart from the
pixels, of which the newest stay.

Large ones are kept as bytes, an eighth of their size, digit by digit. A screenshot of 1280 x 720 is 22.5 MB of float32
patches. A processor only scales bytes: each of its numbers is one of 256 per colour, and a still picture stands in its
patches once per frame. Both are found out and undone here, and nothing is packed that would not come back exactly.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from uirl.images import Screenshot
from uirl.runtime.bounded_cache import BoundedCache

KEPT_BYTES = 2 * 2**30
"""Bytes of pixels that are kept where nothing else is said (`model.picture_cache_gib`)."""
KNOWN_BYTES = 64 * 2**20
ASIDE = 256 * 1024
"""Pixels from which on a picture is encoded in a thread of its own: smaller ones cost less than the way there."""
_THREADS = ThreadPoolExecutor(2, thread_name_prefix="pictures")
_COLOURS, _LEVELS = 3, 256


class Encoded(Protocol):
    """A picture after the processor."""

    @property
    def bytes(self) -> int:
        """Bytes that it holds."""
        ...


T = TypeVar("T", bound=Encoded)


class PictureCache(Generic[T]):
    """Encoded pictures by hash. Threads may share it; none encodes what another is encoding.

    `process`: encodes pictures, in order. `pack`: makes of an encoded picture the one that is kept. `bare`: the same
    without its pixels.
    """

    def __init__(
        self,
        process: Callable[[list[Screenshot]], list[T]],
        *,
        pack: Callable[[T], T],
        bare: Callable[[T], T],
        max_bytes: int = KEPT_BYTES,
    ) -> None:
        self._process, self._pack, self._bare = process, pack, bare
        self.kept: BoundedCache[T] = BoundedCache(max_bytes, keeps_newest=True)
        """Pictures with their pixels."""
        self._known: BoundedCache[T] = BoundedCache(KNOWN_BYTES)
        self._under_way: dict[str, threading.Event] = {}
        self._lock = threading.Lock()

    def encode(self, images: Sequence[Screenshot]) -> list[T]:
        """Return the encoded pictures, in order; those that are not kept go through the processor together."""
        found: dict[str, T] = {}
        mine: dict[str, Screenshot] = {}
        others: dict[str, threading.Event] = {}
        with self._lock:
            for image in images:
                kept = self.kept.find(image.hash)
                if kept is not None:
                    found[image.hash] = kept
                elif image.hash in self._under_way:
                    others[image.hash] = self._under_way[image.hash]
                else:
                    mine[image.hash] = image
            self._under_way |= {hash: threading.Event() for hash in mine}
        try:
            if mine:
                for hash, fresh in zip(mine, self._process(list(mine.values())), strict=True):
                    found[hash] = packed = self._pack(fresh)
                    self._known.put(hash, self._bare(fresh), 256)
                    self.kept.put(hash, packed, packed.bytes)
        finally:
            with self._lock:
                for hash in mine:
                    self._under_way.pop(hash).set()
        for event in others.values():
            event.wait()
        if others:  # kept now, unless the other thread failed or pixels are kept for less than a moment
            late = {image.hash: image for image in images if image.hash in others}
            found |= dict(zip(late, self.encode(list(late.values())), strict=True))
        return [found[image.hash] for image in images]

    def describe(self, images: Sequence[Screenshot]) -> list[T]:
        """Return the encoded pictures without their pixels, in order: known long after these were dropped."""
        found = [self._known.find(image.hash) for image in images]
        missing = [image for image, known in zip(images, found, strict=True) if known is None]
        fresh = iter(self.encode(missing) if missing else ())
        return [next(fresh) if known is None else known for known in found]

    async def prepare(self, images: Sequence[Screenshot]) -> None:
        """Encode large pictures that are not known yet in a thread. What is wrong with one, `encode` says again."""
        unknown = [image for image in images if self._known.find(image.hash) is None]
        try:
            large = [image for image in unknown if image.read_size()[0] * image.read_size()[1] >= ASIDE]
            if large:
                await asyncio.get_running_loop().run_in_executor(_THREADS, self.encode, large)
        except (ValueError, ArithmeticError):
            return


@dataclass(frozen=True, slots=True)
class PackedPixels:
    """Pixels as one byte per number."""

    codes: Tensor
    """uint8 [n, 3, m], of one frame where all frames are the same."""
    levels: Tensor
    """[3, 256]: what each code stands for, per colour."""
    frames: int
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes that it holds."""
        return self.codes.nbytes + self.levels.nbytes

    def unpack(self) -> Tensor:
        """Return the patches `[n, colours * frames * m]` as they were, in the shape of the processor."""
        n, _, m = self.codes.shape
        index = self.codes.long() + _offsets()
        values = self.levels.reshape(-1)[index]
        return values.unsqueeze(2).expand(n, _COLOURS, self.frames, m).reshape(self.shape)


def pack_pixels(pixels: Tensor, processor: Any = None) -> PackedPixels | None:
    """Pack pixels [n, 3 x frames x ...] or [n, 3, ...]; None where they would not come back exactly. `processor`: the
    image processor that made them, which says mean, deviation and frames."""
    n = pixels.shape[0] if pixels.dim() > 1 else 0
    if n == 0 or pixels[0].numel() % _COLOURS or not pixels.is_floating_point():
        return None
    frames = int(getattr(processor, "temporal_patch_size", None) or 1)
    if pixels[0].numel() % (_COLOURS * frames):
        frames = 1
    planes = pixels.reshape(n, _COLOURS, frames, -1)
    if frames > 1 and not all(torch.equal(planes[:, :, 0], planes[:, :, i]) for i in range(1, frames)):
        planes, frames = pixels.reshape(n, _COLOURS, 1, -1), 1
    one = planes[:, :, 0]
    normal = getattr(processor, "do_normalize", True)
    mean = _per_colour(getattr(processor, "image_mean", None) if normal else None, 0.0, pixels.dtype)
    deviation = _per_colour(getattr(processor, "image_std", None) if normal else None, 1.0, pixels.dtype)
    codes = ((one * deviation + mean) * (_LEVELS - 1)).round_().clamp_(0, _LEVELS - 1).to(torch.uint8)
    index = codes.long() + _offsets()
    levels = torch.zeros(_COLOURS * _LEVELS, dtype=pixels.dtype)
    levels[index] = one
    if not torch.equal(levels[index], one):
        return None
    return PackedPixels(codes, levels.reshape(_COLOURS, _LEVELS), frames, tuple(pixels.shape))


def _per_colour(values: Any, default: float, dtype: torch.dtype) -> Tensor:
    per_colour = [default] * _COLOURS if values is None else list(values)
    return torch.tensor(per_colour, dtype=dtype).reshape(1, -1, 1)


def _offsets() -> Tensor:
    return torch.arange(_COLOURS).reshape(1, _COLOURS, 1) * _LEVELS
