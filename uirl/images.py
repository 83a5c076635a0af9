"""Screenshots stored by the hash of their content: the same picture has the same hash in every process."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from msgspec import Meta

from uirl.runtime.bounded_cache import BoundedCache
from uirl.runtime.limits import MAX_PIXELS, InputError, LimitError, check_pixels, clip

if TYPE_CHECKING:
    from PIL.Image import Image

T = TypeVar("T")
Pixels = tuple[tuple[int, int], bytes]
"""Width and height, and the RGB bytes row by row."""

ROOM = 1024**3
"""Bytes of encoded pictures that an `ImageStore` keeps where nobody needs them."""
FORMATS = ("PNG", "JPEG", "WEBP")
"""What is decoded. Others have decoders that start programs (EPS: Ghostscript) or that nobody here needs."""
CHANNELS = (1, 2, 3, 4)
"""Of an array: grey, grey and opacity, RGB, RGBA."""
ORIENTATION, ON_THEIR_SIDE = 0x0112, (5, 6, 7, 8)
"""The tag of EXIF that says how to turn a picture, and its values with width and height exchanged."""
SMALL = 128 * 128
"""Pixels of a picture up to which reading and writing PNG takes longer than to draw it."""
_KEPT = 32 * 2**20
_ENCODED: BoundedCache[Screenshot] = BoundedCache(_KEPT)
"""Small pictures that were drawn here, by their `Pixels`."""
_DECODED: BoundedCache[Pixels] = BoundedCache(_KEPT)
"""Their pixels, by their hash."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Screenshot:
    """An encoded picture (PNG, JPEG or WEBP, as it was captured) and the hash of its bytes."""

    data: Annotated[bytes, Meta(max_length=0)] = field(repr=False)
    """No message between processes can make one with another's hash: pictures travel beside messages."""
    hash: str = ""

    def __post_init__(self) -> None:
        if not self.hash:
            object.__setattr__(self, "hash", hashlib.sha256(self.data).hexdigest()[:32])

    def open(self) -> Image:
        """Return the picture as an RGB PIL image, as a person sees it: turned as its EXIF says, on white where it is
        transparent, of 16 bits the upper 8, of an animation the first frame.

        Raises InputError (a ValueError) where the bytes are no whole picture of `FORMATS`, and LimitError before
        anything is decoded where the header says more than `limits.MAX_PIXELS`.
        """
        known = _DECODED.find(self.hash)
        if known is not None:
            from PIL import Image as PILImage

            return PILImage.frombytes("RGB", *known)
        return _read(self, as_rgb)

    def read_size(self) -> tuple[int, int]:
        """Return width and height in pixels, as the header says. Raises as `open` does for the header alone."""
        known = _DECODED.find(self.hash)
        return _read(self, self._size) if known is None else known[0]

    def plain(self) -> bytes:
        """Return bytes of the picture that every program decodes to what `open` returns: its own, or a new PNG where
        programs differ. Raises as `open` does."""
        known = _DECODED.find(self.hash)
        return self.data if known is not None or _read(self, self._is_plain) else _encoded(self.open()).data

    def resized(self, size: tuple[int, int]) -> Screenshot:
        """Return the picture in another size (width, height in pixels), as PNG."""
        return screenshot(self.open().resize(size))

    def _size(self, picture: Image) -> tuple[int, int]:
        width, height = picture.size
        return (height, width) if self._orientation(picture) in ON_THEIR_SIDE else (width, height)

    def _is_plain(self, picture: Image) -> bool:
        still = picture.mode in ("1", "L", "P", "RGB") and getattr(picture, "n_frames", 1) == 1
        return still and not picture.has_transparency_data and self._orientation(picture) == 1

    def _orientation(self, picture: Image) -> int:
        # asked for what it says, a PNG is decoded first
        marked = any(mark in self.data for mark in (b"Exif", b"EXIF", b"eXIf", b"exif", b"tiff:Orientation"))
        return int(picture.getexif().get(ORIENTATION, 1)) if marked else 1


