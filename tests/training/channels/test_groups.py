"""Groups: whole, with spares, closed without their stragglers, and given up."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from tests.patience import PATIENCE
from uirl.errors import ContractError
from uirl.rollout.episode import EpisodeSpec
from uirl.rollout.players import Order
from uirl.training.channels.base import ENOUGH_DURATIONS, Channel, GroupRules
from uirl.types import Failure, Task, Trajectory


def specs(group: str, size: int) -> list[EpisodeSpec]:
    return [EpisodeSpec(Task("t"), 1, i, f"{group}-{i}", group) for i in range(size)]


class Scripted(Channel):
    """Episodes that end when they are told to, or fail for so many attempts."""

    def __init__(self, rules: GroupRules, fails: Mapping[str, int] | None = None) -> None:
        places: Any = SimpleNamespace(slots=asyncio.Semaphore(1000), at_once=1000)
        super().__init__(SimpleNamespace(engine=None, collector=places, eval_collector=places), rules)  # type: ignore[arg-type]
        self.ends: dict[str, asyncio.Event] = {}
        self.fails = dict(fails or {})
        self.playing: set[str] = set()

    async def play_once(self, spec: EpisodeSpec, order: Order) -> Trajectory:
        id = spec.trajectory_id.partition("-r")[0]
        self.playing.add(id)
        try:
            if self.fails.get(id, 0) > 0:
                self.fails[id] -= 1
                return Trajectory(spec.trajectory_id, spec.task, failure=Failure("environment", "broke"))
            if self.fails.get(id) == -1:
                raise ContractError("the parser returned a number")
            await self.ends.setdefault(id, asyncio.Event()).wait()
        finally:
            self.playing.discard(id)
        return Trajectory(spec.trajectory_id, spec.task, group_id=spec.group_id, stop_reason="terminated")

    def end(self, *ids: str) -> None:
        for id in ids:
            self.ends.setdefault(id, asyncio.Event()).set()


async def soon(channel: Channel, timeout: float = 5.0) -> Any:
    return await asyncio.wait_for(channel.receive(), timeout)


async def test_groups_come_back_as_they_complete_and_their_members_in_order():
    channel = Scripted(GroupRules(size=2))
    channel.submit(specs("a", 2))
    channel.submit(specs("b", 2))
    assert channel.outstanding == ["a", "b"]
    assert channel.waits_for() == "2 groups, the oldest a, ordered 0 s ago"
    channel.end("b-1", "b-0")
    group = await soon(channel)
    assert group.id == "b"
    assert [t.id for t in group.trajectories] == ["b-0", "b-1"]
    assert not group.unused
    assert channel.outstanding == ["a"]
    assert channel.episodes_outstanding == {"a-0", "a-1"}
    assert channel.waits_for() == "group a, ordered 0 s ago"
    await channel.close()
    assert not channel.playing


async def test_a_group_with_a_spare_takes_the_first_to_end_and_gives_up_the_other():
    channel = Scripted(GroupRules(size=2))
    channel.submit(specs("a", 3))
    channel.end("a-2", "a-0")
    group = await soon(channel)
    assert [t.id for t in group.trajectories] == ["a-0", "a-2"]
    assert group.unused == {"a-1": "surplus"}
    assert not channel.playing, "the spare still plays"


async def test_a_spare_that_ended_as_well_is_on_the_record_and_not_learned_from():
    channel = Scripted(GroupRules(size=2))
    channel.end("a-0", "a-1", "a-2")
    channel.submit(specs("a", 3))
    group = await soon(channel)
    assert [t.id for t in group.trajectories] == ["a-0", "a-1"]
    assert group.unused == {"a-2": "surplus"}
    assert [t.id for t in group.spares] == ["a-2"]


async def test_a_spare_stands_in_for_an_episode_that_failed_for_good():
    channel = Scripted(GroupRules(size=2, retries=1), fails={"a-0": 2})
    written: list[str] = []
    channel.on_finished = lambda trajectory: written.append(trajectory.id)
    channel.submit(specs("a", 3))
    async with asyncio.timeout(PATIENCE):
        while "a-0-r1" not in written:
            await asyncio.sleep(0.01)
    channel.end("a-1", "a-2")
    group = await soon(channel)
    assert [t.id for t in group.usable] == ["a-1", "a-2"]
    assert [t.id for t in group.attempts] == ["a-0"]
    assert sorted(written) == ["a-0", "a-0-r1", "a-1", "a-2"]


async def test_a_straggler_is_left_behind_once_the_group_has_its_floor():
    channel = Scripted(GroupRules(size=3, floor=2, close_after=3.0))
    for i in range(ENOUGH_DURATIONS):
        channel.end(f"w{i}-0")
        channel.submit(specs(f"w{i}", 1))
        await soon(channel)
    channel.submit(specs("a", 3))
    channel.end("a-0")
    with pytest.raises(asyncio.TimeoutError):
        await soon(channel, 0.3)  # below its floor it waits, however long the others take
    channel.end("a-1")
    group = await soon(channel)
    assert [t.id for t in group.trajectories] == ["a-0", "a-1"]
    assert group.unused == {"a-2": "straggler"}


async def test_what_breaks_an_actor_is_raised_where_groups_are_received_and_the_others_end():
    channel = Scripted(GroupRules(), fails={"a-0": -1})
    channel.submit(specs("a", 3))
    with pytest.raises(ContractError, match="returned a number"):
        await soon(channel)
    assert not channel.playing


async def test_giving_up_returns_the_episodes_that_were_not_received():
    channel = Scripted(GroupRules())
    channel.submit(specs("a", 2))
    channel.submit(specs("b", 1))
    channel.end("b-0")
    await asyncio.sleep(0.01)
    assert await channel.give_up() == {"a-0", "a-1", "b-0"}
    assert not channel.outstanding
    assert not channel.playing
    channel.submit(specs("c", 1))
    channel.end("c-0")
    assert (await soon(channel)).id == "c"
