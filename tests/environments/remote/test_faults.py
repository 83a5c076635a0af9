"""The fault table: whatever breaks between here and a server, the trajectory says so and teaches nothing, and no
session stays behind."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.environments.remote.clicking import NAME, Clicking
from tests.environments.remote.faults import Faulty, Wire
from tests.environments.remote.form import row_place
from tests.environments.remote.running import running, serve_process, serving, until
from tests.environments.remote.stand_ins import many_sessions
from tests.inference.pictures import picture
from tests.rollout.worlds import collector, play_with, scripted, specs
from uirl.environments import BaseEnvironment
from uirl.environments.remote.client.native import NativeRemoteEnvironment
from uirl.environments.remote.client.openenv import OpenEnvEnvironment
from uirl.environments.remote.client.ui_verifiers import UIVerifiersEnvironment
from uirl.environments.remote.server.app import create_app
from uirl.environments.remote.server.settings import ServerSettings
from uirl.errors import AlignmentError, ConfigError, EnvironmentFailure
from uirl.images import screenshot
from uirl.inference import LoadedModel
from uirl.rollout import EpisodeLimits, samples_of
from uirl.rollout.samples import samples_of_all
from uirl.types import Observation, RolloutData, Trajectory

CLICK = '{"action":"click","x":1,"y":1}'
TURNS = 4
HUNG = 2.0
"""Seconds after which a request hangs: those that do not may be slow on a busy machine."""


def play(
    lm: LoadedModel,
    environment: BaseEnvironment,
    episodes: int = 3,
    *,
    retries: int = 0,
    before_turn: Callable[[int], None] | None = None,
    reply: str = CLICK,
) -> list[Trajectory]:
    """Episodes of `TURNS` clicks. `before_turn` hears of every model call, counted over all episodes; with it, the
    first two turns are taken in step: the calls 0 to `episodes` - 1 are the first turns, as many after them the second.
    """
    engine = scripted(lm, reply)
    generate, made = engine.generate, 0

    async def counted(request: Any) -> Any:
        nonlocal made
        number, made = made, made + 1
        if before_turn is not None:
            before_turn(number)
            turns = number // episodes + 1
            while turns <= 2 and made < turns * episodes:
                await asyncio.sleep(0.002)
        return await generate(request)

    engine.generate = counted  # type: ignore[method-assign]
    group = collector(lm, environment, retries=retries, limits=EpisodeLimits(TURNS), parallel=8)

    async def run() -> list[Trajectory]:
        try:
            return await group.collect(specs(episodes), play_with(engine))
        finally:
            await group.close()

    return asyncio.run(run())


def expect_failures(trajectories: list[Trajectory], kind: str, words: str, *, turn: int | None = None) -> None:
    """All of them are typed failures, and nothing can be learned from any of them."""
    assert trajectories
    for trajectory in trajectories:
        assert trajectory.stop_reason == "failure"
        assert trajectory.failure is not None
        assert trajectory.failure.kind == kind, trajectory.failure
        assert words in trajectory.failure.message
        if turn is not None:
            assert trajectory.failure.turn == turn
        with pytest.raises(AlignmentError, match="is not evidence"):
            samples_of(trajectory)
    assert RolloutData(trajectories).usable == []
    assert samples_of_all(trajectories) == []


def native(url: str, **options: Any) -> NativeRemoteEnvironment:
    options = {"acquire_timeout": 1.0, "step_timeout": 60.0, **options}
    return NativeRemoteEnvironment(url=url, **options)


@contextlib.contextmanager
def faulty_native(**settings: Any) -> Iterator[tuple[str, Faulty]]:
    app = create_app(ServerSettings("clicking", **settings), Clicking())
    faulty = Faulty(app)
    with running(faulty, http="h11") as url:
        yield url, faulty
    assert not app.state.sessions.active


# -- the server is killed ---------------------------------------------------------------------------------------------


def test_a_server_killed_in_the_middle_of_its_episodes(lm: LoadedModel) -> None:
    with serve_process("--env", NAME) as (url, process), serving(NAME) as other:

        def kill(number: int) -> None:
            if number == 5:  # in the second turn of every episode
                process.kill()
                process.wait()

        alone = native(url)
        pair = NativeRemoteEnvironment(urls=[url, other.url], acquire_timeout=30.0)
        assert pair.max_turns is None  # both are known by now, and need not ask what is served
        assert alone.max_turns is None
        assert [t.failure for t in play(lm, pair, episodes=2)] == [None, None]
        expect_failures(play(lm, alone, before_turn=kill), "environment", url.split("//")[1])
        assert [(server.active, server.failures) for server in alone.pool.servers] == [(0, 1)]
        expect_failures(play(lm, alone, episodes=1), "environment", url.split("//")[1])
        # with another server in the pool the dead one is left alone
        assert [t.failure for t in play(lm, pair, episodes=4)] == [None] * 4
        assert [server.active for server in pair.pool.servers] == [0, 0]
        assert pair.pool.servers[0].failures >= 1


def test_episodes_of_a_lost_server_are_repeated_on_another(lm: LoadedModel) -> None:
    with serving(NAME) as served, Wire(served.url).running() as wire, serving(NAME) as other:
        doomed = wire.url

        def kill(number: int) -> None:
            if number == 6:
                wire.cut()

        environment = NativeRemoteEnvironment(urls=[doomed, other.url], acquire_timeout=30.0)
        trajectories = play(lm, environment, episodes=4, retries=1, before_turn=kill)
        done, attempts = trajectories[:4], trajectories[4:]
        assert [(t.failure, len(t)) for t in done] == [(None, TURNS)] * 4
        expect_failures(attempts, "environment", doomed.split("//")[1])
        assert len(attempts) == 2  # sessions are balanced: two of the four were there
        assert samples_of_all(trajectories) == samples_of_all(done)
        assert other.active == 0
        served.pass_time(200.0)
        until(lambda: served.active == 0, "the reaper's work")


def test_a_server_that_comes_back_is_used_again(lm: LoadedModel) -> None:
    with serving(NAME) as served, Wire(served.url).running() as wire:
        environment = native(wire.url, retry_backoff=0.2, acquire_timeout=60.0)
        assert [t.failure for t in play(lm, environment)] == [None] * 3
        wire.cut()

        def mend() -> None:
            until(lambda: wire.lost, "a session whose opening is not heard of")
            wire.mend()

        mended = threading.Thread(target=mend)
        mended.start()
        # nothing is lost with a session that does not open: it is asked for again
        assert [t.failure for t in play(lm, environment)] == [None] * 3
        mended.join()
        assert environment.pool.servers[0].failures == 0
    assert served.sessions.counters.count("uirl_sessions_opened_total") > 6


def test_a_server_that_opens_no_sessions_draws_no_more_of_them(lm: LoadedModel) -> None:
    class Broken(Clicking):
        def reset(self, seed: int | None = None) -> Any:
            raise OSError("there is no browser here")

    Broken.__name__ = Clicking.__name__  # the servers name it the same
    with serving(Broken()) as broken, serving(Clicking()) as other:
        environment = NativeRemoteEnvironment(urls=[broken.url, other.url], retry_backoff=600.0)
        trajectories = play(lm, environment, episodes=4, retries=1)
        assert [t.failure for t in trajectories[:4]] == [None] * 4
        expect_failures(trajectories[4:], "environment", "there is no browser here", turn=0)
        # it is the least busy of all, and yet only those that began beside each other went there
        assert len(trajectories) == 6
        assert [t.failure for t in play(lm, environment, episodes=4)] == [None] * 4


def test_a_session_that_is_given_up_while_it_fails_to_open_counts_no_more(lm: LoadedModel) -> None:
    class Half(NativeRemoteEnvironment):
        async def _open(self, server: Any) -> None:
            await super()._open(server)
            raise EnvironmentFailure("half open")

    with faulty_native(lease=1.0) as (url, faulty):
        faulty.rule = lambda method, path: "hang" if method == "DELETE" else None

        async def run() -> None:
            own = Half(url=url)
            reset = asyncio.create_task(own.reset())
            await asyncio.to_thread(until, lambda: any(method == "DELETE" for method, _ in faulty.asked))
            reset.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reset
            assert [server.active for server in own.pool.servers] == [0]
            assert not own.client._open

        asyncio.run(run())
        until(lambda: not faulty.state.sessions.active, "the reaper's work")


# -- a score at the end ----------------------------------------------------------------------------------------------


def test_the_score_of_an_episode_that_the_run_cuts_comes_through_the_server(
    lm: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`Clicking` never ends: the run's limit does."""
    with faulty_native() as (url, _):
        assert [t.failure for t in play(lm, native(url))] == [None] * 3
    monkeypatch.setattr(Clicking, "scored_at_end", True)
    monkeypatch.setattr(Clicking, "score_now", lambda self: (0.25, {"success": True}))
    with faulty_native() as (url, _):
        scored = play(lm, native(url))
    assert [(t.failure, t.turns[-1].reward, t.turns[-1].info["success"]) for t in scored] == [(None, 1.25, True)] * 3
    monkeypatch.setattr(Clicking, "score_now", lambda self: None)
    with faulty_native() as (url, _):
        expect_failures(play(lm, native(url)), "timeout", "its score was never known")


