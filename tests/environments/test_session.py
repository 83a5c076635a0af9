"""EnvironmentSession: every way in which an environment may break, threads, time limits, and what it is handed."""

from __future__ import annotations

import asyncio
import gc
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from tests.environments.answering import ACTION, KINDS, NEXT, Answers, AsyncAnswers, Make, first_turn, reset_and_step
from tests.patience import PATIENCE
from uirl.environments import BaseEnvironment, EnvironmentSession
from uirl.errors import ConfigError, ContractError, EngineFailure, EnvironmentFailure, EpisodeTimeout
from uirl.types import Action, Observation, Task

RAISED = [
    ValueError("boom"),
    StopIteration("boom"),
    TimeoutError("boom"),
    SystemExit("boom"),
    GeneratorExit("boom"),
    asyncio.CancelledError("boom"),
    BaseException("boom"),
]


def test_where_an_environment_raised_is_said_by_its_own_line() -> None:
    class Reads(BaseEnvironment):
        def reset(self, seed: int | None = None) -> str:
            return str(json.loads("{"))

        def step(self, action: Action) -> Any:
            raise AssertionError

        def get_state_description(self) -> str:
            return ""

    line = Reads.reset.__code__.co_firstlineno + 1
    with pytest.raises(
        EnvironmentFailure, match=rf"JSONDecodeError: .* \({re.escape(__file__)}:{line}\); the environment"
    ):
        asyncio.run(EnvironmentSession(Reads()).reset())


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("method", ["reset", "step"])
@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
def test_exceptions_become_failures_and_break_the_session(make: Make, method: str, error: BaseException) -> None:
    env = make(error) if method == "reset" else make("start", error)

    async def run() -> None:
        session = EnvironmentSession(env)
        assert not session.broken
        with pytest.raises(EnvironmentFailure, match=rf"Answers\.{method} raised .*boom") as caught:
            await reset_and_step(session)
        assert caught.value.__cause__ is not None
        assert session.broken
        for again in (session.reset(), session.step(ACTION), session.expert_action(), session.state_description()):
            with pytest.raises(EnvironmentFailure, match=r"the session broke earlier .*boom.*fresh spawn"):
                await again
        await session.close()
        assert env.closed == 1

    asyncio.run(run())


def test_words_of_an_exception_neither_fail_nor_fill_the_record() -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise ValueError("no words")

    with pytest.raises(EnvironmentFailure, match="raised Silent: its words cannot be shown"):
        first_turn(Answers("start", Silent()))
    with pytest.raises(EnvironmentFailure, match="raised ValueError: half \ufffd of") as caught:
        first_turn(Answers("start", ValueError("half \ud800 of " + "h" * 10_000_000)))
    assert len(str(caught.value)) < 10_000


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("error", [EngineFailure("judge model is down"), ConfigError("no browser is installed")])
def test_typed_errors_of_the_environment_keep_their_type(make: Make, error: Exception) -> None:
    for env in (make(error), make("start", error)):
        with pytest.raises(type(error), match=f"^{error}$"):
            first_turn(env)


class Hang:
    """A call that takes a second, and says whether it came to its end."""

    def __init__(self) -> None:
        self.finished = False

    def blocking(self) -> None:
        time.sleep(1)
        self.finished = True

    async def sleeping(self) -> None:
        await asyncio.sleep(1)
        self.finished = True

    async def resisting(self) -> None:
        for _ in range(10):
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.1)
        self.finished = True


@pytest.mark.parametrize("method", ["reset", "step"])
@pytest.mark.parametrize(
    ("make", "hang"),
    [
        pytest.param(Answers, Hang.blocking, id="thread"),
        pytest.param(AsyncAnswers, Hang.sleeping, id="async"),
        pytest.param(AsyncAnswers, Hang.resisting, id="async-that-resists"),
        pytest.param(Answers, Hang.sleeping, id="sync-that-returns-a-coroutine"),
    ],
)
def test_a_hang_is_cut_off(method: str, make: Make, hang: Callable[[Hang], Any]) -> None:
    call = Hang()
    env = make(partial(hang, call)) if method == "reset" else make("start", partial(hang, call))

    async def run() -> None:
        session = EnvironmentSession(env, step_timeout=0.2, reset_timeout=0.2)
        with pytest.raises(
            EpisodeTimeout, match=rf"Answers\.{method} did not return within 0.2 s; raise .*{method}_timeout"
        ):
            await reset_and_step(session)
        assert session.broken
        with pytest.raises(EnvironmentFailure, match="did not return"):
            await session.step(ACTION)
        await session.close()
        assert not call.finished, "the caller waited for the hanging call"

    asyncio.run(run())


