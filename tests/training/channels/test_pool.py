"""Leases of actors that are coroutines of this process; how they are lost is in `tests/workers/test_supervisor.py`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.patience import PATIENCE
from tests.workers.memory import InMemory
from uirl import ConfigStore
from uirl.errors import ActorFailure, ConfigError, ContractError, ProcessLost
from uirl.inference.scripted import ScriptedInferenceEngine
from uirl.rollout.episode import EpisodeSpec
from uirl.rollout.players import Order
from uirl.training.channels import workers as pool_module
from uirl.training.channels.episodes import ActorJob, Played, Ready
from uirl.training.channels.workers import ActorPool
from uirl.types import Task, Trajectory
from uirl.workers import supervisor as supervisor_module
from uirl.workers.peer import Handler
from uirl.workers.worker import Worker

PROBE = (1, 2, 3)


class FakeActor(Worker):
    """One start of a fake actor: plays until `release` is set."""

    def __init__(self, behaviour: dict[str, Any]) -> None:
        self.behaviour = behaviour
        self.playing: list[str] = []
        self.cancelled: list[str] = []
        self.release = asyncio.Event()
        self.finished: set[str] = set()
        """Episodes that end although the others are not released."""
        self.die: Callable[[], None] = lambda: None

    @property
    def handlers(self) -> Mapping[str, Handler]:
        return {"start": self.start, "play": self.play}

    async def start(self, job: ActorJob, made: bytes | None) -> Ready:
        if error := self.behaviour.get("fails with"):
            raise error
        return Ready(self.behaviour.get("places", 2), self.behaviour.get("probe", PROBE))

    async def play(self, spec: EpisodeSpec, order: Order) -> Played:
        self.playing.append(spec.trajectory_id)
        if self.behaviour.get("dies playing"):
            self.die()
        try:
            while not self.release.is_set() and spec.trajectory_id not in self.finished:
                await asyncio.sleep(0.001)
        except asyncio.CancelledError:
            self.cancelled.append(spec.trajectory_id)
            raise
        finally:
            self.playing.remove(spec.trajectory_id)
        trajectory = Trajectory(spec.trajectory_id, spec.task, stop_reason=order.split)
        return Played(trajectory, stuck=self.behaviour.get("stuck", 0))


class Actors(InMemory):
    """Fake actors; `behaviours`: of each start in turn, the last one for all that follow."""

    def __init__(self, *behaviours: dict[str, Any]) -> None:
        kinds = behaviours or ({},)
        super().__init__(lambda number: FakeActor(kinds[min(number, len(kinds) - 1)]))

    async def start(self, name: str, program: str) -> Any:
        life, streams = await super().start(name, program)
        life.worker.die = life.end
        return life, streams

    @property
    def actors(self) -> list[FakeActor]:
        return [life.worker for life in self.lives]


@asynccontextmanager
async def pool_of(transport: InMemory, count: int = 2, **options: Any) -> AsyncIterator[ActorPool]:
    job = ActorJob(ConfigStore().to_dict(), {"train": 2})
    names = [f"actor-{i}" for i in range(count)]
    pool = ActorPool(transport, names, job, options.pop("engine", ScriptedInferenceEngine([])), probe=PROBE, **options)
    pool.start()
    try:
        yield pool
    finally:
        async with asyncio.timeout(PATIENCE):
            await pool.close()


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "FIRST_PAUSE", 0.001)


def spec(name: str) -> EpisodeSpec:
    return EpisodeSpec(Task(id="t"), 1, 1, name, "group")


def play(pool: ActorPool, name: str) -> asyncio.Task[Played]:
    return asyncio.ensure_future(pool.play(spec(name), Order()))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.005)


def all_ready(pool: ActorPool) -> bool:
    return all(actor.state == "ready" for actor in pool.actors)


async def test_the_least_busy_actor_plays_and_no_more_than_it_has_places() -> None:
    launcher = Actors()
    async with pool_of(launcher) as pool:
        await until(lambda: all_ready(pool))
        tasks = [play(pool, str(i)) for i in range(5)]
        await until(lambda: sum(len(actor.playing) for actor in launcher.actors) == 4)
        await asyncio.sleep(0.05)
        assert [len(actor.playing) for actor in launcher.actors] == [2, 2]
        for actor in launcher.actors:
            actor.release.set()
        played = await asyncio.gather(*tasks)
        assert [one.trajectory.id for one in played] == ["0", "1", "2", "3", "4"]
        assert played[0].trajectory.stop_reason == "train"
        assert [actor.life.active for actor in pool.actors] == [0, 0]


async def test_an_actor_that_dies_takes_its_episodes_with_it_and_comes_back() -> None:
    launcher = Actors()
    seen: list[tuple[str, str]] = []
    made: list[Any] = []

    def note() -> None:
        seen.extend((actor.name, actor.state) for actor in made)

    async with pool_of(launcher, 1, on_change=note) as pool:
        made += pool.actors
        first, waiting = play(pool, "a"), [play(pool, name) for name in "bcd"]
        await until(lambda: len(launcher.actors[0].playing) == 2 if launcher.actors else False)
        launcher.lives[0].end()
        with pytest.raises(ActorFailure, match="the actor that played this episode is lost: actor-0 is gone"):
            await first
        await until(lambda: len(launcher.actors) == 2 and len(launcher.actors[1].playing) == 2)
        launcher.actors[1].release.set()
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(one) for one in outcomes] == [ActorFailure, Played, Played], "who waited is played by the next"
        assert pool.deaths == 1
    assert launcher.closed
    states = [state for _, state in seen]
    assert states.index("ready") < states.index("lost") < len(states) - 1
    assert states[-1] == "stopped"


async def test_an_actor_whose_environments_hang_is_replaced_once_it_plays_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    launcher = Actors({"stuck": 2}, {})
    async with pool_of(launcher, 1) as pool:
        await until(lambda: all_ready(pool))
        (first,) = launcher.actors
        first.release.set()
        await asyncio.gather(play(pool, "a"), play(pool, "b"))
        assert all_ready(pool), "two calls are borne"
        first.release.clear()
        first.behaviour["stuck"] = 3
        tasks = [play(pool, name) for name in "cde"]
        await until(lambda: len(first.playing) == 2)
        first.release.set()
        await until(lambda: len(launcher.actors) == 2 and launcher.actors[1].playing == ["e"])
        launcher.actors[1].release.set()
        assert [played.trajectory.id for played in await asyncio.gather(*tasks)] == ["c", "d", "e"]
    assert "3 calls of its environments were given up and have not come back. It is started again" in caplog.text


async def test_a_leaving_actor_is_replaced_where_its_last_episode_is_given_up() -> None:
    launcher = Actors({"stuck": 3}, {})
    async with pool_of(launcher, 1) as pool:
        await until(lambda: all_ready(pool))
        (first,) = launcher.actors
        tasks = {name: play(pool, name) for name in "ab"}
        await until(lambda: len(first.playing) == 2)
        first.finished.add("a")
        await tasks["a"]
        assert pool.actors[0].leaving is not None
        assert pool.actors[0].life.active == 1
        tasks["b"].cancel()
        await until(lambda: len(launcher.actors) == 2)


async def test_an_episode_that_was_lost_is_not_given_to_the_same_dead_actor_again() -> None:
    launcher = Actors()
    async with pool_of(launcher, 2) as pool:
        await until(lambda: all_ready(pool))

        async def twice() -> str:
            try:
                return (await pool.play(spec("a"), Order())).trajectory.id
            except ActorFailure:  # at once, before anybody else hears of it, as attempts are repeated
                return (await pool.play(spec("a-r1"), Order())).trajectory.id

        repeated = asyncio.ensure_future(twice())
        await until(lambda: any(actor.playing for actor in launcher.actors))
        victim, other = sorted(launcher.actors, key=lambda actor: not actor.playing)
        other.release.set()
        victim.learner.close()  # the process itself has not ended yet
        assert await repeated == "a-r1"


async def test_actors_that_die_with_every_episode_end_the_run_and_say_what_ended_them() -> None:
    launcher = Actors({"dies playing": True})
    async with pool_of(launcher) as pool:
        for number in range(pool_module.VAIN_DEATHS * 2):
            with pytest.raises(ActorFailure):
                await play(pool, f"a-{number}")
        with pytest.raises(ProcessLost, match=r"died 12 times in a row with .*: it was killed by SIGKILL.*\n?out of"):
            await play(pool, "b")


async def test_an_episode_that_is_finished_forgives_the_deaths_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "VAIN_DEATHS", 2)
    launcher = Actors(*[{"dies playing": True}, {}] * 3)
    async with pool_of(launcher, 1) as pool:
        for life in range(1, 6, 2):
            with pytest.raises(ActorFailure):
                await play(pool, "lost")
            played = play(pool, "played")
            await until(lambda life=life: len(launcher.actors) > life and bool(launcher.actors[life].playing))
            launcher.actors[life].release.set()
            await played
            launcher.lives[life].end("it ended with status 1")
            await until(lambda life=life: pool.deaths == life + 1)


@pytest.mark.parametrize(
    ("behaviour", "error", "words"),
    [
        ({"fails with": ConfigError("no such option")}, ConfigError, "no such option"),
        ({"probe": (9,)}, ContractError, "other tokens than the learner"),
        ({"fails with": ValueError("odd")}, ProcessLost, "actor-0 died 3 times in a row before it could work"),
    ],
)
async def test_an_actor_that_is_given_up_ends_the_run(
    behaviour: dict[str, Any], error: type[Exception], words: str
) -> None:
    async with pool_of(Actors(behaviour), 1) as pool:
        for name in "ab":
            with pytest.raises(error, match=words):
                await play(pool, name)


async def test_what_a_machine_of_the_cluster_lacks_is_told_with_the_machine_and_a_remedy() -> None:
    class Elsewhere(Actors):
        async def start(self, name: str, program: str) -> Any:
            life, streams = await super().start(name, program)
            life.node = "10.0.0.7 (1f3a)"
            return life, streams

    words = r"^actor-0 on Ray's node 10\.0\.0\.7 \(1f3a\): no module. The learner .* PYTHONPATH .*`ray start` there"
    async with pool_of(Elsewhere({"fails with": ConfigError("no module")}), 1) as pool:
        with pytest.raises(ConfigError, match=words):
            await play(pool, "a")


async def test_an_episode_that_is_given_up_is_cancelled_and_frees_its_place() -> None:
    launcher = Actors({"places": 1})
    async with pool_of(launcher, 1) as pool:
        first, second, third = (play(pool, name) for name in "abc")
        await until(lambda: bool(launcher.actors and launcher.actors[0].playing))
        second.cancel()  # while it waits for a place
        first.cancel()
        await until(lambda: launcher.actors[0].cancelled == ["a"])
        await until(lambda: launcher.actors[0].playing == ["c"])
        launcher.actors[0].release.set()
        assert (await third).trajectory.id == "c"
        assert pool.actors[0].life.active == 0


async def test_a_place_that_comes_to_one_who_has_just_given_up_is_not_lost() -> None:
    launcher = Actors({"places": 1})
    async with pool_of(launcher, 1) as pool:
        first, second = play(pool, "a"), play(pool, "b")
        await until(lambda: bool(launcher.actors and launcher.actors[0].playing))
        life = pool.actors[0].life
        life.active -= 1
        pool._hand_out()  # `second` has a place now, and has not run yet
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        assert life.active == 0
        first.cancel()


async def test_closing_lets_actors_go_by_themselves_and_fails_who_waits() -> None:
    launcher = Actors({"places": 1})
    async with pool_of(launcher, 1) as pool:
        under_way, waiting = play(pool, "a"), play(pool, "b")
        await until(lambda: bool(launcher.actors and launcher.actors[0].playing))
        await pool.close()
        await pool.close()
        outcomes = await asyncio.gather(under_way, waiting, return_exceptions=True)
        assert [type(one) for one in outcomes] == [ActorFailure, ProcessLost]
        assert await launcher.lives[0].ended() == "it ended with status 0"


async def test_what_is_waited_for_is_said(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(pool_module, "SAY_EVERY", 0.02)

    class Slow(Actors):
        async def start(self, name: str, program: str) -> Any:
            await asyncio.sleep(1000)

    async with pool_of(Slow(), 1) as pool:
        waiting = play(pool, "a")
        await until(lambda: "1 episodes wait for an actor that is ready: actor-0 starting for" in caplog.text)
        assert "s (it has no process yet)" in caplog.text
        waiting.cancel()


async def test_it_is_said_what_an_actor_does_that_is_not_ready(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pool_module, "SAY_EVERY", 0.02)
    monkeypatch.setattr(supervisor_module, "FIRST_PAUSE", 1000.0)
    goes_on = asyncio.Event()

    class Slow(FakeActor):
        async def start(self, job: ActorJob, made: bytes | None) -> Ready:
            await goes_on.wait()
            raise ValueError("the page is down")

    async with pool_of(InMemory(lambda number: Slow({})), 1) as pool:
        waiting = play(pool, "a")
        await until(lambda: "s (its process gets ready)" in caplog.text)
        goes_on.set()
        await until(lambda: "s (ValueError: the page is down" in caplog.text)
        waiting.cancel()
    monkeypatch.setattr(pool_module, "SAY_EVERY", 0)
    launcher = Actors({"places": 1})
    async with pool_of(launcher, 1) as pool:
        episodes = [play(pool, name) for name in "ab"]
        await until(lambda: bool(launcher.actors and launcher.actors[0].playing))
        caplog.clear()
        for _ in range(9):
            await asyncio.sleep(0)
        assert not caplog.text, "an actor that is busy is ready"
        for episode in episodes:
            episode.cancel()


async def test_caches_of_a_lost_actor_are_released() -> None:
    class Engine(ScriptedInferenceEngine):
        released: list[str] = []  # noqa: RUF012

        def release(self, session_id: str) -> None:
            self.released.append(session_id)

    from uirl.inference.base import GenerationRequest

    launcher, engine = Actors(), Engine([[1]])
    async with pool_of(launcher, 1, engine=engine) as pool:
        await until(lambda: all_ready(pool))
        await launcher.actors[0].learner.call("generate", GenerationRequest((1,), session_id="episode"))
        launcher.lives[0].end()
        await until(lambda: engine.released == ["episode"])
