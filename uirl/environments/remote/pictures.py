"""Encoded pictures at the border: what they are, and whether they are whole."""

from __future__ import annotations

import asyncio
import io

from uirl.errors import EnvironmentFailure
from uirl.images import Screenshot

SMALL = 16 * 1024
"""Bytes of a picture that is decoded sooner than a thread is woken."""
MOST_PIXELS = 64_000_000
"""A picture of more is refused: it would decode to hundreds of megabytes."""


def media_type(data: bytes) -> str:
    """'image/png', 'image/jpeg', 'image/webp', or 'application/octet-stream' for anything else."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    return "image/webp" if data[:4] == b"RIFF" and data[8:12] == b"WEBP" else "application/octet-stream"


def as_png(shot: Screenshot) -> bytes:
    """The picture as PNG; the same bytes where it is one."""
    if media_type(shot.data) == "image/png":
        return shot.data
    buffer = io.BytesIO()
    shot.open().save(buffer, format="PNG", compress_level=1)
    return buffer.getvalue()


async def whole(data: bytes, where: str) -> Screenshot:
    """The screenshot of bytes that decode to the last pixel.

    Raises EnvironmentFailure for others: a picture that is cut off would otherwise be found out by the model, far from
    the server that sent it. Large ones are decoded on a thread, beside the event loop.
    """
    try:
        if len(data) < SMALL:
            _decode(data)
        else:
            await asyncio.to_thread(_decode, data)
    except ValueError as error:
        raise EnvironmentFailure(f"{where} sent a picture that cannot be used: {error}") from None
    return Screenshot(data)


def _decode(data: bytes) -> None:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data)) as picture:
            width, height = picture.size
            if width * height > MOST_PIXELS:
                raise ValueError(f"{width} x {height} pixels; expected at most {MOST_PIXELS}")
            picture.load()
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ValueError(f"{len(data)} bytes beginning {data[:16]!r}: {error}") from None
