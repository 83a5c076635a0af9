"""The store of screenshots: bounded, except by what somebody still needs."""

from __future__ import annotations

import base64
import gc
import hashlib
import io
import pickle
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from uirl.images import ImageStore, Screenshot, data_url, is_picture, media_type, screenshot
from uirl.runtime.limits import InputError


def held(store: ImageStore, *hashes: str) -> list[bool]:
    """Whether each is still to be had."""
    gc.collect()
    return [hash == getattr(store._alive.get(hash), "hash", None) for hash in hashes]


def test_the_newest_bytes_are_kept_unless_they_are_forgotten() -> None:
    store = ImageStore(room=1000)
    hashes = [store.put(bytes([i]) * 400).hash for i in range(3)]
    store.put(b"\x01" * 400)  # the same one again takes no more, and is the newest
    assert (len(store), held(store, *hashes)) == (2, [False, True, True])
    store.put(b"\x00" * 400)
    assert held(store, *hashes) == [True, True, False]
    with pytest.raises(KeyError, match=rf"image {hashes[2]} is not in the store \(2 kept\)"):
        store.get(hashes[2])
    last = store.put(b"x" * 1000).hash
    assert (len(store), held(store, *hashes, last)) == (1, [False, False, False, True])
    began = time.time()
    store.put(b"y")
    assert [store.forget_before(moment) for moment in (began - 1, began + 1)] == [0, 1]
    assert len(store) == 0
    for i in range(50):
        store.put(bytes([i]) * 400)
    assert len(store) == 2
    store.clear()
    assert (len(store), held(store, *hashes)) == (0, [False] * 3)
    for i in range(50):
        store.put(bytes([i]) * 400)
    assert len(store) == 2


