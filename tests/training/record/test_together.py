"""Episodes that end together are written together, and what cannot be written is heard of."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from uirl.errors import StorageError
from uirl.training.record.record import WrittenTogether
from uirl.types import Trajectory


class Disk:
    """Takes all episodes of a write or none: those named in `bad` fit nowhere."""

    def __init__(self, bad: set[str] = frozenset()) -> None:  # type: ignore[assignment]
        self.bad, self.writes = bad, []  # type: tuple[set[str], list[list[str]]]

    def write(self, trajectories: Sequence[Trajectory]) -> None:
        names = [t.id for t in trajectories]
        for name in names:
            if name in self.bad:
                raise StorageError(f"no room for {name}")
        self.writes.append(names)


async def test_what_ends_in_one_turn_of_the_loop_is_one_write_in_the_next() -> None:
    disk = Disk()
    together = WrittenTogether(disk.write)
    for name in "abc":
        together.add(Trajectory(id=name))
    assert disk.writes == []
    await asyncio.sleep(0)
    assert disk.writes == [["a", "b", "c"]]
    together.add(Trajectory(id="d"))
    await asyncio.sleep(0)
    assert disk.writes == [["a", "b", "c"], ["d"]]


async def test_flush_writes_at_once_and_once() -> None:
    disk = Disk()
    together = WrittenTogether(disk.write)
    together.add(Trajectory(id="a"))
    together.flush()
    assert disk.writes == [["a"]]
    together.flush()
    await asyncio.sleep(0)
    assert disk.writes == [["a"]]


@pytest.mark.parametrize("heard_by", ["add", "flush"])
async def test_what_cannot_be_written_takes_no_other_with_it_and_is_raised_once(heard_by: str) -> None:
    disk = Disk(bad={"b"})
    together = WrittenTogether(disk.write)
    for name in "abc":
        together.add(Trajectory(id=name))
    await asyncio.sleep(0)
    assert disk.writes == [["a"], ["c"]]
    with pytest.raises(StorageError, match="no room for b"):
        together.add(Trajectory(id="d")) if heard_by == "add" else together.flush()
    together.flush()
    assert disk.writes == [["a"], ["c"]]


async def test_one_that_cannot_be_written_is_not_tried_twice() -> None:
    tried: list[str] = []

    def write(trajectories: Sequence[Trajectory]) -> None:
        tried.extend(t.id for t in trajectories)
        raise StorageError("the disk is full")

    together = WrittenTogether(write)
    together.add(Trajectory(id="a"))
    with pytest.raises(StorageError, match="full"):
        together.flush()
    assert tried == ["a"]
