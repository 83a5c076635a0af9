"""Pictures in verl's batches as bytes, see `uirl.inference.models.packing`.

verl hands every training sequence its pictures as float32 patches (22.5 MB for 1280 x 720) through its queue.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from uirl.inference.models.packing import PackedPixels, pack_pixels

PIXELS = "pixel_values"
"""Under which name HuggingFace's processors give pictures as patches or planes."""


class PackedInputs(UserDict[str, Any]):
    """What a processor made for one sequence, with its pixels packed: every look at them makes them anew.

    No dict, so that verl's queue keeps it as it is and unpacks nothing on the way.
    """

    def __init__(self, inputs: Mapping[str, Any], processor: Any = None) -> None:
        super().__init__(inputs)
        pixels = self.data.get(PIXELS)
        packed = pack_pixels(pixels, processor) if isinstance(pixels, Tensor) else None
        if packed is not None:
            self.data[PIXELS] = packed

    def __getitem__(self, key: str) -> Any:
        value = self.data[key]
        return value.unpack() if isinstance(value, PackedPixels) else value

    __eq__ = object.__eq__
    __hash__ = object.__hash__