@pytest.fixture
def impatient_threads() -> Iterator[None]:
    """Let threads take turns after every few instructions."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


def test_threads_share_a_store(impatient_threads: None) -> None:
    store = ImageStore(room=20)

    def fill(first: int) -> None:
        for i in range(20_000):
            store.put(bytes([first, 0, i % 7]))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(fill, (0, 0, 0, 0)))  # raises what a thread raised
    assert len(store) == 6


def test_a_picture_that_somebody_holds_is_found_however_old_it_is() -> None:
    store = ImageStore(room=1)
    mine = [store.put(Screenshot(bytes([i]))) for i in range(5)]
    # a second picture of the same content must not take the place of the one that is held
    assert [store.put(Screenshot(shot.data)) is shot for shot in mine] == [True] * 5
    gc.collect()
    assert [store.get(shot.hash) is shot for shot in mine] == [True] * 5
    assert len(store) == 1
    hash = mine.pop(0).hash
    assert held(store, hash) == [False]


def test_nothing_is_dropped_while_somebody_is_holding() -> None:
    store = ImageStore(room=1)
    with store.holding():
        with store.holding():
            hashes = [store.put(bytes([i])).hash for i in range(3)]
        assert held(store, *hashes) == [True] * 3
    assert (len(store), held(store, *hashes)) == (1, [False, False, True])


def test_a_screenshot_travels_to_other_processes() -> None:
    assert pickle.loads(pickle.dumps(Screenshot(b"x"))) == Screenshot(b"x")


def test_a_small_picture_that_was_drawn_is_not_decoded_and_has_its_own_pixels() -> None:
    drawn = Image.new("RGB", (5, 3), (1, 2, 3))
    shot = screenshot(drawn)
    drawn.putpixel((0, 0), (9, 9, 9))  # the environment draws on
    for _ in range(2):
        opened = shot.open()
        assert (opened.mode, opened.size, shot.read_size()) == ("RGB", (5, 3), (5, 3))
        assert opened.getcolors() == [(15, (1, 2, 3))]
        opened.putpixel((0, 0), (7, 7, 7))
    assert screenshot(drawn).hash != shot.hash
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(shot.data))), np.asarray(shot.open()))


@pytest.mark.parametrize("mode", ["L", "RGBA", "P"])
def test_a_small_picture_of_any_kind_reads_back_as_its_bytes_do(mode: str) -> None:
    shot = screenshot(Image.new("RGB", (4, 4), (200, 100, 50)).convert(mode))
    assert shot.open().tobytes() == Image.open(io.BytesIO(shot.data)).convert("RGB").tobytes()


GREY = (128, 128, 128)


def encoded(picture: Image.Image, format: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, format=format, **options)
    return buffer.getvalue()


def with_colours(mode: str, colour: object, **info: object) -> Image.Image:
    picture = Image.new(mode, (6, 4), colour)
    picture.info.update(info)
    return picture


def palette_with_hole() -> Image.Image:
    picture = Image.new("RGB", (6, 4), "black").convert("P")
    picture.info["transparency"] = picture.getpixel((0, 0))
    return picture


def in_the_palette() -> Image.Image:
    picture = Image.new("P", (6, 4), 1)
    picture.putpalette([0, 0, 0, *GREY])
    return picture


PICTURES: dict[str, tuple[Image.Image, tuple[int, int, int]]] = {
    "RGB": (with_colours("RGB", (10, 20, 30)), (10, 20, 30)),
    "L": (with_colours("L", 128), GREY),
    "1": (with_colours("1", 1), (255, 255, 255)),
    "P": (in_the_palette(), GREY),
    "P with a hole": (palette_with_hole(), (255, 255, 255)),
    "RGB with a hole": (with_colours("RGB", (0, 0, 0), transparency=(0, 0, 0)), (255, 255, 255)),
    "RGBA": (with_colours("RGBA", (0, 0, 0, 0)), (255, 255, 255)),
    "half RGBA": (with_colours("RGBA", (0, 0, 0, 127)), GREY),
    "LA": (with_colours("LA", (0, 0)), (255, 255, 255)),
    "I;16": (Image.fromarray(np.full((4, 6), 128 * 257, np.uint16)), GREY),
}
DRAWN = {
    "I": (with_colours("I", 128), GREY),
    "F": (with_colours("F", 128 / 255), GREY),
    "CMYK": (with_colours("CMYK", (0, 0, 0, 127)), GREY),
    "PA": (with_colours("PA", (0, 0)), (255, 255, 255)),
}


@pytest.mark.parametrize("kind", [*PICTURES, *DRAWN])
def test_a_picture_of_any_kind_is_seen_as_a_person_sees_it(kind: str) -> None:
    picture, colour = (PICTURES | DRAWN)[kind]
    shots = [screenshot(picture)]
    if kind in PICTURES:
        shots += [screenshot(encoded(picture)), Screenshot(encoded(picture))]
    for shot in shots:
        assert (shot.open().mode, shot.open().getcolors()) == ("RGB", [(24, colour)])
        # what goes to a server that decodes for itself
        there = Image.open(io.BytesIO(shot.plain()))
        assert there.mode in ("1", "L", "P", "RGB")
        assert there.convert("RGB").tobytes() == shot.open().tobytes()


@pytest.mark.parametrize("orientation", [*range(1, 9), 99])
@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP"])
def test_a_picture_stands_upright(format: str, orientation: int) -> None:
    """A phone turns nothing: it writes how it was held."""
    upright = Image.new("RGB", (64, 32), "red")
    upright.paste("blue", (0, 0, 32, 16))
    turns = Image.Transpose
    stored = upright if orientation in (1, 99) else upright.transpose({
        2: turns.FLIP_LEFT_RIGHT, 3: turns.ROTATE_180, 4: turns.FLIP_TOP_BOTTOM, 5: turns.TRANSPOSE,
        6: turns.ROTATE_90, 7: turns.TRANSVERSE, 8: turns.ROTATE_270,
    }[orientation])  # fmt: skip
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(stored, format, exif=exif, quality=100) if format != "PNG" else encoded(stored, exif=exif)
    for shot in (Screenshot(data), screenshot(Image.open(io.BytesIO(data)))):
        assert shot.read_size() == shot.open().size == (64, 32)
        red, _, blue = shot.open().getpixel((8, 8))  # type: ignore[misc]
        assert red < 60 < 200 < blue
        assert Image.open(io.BytesIO(shot.plain())).size == (64, 32)


@pytest.mark.parametrize(
    "array",
    [
        np.full((4, 6), 128, np.uint8),
        np.full((4, 6, 1), 128, np.uint8),
        np.full((4, 6, 3), 128, np.uint8),
        np.full((3, 4, 6), 128, np.uint8),
        np.full((1, 4, 6), 128, np.int64),
        np.full((4, 6, 3), 128, np.int64),
        np.full((4, 6, 3), 128 / 255, np.float32),
        np.full((3, 4, 6), 128 / 255, np.float64),
        np.dstack([np.zeros((4, 6, 3), np.uint8), np.full((4, 6), 127, np.uint8)]),
    ],
)
def test_arrays_of_any_layout_are_pictures(array: np.ndarray) -> None:
    assert screenshot(array).open().getcolors() == [(24, GREY)]


@pytest.mark.parametrize(
    ("value", "is_one"),
    [
        (Screenshot(b"x"), True), (b"x", True), (bytearray(b"x"), True), (Image.new("RGB", (2, 2)), True),
        (np.zeros((4, 6), np.uint8), True), (np.zeros((4, 6, 3), np.uint8), True), (np.zeros((4, 6, 4)), True),
        (np.zeros((4, 6, 3), np.float32), True), (np.zeros((4, 6, 5)), False), (np.zeros((4, 6)), False),
        (np.zeros((4, 6, 3), np.int64), False), (np.zeros(4, np.uint8), False),
        (np.zeros((1, 4, 6, 3), np.uint8), False), ("x", False), (None, False), ([[0]], False),
    ],
)  # fmt: skip
def test_what_is_taken_for_a_picture(value: object, is_one: bool) -> None:
    assert is_picture(value) == is_one


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"\x89PNG..", "image/png"), (b"\xff\xd8\xff..", "image/jpeg"), (b"RIFF1234WEBP", "image/webp"),
        (b"RIFF1234WAVE", ""), (b"GIF89a", ""), (b"<svg>", ""), (b"", ""),
    ],
)  # fmt: skip
def test_the_kind_of_a_picture_is_in_its_first_bytes(data: bytes, kind: str) -> None:
    assert media_type(data) == (kind or "application/octet-stream")
    assert data_url(data) == f"data:{kind or 'image/png'};base64,{base64.b64encode(data).decode()}"


def test_a_screenshot_is_named_by_its_bytes() -> None:
    shot = screenshot(bytearray(b"x"))
    assert (shot.data, shot.hash) == (b"x", hashlib.sha256(b"x").hexdigest()[:32])
    with pytest.raises(InputError, match=rf"^picture {shot.hash[:12]} \(1 bytes\) is no PNG, JPEG or WEBP: b'x'$"):
        shot.open()
    with pytest.raises(TypeError, match="an image must be PIL, bytes or an array, got str"):
        screenshot("x")
    assert screenshot(Image.new("RGB", (4, 4), "red")).resized((2, 3)).open().getcolors() == [(6, (255, 0, 0))]


@pytest.mark.parametrize(
    ("array", "told"),
    [
        (np.full((4, 6, 3), 128.0), r"floats from 0 to 1, got float64 \(4, 6, 3\) from 128.0 to 128.0"),
        (np.full((4, 6, 3), np.nan), "from nan to nan"),
        (np.full((4, 6, 3), -1), "from -1 to -1"),
        (np.full((4, 6), 4000, np.uint16), "uint16"),
        (np.zeros((8, 6, 5), np.uint8), "up to 4 channels"),
        (np.zeros((2, 4, 6, 3), np.uint8), "up to 4 channels"),
        (np.zeros((0, 6, 3), np.uint8), "up to 4 channels"),
        (np.full((4, 6, 3), "x"), "image arrays"),
        (with_colours("I", 70000), "from 70000 to 70000"),
        (with_colours("F", 200.0), "from 200.0 to 200.0"),
    ],
)
def test_numbers_that_are_no_colours_are_refused(array: object, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        screenshot(array)


def test_of_an_animation_the_first_frame_is_seen() -> None:
    frames = [Image.new("RGB", (6, 4), colour) for colour in ((9, 8, 7), (1, 2, 3))]
    for format in ("PNG", "WEBP"):
        options = {"lossless": True} if format == "WEBP" else {}
        shot = Screenshot(encoded(frames[0], format, save_all=True, append_images=frames[1:], **options))
        assert shot.open().getcolors() == [(24, (9, 8, 7))]
        assert getattr(Image.open(io.BytesIO(shot.plain())), "n_frames", 1) == 1
    with pytest.raises(ValueError, match="is no PNG, JPEG or WEBP"):
        Screenshot(encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])).open()
