"""What the garbage collector passes over, and that it sees everything again."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from uirl.runtime import memory
from uirl.runtime.memory import set_aside


@pytest.fixture(autouse=True)
def as_in_a_plain_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All of the tests run inside one such context."""
    monkeypatch.setattr(memory, "_inside", 0)
    gc.unfreeze()
    yield
    gc.freeze()


class Ring:
    """Garbage that only the collector finds."""

    def __init__(self) -> None:
        self.me = self


def collected(ring: weakref.ref[Ring]) -> bool:
    gc.collect()
    return ring() is None


def test_what_was_there_is_passed_over_until_the_last_context_ends() -> None:
    old = Ring()
    with set_aside():
        with set_aside():
            young = Ring()
            seen, passed_over = weakref.ref(young), weakref.ref(old)
            del old, young
            assert collected(seen)
            assert not collected(passed_over)
        assert not collected(passed_over)
    assert collected(passed_over)


def test_an_error_inside_sets_nothing_aside_for_good() -> None:
    old = Ring()
    with pytest.raises(ValueError, match="x"), set_aside():
        raise ValueError("x")
    ring = weakref.ref(old)
    del old
    assert collected(ring)