def test_cancelling_an_episode_breaks_the_session_and_closing_does_not_wait() -> None:
    call = Hang()

    async def run() -> None:
        session = EnvironmentSession(Answers("start", call.blocking))
        await session.reset()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(session.step(ACTION), 0.1)
        assert session.broken
        await session.close()
        assert not call.finished

    asyncio.run(run())


def test_an_abandoned_instance_is_closed_when_it_comes_back() -> None:
    release = threading.Event()
    env = Answers("start", release.wait)

    async def run() -> None:
        session = EnvironmentSession(env, step_timeout=0.1)
        await session.reset()
        with pytest.raises(EpisodeTimeout):
            await session.step(ACTION)
        await session.close()
        assert env.closed == 0
        release.set()
        for _ in range(200):
            if env.closed:
                break
            await asyncio.sleep(0.01)
        assert env.closed == 1
        assert env.closed_by == env.thread

    asyncio.run(run())


def test_a_hung_thread_does_not_keep_the_interpreter_alive() -> None:
    program = (
        "import asyncio, time\n"
        "from uirl.environments import BaseEnvironment, EnvironmentSession\n"
        "from uirl.errors import EpisodeTimeout\n"
        "class Hangs(BaseEnvironment):\n"
        "    def reset(self): time.sleep(1000)\n"
        "    def step(self, action): pass\n"
        "    def get_state_description(self): return ''\n"
        "async def run():\n"
        "    try: await EnvironmentSession(Hangs(), reset_timeout=0.1).reset()\n"
        "    except EpisodeTimeout: print('cut off')\n"
        "asyncio.run(run())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "cut off"), done.stderr


def test_each_instance_has_one_thread_for_its_whole_life() -> None:
    class Where(Answers):
        def reset(self) -> str:
            self.threads = [*getattr(self, "threads", []), threading.get_ident()]
            return "start"

        def step(self, action: Any) -> Any:
            self.threads.append(threading.get_ident())
            return "next", 0.0, False, {}

    async def episode(session: EnvironmentSession) -> None:
        await session.reset()
        await session.step(ACTION)

    async def run() -> list[Where]:
        envs = [Where() for _ in range(3)]
        sessions = [EnvironmentSession(env) for env in envs]
        for _ in range(2):
            await asyncio.gather(*(episode(session) for session in sessions))
        for session in sessions:
            await session.close()
            await session.close()
        return envs

    envs = asyncio.run(run())
    threads = [set(env.threads) | {env.closed_by} for env in envs]
    assert all(len(t) == 1 for t in threads)
    assert len(set.union(*threads)) == 3
    assert threading.get_ident() not in set.union(*threads)
    assert [env.closed for env in envs] == [1, 1, 1]


@pytest.mark.parametrize("ending", ["closed", "forgotten"])
def test_a_thread_ends_with_its_session(ending: str) -> None:
    name = f"Ends{ending}"
    sessions = [EnvironmentSession(type(name, (Answers,), {})())]

    def threads() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name == f"environment-{name}"]

    asyncio.run(sessions[0].reset())
    assert len(threads()) == 1
    if ending == "closed":
        asyncio.run(sessions[0].close())
    else:
        sessions.clear()
        gc.collect()
    for _ in range(300):
        if not threads():
            break
        time.sleep(0.01)
    assert threads() == []


def test_inline_environments_run_on_the_event_loop() -> None:
    env = Answers(inline=True)
    first_turn(env)
    assert env.thread == threading.get_ident()


