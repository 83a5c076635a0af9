"""Pictures as bytes: what a processor made of a screenshot, an eighth of its size, digit by digit.

A screenshot of 1280 x 720 is 22.5 MB of float32 patches. A processor only scales bytes: each of its numbers is one of
256 per colour, and a still picture stands in its patches once per frame. Both are found out and undone here, and
nothing is packed that would not come back exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_COLOURS, _LEVELS = 3, 256


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
