"""Whether two screenshots show the same screen: a perceptual hash, then structural similarity (SSIM) everywhere."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from uirl.images import Screenshot
from uirl.runtime.limits import InputError

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image

Box = tuple[float, float, float, float]
"""Left, top, right, bottom, as shares of width and height."""
_C1, _C2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
"""The constants of SSIM for 8-bit channels."""
_KEPT = 64
"""Pictures that stay decoded: one episode is compared with the others of its task."""


@dataclass(frozen=True, slots=True)
class _Features:
    """What of a picture is compared."""

    size: tuple[int, int]
    """As it was captured: on a screen of another size a click lands elsewhere."""
    hash: int
    pixels: np.ndarray
    """float32 [H, W, 3], shrunk, with what is not compared in black."""


@dataclass(frozen=True, slots=True)
class ScreenMatch:
    """When two pictures count as the same screen."""

    hash_distance: int = 12
    """Bits of 64 by which the hashes may differ; beyond it nothing else is computed."""
    similarity: float = 0.95
    """Least mean SSIM."""
    worst: float = 0.85
    """Least SSIM of any tile. A box that is ticked changes a large picture in one place alone."""
    tile: int = 16
    """Side of a tile, in pixels of the picture as it is compared."""
    size: int = 512
    """Longest side of the pictures as they are compared; larger ones are shrunk."""
    ignore: tuple[Box, ...] = ()
    """Parts that are not compared, such as a status bar with a clock: (0, 0, 1, 0.04)."""


class ScreenMatcher:
    """Compares pictures, each decoded once."""

    def __init__(self, match: ScreenMatch | None = None) -> None:
        """`match` None: the defaults."""
        self.match = match or ScreenMatch()
        self._decoded: OrderedDict[str, _Features | None] = OrderedDict()

    def same(self, a: Screenshot, b: Screenshot) -> bool:
        """Return whether both show the same screen. What cannot be decoded is equal only to the same bytes."""
        if a.hash == b.hash:
            return True
        first, second = self._features(a), self._features(b)
        if first is None or second is None or first.size != second.size:
            return False
        if (first.hash ^ second.hash).bit_count() > self.match.hash_distance:
            return False
        similarity = ssim(first.pixels, second.pixels)
        return bool(similarity.mean() >= self.match.similarity) and self._worst(similarity) >= self.match.worst

    def _worst(self, similarity: np.ndarray) -> float:
        tile = min(self.match.tile, *similarity.shape)
        rows, columns = similarity.shape[0] // tile, similarity.shape[1] // tile
        edge = similarity[-tile:, :], similarity[:, -tile:]  # what the whole tiles leave over
        tiles = similarity[: rows * tile, : columns * tile].reshape(rows, tile, columns, tile).mean(axis=(1, 3))
        over = [part[:, i : i + tile].mean() for part in edge[:1] for i in range(0, part.shape[1], tile)]
        over += [part[i : i + tile, :].mean() for part in edge[1:] for i in range(0, part.shape[0], tile)]
        return float(min(tiles.min(), *over))

    def _features(self, shot: Screenshot) -> _Features | None:
        if shot.hash in self._decoded:
            self._decoded.move_to_end(shot.hash)
            return self._decoded[shot.hash]
        try:
            picture = shot.open()
            found: _Features | None = _Features(picture.size, difference_hash(picture), self._pixels(picture))
        except InputError:
            found = None
        self._decoded[shot.hash] = found
        while len(self._decoded) > _KEPT:
            self._decoded.popitem(last=False)
        return found

    def _pixels(self, picture: Image) -> np.ndarray:
        """Return the picture as float32 [H, W, 3], shrunk, with what is not compared in black."""
        import numpy as np

        picture = picture.copy()
        picture.thumbnail((self.match.size, self.match.size))
        width, height = picture.size
        for left, top, right, bottom in self.match.ignore:
            corner = round(left * width), round(top * height)
            picture.paste((0, 0, 0), (*corner, round(right * width), round(bottom * height)))
        return np.asarray(picture, dtype=np.float32)


def difference_hash(picture: Image) -> int:
    """Return 64 bits: of 8 rows of 9 grey cells, whether each is darker than its right neighbour (dHash)."""
    from PIL import Image as PILImage

    cells = picture.convert("L").resize((9, 8), PILImage.Resampling.BOX).tobytes()
    bits = 0
    for row in range(8):
        for column in range(8):
            bits = bits << 1 | (cells[row * 9 + column] < cells[row * 9 + column + 1])
    return bits


def ssim(a: np.ndarray, b: np.ndarray, window: int = 7) -> np.ndarray:
    """Return the structural similarity of two pictures at every place, float [H - w + 1, W - w + 1], the lowest of the
    channels: red and blue of one brightness are not the same [Wang et al. 2004, equation 13, with a flat window].

    `a`, `b`: [H, W, C], of one size. `window`: its side w in pixels, smaller where the picture is.
    """
    window = min(window, *a.shape[:2])
    mean_a, mean_b = _windows(a, window), _windows(b, window)
    variance_a = _windows(a * a, window) - mean_a**2
    variance_b = _windows(b * b, window) - mean_b**2
    covariance = _windows(a * b, window) - mean_a * mean_b
    above = (2 * mean_a * mean_b + _C1) * (2 * covariance + _C2)
    below = (mean_a**2 + mean_b**2 + _C1) * (variance_a + variance_b + _C2)
    lowest: np.ndarray = (above / below).min(axis=-1)
    return lowest


def _windows(values: np.ndarray, window: int) -> np.ndarray:
    """Return the mean over every window, float64 [H - w + 1, W - w + 1, C], by sums of sums."""
    import numpy as np

    sums = np.zeros((values.shape[0] + 1, values.shape[1] + 1, values.shape[2]))
    np.cumsum(np.cumsum(values, axis=0, dtype=np.float64), axis=1, out=sums[1:, 1:])
    total = sums[window:, window:] - sums[:-window, window:] - sums[window:, :-window] + sums[:-window, :-window]
    return total / window**2
