"""Leases, deaths and starts, with actors that are coroutines of this process behind a real connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.patience import PATIENCE
from uirl import ConfigStore
from uirl.errors import ActorFailure, ConfigError, ContractError, EnvironmentFailure, ProcessLost, StorageError
from uirl.inference.scripted import ScriptedInferenceEngine
from uirl.peers import peer as peer_module
from uirl.peers.codec import ToldError
from uirl.peers.greeting import NotAdmitted, dial
from uirl.peers.peer import Peer
from uirl.peers.way import Way
from uirl.rollout.episode import EpisodeSpec
from uirl.rollout.players import Order
from uirl.training.actors import pool as pool_module
from uirl.training.actors.job import ActorJob, Played, Ready
from uirl.training.actors.pool import ActorPool, Seat
from uirl.types import Task, Trajectory

PROBE = (1, 2, 3)


class Actor:
    """One start of a fake actor: dials, asks for its job, says that it is ready, plays until `release` is set."""

    pid = 7

    def __init__(self, way: Way, behaviour: dict[str, Any]) -> None:
        self.way, self.behaviour = way, behaviour
        self.playing: list[str] = []
        self.cancelled: list[str] = []
        self.release = asyncio.Event()
        self.finished: set[str] = set()
        """Episodes that end although the others are not released."""
        self.stopped = self.killed = 0
        self.peer: Peer | None = None
        self._end: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._life = asyncio.ensure_future(self._live())

    async def _live(self) -> None:
        if self.behaviour.get("dies at start"):
            self.end("it was killed by SIGKILL")
            return
        about = {"role": "actor", "actor": self.way.name, "incarnation": self.way.incarnation, "pid": self.pid}
        streams, _ = await dial("127.0.0.1", self.way.port, self.way.token, about)
        self.peer = Peer(*streams, {"play": self._play}, name="the learner")
        self.job: ActorJob = await self.peer.call("job", returns=ActorJob)
        if error := self.behaviour.get("fails with"):
            await self.peer.call("failed", ToldError.of(error, "the actor"))
            self.end("it ended with status 1")
            return
        await self.peer.call("ready", Ready(self.behaviour.get("places", 2), self.behaviour.get("probe", PROBE)))
        await self.peer.wait_closed()
        self.end("it ended with status 0")

    async def _play(self, spec: EpisodeSpec, order: Order) -> Played:
        self.playing.append(spec.trajectory_id)
        if self.behaviour.get("dies playing"):
            self.end("it was killed by SIGKILL")
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

    def end(self, how: str) -> None:
        if self.peer is not None:
            self.peer.close()
        if not self._end.done():
            self._end.set_result(how)

    def freeze(self) -> None:
        assert self.peer is not None
        self.peer._write = lambda *frame: None  # type: ignore[method-assign]

    async def ended(self) -> str:
        return await asyncio.shield(self._end)

    def stop(self) -> None:
        self.stopped += 1

    def kill(self) -> None:
        self.killed += 1
        self._life.cancel()
        self.end("it was killed by SIGKILL")

    def last_words(self) -> str:
        return "out of memory"


class FakeLauncher:
    """Starts fake actors; `behaviours`: of each start in turn, the last one for all that follow."""

    def __init__(self, *behaviours: dict[str, Any]) -> None:
        self.behaviours = list(behaviours) or [{}]
        self.actors: list[Actor] = []
        self.closed = False

    async def launch(self, way: Way, made: bytes | None = None) -> Actor:
        behaviour = self.behaviours.pop(0) if len(self.behaviours) > 1 else self.behaviours[0]
        if error := behaviour.get("launch raises"):
            raise error
        self.actors.append(Actor(way, behaviour))
        return self.actors[-1]

    async def close(self) -> None:
        self.closed = True


@asynccontextmanager
async def pool_of(launcher: FakeLauncher, count: int = 2, **options: Any) -> AsyncIterator[ActorPool]:
    job = ActorJob(ConfigStore().to_dict(), {"train": 2})
    names = [f"actor-{i}" for i in range(count)]
    pool = ActorPool(launcher, names, job, ScriptedInferenceEngine([]), probe=PROBE, **options)
    await pool.start()
    try:
        yield pool
    finally:
        async with asyncio.timeout(PATIENCE):
            await pool.close()


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "FIRST_PAUSE", 0.001)


def spec(name: str) -> EpisodeSpec:
    return EpisodeSpec(Task(id="t"), 1, 1, name, "group")


def play(pool: ActorPool, name: str) -> asyncio.Task[Played]:
    return asyncio.ensure_future(pool.play(spec(name), Order()))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.005)


def all_ready(pool: ActorPool) -> bool:
    return all(seat.state == "ready" for seat in pool.seats)


async def test_the_least_busy_actor_plays_and_no_more_than_it_has_places() -> None:
    launcher = FakeLauncher()
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
        assert [seat.active for seat in pool.seats] == [0, 0]


async def test_an_actor_that_dies_takes_its_episodes_with_it_and_comes_back() -> None:
    launcher = FakeLauncher()
    seen: list[tuple[str, str]] = []

    def note(seat: Seat) -> None:
        seen.append((seat.name, seat.state))

    async with pool_of(launcher, 1, on_change=note) as pool:
        first, waiting = play(pool, "a"), [play(pool, name) for name in "bcd"]
        await until(lambda: len(launcher.actors[0].playing) == 2 if launcher.actors else False)
        launcher.actors[0].end("it was killed by SIGKILL")
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


async def test_a_frozen_actor_is_killed_and_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_module, "BEAT_SECONDS", 0.02)
    launcher = FakeLauncher()
    async with pool_of(launcher, 1, silence=0.3) as pool:
        lost = play(pool, "a")
        await until(lambda: bool(launcher.actors and launcher.actors[0].playing))
        launcher.actors[0].freeze()
        with pytest.raises(ActorFailure, match="said nothing for"):
            await lost
        await until(lambda: len(launcher.actors) > 1)
        assert launcher.actors[0].killed


async def test_an_actor_whose_environments_hang_is_replaced_once_it_plays_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    launcher = FakeLauncher({"stuck": 2}, {})
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
    launcher = FakeLauncher({"stuck": 3}, {})
    async with pool_of(launcher, 1) as pool:
        await until(lambda: all_ready(pool))
        (first,) = launcher.actors
        tasks = {name: play(pool, name) for name in "ab"}
        await until(lambda: len(first.playing) == 2)
        first.finished.add("a")
        await tasks["a"]
        assert pool.seats[0].leaving is not None
        assert pool.seats[0].active == 1
        tasks["b"].cancel()
        await until(lambda: len(launcher.actors) == 2)


async def test_an_episode_that_was_lost_is_not_given_to_the_same_dead_actor_again() -> None:
    launcher = FakeLauncher()
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
        assert victim.peer is not None
        victim.peer.close()  # the process itself has not ended yet
        assert await repeated == "a-r1"


async def test_an_actor_that_dies_at_every_start_ends_the_run_with_its_words() -> None:
    launcher = FakeLauncher({"dies at start": True})
    async with pool_of(launcher, 1) as pool:
        words = "actor-0 died 3 times in a row before it could play; the last time: it was killed by SIGKILL.*\n?out of"
        with pytest.raises(ProcessLost, match=words):
            await play(pool, "a")
        with pytest.raises(ProcessLost, match="died 3 times"):
            await play(pool, "b")
        assert len(launcher.actors) == 3


async def test_actors_that_die_with_every_episode_end_the_run_and_say_what_ended_them() -> None:
    launcher = FakeLauncher({"dies playing": True})
    async with pool_of(launcher) as pool:
        for number in range(pool_module.VAIN_DEATHS * 2):
            with pytest.raises(ActorFailure):
                await play(pool, f"a-{number}")
        with pytest.raises(ProcessLost, match=r"died 12 times in a row with .*: it was killed by SIGKILL.*\n?out of"):
            await play(pool, "b")


async def test_an_episode_that_is_finished_forgives_the_deaths_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "VAIN_DEATHS", 2)
    launcher = FakeLauncher(*[{"dies playing": True}, {}] * 3)
    async with pool_of(launcher, 1) as pool:
        for life in range(1, 6, 2):
            with pytest.raises(ActorFailure):
                await play(pool, "lost")
            played = play(pool, "played")
            await until(lambda life=life: len(launcher.actors) > life and bool(launcher.actors[life].playing))
            launcher.actors[life].release.set()
            await played
            launcher.actors[life].end("it ended with status 1")
            await until(lambda life=life: pool.deaths == life + 1)


async def test_deaths_at_the_start_are_forgotten_once_it_plays() -> None:
    launcher = FakeLauncher({"dies at start": True}, {"dies at start": True}, {}, {"dies at start": True}, {})
    async with pool_of(launcher, 1) as pool:
        lost = play(pool, "a")
        await until(lambda: len(launcher.actors) == 3 and bool(launcher.actors[2].playing))
        launcher.actors[2].end("it ended with status 1")
        with pytest.raises(ActorFailure):
            await lost
        await until(lambda: len(launcher.actors) == 5 and pool.seats[0].state == "ready")
        assert pool.deaths == 4


@pytest.mark.parametrize(
    ("behaviour", "error", "words"),
    [
        ({"fails with": ConfigError("no such option")}, ConfigError, "no such option"),
        ({"probe": (9,)}, ContractError, "other tokens than the learner"),
        ({"launch raises": ConfigError("no cluster")}, ConfigError, "no cluster"),
        ({"launch raises": ProcessLost("no memory to fork")}, ProcessLost, "3 times in a row.*no memory to fork"),
        ({"fails with": EnvironmentFailure("server down")}, ProcessLost, "3 times in a row"),
    ],
)
async def test_what_is_wrong_for_good_ends_the_run_and_what_may_pass_is_tried_again(
    behaviour: dict[str, Any], error: type[Exception], words: str
) -> None:
    launcher = FakeLauncher(behaviour)
    async with pool_of(launcher, 1) as pool:
        with pytest.raises(error, match=words):
            await play(pool, "a")


async def test_an_episode_that_is_given_up_is_cancelled_and_frees_its_place() -> None:
    launcher = FakeLauncher({"places": 1})
    async with pool_of(launcher, 1) as pool:
        first, second, third = (play(pool, name) for name in "abc")
        await until(lambda: bool(launcher.actors and launcher.actors[0].playing))
        second.cancel()  # while it waits for a place
        first.cancel()
        await until(lambda: launcher.actors[0].cancelled == ["a"])
        await until(lambda: launcher.actors[0].playing == ["c"])
        launcher.actors[0].release.set()
        assert (await third).trajectory.id == "c"
        assert pool.seats[0].active == 0


async def test_a_place_that_comes_to_one_who_has_just_given_up_is_not_lost() -> None:
    launcher = FakeLauncher({"places": 1})
    async with pool_of(launcher, 1) as pool:
        first, second = play(pool, "a"), play(pool, "b")
        await until(lambda: bool(launcher.actors and launcher.actors[0].playing))
        seat = pool.seats[0]
        seat.active -= 1
        pool._hand_out()  # `second` has a place now, and has not run yet
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        assert seat.active == 0
        first.cancel()


async def test_closing_lets_actors_go_by_themselves_and_fails_who_waits() -> None:
    launcher = FakeLauncher({"places": 1})
    async with pool_of(launcher, 1) as pool:
        under_way, waiting = play(pool, "a"), play(pool, "b")
        await until(lambda: bool(launcher.actors and launcher.actors[0].playing))
        await pool.close()
        await pool.close()
        outcomes = await asyncio.gather(under_way, waiting, return_exceptions=True)
        assert [type(one) for one in outcomes] == [ActorFailure, ProcessLost]
        assert await launcher.actors[0].ended() == "it ended with status 0"


async def test_an_actor_that_starts_is_ended_when_the_run_ends() -> None:
    launcher = FakeLauncher({"fails with": None})
    async with pool_of(launcher, 1) as pool:
        await until(lambda: bool(launcher.actors))
        await pool.close()
        assert launcher.actors[0].killed


async def test_a_state_that_cannot_be_written_down_ends_the_run() -> None:
    def note(seat: Seat) -> None:
        if seat.state == "lost":
            raise StorageError("the disk is full")

    launcher = FakeLauncher({"dies at start": True})
    async with pool_of(launcher, 1, on_change=note) as pool:
        with pytest.raises(StorageError, match="the disk is full"):
            await asyncio.wait_for(play(pool, "a"), PATIENCE)


async def test_only_the_actor_that_is_expected_comes_in() -> None:
    launcher = FakeLauncher()
    async with pool_of(launcher, 1) as pool:
        await until(lambda: all_ready(pool))
        for name, incarnation, words in (("actor-0", 1, "not expected"), ("actor-9", 1, "no actor 'actor-9'")):
            about = {"actor": name, "incarnation": incarnation}
            with pytest.raises(NotAdmitted, match=words):
                await dial("127.0.0.1", pool.gate.port, pool.gate.token, about)


async def test_what_is_waited_for_is_said(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(pool_module, "SAY_EVERY", 0.02)

    class Slow(FakeLauncher):
        async def launch(self, way: Way, made: bytes | None = None) -> Actor:
            await asyncio.sleep(1000)
            raise AssertionError

    async with pool_of(Slow(), 1) as pool:
        waiting = play(pool, "a")
        await until(lambda: "1 episodes wait for an actor that is ready: actor-0 starting for" in caplog.text)
        waiting.cancel()


async def test_caches_of_a_lost_actor_are_released() -> None:
    class Engine(ScriptedInferenceEngine):
        released: list[str] = []  # noqa: RUF012

        def release(self, session_id: str) -> None:
            self.released.append(session_id)

    from uirl.inference.base import GenerationRequest

    launcher, engine = FakeLauncher(), Engine([[1]])
    pool = ActorPool(launcher, ["actor-0"], ActorJob(ConfigStore().to_dict(), {"train": 1}), engine, probe=PROBE)
    await pool.start()
    await until(lambda: all_ready(pool))
    peer = launcher.actors[0].peer
    assert peer is not None
    await peer.call("generate", GenerationRequest((1,), session_id="episode"))
    launcher.actors[0].end("it was killed by SIGKILL")
    await until(lambda: engine.released == ["episode"])
    await pool.close()