def test_a_server_without_the_question_for_a_score_is_played_as_before(
    lm: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Clicking, "scored_at_end", True)
    monkeypatch.setattr(Clicking, "score_now", lambda self: (0.25, {}))
    with faulty_native() as (url, faulty):
        environment = native(url)
        environment._description[:] = [environment.description.model_copy(update={"scores_now": False})]
        expect_failures(play(lm, environment), "timeout", "its score was never known")
        assert faulty.count("/score") == 0


def test_a_score_that_is_none_is_a_failure_and_no_reward(lm: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Clicking, "scored_at_end", True)
    monkeypatch.setattr(Clicking, "score_now", lambda self: ("much", {}))
    with faulty_native() as (url, _):
        expect_failures(play(lm, native(url)), "environment", "returned the reward")


def test_what_a_mistake_costs_is_known_at_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Clicking, "mistake_reward", -1.5)
    with faulty_native() as (url, _):
        assert native(url).mistake_reward == -1.5


# -- answers of the wrong kind ----------------------------------------------------------------------------------------


def test_acts_answered_with_500(lm: LoadedModel) -> None:
    with faulty_native() as (url, faulty):
        faulty.rule = lambda method, path: "500" if path.endswith("/step") and faulty.calls(path) > 1 else None
        trajectories = play(lm, native(url))
        expect_failures(trajectories, "environment", "was answered with 500", turn=1)
        assert faulty.count("/step") == 6, "an act was sent again"