def test_threaded_environments_run_side_by_side() -> None:
    meet = threading.Barrier(4, timeout=PATIENCE)

    async def run() -> None:
        sessions = [EnvironmentSession(Answers(lambda: (meet.wait(), "met")[1])) for _ in range(4)]
        observations = await asyncio.gather(*(session.reset() for session in sessions))
        assert [o.text for o in observations] == ["met"] * 4

    asyncio.run(run())


@pytest.mark.parametrize(
    ("signature", "expected"),
    [
        ("self", {}),
        ("self, seed=7", {"seed": 5}),
        ("self, *, task", {"task": "t"}),
        ("self, task=None, seed=None", {"task": "t", "seed": 5}),
        ("self, **kwargs", {"task": "t", "seed": 5}),
        ("self, seed=None, **kwargs", {"task": "t", "seed": 5}),
        ("self, *task", {}),
        ("self, level=1", {}),
    ],
)
def test_reset_gets_only_what_its_signature_takes(signature: str, expected: dict[str, Any]) -> None:
    scope: dict[str, Any] = {}
    exec(f"def reset({signature}):\n    return str(sorted((k, v) for k, v in got(locals()).items()))", scope)

    def got(local: dict[str, Any]) -> dict[str, Any]:
        named = {k: v for k, v in local.items() if k in ("task", "seed") and not isinstance(v, tuple)}
        return {k: getattr(v, "id", v) for k, v in {**named, **local.get("kwargs", {})}.items()}

    scope["got"] = got
    env = type("Signature", (Answers,), {"reset": scope["reset"]})()

    async def run() -> str:
        return (await EnvironmentSession(env).reset(Task("t"), 5)).text

    assert asyncio.run(run()) == str(sorted(expected.items()))


def test_none_is_not_handed_over_where_the_environment_has_a_default() -> None:
    class Defaults(Answers):
        def reset(self, task: Task | None, seed: int = 7) -> str:  # type: ignore[override]
            return f"{task} {seed}"

    async def run() -> list[str]:
        session = EnvironmentSession(Defaults())
        return [(await session.reset()).text, (await session.reset(Task("t", seed=3))).text[-1]]

    assert asyncio.run(run()) == ["None 7", "3"]


@pytest.mark.parametrize(("action_format", "kind"), [("text", str), ("json", Action)])
def test_step_gets_text_or_action(action_format: str, kind: type) -> None:
    env = Answers()
    env.action_format = action_format  # type: ignore[misc]
    first_turn(env)
    assert type(env.action) is kind
    assert env.action in ("go", ACTION)


def test_done_flag_is_cleared_before_each_reset() -> None:
    class Flag(Answers):
        def step(self, action: Any) -> Any:
            before, self._done = self._done, True
            return str(before), 0.0, self._done, {}

    async def run() -> list[str]:
        session = EnvironmentSession(Flag())
        seen = []
        for _ in range(2):
            await session.reset()
            seen.append((await session.step(ACTION)).observation.text)
        return seen

    assert asyncio.run(run()) == ["False", "False"]


@pytest.mark.parametrize(
    ("cuts", "limit", "scored", "answer", "ends"),
    [
        (True, 2, False, NEXT, [(False, False), (False, True)]),
        (False, 2, False, NEXT, [(False, False)] * 3),
        (True, None, False, NEXT, [(False, False)] * 3),
        (True, 2, True, NEXT, [(False, False)] * 3),  # only it can say what the episode was worth
        (True, 1, False, ("next", 0.5, True, {}), [(True, False)]),
        (True, 1, False, ("next", 0.5, False, True, {"a": 1}), [(False, True)]),
    ],
)
def test_a_limit_of_turns_that_nobody_holds_is_held_where_it_is_asked_for(
    cuts: bool, limit: int | None, scored: bool, answer: Any, ends: list[tuple[bool, bool]]
) -> None:
    env = Answers(on_step=answer)
    env.max_turns, env.scored_at_end = limit, scored

    async def run() -> None:
        session = EnvironmentSession(env, cuts=cuts)
        for _ in range(2):
            await session.reset()
            results = [await session.step(ACTION) for _ in ends]
            assert [(result.terminated, result.truncated) for result in results] == ends
            held = [result.observation.info.get("out_of_turns") for result in results]
            assert held == [None] * (len(ends) - 1) + [True if cuts and limit == 2 and not scored else None]
            if results[-1].done:
                with pytest.raises(ContractError, match="after the end of the episode"):
                    await session.step(ACTION)
        await session.close()

    asyncio.run(run())


