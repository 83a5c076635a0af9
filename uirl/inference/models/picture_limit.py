"""How large a picture may be: what bounds the pixels that the vision side of a model reads of one, in any family.

Each image processor has rules of its own: bounds on the area (Qwen-VL, GLM-4V), a longest edge to which pictures are
enlarged before they are cut into tiles (Idefics3, SmolVLM), a number of tiles (InternVL). Where there is such a
setting, it is lowered for the picture; else the picture is made smaller first. What comes out is asked of the processor
itself, with a blank picture, once per size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from uirl.errors import ConfigError
from uirl.runtime.bounded_cache import BoundedCache

Size = tuple[int, int]
"""Width and height."""
_STEP = 0.85
"""By what the bound that is tried is lowered while too much comes out: tiles go in jumps."""
_TRIED = ((1080, 2400), (1280, 720))
"""A phone and a browser: what the limit is tried with when it is set."""


@dataclass(frozen=True, slots=True)
class Fit:
    """How a picture keeps the limit."""

    size: Size
    """To be made so large before the processor sees it."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What the processor is told besides."""

    def shown(self, picture: Any) -> Any:
        """Return a PIL image as the processor is shown it."""
        from PIL.Image import Resampling

        return picture if picture.size == self.size else picture.resize(self.size, Resampling.BICUBIC)


def pixels_read(processor: Any, tensors: Mapping[str, Tensor]) -> int:
    """Return how many pixels the vision side reads of one picture: of its patches, or of all its tiles together, with
    what fills them up."""
    frames = processor.temporal_patch_size if "image_grid_thw" in tensors else 1
    return tensors["pixel_values"].numel() // (3 * frames)


class PictureLimit:
    """At most `max_pixels` of a picture are read.

    `processor`: the HF image processor. `ask`: the tensors that it makes of a PIL image with further settings. Raises
    ConfigError where it reads more of a picture whatever it is told.
    """

    def __init__(
        self, processor: Any, max_pixels: int, ask: Callable[[Any, Mapping[str, Any]], Mapping[str, Tensor]]
    ) -> None:
        self.max_pixels = max_pixels
        self._processor, self._ask = processor, ask
        self._fits: BoundedCache[Fit] = BoundedCache(2**20)
        for size in _TRIED:
            self.fit(size)

    def fit(self, size: Size) -> Fit:
        """Return how a picture of `size` keeps the limit; one that keeps it anyway stays as it is."""
        return self._fits.get(size, lambda: self._find(size), lambda _: 256)

    def _find(self, size: Size) -> Fit:
        whole = self._pixels(Fit(size))
        if whole <= self.max_pixels:
            return Fit(size)
        fewest = min(whole, self._pixels(_smaller(self._processor, size, 1)))
        # GLM-4V counts the frames of a patch in its bounds
        budget = self.max_pixels * (getattr(self._processor, "temporal_patch_size", None) or 1)
        while budget >= 1 and fewest <= self.max_pixels:
            fit = _smaller(self._processor, size, budget)
            if self._pixels(fit) <= self.max_pixels:
                return fit
            budget = self.max_pixels if budget > self.max_pixels else int(budget * _STEP)
        raise ConfigError(
            f"model.max_image_pixels={self.max_pixels}: the processor ({type(self._processor).__name__}) makes at "
            f"least {fewest} pixels of a picture of {size[0]} x {size[1]}; expected a limit of at least {fewest}"
        )

    def _pixels(self, fit: Fit) -> int:
        from PIL import Image

        try:
            return pixels_read(self._processor, self._ask(Image.new("RGB", fit.size), fit.settings))
        except (ValueError, ArithmeticError):  # smaller than the processor takes
            return 2**62


def _smaller(processor: Any, size: Size, budget: int) -> Fit:
    """Return how a picture of `size` gets about `budget` pixels by the rules of its processor."""
    bounds = {name: value for name, value in dict(processor.size).items() if value is not None}
    if getattr(processor, "max_patches", None):
        tile = bounds["height"] * bounds["width"]
        return Fit(size, {"max_patches": max(1, min(processor.max_patches, budget // tile - 1))})
    if getattr(processor, "max_image_size", None):
        tile = dict(processor.max_image_size)["longest_edge"]
        longest = math.isqrt(budget * max(size) // min(size)) // tile * tile
        return Fit(size, {"size": {"longest_edge": max(tile, min(bounds["longest_edge"], longest))}})
    if hasattr(processor, "merge_size") and bounds.keys() == {"shortest_edge", "longest_edge"}:
        most = min(bounds["longest_edge"], budget)
        return Fit(size, {"size": {"shortest_edge": min(bounds["shortest_edge"], most), "longest_edge": most}})
    scale = min(1.0, math.sqrt(budget / (size[0] * size[1])))
    return Fit((max(1, int(size[0] * scale)), max(1, int(size[1] * scale))))
