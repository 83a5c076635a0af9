"""The store of screenshots: bounded, except by what somebody still needs."""

from __future__ import annotations

import gc
import pickle

import pytest

from uirl.images import ImageStore, Screenshot


def shots(count: int) -> list[Screenshot]:
    return [Screenshot(bytes([i])) for i in range(count)]


def test_the_newest_are_kept() -> None:
    store = ImageStore(capacity=2)
    hashes = [store.put(bytes([i])).hash for i in range(3)]
    gc.collect()
    assert len(store) == 2
    assert [store.get(hash).data for hash in hashes[1:]] == [b"\x01", b"\x02"]
    with pytest.raises(KeyError, match=f"image {hashes[0]} is not in the store"):
        store.get(hashes[0])


def test_a_picture_that_somebody_holds_is_found_however_old_it_is() -> None:
    store = ImageStore(capacity=1)
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
    store = ImageStore(capacity=1)
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
