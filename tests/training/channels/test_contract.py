"""Every kind of channel passes one suite, and plays the same episodes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE
from tests.training.channels.probe import CountedEngine, probe_config
from uirl.errors import ConfigError
from uirl.rollout.episode import EpisodeSpec
from uirl.rollout.players import Order
from uirl.training.assembly import Assembly, assemble
from uirl.training.channels.base import Channel, Group, GroupRules, LocalChannel
from uirl.training.channels.workers import process_channel
from uirl.types import Task, Trajectory


async def test_the_channel_of_one_process(tmp_path: Path) -> None:
    assert len(await check_channel(LocalChannel, tmp_path)) == 3


@pytest.mark.actors
async def test_processes_play_what_one_process_plays(tmp_path: Path) -> None:
    folders = tmp_path / "local", tmp_path / "processes"
    for folder in folders:
        folder.mkdir()
    here = await check_channel(LocalChannel, folders[0])
    there = await check_channel(process_channel, folders[1], actors={"processes": 2})
    assert tokens(there) == tokens(here)


def tokens(groups: list[Group]) -> list[object]:
    return [
        (trajectory.id, turn.context_ids, turn.response_ids, turn.reward, turn.policy_version)
        for group in groups
        for trajectory in group.trajectories
        for turn in trajectory.turns
    ]


async def check_channel(make: Callable[[Assembly, GroupRules], Channel], folder: Path, **changes: Any) -> list[Group]:
    """Check a kind of channel; return the groups that it played first, which every kind plays alike.

    `folder`: an empty one that all processes see. `changes`: section -> keys of the config.
    """
    parts = assemble(probe_config(folder, **changes))
    engine = parts.engine = CountedEngine(parts.engine)
    channel = make(parts, GroupRules(retries=1))
    try:
        groups = await _whole_groups(channel, 3)
        await _failures(channel)
        await channel.publish(None, 4)
        (group,) = await within(channel.exchange([specs("newer", ["plays"] * 2, seed=200)]))
        assert [versions(one) for one in group.trajectories] == [{4}, {4}]
        await _other_players(channel)
        await _giving_up(channel, folder)
        channel.submit(specs("broken", ["breaks"], seed=600))
        with pytest.raises(ConfigError, match="told to break"):
            await within(channel.receive())
        await channel.give_up()
        channel.submit(specs("last", ["hangs"] * 2, seed=900))
        await until(lambda: (folder / "hangs-900").exists())
    finally:
        await within(channel.close())
    await within(channel.close())
    await parts.close()
    await until(lambda: not engine.kept)  # episodes of actors that were stopped release their caches
    # an instance whose process was killed cannot take its file away
    left = [path.name for path in folder.glob("open-*") if Path(f"/proc/{path.name.split('-')[1]}").exists()]
    assert not left
    return groups


async def _whole_groups(channel: Channel, version: int) -> list[Group]:
    await channel.publish(None, version)
    ordered = [specs(f"group-{i}", ["plays"] * 4, seed=10 * i) for i in range(3)]
    groups = await within(channel.exchange(ordered))
    for wanted, group in zip(ordered, groups, strict=True):
        assert group.id == wanted[0].group_id
        assert [one.failure for one in group.trajectories] == [None] * 4
        found = [(one.id, one.seed, len(one.turns), versions(one)) for one in group.trajectories]
        assert found == [(spec.trajectory_id, spec.environment_seed, 2, {version}) for spec in wanted]
    assert not channel.outstanding
    return groups


async def _failures(channel: Channel) -> None:
    """What fails is repeated; what fails for good says why, and takes no other member with it."""
    heard: list[str] = []
    channel.on_finished = lambda trajectory: heard.append(trajectory.id)
    (group,) = await within(channel.exchange([specs("repaired", ["plays", "fails once", "fails", "plays"], seed=100)]))
    channel.on_finished = None
    first, once, always, last = group.trajectories
    assert (first.failure, once.failure, last.failure) == (None, None, None)
    assert once.id == "repaired-1-r1"
    assert always.failure is not None
    assert "told to fail" in always.failure.message
    attempts = sorted(attempt.id for attempt in group.attempts)
    assert attempts == ["repaired-1", "repaired-2"]
    assert sorted(heard) == sorted([*attempts, *(one.id for one in group.trajectories)])


async def _other_players(channel: Channel) -> None:
    """Evaluations are played with options of their own, by the demonstrator or a control where one is ordered."""
    spec = specs("evaluated", ["plays"], seed=300)[0]
    greedy = [await within(channel.play_once(spec, Order("eval", 0.0))) for _ in range(2)]
    assert greedy[0].turns[-1].info["split"] == "eval"
    assert greedy[0].turns[0].response_ids == greedy[1].turns[0].response_ids
    for order, split, text in (
        (Order(expert=True), "train", "expert"),
        (Order("eval", control="a reply"), "eval", "nothing"),
        (Order("eval", 0.0, control="a variant"), "variant", None),
    ):
        (one,) = await within(channel.player(order).collect([spec]))
        assert (one.failure, one.turns[-1].info["split"]) == (None, split)
        assert text in (None, one.turns[-1].action.text)


async def _giving_up(channel: Channel, folder: Path) -> None:
    channel.submit(specs("hanging", ["hangs"] * 2, seed=400))
    await until(lambda: (folder / "hangs-400").exists())
    assert await within(channel.give_up()) == {"hanging-0", "hanging-1"}
    (group,) = await within(channel.exchange([specs("after", ["plays"] * 8, seed=500)]))
    assert [one.failure for one in group.trajectories] == [None] * 8


def specs(group: str, goals: Sequence[str], *, seed: int = 0) -> list[EpisodeSpec]:
    return [
        EpisodeSpec(Task(id=goal, goal=goal), seed + i * (goal != "hangs"), seed + i, f"{group}-{i}", group)
        for i, goal in enumerate(goals)
    ]


def versions(trajectory: Trajectory) -> set[int]:
    return {turn.policy_version for turn in trajectory.turns}


async def within(awaitable: Awaitable[Any]) -> Any:
    return await asyncio.wait_for(awaitable, PATIENCE)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.05)
