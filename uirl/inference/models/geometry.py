"""What an HF image processor does to the geometry of a picture: which part it keeps, resized to what."""

from __future__ import annotations

from typing import Any

from uirl.types import Box, PictureTransform

Size = tuple[int, int]


def grid_transform(processor: Any, raw_size: Size, fed_size: Size) -> PictureTransform:
    """Return what a processor of Qwen-VL's family did to a picture of `raw_size`, of which it made one of `fed_size`:
    it resizes and cuts nothing off."""
    return PictureTransform(raw_size, fed_size, resample=_filter_of(processor))


def stacked_transform(processor: Any, raw_size: Size, fed_size: Size) -> PictureTransform | None:
    """Return what a processor of pictures of one size did (CLIP's, SigLIP's, LLaVA's): pad to a square, resize, cut out
    the centre, as far as it does each. None: it does something else, or what is known of it does not explain
    `fed_size`."""
    squares = type(processor).__name__.startswith("Llava")
    if getattr(processor, "do_pad", None) and not squares:
        return None
    source = _square_around(raw_size) if squares and processor.do_pad else None
    resized = _resized(processor, raw_size if source is None else source[2:])
    window = None if resized is None else _centre(processor, resized)
    if resized is None:
        return None
    red, green, blue = (int(value * 255) if source is not None else 0 for value in processor.image_mean)
    transform = PictureTransform(raw_size, resized, source, window, _filter_of(processor), (red, green, blue))
    return transform if transform.fed_size == fed_size else None


def _square_around(size: Size) -> Box | None:
    """Return the square that holds the picture in its middle; None: it is one."""
    width, height = size
    side = max(size)
    return None if width == height else (-((side - width) // 2), -((side - height) // 2), side, side)


def _resized(processor: Any, size: Size) -> Size | None:
    """Return the size that a picture of `size` is resized to; None: by a rule that is not known here."""
    if not processor.do_resize:
        return size
    wanted = dict(processor.size)
    if wanted.get("height") and wanted.get("width"):
        return int(wanted["width"]), int(wanted["height"])
    short = wanted.get("shortest_edge")
    if not short or wanted.get("longest_edge"):
        return None
    width, height = size
    return (short, int(short * height / width)) if width <= height else (int(short * width / height), short)


def _centre(processor: Any, size: Size) -> Box | None:
    """Return the part in the middle that is kept; None: all of it."""
    if not getattr(processor, "do_center_crop", None):
        return None
    crop = dict(processor.crop_size)
    width, height = int(crop["width"]), int(crop["height"])
    left, top = (size[0] - width) // 2, (size[1] - height) // 2
    return None if (width, height) == size else (left, top, width, height)


def _filter_of(processor: Any) -> str:
    from PIL.Image import Resampling

    resample = processor.resample
    return Resampling.BILINEAR.name.lower() if resample is None else Resampling(int(resample)).name.lower()
