"""`MultiActorRunner` as its document shows it: actors on several servers, one queue, and what goes wrong there."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import multiprocessing
import queue
from collections.abc import Iterator
from typing import Any

import pytest

from tests.environments.remote.faults import Faulty
from tests.environments.remote.running import Served, running, serving, until
from tests.environments.remote.stand_ins import many_sessions
from tests.patience import PATIENCE
from tests.rollout.worlds import scripted
from uirl.algorithms import RejectionSampling
from uirl.errors import ConfigError, ContractError
from uirl.images import ImageStore
from uirl.inference import LoadedModel, TextEngine
from uirl.inference.base import Generation, GenerationRequest, InferenceEngine
from uirl.learner import VLMWrapper
from uirl.rollout.multi_actor_runner import NO_SERVER, MultiActorOptions, MultiActorRunner, _Counts
from uirl.training import Trainer
from uirl.types import Failure, Trajectory, Turn

SMALL = {"width": 56, "height": 56, "delay": 0}


@pytest.fixture(scope="module")
def wrapper() -> VLMWrapper:
    return VLMWrapper(model_name="uirl/tiny-vlm", device="cpu")


@contextlib.contextmanager
def servers(count: int) -> Iterator[list[Served]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(serving("screen", options={"retries": 3})) for _ in range(count)]


def options(**keys: Any) -> MultiActorOptions:
    return MultiActorOptions(**{"max_steps": 2, "max_tokens": 4, "restart_backoff": 0.01, **keys})


def play_on(urls: list[str], model: Any, into: Any, actors: int = 4, **keys: Any) -> MultiActorRunner:
    return MultiActorRunner(actors, urls, model, into, options=options(**keys), environment_options=SMALL)


def take(trajectories: Any, count: int) -> list[Trajectory]:
    return [trajectories.get(timeout=PATIENCE) for _ in range(count)]


def test_actors_play_on_all_servers_and_the_learner_learns_meanwhile(wrapper: VLMWrapper) -> None:
    trajectories: queue.Queue[Trajectory] = queue.Queue()
    with servers(2) as served:
        runner = play_on([one.url for one in served], wrapper, trajectories)
        runner.start()
        trainer = Trainer(wrapper, RejectionSampling(reward_threshold=-1.0), batch_size=4, images=runner.images)
        for update in range(3):
            trainer.train_step(take(trajectories, 4))
            runner.publish(trainer.learner)
            assert trainer.learner.version == update + 1
        until(lambda: trajectories.get(timeout=PATIENCE).turns[-1].policy_version == 3)
        stats = runner.stats()
        assert stats["playing"]
        assert stats["seconds"] > 0
        assert stats["failures"] == {}
        assert {url: row["episodes"] > 0 for url, row in stats["urls"].items()} == {one.url: True for one in served}
        assert sum(row["episodes"] for row in stats["actors"]) == stats["episodes"]
        assert runner.stop()
        assert [one.active for one in served] == [0, 0]
    ended = runner.stats()
    assert not ended["playing"]
    assert ended["began"] == ended["episodes"] + ended["gave_up"]
    assert ended["episodes"] == ended["delivered"] + ended["not_delivered"]
    assert ended["seconds"] == runner.stats()["seconds"], "the clock of the rates stops with the actors"


def test_training_does_not_change_what_the_actors_sample_from_until_it_is_published(wrapper: VLMWrapper) -> None:
    images = ImageStore()
    runner = play_on(["http://127.0.0.1:1"], wrapper, queue.Queue(), images=images)
    assert runner.images is images
    own = dict(runner.engine.loaded.model.named_parameters())
    for name, parameter in wrapper.policy.loaded.model.named_parameters():
        assert parameter.data_ptr() != own[name].data_ptr()
        assert parameter.equal(own[name])


class Together(InferenceEngine):
    """Counts the requests that are under way at the same time; all wait for `actors` of them."""

    def __init__(self, inner: InferenceEngine, actors: int) -> None:
        self.inner, self.most, self.now = inner, 0, 0
        self._all = asyncio.Barrier(actors)

    async def generate(self, request: GenerationRequest) -> Generation:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await self._all.wait()
            return await self.inner.generate(request)
        finally:
            self.now -= 1

    async def update_weights(self, weights: Any, version: int, *, adapter: Any = None) -> None:
        raise NotImplementedError


def test_replies_of_all_actors_are_asked_for_at_once(vlm: LoadedModel) -> None:
    engine = Together(scripted(vlm, "x"), 3)
    trajectories: queue.Queue[Trajectory] = queue.Queue()
    with servers(1) as (served,), play_on([served.url], TextEngine(vlm, engine), trajectories, actors=3):
        take(trajectories, 6)
    assert engine.most == 3


def test_a_server_that_is_gone_costs_failures_and_not_the_run(vlm: LoadedModel) -> None:
    trajectories: queue.Queue[Trajectory] = queue.Queue()
    engine = TextEngine(vlm, scripted(vlm, "x"))
    gone = Faulty(many_sessions(), lambda method, path: "500")
    with servers(1) as (served,), running(gone) as url, play_on([url, served.url], engine, trajectories) as runner:
        found = take(trajectories, 30)
        assert sum(one.failure is None for one in found) > 0
        assert runner.stats()["urls"][served.url]["episodes"] > 0
        until(lambda: runner.stats()["urls"][url]["failures"].get("environment"), "a failure there")
        # and it comes back
        gone.rule = lambda method, path: None
        until(lambda: any(one.failure is None and one.turns for one in take(trajectories, 1)))
        before = runner.stats()["urls"][url]
        for server in runner.environment.pool.servers:
            server.doubtful_until = server.out_until = 0.0  # as time passes
        until(lambda: trajectories.get(timeout=PATIENCE) and _good(runner, url) > before["episodes"], "its episodes")
    assert runner.stats()["failures"].keys() == {"environment"}


def _good(runner: MultiActorRunner, url: str) -> int:
    return runner.stats()["urls"][url]["episodes"]


def test_where_no_server_answers_failures_are_told_and_actors_rest(
    vlm: LoadedModel, caplog: pytest.LogCaptureFixture
) -> None:
    trajectories: queue.Queue[Trajectory] = queue.Queue()
    runner = MultiActorRunner(
        1,
        ["http://127.0.0.1:1"],
        TextEngine(vlm, scripted(vlm, "x")),
        trajectories,
        options=options(restart_backoff=0.01, max_backoff=0.02),
        environment_options={"acquire_timeout": 0.01},
    )
    with caplog.at_level(logging.WARNING), runner:
        first = take(trajectories, 2)
        assert [one.failure.kind for one in first if one.failure] == ["environment"] * 2
        stats = runner.stats()
        server = stats["urls"]["http://127.0.0.1:1"]
        assert server["out_because"]
        assert 0 < server["out_seconds"] <= 300
    assert any("actor 0 failed 1 times in a row, rests 0.0 s" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("limit", ["of the queue", "of the runner", "of a queue of processes"])
def test_a_full_queue_makes_actors_wait(vlm: LoadedModel, limit: str, caplog: pytest.LogCaptureFixture) -> None:
    made: dict[str, Any] = {
        "of the queue": lambda: queue.Queue(3),
        "of the runner": lambda: queue.Queue(),
        "of a queue of processes": lambda: multiprocessing.Queue(3),
    }
    trajectories = made[limit]()
    keys = {"max_waiting": 3} if limit == "of the runner" else {}
    engine = TextEngine(vlm, scripted(vlm, "x"))
    with servers(1) as (served,), caplog.at_level(logging.WARNING):
        with play_on([served.url], engine, trajectories, actors=2, **keys) as runner:
            until(lambda: runner.stats()["waiting_for_room"] == 2, "actors that wait")
            assert (runner.stats()["delivered"], trajectories.qsize()) == (3, 3)
            assert served.active == 0, "who waits holds no session"
            taken = take(trajectories, 4)
            assert len({one.id for one in taken}) == 4
            until(lambda: runner.stats()["waiting_for_room"] == 2, "actors that wait again")
        ended = runner.stats()
        assert (ended["delivered"], ended["not_delivered"], trajectories.qsize()) == (7, 2, 3)
        assert "waits for room in the trajectory queue (3 in it" in caplog.text
        assert "not everything ended" not in caplog.text


@pytest.mark.parametrize("seed", [None, 5])
def test_a_group_plays_one_instance(vlm: LoadedModel, seed: int | None) -> None:
    def groups() -> dict[str, list[Trajectory]]:
        trajectories: queue.Queue[Trajectory] = queue.Queue(2)
        engine, found = TextEngine(vlm, scripted(vlm, "x")), {}
        with servers(1) as (served,), play_on([served.url], engine, trajectories, group_size=3, seed=seed):
            for one in take(trajectories, 9):
                found.setdefault(one.group_id, []).append(one)
        return found

    whole = {id: members for id, members in groups().items() if len(members) == 3}
    assert whole
    seeds = [{member.seed for member in members} for members in whole.values()]
    assert all(len(one) == 1 for one in seeds)
    assert len(set.union(*seeds)) == len(whole)
    assert not groups().keys() & whole.keys(), "another runner's groups are others"


class Bare:
    """All that the protocol asks for."""

    def __init__(self) -> None:
        self.kept: list[Trajectory] = []

    def put(self, item: Trajectory) -> None:
        self.kept.append(item)


def test_a_queue_needs_no_more_than_put(vlm: LoadedModel) -> None:
    into = Bare()
    with servers(1) as (served,), play_on([served.url], TextEngine(vlm, scripted(vlm, "x")), into) as runner:
        until(lambda: len(into.kept) > 4)
        assert runner.stats()["waiting_in_queue"] is None


class Odd(InferenceEngine):
    def __init__(self, error: Exception, inner: InferenceEngine) -> None:
        self.error, self.inner, self.calls = error, inner, 0

    async def generate(self, request: GenerationRequest) -> Generation:
        self.calls += 1
        if self.calls <= 2:
            raise self.error
        return await self.inner.generate(request)

    async def update_weights(self, weights: Any, version: int, *, adapter: Any = None) -> None:
        raise NotImplementedError


def test_an_actor_that_breaks_begins_anew(vlm: LoadedModel) -> None:
    engine = TextEngine(vlm, Odd(RuntimeError("a bug"), scripted(vlm, "x")))
    trajectories: queue.Queue[Trajectory] = queue.Queue()
    with servers(1) as (served,):
        with play_on([served.url], engine, trajectories, actors=1) as runner:
            take(trajectories, 2)
            (actor,) = runner.stats()["actors"]
            assert actor["restarts"] == 2
            assert runner.stats()["gave_up"] == 2
        assert served.active == 0


def test_a_wrong_set_up_ends_the_actors_and_is_told(vlm: LoadedModel) -> None:
    engine = TextEngine(vlm, Odd(ContractError("no log-probs"), scripted(vlm, "x")))
    with servers(1) as (served,):
        runner = play_on([served.url], engine, queue.Queue(), actors=2).start()
        until(lambda: not runner.playing)
        with pytest.raises(ContractError, match="no log-probs"):
            runner.stop()
        assert served.active == 0


def test_it_starts_once_and_again_after_a_stop(vlm: LoadedModel) -> None:
    trajectories: queue.Queue[Trajectory] = queue.Queue()
    with servers(1) as (served,):
        runner = play_on([served.url], TextEngine(vlm, scripted(vlm, "x")), trajectories)
        assert runner.stop(), "nothing to stop"
        with runner:
            with pytest.raises(ContractError, match="playing already"):
                runner.start()
            take(trajectories, 1)
        with runner.start():
            take(trajectories, 1)
    assert not runner.playing


def test_what_does_not_fit_is_said_at_once(vlm: LoadedModel) -> None:
    engine = TextEngine(vlm, scripted(vlm, "x"))
    with pytest.raises(ConfigError, match="num_actors: got 0"):
        play_on(["http://a"], engine, queue.Queue(), actors=0)
    with pytest.raises(ConfigError, match="env_urls: got 'http://a', expected a list"):
        play_on("http://a", engine, queue.Queue())  # type: ignore[arg-type]
    with pytest.raises(ContractError, match="plays with a VLMWrapper or a TextEngine, got object"):
        play_on(["http://a"], object(), queue.Queue())
    with pytest.raises(ConfigError, match="no option 'url'"):
        MultiActorRunner(1, ["http://a"], engine, queue.Queue(), environment="screen")


def test_the_numbers_add_up() -> None:
    counts = _Counts(2, ["a", "b"])
    for actor, url, turns, failure in ((0, "a", 3, None), (1, "a", 1, "environment"), (1, "", 0, "timeout")):
        counts.note(actor, "began", "playing")
        played = Trajectory(turns=[Turn(observation=None) for _ in range(turns)])  # type: ignore[arg-type]
        played.failure = None if failure is None else Failure(failure, "it broke")
        counts.played(actor, url, played)
        counts.note(actor, "delivered", "idle")
    counts.note(0, "began", "playing")
    counts.note(0, "gave_up", "idle")
    counts.ended = counts.begun + 10.0
    found = counts.report({"a": {"active": 1}})
    assert (found["episodes"], found["steps"], found["seconds"], found["steps_per_second"]) == (3, 4, 10.0, 0.4)
    assert found["failures"] == {"environment": 1, "timeout": 1}
    assert (found["began"], found["gave_up"], found["delivered"], found["not_delivered"]) == (4, 1, 3, 0)
    assert [row["episodes"] for row in found["actors"]] == [1, 2]
    assert {url: (row["episodes"], row["steps"]) for url, row in found["urls"].items()} == {
        "a": (2, 4),
        "b": (0, 0),
        NO_SERVER: (1, 0),
    }
    assert found["urls"]["a"]["active"] == 1
