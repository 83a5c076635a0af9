"""Every kind of channel passes one suite, and plays the same episodes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.training.channels import conformance
from tests.training.channels.conformance import check_channel
from uirl.errors import ContractError
from uirl.rollout.episode import EpisodeSpec
from uirl.rollout.players import Order
from uirl.training.assembly import Assembly, sampling_of
from uirl.training.channels.base import Channel, Group, GroupRules
from uirl.training.channels.local import LocalChannel
from uirl.training.channels.workers import process_channel
from uirl.types import Trajectory


def local(parts: Assembly, rules: GroupRules) -> Channel:
    return LocalChannel(
        parts.collector, parts.engine, sampling_of(parts.config.inference), rules, eval_collector=parts.eval_collector
    )


async def test_the_channel_of_one_process(tmp_path: Path) -> None:
    assert len((await check_channel(local, tmp_path)).groups) == 3


@pytest.mark.actors
async def test_processes_play_what_one_process_plays(tmp_path: Path) -> None:
    folders = tmp_path / "local", tmp_path / "processes"
    for folder in folders:
        folder.mkdir()
    here = await check_channel(local, folders[0])
    there = await check_channel(process_channel, folders[1], actors={"processes": 2})
    assert tokens(there.groups) == tokens(here.groups)


def tokens(groups: list[Group]) -> list[object]:
    return [
        (trajectory.id, turn.context_ids, turn.response_ids, turn.reward, turn.policy_version)
        for group in groups
        for trajectory in group.trajectories
        for turn in trajectory.turns
    ]


class Forgetful(LocalChannel):
    """Loses the order of a group."""

    async def _play_group(self, ordered: object) -> Group:
        group = await super()._play_group(ordered)  # type: ignore[arg-type]
        group.trajectories.reverse()
        return group


class Deaf(LocalChannel):
    """Does not hear of new weights."""

    async def publish(self, weights: object, version: int, *, adapter: object = None) -> None:
        if version == 3:
            await super().publish(None, version)


class Silent(LocalChannel):
    """Does not say why an episode failed."""

    async def play_once(self, spec: EpisodeSpec, order: Order) -> Trajectory:
        played = await super().play_once(spec, order)
        return played if played.failure is None else replace(played, failure=replace(played.failure, message="no"))


class Untidy(LocalChannel):
    """Leaves episodes to themselves when it is closed."""

    async def close(self) -> None:
        conformance.WAIT = 0.2  # nothing will come


@pytest.mark.parametrize(
    ("kind", "breach"),
    [
        (Forgetful, "expected the order ordered"),
        (Silent, "which does not say why"),
        (Deaf, r"after publish\(4\)"),
        (Untidy, "for the release of"),
    ],
)
async def test_a_breach_is_named(
    tmp_path: Path, kind: type[LocalChannel], breach: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conformance, "WAIT", conformance.WAIT)
    made: list[Channel] = []

    def make(parts: Assembly, rules: GroupRules) -> Channel:
        made.append(
            kind(
                parts.collector,
                parts.engine,
                sampling_of(parts.config.inference),
                rules,
                eval_collector=parts.eval_collector,
            )
        )
        return made[0]

    with pytest.raises(ContractError, match=breach):
        await check_channel(make, tmp_path)
    await made[0].give_up()