class Unequipped(Clicking):
    """Finds out at its first act that a package is missing on its machine."""

    def step(self, action: Any) -> Any:
        raise ConfigError("no browser is installed")


def test_what_a_server_lacks_is_a_failure_of_its_episodes(lm: LoadedModel) -> None:
    with serving(Unequipped()) as served:
        expect_failures(play(lm, native(served.url)), "environment", "no browser is installed", turn=0)
        assert served.sessions.counters.count("uirl_failures_total", kind="environment") == 3
    with pytest.raises(ConfigError, match="no browser is installed"):  # here it is for the person
        play(lm, Unequipped())


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("500", "was answered with 500"),
        ("text", "a picture that cannot be used"),
        ("cut", "a picture that cannot be used"),
    ],
)
def test_faults_of_a_ui_verifiers_server(vlm: LoadedModel, fault: str, words: str) -> None:
    faulty = Faulty(many_sessions())
    with running(faulty) as url:
        faulty.rule = lambda method, path: fault if path.endswith("/act") and faulty.calls(path) > 1 else None
        environment = UIVerifiersEnvironment(url=url, delay=0)
        x, y = row_place(0)
        reply = f'{{"action":"click","x":{x},"y":{y}}}'
        expect_failures(play(vlm, environment, episodes=2, reply=reply), "environment", words, turn=1)
        assert faulty.count("/act") == 4, "an act was sent again"
        assert not faulty.state.running()


