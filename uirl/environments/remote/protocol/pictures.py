"""Encoded pictures at the border: what they are, and whether they are whole."""

from __future__ import annotations

import asyncio
import math

from uirl.errors import EnvironmentFailure
from uirl.images import Screenshot, screenshot
from uirl.types import Observation

SMALL = 16 * 1024
"""Bytes of a picture that is decoded sooner than a thread is woken."""
SMALL_PIXELS = 512 * 512
"""Pixels of one: few bytes may say very many."""


def media_type(data: bytes) -> str:
    """'image/png', 'image/jpeg', 'image/webp', or 'application/octet-stream' for anything else."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    return "image/webp" if data[:4] == b"RIFF" and data[8:12] == b"WEBP" else "application/octet-stream"


def as_png(image: Screenshot) -> bytes:
    """Return the picture as PNG; the same bytes where it is a plain one. Raises EnvironmentFailure for what is no
    picture."""
    try:
        data = image.plain()
        return data if media_type(data) == "image/png" else screenshot(image.open()).data
    except ValueError as error:
        raise EnvironmentFailure(f"the environment's picture cannot be used: {error}") from error


async def whole(data: bytes, where: str) -> Screenshot:
    """Return the screenshot of bytes that decode to the last pixel.

    Raises EnvironmentFailure for others: a picture that is cut off would otherwise be found out by the model, far from
    the server that sent it. Large ones are decoded on a thread, beside the event loop.
    """
    image = Screenshot(data)
    try:
        if len(data) < SMALL and math.prod(image.read_size()) < SMALL_PIXELS:
            image.open()
        else:
            await asyncio.to_thread(image.open)
    except ValueError as error:
        raise EnvironmentFailure(f"{where} sent a picture that cannot be used: {error}") from None
    return image


async def all_whole(observation: Observation, where: str) -> Observation:
    """Return the observation. Raises EnvironmentFailure where one of its pictures is not whole."""
    for image in observation.images:
        await whole(image.data, where)
    return observation


def resized(image: Screenshot, size: tuple[int, int]) -> Screenshot:
    """Return the picture in another size (width, height in pixels), as PNG."""
    return screenshot(image.open().resize(size))