def _read(image: Screenshot, read: Callable[[Any], T]) -> T:
    """Return what `read` makes of the picture, whose size was found fit."""
    from PIL import Image as PILImage

    where = f"picture {image.hash[:12]}"
    try:
        with PILImage.open(io.BytesIO(image.data), formats=FORMATS) as picture:
            width, height = picture.size
            check_pixels(width, height, where)
            if width * height == 0:
                raise InputError(f"{where} has no pixels")
            return read(picture)
    except InputError:
        raise
    except PILImage.DecompressionBombError as error:
        raise LimitError(f"{where}: {error}; expected at most {MAX_PIXELS} pixels: send it smaller") from None
    except PILImage.UnidentifiedImageError:
        raise InputError(f"{where} ({len(image.data)} bytes) is no PNG, JPEG or WEBP: {image.data[:16]!r}") from None
    except Exception as error:  # a decoder raises whatever the bytes lead it to
        problem = f"{type(error).__name__}: {error}"
        raise InputError(f"{where} ({len(image.data)} bytes) cannot be decoded: {clip(problem, 120)}") from error


def media_type(data: bytes) -> str:
    """Return the kind of an encoded picture by its first bytes; what is none of ours is data that no browser runs."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    kinds = {b"\x89PNG": "image/png", b"\xff\xd8\xff": "image/jpeg"}
    return next((kind for begin, kind in kinds.items() if data.startswith(begin)), "application/octet-stream")


def data_url(data: bytes) -> str:
    """Write a picture, the bytes of a PNG, JPEG or WEBP file, as a URL that holds it."""
    kind = media_type(data)
    kind = kind if kind.startswith("image/") else "image/png"
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def as_rgb(picture: Image) -> Image:
    """Return a PIL image in RGB, as a person sees it: see `Screenshot.open`. Raises InputError (a ValueError) for
    numbers that are no colours."""
    from PIL import Image as PILImage
    from PIL import ImageOps

    if picture.getexif().get(ORIENTATION, 1) != 1:
        picture = ImageOps.exif_transpose(picture)
    if picture.mode.startswith("I;16"):
        import numpy as np

        return PILImage.fromarray((np.asarray(picture) >> 8).astype(np.uint8)).convert("RGB")
    if picture.mode in ("I", "F"):
        import numpy as np

        return _of_array(np.asarray(picture)).convert("RGB")
    if picture.has_transparency_data:
        seen = picture.convert("RGBA")
        return PILImage.alpha_composite(PILImage.new("RGBA", seen.size, "white"), seen).convert("RGB")
    return picture.convert("RGB")


def _of_array(array: Any) -> Image:
    """Return the picture in an array [H, W] or [H, W, C] or [C, H, W], C up to 4: of numbers from 0 to 255, of floats
    from 0 to 1, or of booleans. Raises InputError for others."""
    import numpy as np
    from PIL import Image as PILImage

    kind = f"{array.dtype} {array.shape}"
    if array.ndim == 3 and array.shape[2] not in CHANNELS and array.shape[0] in CHANNELS:
        array = np.moveaxis(array, 0, 2)
    fits = array.ndim == 2 or (array.ndim == 3 and array.shape[2] in CHANNELS)
    if not fits or array.size == 0 or array.dtype.kind not in "biuf":
        raise InputError(
            f"image arrays must be [H, W], [H, W, C] or [C, H, W] with up to 4 channels of numbers, got {kind}"
        )
    low, high = array.min(), array.max()
    highest = 1 if array.dtype.kind in "fb" else 255
    if not 0 <= low <= high <= highest:
        raise InputError(
            f"image arrays must be uint8 (0 to 255) or floats from 0 to 1, got {kind} from {low} to {high}; scale it"
        )
    if highest == 1:
        array = np.rint(array * 255.0)
    array = np.ascontiguousarray(array, dtype=np.uint8)
    return PILImage.fromarray(array[..., 0] if array.ndim == 3 and array.shape[-1] == 1 else array)


def screenshot(picture: Any) -> Screenshot:
    """Return a `Screenshot` of what an environment handed over: PIL image, encoded bytes, array [H, W, C] of uint8 or
    of floats from 0 to 1, or a screenshot. Raises TypeError for anything else, and InputError (a ValueError) for
    numbers that are no colours."""
    if isinstance(picture, Screenshot):
        return picture
    if isinstance(picture, (bytes, bytearray)):
        return Screenshot(bytes(picture))
    from PIL import Image as PILImage

    # asked for its array interface, a PIL image copies all of its pixels
    if not isinstance(picture, PILImage.Image) and hasattr(picture, "__array_interface__"):
        import numpy as np

        picture = _of_array(np.asarray(picture))
    if not isinstance(picture, PILImage.Image):
        raise TypeError(f"an image must be PIL, bytes or an array, got {type(picture).__name__}")
    drawn = as_rgb(picture)
    if drawn.width * drawn.height > SMALL:
        return _encoded(drawn)
    pixels = (drawn.size, drawn.tobytes())
    made = _ENCODED.get(pixels, lambda: _encoded(drawn), lambda image: len(pixels[1]) + len(image.data))
    _DECODED.put(made.hash, pixels, len(pixels[1]))
    return made


def _encoded(picture: Image) -> Screenshot:
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG", compress_level=1)
    return Screenshot(buffer.getvalue())


def is_picture(value: Any) -> bool:
    """Return whether `screenshot` takes it."""
    if isinstance(value, (Screenshot, bytes, bytearray)):
        return True
    array = getattr(value, "__array_interface__", None)  # PIL images have one too
    if array is None:
        return False
    of_colours = array["typestr"][1] == "f" and len(array["shape"]) == 3 and array["shape"][2] in (3, 4)
    return of_colours or (array["typestr"] == "|u1" and len(array["shape"]) in (2, 3))


class ImageStore:
    """Screenshots by hash: the newest `room` bytes of them unless they were forgotten, all that came while somebody
    was `holding`, and those of which somebody else still has the `Screenshot`. `get` raises KeyError for one that was
    dropped."""

    def __init__(self, room: int = ROOM) -> None:
        self._room = room
        self._bytes = 0
        self._lock = threading.RLock()  # the learner's thread looks for pictures while others put some
        self._kept: OrderedDict[str, tuple[Screenshot, float]] = OrderedDict()
        """With the time at which it last came, the oldest first."""
        self._alive: weakref.WeakValueDictionary[str, Screenshot] = weakref.WeakValueDictionary()
        self._holders = 0

    def put(self, picture: Any) -> Screenshot:
        """Keep the screenshot of `picture` under its hash and return it; the one that is there already, if any."""
        image = screenshot(picture)
        with self._lock:
            image = self._alive.setdefault(image.hash, image)
            if image.hash not in self._kept:
                self._bytes += len(image.data)
            self._kept[image.hash] = (image, time.time())
            self._kept.move_to_end(image.hash)
            self._shrink()
        return image

    def get(self, hash: str) -> Screenshot:
        image = self._alive.get(hash)
        if image is None:
            raise KeyError(f"image {hash} is not in the store ({len(self._kept)} kept)")
        return image

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        """Drop nothing in the context: what is collected in it can be learned from in it."""
        with self._lock:
            self._holders += 1
        try:
            yield
        finally:
            with self._lock:
                self._holders -= 1
                self._shrink()

    def forget_before(self, moment: float) -> int:
        """Drop what has not come since `moment`, in seconds since 1970, whoever is `holding`; return how many."""
        count = 0
        with self._lock:
            while self._kept and next(iter(self._kept.values()))[1] < moment:
                self._drop()
                count += 1
        return count

    def close(self) -> None:
        """Free what is not memory. Calling it twice is fine."""

    def clear(self) -> None:
        """Forget every screenshot."""
        with self._lock:
            self._kept.clear()
            self._alive.clear()
            self._bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def _shrink(self) -> None:
        while self._bytes > self._room and not self._holders:
            self._drop()

    def _drop(self) -> None:
        _, (image, _) = self._kept.popitem(last=False)
        self._bytes -= len(image.data)