class Torn(Clicking):
    """Its second picture ends in the middle: the header is right, the rest is missing."""

    def reset(self, seed: int | None = None) -> Any:
        return Observation("look", (picture(1),))

    def step(self, action: Any) -> Any:
        return Observation("look", (screenshot(picture(2)).data[:-40],)), 1.0, False, {}


def test_a_picture_that_is_cut_off(vlm: LoadedModel) -> None:
    with serving(Torn()) as served:
        expect_failures(play(vlm, native(served.url)), "environment", "a picture that cannot be used", turn=0)


# -- wires ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [native, lambda url, **options: OpenEnvEnvironment(url=url, **options)])
def test_half_open_sockets(lm: LoadedModel, make: Callable[..., BaseEnvironment]) -> None:
    with serving(Clicking(), lease=2.0, idle=4.0) as served, Wire(served.url).running() as wire:
        trajectories = play(
            lm, make(wire.url, step_timeout=HUNG), before_turn=lambda number: wire.freeze() if number == 5 else None
        )
        expect_failures(trajectories, "timeout", "no answer")
        served.pass_time(2.1)
        until(lambda: served.active == 0, "the reaper's work")


@pytest.mark.parametrize("make", [native, lambda url, **options: OpenEnvEnvironment(url=url, **options)])
def test_an_act_whose_answer_gets_lost_is_taken_once(lm: LoadedModel, make: Callable[..., BaseEnvironment]) -> None:
    with serving(Clicking(), lease=2.0, idle=4.0) as served, Wire(served.url).running() as wire:
        cut = lambda number: wire.cut() if number == 2 else None  # noqa: E731
        trajectories = play(lm, make(wire.url), episodes=1, before_turn=cut)
        expect_failures(trajectories, "environment", wire.url.split("//")[1], turn=2)
        assert served.sessions.counters.count("uirl_calls_total", method="step") == 3
        served.pass_time(2.1)
        until(lambda: served.active == 0)


# -- leases and capacity ----------------------------------------------------------------------------------------------


def test_a_lease_that_runs_out_in_the_middle(lm: LoadedModel) -> None:
    with serving(Clicking(), lease=2.0) as served:
        spawned: list[NativeRemoteEnvironment] = []

        class Heartless(NativeRemoteEnvironment):
            """Its heart stops with the first step."""

            async def step(self, action: Any) -> Any:
                result = await super().step(action)
                self._heart.cancel()
                spawned.append(self)
                while len(spawned) < 3:  # whoever waits below holds up the steps of the others
                    await asyncio.sleep(0.01)
                return result

        def wait(number: int) -> None:
            if number == 3:
                served.pass_time(2.1)
                until(lambda: served.active == 0)

        trajectories = play(lm, Heartless(url=served.url), before_turn=wait)
        expect_failures(trajectories, "environment", "lease: no call for 2 s", turn=1)
        assert len(spawned) == 3


def test_more_episodes_than_a_server_takes(lm: LoadedModel) -> None:
    ending = Clicking()
    ending.max_turns = 2
    with serving(ending, sessions=1) as served:
        first = served.sessions.open("native", graders=False, leased=False)

        def give_way() -> None:
            until(lambda: served.sessions.counters.count("uirl_sessions_refused_total") > 0)
            asyncio.run(served.sessions.close(first, "client"))

        giving = threading.Thread(target=give_way)
        giving.start()
        # a session ends with its episode, so that the others get theirs
        trajectories = play(lm, native(served.url, acquire_timeout=60.0), episodes=3)
        giving.join()
        assert [(t.failure, t.stop_reason) for t in trajectories] == [(None, "max_turns")] * 3
        assert served.sessions.counters.count("uirl_sessions_opened_total") == 1 + 3
        assert served.sessions.warm == 1
        held = served.sessions.open("native", graders=False, leased=False)
        expect_failures(play(lm, native(served.url, acquire_timeout=0.3)), "environment", "all 1 sessions are taken")
        assert served.active == 1
        asyncio.run(served.sessions.close(held, "client"))
