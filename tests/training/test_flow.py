"""The flow of groups: the capacity rule, what is too old, spares, and the accounts of all of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from tests.patience import PATIENCE
from uirl import ConfigStore
from uirl.errors import RolloutFailure
from uirl.inference.base import Weights
from uirl.learner.settings import LearnerSettings
from uirl.rollout.episode import EpisodeSpec
from uirl.rollout.players import Order
from uirl.training.channels.base import Channel, GroupRules
from uirl.training.flow import Flow, capacity
from uirl.training.record.run_state import RunState
from uirl.training.tasks.sources import UniformTasks
from uirl.types import Failure, Observation, Task, Trajectory, Turn


@pytest.mark.parametrize(
    ("staleness", "updates", "accepted", "running", "room"),
    [
        (0, 0, 0, 0, 4),  # a synchronous run orders one batch
        (0, 0, 1, 3, 0),
        (0, 1, 4, 0, 4),
        (2, 0, 0, 0, 12),  # three batches before the first update
        (2, 1, 4, 8, 4),  # one more for each update
        (2, 1, 4, 12, 0),
        (1, 10, 40, 0, 8),  # after a resume: what it was made of counts as accepted, so two batches and no burst
    ],
)
def test_the_capacity_rule(staleness: int, updates: int, accepted: int, running: int, room: int):
    assert capacity(staleness, updates, 4, accepted, running) == room


class Actors(Channel):
    """Episodes that end at once, with the version of the weights as they are; those named in `held` wait."""

    def __init__(self, config: ConfigStore, held: Sequence[str] = (), failing: Sequence[str] = ()) -> None:
        places: Any = SimpleNamespace(slots=asyncio.Semaphore(1000), at_once=1000)
        parts: Any = SimpleNamespace(engine=None, collector=places, eval_collector=places)
        super().__init__(parts, GroupRules(config.training.episodes_per_group, config.group_floor))
        self.version = 0
        self.held = {id: asyncio.Event() for id in held}
        self.failing = set(failing)
        self.submitted: list[str] = []

    def submit(self, specs: Sequence[EpisodeSpec]) -> None:
        self.submitted.append(specs[0].group_id)
        super().submit(specs)

    async def play_once(self, spec: EpisodeSpec, order: Order) -> Trajectory:
        version, id = self.version, spec.trajectory_id.partition("-r")[0]
        if id in self.held:
            await self.held[id].wait()
        played = Trajectory(spec.trajectory_id, spec.task, group_id=spec.group_id)
        if id in self.failing:
            played.failure = Failure("environment", "broke")
            return played
        reward = float(int(spec.trajectory_id[-1]) % 2)
        played.turns.append(Turn(Observation("o"), reward=reward, policy_version=version))
        return played

    async def publish(self, weights: Weights | None, version: int, *, adapter: Mapping[str, Any] | None = None) -> None:
        self.version = version


def settings(**actors: Any) -> ConfigStore:
    config = ConfigStore()
    config.training.adv_estimator, config.training.batch_size, config.training.group_size = "grpo", 8, 4
    config.rollout.retries = 0
    for key, value in actors.items():
        setattr(config.actors, key, value)
    return config


class Run:
    """Updates on what the flow hands out."""

    def __init__(self, config: ConfigStore, channel: Actors, state: RunState | None = None) -> None:
        self.channel, self.state = channel, state or RunState()
        tasks = UniformTasks([Task("t")], seed=0)
        self.flow = Flow(channel, tasks, config.actors, LearnerSettings.of(config), self.state)

    async def update(self, **row: float) -> list[str]:
        """Collect and learn; the ids of the groups learned from."""
        collection = await asyncio.wait_for(self.flow.collect(self.state.step, self.channel.version), PATIENCE)
        self.flow.book(collection, row)
        self.state.step += 1
        await self.channel.publish(None, self.channel.version + 1)
        return [group.id for group in collection.groups]


def names(*numbers: int) -> list[str]:
    return [f"train-{n:06d}" for n in numbers]


async def test_a_synchronous_run_orders_one_batch_at_a_time():
    run = Run(config := settings(), Actors(config))
    assert await run.update() == names(0, 1)
    assert run.channel.submitted == names(0, 1)
    assert await run.update() == names(2, 3)
    assert run.state.ledger.words() == "16 ordered: 16 trained, 0 dropped, 0 failed, 0 in flight"


async def test_actors_run_ahead_by_the_staleness_and_no_further():
    run = Run(config := settings(staleness=2), Actors(config))
    assert await run.update() == names(0, 1)
    assert run.channel.submitted == names(*range(6))
    assert await run.update() == names(2, 3)
    assert run.channel.submitted == names(*range(8))
    assert run.state.ledger.report()["in_flight"] == 16
    await run.flow.give_up("run ended")
    assert run.state.ledger.words() == "32 ordered: 16 trained, 16 dropped (run ended 16), 0 failed, 0 in flight"


async def test_a_resumed_run_orders_no_burst():
    config = settings(staleness=1)
    run = Run(config, Actors(config), RunState(step=10))
    await run.update()
    assert len(run.channel.submitted) == 4
    await run.flow.give_up("run ended")


async def test_the_bound_that_is_found_goes_with_the_run(capsys: pytest.CaptureFixture[str]):
    config = settings(staleness="auto")
    run = Run(config, Actors(config))
    assert run.flow.staleness == 1
    for _ in range(12):
        await run.update()
        run.flow.adapt({"stale/gap": 0.001, "stale/ess": 0.999, "stale/age_max": run.flow.staleness})
    assert run.flow.staleness > 1
    assert "staleness 1 -> 2: log-prob gap 0.001 of at most 0.02 nats" in capsys.readouterr().out
    resumed = Run(config, Actors(config), RunState.from_dict(run.state.to_dict()))
    assert resumed.flow.staleness == run.flow.staleness
    assert run.flow.row()["actors/staleness"] == run.flow.staleness
    await run.flow.give_up("run ended")


async def test_a_straggler_holds_nobody_and_is_dropped_once_it_is_too_old():
    config = settings(staleness=1)
    channel = Actors(config, held=["train-000000-2"])
    run = Run(config, channel)
    assert await run.update() == names(1, 2)
    assert await run.update() == names(3, 4)
    channel.held["train-000000-2"].set()  # its first members were sampled two versions ago
    await asyncio.sleep(0.01)
    assert await run.update() == names(5, 6)
    assert run.state.ledger.dropped == {"stale": 4}
    await run.flow.give_up("run ended")


@pytest.mark.parametrize(("versions", "learned"), [([[4, 5], [5, 5]], True), ([[3, 5], [5, 5]], False)])
async def test_a_group_is_as_old_as_its_oldest_turn(versions: list[list[int]], learned: bool):
    """At version 5 and with a staleness of 1 one turn of version 3 makes all of its group too old."""
    config = settings(staleness=1)
    config.training.batch_size = config.training.group_size = 2
    channel = Actors(config)
    run, ids = Run(config, channel), iter(versions * 8)

    async def play(spec: EpisodeSpec, order: Order) -> Trajectory:
        first = spec.group_id == names(0)[0]
        played = Trajectory(spec.trajectory_id, spec.task, group_id=spec.group_id)
        for version in next(ids) if first else [5]:
            played.turns.append(Turn(Observation("o"), policy_version=version))
        return played

    channel.play_once, channel.version = play, 5  # type: ignore[method-assign]
    assert (await run.update() == names(0)) is learned
    assert run.state.ledger.dropped.get("stale", 0) == (0 if learned else 2)
    await run.flow.give_up("run ended")


async def test_what_is_stale_does_not_make_an_update_smaller():
    config = settings(staleness=1)
    channel = Actors(config)
    run = Run(config, channel)
    await run.update()
    channel.version += 5  # nothing under way is young enough
    assert len(await run.update()) == 2
    assert run.state.ledger.dropped["stale"] == 8
    await run.flow.give_up("run ended")


async def test_spare_groups_of_a_synchronous_run_are_given_up_with_its_update():
    config = settings(spare_groups=1)
    run = Run(config, Actors(config, held=["train-000001-0"]))
    assert await run.update() == names(0, 2)
    assert run.state.ledger.words() == "12 ordered: 8 trained, 4 dropped (surplus 4), 0 failed, 0 in flight"
    assert await run.update() == names(3, 4)
    assert not run.channel.outstanding
    assert not run.flow._order, "what was given up is remembered"


async def test_no_group_is_learned_from_below_its_floor():
    config = settings(group_floor=3)
    run = Run(config, Actors(config, failing=["train-000000-0", "train-000000-1"]))
    assert await run.update() == names(1)
    assert run.state.ledger.words() == (
        "8 ordered: 4 trained, 2 dropped (below floor 2), 2 failed (environment 2), 0 in flight"
    )


async def test_where_no_group_has_its_floor_the_run_stops_and_says_so():
    config = settings(group_floor=4)
    run = Run(config, Actors(config, failing=["train-000000-0", "train-000001-0"]))
    with pytest.raises(RolloutFailure, match="none of the 2 groups of this update has 4 usable episodes"):
        await run.update()


async def test_an_update_without_a_step_has_trained_nobody():
    run = Run(config := settings(), Actors(config))
    await run.update(skipped=1.0)
    assert run.state.ledger.words() == "8 ordered: 0 trained, 8 dropped (update skipped 8), 0 failed, 0 in flight"


async def test_groups_without_a_signal_are_replaced_and_accounted_for():
    config = settings()
    config.algorithm.max_resamples = 1
    channel = Actors(config)
    play = channel.play_once

    async def dead_first(spec: EpisodeSpec, order: Order) -> Trajectory:
        played = await play(spec, order)
        if spec.group_id == "train-000000":
            played.rewards = [1.0]
        return played

    channel.play_once = dead_first  # type: ignore[method-assign]
    run = Run(config, channel)
    assert await run.update() == names(2, 1)
    assert run.state.ledger.words() == "12 ordered: 8 trained, 4 dropped (no signal 4), 0 failed, 0 in flight"


@pytest.mark.parametrize(
    ("actors", "held", "given_up"),
    [({"spare_groups": 1}, "train-000001-0", {"surplus": 4}), ({"spare_members": 1}, "train-000000-3", {"surplus": 1})],
)
async def test_an_update_tells_of_the_slow_ones_that_nobody_waited_for(
    actors: dict[str, int], held: str, given_up: dict[str, int]
):
    config = settings(**actors)
    run = Run(config, Actors(config, held=[held]))
    collection = await run.flow.collect(0, 0)
    assert collection.given_up == given_up
    run.state.add(collection.played, collection.attempts, collection.given_up)
    assert run.state.tally.excluded == given_up
    await run.flow.give_up("run ended")
