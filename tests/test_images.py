"""The store of screenshots: bounded, except by what somebody still needs."""

from __future__ import annotations

import gc
import io
import pickle
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from uirl.images import ImageStore, Screenshot, screenshot


def shots(count: int) -> list[Screenshot]:
    return [Screenshot(bytes([i])) for i in range(count)]


def test_the_newest_are_kept() -> None:
    store = ImageStore(room=2)
    hashes = [store.put(bytes([i])).hash for i in range(3)]
    gc.collect()
    assert len(store) == 2
    assert [store.get(hash).data for hash in hashes[1:]] == [b"\x01", b"\x02"]
    with pytest.raises(KeyError, match=f"image {hashes[0]} is not in the store"):
        store.get(hashes[0])


def test_the_bound_is_in_bytes() -> None:
    store = ImageStore(room=1000)
    for i in range(50):
        store.put(bytes([i]) * 400)
        store.put(bytes([i]) * 400)  # the same one again takes no more
    assert len(store) == 2
    store.put(b"x" * 999)
    assert len(store) == 1
    store.forget_before(time.time() + 1)
    assert len(store) == 0
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
    held = [store.put(shot) for shot in shots(5)]
    # a second picture of the same content must not take the place of the one that is held
    for shot in shots(5):
        store.put(Screenshot(shot.data))
    gc.collect()
    assert [store.get(shot.hash) for shot in held] == held
    assert len(store) == 1
    hash = held.pop(0).hash
    gc.collect()
    with pytest.raises(KeyError):
        store.get(hash)


def test_nothing_is_dropped_while_somebody_is_holding() -> None:
    store = ImageStore(room=1)
    with store.holding():
        with store.holding():
            hashes = [store.put(bytes([i])).hash for i in range(3)]
        assert [store.get(hash).data for hash in hashes] == [b"\x00", b"\x01", b"\x02"]
    gc.collect()
    assert len(store) == 1
    with pytest.raises(KeyError):
        store.get(hashes[0])


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
