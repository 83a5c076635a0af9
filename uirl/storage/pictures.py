"""The picture that a model was fed, made again from the record."""

from __future__ import annotations

from PIL import Image as PILImage

from uirl.types import Box, PictureTransform


def fed_picture(raw: PILImage.Image, transform: PictureTransform) -> PILImage.Image:
    """Return what the model saw of the picture `raw`, in RGB, before its colours were normalised.

    Raises ValueError where `raw` has another size than the transform was recorded for.
    """
    if raw.size != transform.raw_size:
        raise ValueError(
            f"got a picture of {raw.size[0]} x {raw.size[1]} pixels, expected {transform.raw_size[0]} x "
            f"{transform.raw_size[1]}: the one that this transform was recorded for"
        )
    picture = _part(raw.convert("RGB"), transform.source, transform.fill)
    if picture.size != transform.resized:
        picture = picture.resize(transform.resized, PILImage.Resampling[transform.resample.upper()])
    return _part(picture, transform.window, (0, 0, 0))


def _part(picture: PILImage.Image, box: Box | None, fill: tuple[int, int, int]) -> PILImage.Image:
    """Return a part of the picture, `fill` where it reaches beyond; None: all of it."""
    if box is None:
        return picture
    left, top, width, height = box
    part = PILImage.new("RGB", (width, height), fill)
    part.paste(picture, (-left, -top))
    return part