def test_steps_outside_of_an_episode_are_refused() -> None:
    async def run() -> None:
        env = Answers("start", ("end", 1.0, True, {}))
        session = EnvironmentSession(env)
        with pytest.raises(ContractError, match=r"step was called first; expected reset\(\)"):
            await session.step(ACTION)
        await session.reset()
        await session.step(ACTION)
        with pytest.raises(ContractError, match="step was called after the end of the episode"):
            await session.step(ACTION)
        assert not session.broken, "the caller's mistake is not the environment's"
        await session.reset()
        await session.close()
        with pytest.raises(ContractError, match="after close"):
            await session.reset()

    asyncio.run(run())


def test_wrong_arguments_are_explained() -> None:
    with pytest.raises(ContractError, match=r"BaseEnvironment subclass, got 'env'.*GymnasiumEnvironment"):
        EnvironmentSession("env")  # type: ignore[arg-type]
    with pytest.raises(ContractError, match="step_timeout must be positive seconds, got 0"):
        EnvironmentSession(Answers(), step_timeout=0)


@pytest.mark.parametrize(
    ("action_format", "said", "expected"),
    [("text", "north", Action(text="north")), ("json", ACTION, ACTION), ("text", None, None), ("json", None, None)],
)
def test_expert_action_is_an_action(action_format: str, said: Any, expected: Action | None) -> None:
    env = Answers()
    env.action_format = action_format  # type: ignore[misc]
    env.expert_action = lambda: said  # type: ignore[method-assign]
    assert asyncio.run(EnvironmentSession(env).expert_action()) == expected


@pytest.mark.parametrize(("method", "said"), [("expert_action", 3), ("get_state_description", None)])
def test_nonsense_from_other_methods_is_a_failure(method: str, said: Any) -> None:
    env = Answers()
    setattr(env, method, lambda: said)

    async def run() -> None:
        session = EnvironmentSession(env)
        with pytest.raises(EnvironmentFailure, match=rf"Answers\.{method} returned {said}"):
            await (session.expert_action() if method == "expert_action" else session.state_description())
        assert session.broken

    asyncio.run(run())


def test_a_failing_close_is_reported_once() -> None:
    class Stuck(Answers):
        def close(self) -> None:
            raise OSError("device busy")

    async def run() -> None:
        session = EnvironmentSession(Stuck())
        await session.reset()
        with pytest.raises(EnvironmentFailure, match=r"Stuck\.close raised OSError: device busy"):
            await session.close()
        await session.close()

    asyncio.run(run())


class Cellar(BaseEnvironment):
    """The shape of the documents' text game: no constructor, a `_done` that it never clears itself."""

    def reset(self) -> str:
        self.gold = 0.0
        self.bag: list[str] = []
        return "A cellar. There is a lamp."

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        gain = -0.1
        if "grab" in action.lower():
            self.bag.append("lamp")
            gain = 1.0
        elif "leave" in action.lower():
            gain = 5.0
            self._done = True
        self.gold += gain
        return self.get_state_description(), gain, self._done, {}

    def get_state_description(self) -> str:
        return f"Gold: {self.gold}, bag: {self.bag}"


def test_the_plain_game_of_the_documents_runs_unchanged() -> None:
    async def run() -> None:
        session = EnvironmentSession(Cellar("any config").spawn())
        for _ in range(2):
            first = await session.reset(Task("t"), seed=1)
            assert first == Observation("A cellar. There is a lamp.")
            results = [await session.step(Action(text=t)) for t in ("Grab the lamp", "dance", "leave")]
            assert [r.reward for r in results] == [1.0, -0.1, 5.0]
            assert [r.done for r in results] == [False, False, True]
            assert results[0].observation.text == "Gold: 1.0, bag: ['lamp']"
        await session.close()

    asyncio.run(run())
