"""`UIVerifiersEnvironment` against stand-ins of both original servers and against `uirl serve`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI

from tests.environments.remote.faults import Faulty
from tests.environments.remote.form import FIELDS, ROWS, SUBMIT, middle, row_place
from tests.environments.remote.running import running, serving, until
from tests.environments.remote.server.test_ui_verifiers import Recorder
from tests.environments.remote.stand_ins import many_sessions, single_session
from uirl.environments import EnvironmentSession, ScreenEnvironment
from uirl.environments.remote.client.ui_verifiers import Progress, UIVerifiersEnvironment
from uirl.errors import EnvironmentFailure
from uirl.runtime.wire import WireError
from uirl.types import Action, StepResult, Task


@pytest.fixture
def single() -> Iterator[tuple[str, FastAPI]]:
    app = single_session()
    with running(app) as url:
        yield url, app


@pytest.fixture
def many() -> Iterator[tuple[str, FastAPI]]:
    app = many_sessions()
    with running(app) as url:
        yield url, app
    assert not app.state.running(), "sessions leaked"


def client(url: str, **options: Any) -> UIVerifiersEnvironment:
    return UIVerifiersEnvironment(url=url, delay=0, **options)


def click(place: tuple[int, int], name: str = "click") -> Action:
    return Action.of(name, x=place[0], y=place[1])


async def play(session: EnvironmentSession, *actions: Action) -> list[StepResult]:
    return [await session.step(action) for action in actions]


def copying(row: int) -> list[Action]:
    """A row through the form, with keyboard and mouse."""
    first, last, mail = ROWS[row]
    typed = [click(middle(FIELDS[0])), Action.of("type", text=first), Action.of("keys", keys="Tab")]
    typed += [Action.of("type", text=last), Action.of("keys", keys="tab"), Action.of("type", text=mail)]
    return [*typed, click(middle(SUBMIT))]


async def test_rewards_over_protocol_s_follow_progress(single: tuple[str, FastAPI]) -> None:
    url, app = single
    session = EnvironmentSession(client(url, prompt="Copy the rows.", rows=2))
    first = await session.reset()
    assert first.text == "Copy the rows."
    assert first.images[0].data == app.state.form.picture()
    assert first.images[0].open().size == (1280, 800)
    results = await play(session, *copying(0), click(middle(SUBMIT)), *copying(0), *copying(2))
    paid = [result.reward for result in results if result.reward]
    # a right row, a wrong submission (0.1), the same row again (nothing), another right row
    assert paid == [1.0, -0.1, 1.0]
    assert [result.terminated for result in results] == [False] * (len(results) - 1) + [True]
    info = results[-1].observation.info
    assert info == {"submitted_row_indices": [0, 0, 2], "num_incorrect_submissions": 1, "success": True}
    assert results[6].observation.info["success"] is False
    await session.close()


async def test_an_episode_of_protocol_s_begins_where_the_last_one_ended(single: tuple[str, FastAPI]) -> None:
    url, _ = single
    session = EnvironmentSession(client(url))
    await session.reset(Task("own", goal="Go on."))
    assert sum(result.reward for result in await play(session, *copying(0))) == 1.0
    again = await session.reset(Task("own", goal="Go on."))
    assert again.text == "Go on."
    results = await play(session, *copying(1))
    assert sum(result.reward for result in results) == 1.0
    assert "success" not in results[-1].observation.info
    await session.close()


async def test_protocol_s_is_played_by_one_episode_at_a_time(single: tuple[str, FastAPI]) -> None:
    url, _ = single
    one = client(url, acquire_timeout=0.5)
    two = one.spawn()
    await one.reset()
    with pytest.raises(EnvironmentFailure, match=r"no server is free|another episode plays"):
        await two.reset()
    await one.close()
    await two.reset()
    await two.close()


async def test_protocol_m_makes_a_session_per_episode(many: tuple[str, FastAPI]) -> None:
    url, app = many
    session = EnvironmentSession(client(url, session_type="simple_data_entry", wrong_cost=0.25))
    for episode in (1, 2):
        await session.reset()
        assert [desk.id for desk in app.state.running()] == [episode]
        copied = [click(row_place(1), "right_click"), click(middle(SUBMIT)), click(middle(SUBMIT), "double_click")]
        rewards = [result.reward for result in await play(session, *copied)]
        assert rewards == [0.0, 1.0, -0.25]
    await session.close()


async def test_protocol_m_has_no_keyboard(many: tuple[str, FastAPI]) -> None:
    url, _ = many
    environment = client(url)
    assert '"action":"type"' in environment.get_prompt_prefix()
    assert '"action":"type"' not in client(url, protocol="M").get_prompt_prefix()
    session = EnvironmentSession(environment)
    await session.reset()
    for action in (Action.of("type", text="a"), Action.of("keys", keys="tab"), Action.of("scroll", direction="up")):
        (result,) = await play(session, action)
        assert result.observation.text == f"this screen takes no {action.call.name}: there is only a mouse"
        assert not result.done
    await session.close()


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (Action(text="hm", parse_error="no JSON object"), "no JSON object"),
        (Action(), "no action; expected"),
        (Action.of("click", x=1280, y=5), "x=1280 is outside the picture; expected 0 to 1279"),
        (Action.of("click", x=5), "click needs numbers x and y"),
        (Action.of("drag", x=1, y=1, to_x=2, to_y=2), "unknown action 'drag'"),
        (Action.of("click", x=0, y=0), "corner cannot be used"),
        (Action.of("move", x=1279, y=799), "corner cannot be used"),
        (Action.of("scroll", direction="up", x=0, y=799), "corner cannot be used"),
        (Action.of("scroll", direction="left"), "scrolls up or down"),
        (Action.of("scroll", direction="up", amount=9), "3 notches at a time"),
        (Action.of("type", text="Zoë"), "only plain ASCII"),
        (Action.of("keys", keys="ctrl++"), "the key + cannot be pressed here"),
        (Action.of("keys", keys="ctrl+zzz"), "unknown key"),
    ],
)
async def test_mistakes_of_the_model_never_reach_the_server(
    single: tuple[str, FastAPI], action: Action, words: str
) -> None:
    url, app = single
    session = EnvironmentSession(client(url))
    first = await session.reset()
    (result,) = await play(session, action)
    assert words in result.observation.text
    assert (result.reward, result.done) == (0.0, False)
    assert result.observation.images == first.images
    assert app.state.told == []
    # the trap did not close
    (result,) = await play(session, click((600, 400)))
    assert app.state.told == ["left_click"]
    await session.close()


async def test_every_action_that_the_protocol_has(single: tuple[str, FastAPI]) -> None:
    url, app = single
    session = EnvironmentSession(client(url, coordinates="grid_999"))
    await session.reset()
    names = ("click", "double_click", "triple_click", "right_click", "move")
    results = await play(
        session,
        *[Action.of(name, x=500, y=500) for name in names],
        Action.of("type", text="x"),
        Action.of("keys", keys="Return"),
        Action.of("scroll", direction="down"),
        Action.of("scroll", direction="up", x=500, y=500),
        Action.of("wait", seconds=0.01),
        Action.of("screenshot"),
        Action.of("terminate", status="success"),
    )
    said = [
        "left_click",
        "double_click",
        "triple_click",
        "right_click",
        "mouse_move",
        "type",
        "keys",
        "scroll",
        "scroll",
    ]
    assert app.state.told == said
    assert app.state.form.pointer == (640, 400)
    assert [result.terminated for result in results] == [False] * 11 + [True]
    assert results[-1].observation.info["claimed"] == "success"
    assert session.env.url == "", "the server is free for others"  # type: ignore[attr-defined]
    await session.close()


async def test_a_server_that_is_no_such_server() -> None:
    other = FastAPI()
    with running(other) as url, pytest.raises(EnvironmentFailure, match="404"):
        await client(url).reset()
    app = single_session()
    with running(app) as url, pytest.raises(EnvironmentFailure, match="speaks protocol S; expected M"):
        await client(url, protocol="M").reset()


# -- against our own server ----------------------------------------------------------------------------------------


async def test_our_server_gives_a_session_per_episode_and_a_keyboard() -> None:
    recorder = Recorder(size=(1280, 800))
    with serving(recorder) as served:
        session = EnvironmentSession(client(served.url, prompt="Type."))
        first = await session.reset(seed=41)
        assert first.text == "Type.\nseed 41"
        results = await play(
            session,
            Action.of("type", text="row3"),
            Action.of("click", x=0, y=0),
            Action.of("type", text="wrong"),
            Action.of("screenshot"),
            Action.of("type", text="end"),
        )
        assert [result.reward for result in results] == [1.0, 0.0, -0.1, 0.0, 0.0]
        assert results[0].observation.text == "Grüße"
        assert [name for name, _ in recorder.last.told] == ["type", "click", "type", "type"]
        assert results[-1].terminated
        assert served.active == 0, "the session ends with its episode"
        again = await session.reset(seed=42)
        assert again.text == "Type.\nseed 42"
        assert served.active == 1
        await session.close()
        assert served.active == 0


async def test_a_session_of_the_same_number_on_a_server_that_was_restarted() -> None:
    with serving(Recorder(size=(1280, 800))) as before, serving(Recorder(size=(1280, 800))) as after:
        ours, theirs = client(before.url), client(after.url)
        await ours.reset()
        await theirs.reset()
        assert ours._session == theirs._session == 1
        ours._base = ours._base.replace(before.url, after.url)
        with pytest.raises(EnvironmentFailure, match="another session than before"):
            await ours.step(Action.of("type", text="row0"))
        await ours.close()
        await theirs.close()


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("text", "/progress answered 'Internal Server Error': the text is not JSON"),
        ("500", "/progress was answered with 500"),
    ],
)
async def test_progress_that_cannot_be_had_is_a_failure(many: tuple[str, FastAPI], fault: str, told: str) -> None:
    faulty = Faulty(many[1])
    with running(faulty) as url:
        environment = client(url)
        await environment.reset()
        faulty.rule = lambda method, path: fault if path.endswith("/progress") else None
        with pytest.raises(EnvironmentFailure, match=told):
            await environment.step(click((5, 5)))
        await environment.close()


async def test_our_server_in_protocol_s() -> None:
    with serving(Recorder(size=(1280, 800)), single=True, sessions=1, seed=3) as served:
        session = EnvironmentSession(client(served.url))
        assert (await session.reset()).text == "seed 3"
        assert [r.reward for r in await play(session, Action.of("type", text="row0"))] == [1.0]
        await session.close()


def test_the_screen_environment_is_solved_through_the_protocol() -> None:
    async def run(url: str, seed: int) -> float:
        local = ScreenEnvironment(level=3)
        session = EnvironmentSession(client(url, width=56, height=56, max_turns=None))
        first, shown = await session.reset(seed=seed), local.reset(seed=seed)
        total = 0.0
        while True:
            assert first.text == shown.text
            assert first.images[0].open().tobytes() == shown.images[0].tobytes()
            action = local.expert_action()
            result, step = await session.step(action), local.step(action)
            total += result.reward
            first, shown = result.observation, step.observation
            assert result.terminated == step.terminated
            if result.done:
                break
        await session.close()
        return total

    with serving("screen", options={"level": 3}) as served:
        for seed in range(3):
            assert asyncio.run(run(served.url, seed)) == 1.0  # an episode is one submission
        until(lambda: served.active == 0)


@pytest.mark.parametrize("forget", [[], [0, 0, 1], [0, 5, 6]])
async def test_counts_that_go_back_are_a_failure_and_no_penalty(single: tuple[str, FastAPI], forget: list[int]) -> None:
    url, app = single
    session = EnvironmentSession(client(url))
    app.state.form.submitted = [0, 1, 2]
    await session.reset()
    app.state.form.submitted = forget
    with pytest.raises(EnvironmentFailure, match="counts only grow"):
        await session.step(click((5, 5)))
    await session.close()


@pytest.mark.parametrize(
    ("counts", "told"),
    [
        ({"num_correct_submissions": True, "num_incorrect_submissions": 0}, "num_correct_submissions is True"),
        ({"num_correct_submissions": -1, "num_incorrect_submissions": 0}, "num_correct_submissions is -1"),
        ({"num_correct_submissions": 1, "num_incorrect_submissions": 1.5}, "num_incorrect_submissions is 1.5"),
        ({"submitted_row_indices": [1, True], "num_incorrect_submissions": 0}, r"row_indices\[1\] is True"),
        ({"submitted_row_indices": [[1]], "num_incorrect_submissions": 0}, r"row_indices\[0\] is \[1\]"),
        ({"submitted_row_indices": []}, "num_incorrect_submissions is missing"),
        ([], "expected an object"),
    ],
)
def test_counts_that_are_none(counts: object, told: str) -> None:
    with pytest.raises(WireError, match=told):
        Progress.read(counts)


class Late:
    """An ASGI application whose answers to `method` come after `go` is set, when the work behind them is done."""

    def __init__(self, app: Any, method: str) -> None:
        self.app, self.method = app, method
        self.done, self.go = threading.Event(), threading.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def send_late(message: Any) -> None:
            if scope.get("method") == self.method:
                self.done.set()
                while not self.go.is_set():
                    await asyncio.sleep(0.01)
            await send(message)

        await self.app(scope, receive, send_late)


async def test_a_session_is_ended_whose_caller_was_cancelled_before_it_knew_of_it() -> None:
    late = Late(app := many_sessions(), "POST")
    with running(late) as url:
        environment = client(url)
        caller = asyncio.ensure_future(environment.reset())
        assert await asyncio.to_thread(late.done.wait, 60)
        caller.cancel()
        await asyncio.sleep(0)
        late.go.set()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert environment.pool.active == 0
        assert not app.state.running()
