"""What the coordinator keeps of a run: each episode once, attempts apart, the first error for the person."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.integrations.verl.loops import (
    SAMPLING,
    TEXT,
    broken_row,
    loop_of,
    prepared,
    rows,
)
from uirl.errors import ConfigError
from uirl.integrations.verl.rollout.agent_loop import EpisodeFailed
from uirl.integrations.verl.rollout.context import context_of
from uirl.integrations.verl.rollout.coordinator import RunCoordinator
from uirl.integrations.verl.rollout.workers import portable
from uirl.types import Observation, Trajectory, Turn

pytestmark = pytest.mark.verl


class Desk:
    """A coordinator by hand: says of each episode whether it kept it, and remembers which pictures came along."""

    def __init__(self, *answers: bool) -> None:
        self.answers = list(answers)
        self.came: list[set[str]] = []
        self.repeated: list[bool] = []
        self.add = SimpleNamespace(remote=self._add)

    async def _add(
        self, trajectory: Trajectory, pictures: dict[str, bytes], step: int, split: str, repeated: bool
    ) -> bool:
        self.came.append(set(pictures))
        self.repeated.append(repeated)
        return self.answers[len(self.came) - 1]


def test_pictures_that_were_not_kept_are_sent_again(tmp_path: Path) -> None:
    config, client = prepared(tmp_path)
    desk = Desk(False, True, True)

    async def same_episode_three_times() -> None:
        context = await context_of(config, client)
        context.coordinator = desk
        (row,) = rows(config)
        for _ in range(3):
            await loop_of(config, client).run(dict(SAMPLING), **row)

    asyncio.run(same_episode_three_times())
    first, second, third = desk.came
    assert first == second != set()
    assert third == set()


def test_an_evaluation_is_on_the_record_once(tmp_path: Path) -> None:
    """verl evaluates once more where a run continues."""
    turn = Turn(Observation("look"), (1, 2), (3, 4), (-0.5, -0.5))
    held_out = Trajectory(id="eval-0@1-0", group_id="eval-0@1", turns=[turn])
    coordinator = RunCoordinator({}, str(tmp_path))
    coordinator.begin(None)
    assert coordinator.add(held_out, {}, 1, "eval")
    coordinator.close()
    again = RunCoordinator({}, str(tmp_path))
    again.begin(1)
    assert not again.add(replace(held_out, id="eval-0@1-1"), {}, 1, "eval")
    assert again.add(replace(held_out, id="train-0-0", group_id="train-0"), {}, 2, "train")
    again.close()


def test_attempts_that_were_repeated_are_told_from_episodes(tmp_path: Path) -> None:
    fragile = "environment.name=tests.integrations.verl.worlds:OneBrokenTask"
    config, client = prepared(tmp_path, *TEXT, fragile, "rollout.retries=1")
    desk = Desk(True, True)

    async def played() -> None:
        (await context_of(config, client)).coordinator = desk
        with pytest.raises(EpisodeFailed):
            await loop_of(config, client).run(dict(SAMPLING), **broken_row(config))

    asyncio.run(played())
    assert desk.repeated == [True, False]
    coordinator = RunCoordinator({}, None)
    for i, repeated in enumerate(desk.repeated):
        coordinator.add(Trajectory(id=f"train-0-{i}"), {}, 1, "train", repeated)
    taken = coordinator.take()
    assert ([t.id for t in taken.episodes], [t.id for t in taken.attempts]) == (["train-0-1"], ["train-0-0"])
    assert coordinator.take().episodes == []


class Unsendable(Exception):
    def __init__(self, code: int, *, reason: str) -> None:
        super().__init__(f"{code} {reason}")


def test_the_first_error_for_the_person_is_kept_as_it_is_where_it_can_be_sent() -> None:
    coordinator = RunCoordinator({}, None)
    assert coordinator.first_error() is None
    coordinator.report_error(portable(ConfigError("install abacus")))
    coordinator.report_error(portable(Unsendable(5, reason="later")))
    assert repr(coordinator.first_error()) == repr(ConfigError("install abacus"))
    assert repr(portable(Unsendable(5, reason="no way"))) == repr(RuntimeError("Unsendable: 5 no way"))
