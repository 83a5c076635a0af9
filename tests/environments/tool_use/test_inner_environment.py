"""ToolEnvironment around another environment: whose steps, limits, failures and controls are whose."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from tests.environments.tool_use.quizzes import Counter, begin, calls, compute
from uirl.environments import (
    BaseEnvironment,
    EnvironmentSession,
    GuessNumberEnvironment,
    ToolEnvironment,
    check_environment,
)
from uirl.errors import EnvironmentFailure, EpisodeTimeout
from uirl.tools import CalculatorTool, EnvironmentStepTool, LookupTool
from uirl.types import Action, Task


async def test_answers_go_to_the_inner_environment_and_calls_do_not() -> None:
    inner = Counter(length=2)
    session = await begin(ToolEnvironment(registry=[CalculatorTool()], environment=inner))
    assert session.env.get_prompt_prefix() == "Count."
    called = await session.step(calls(compute("1+1")))
    assert (called.reward, called.done, called.observation.info) == (0.0, False, {})
    assert inner.count == 0
    first = await session.step(Action(text="one"))
    assert (first.observation.text, first.reward, first.done) == ("count 1", 1.0, False)
    last = await session.step(calls(compute("2+2"), ("answer", {"text": "two"}), compute("3+3")))
    assert [r.result for r in last.observation.tool_results] == [4]
    assert (last.observation.text, last.reward, last.terminated) == ("count 2", 1.0, True)
    assert last.observation.info == {"success": True}
    assert inner.said == ["one", "two"]
    await session.close()


async def test_truncation_passes_through() -> None:
    class Cut(Counter):
        def step(self, action: str) -> Any:
            observation, reward, _, info = super().step(action)
            return observation, reward, False, True, info

    for reply in (Action(text="x"), calls(compute("1+1"), ("answer", {"text": "x"}))):
        session = await begin(ToolEnvironment(registry=[CalculatorTool()], environment=Cut()))
        result = await session.step(reply)
        assert (result.terminated, result.truncated) == (False, True)
        await session.close()


async def test_an_inner_environment_of_calls_gets_the_reply_as_it_is() -> None:
    class Clicks(Counter):
        action_format = "json"

    inner = Clicks()
    session = await begin(ToolEnvironment(environment=inner))
    await session.step(Action(text="words"))
    assert inner.said == [Action(text="words")]
    await session.close()


async def test_steps_that_a_tool_takes_are_steps_of_the_episode() -> None:
    inner = Counter(length=3, pictures=True)
    tool = EnvironmentStepTool(inner)
    session = await begin(ToolEnvironment(registry=[tool, CalculatorTool()], environment=inner))
    acts = [("environment_step", {"action": word}) for word in "abcd"]
    two = await session.step(calls(acts[0], compute("1+1"), acts[1]))
    assert [r.result for r in two.observation.tool_results] == ["count 1", 2, "count 2"]
    # rewards are summed; the text stands in the results, the picture of the last step beside them
    assert (two.reward, two.done, two.observation.text, len(two.observation.images)) == (2.0, False, "", 1)
    assert two.observation.info == {"success": False}
    end = await session.step(calls(acts[2], acts[3]))
    assert (end.reward, end.terminated, len(end.observation.tool_results)) == (1.0, True, 1)
    assert end.observation.info == {"success": True}
    assert inner.said == ["a", "b", "c"]
    await session.reset(None, 1)
    again = await session.step(calls(acts[0]))
    assert (again.reward, again.done) == (1.0, False)
    await session.state_description()
    # the environment was touched by one thread, its own
    assert len(inner.threads) == 1
    assert threading.get_ident() not in inner.threads
    await session.close()


@pytest.mark.parametrize(("words", "last"), [([True, None], True), ([True, False], False), ([None, None], None)])
async def test_the_last_word_on_success_of_several_steps_stands(words: list[bool | None], last: bool | None) -> None:
    class Speaks(Counter):
        def step(self, action: str) -> Any:
            observation, reward, done, _ = super().step(action)
            word = words[self.count - 1]
            return observation, reward, done, {"step": self.count} | ({} if word is None else {"success": word})

    inner = Speaks(length=2)
    session = await begin(ToolEnvironment(registry=[EnvironmentStepTool(inner)], environment=inner))
    step = ("environment_step", {"action": "on"})
    result = await session.step(calls(step, step))
    assert result.observation.info == {"step": 2} | ({} if last is None else {"success": last})
    await session.close()


async def test_a_step_that_was_not_taken_is_no_step() -> None:
    inner = Counter(length=3)
    tool = EnvironmentStepTool(inner)
    tool.max_result_chars = 5
    session = await begin(ToolEnvironment(registry=[tool], environment=inner))
    await session.step(calls(("environment_step", {"action": "x"})))
    result = await session.step(calls(("environment_step", {})))
    assert not result.observation.tool_results[0].success
    assert (result.reward, result.observation.info, inner.count) == (0.0, {}, 1)
    # the settings of the tool hold where it acts through the session
    shown = await session.step(calls(("environment_step", {"action": "x"})))
    assert shown.observation.tool_results[0].result == "count... (cut, 2 more characters)"
    await session.close()


async def test_a_tool_that_acts_on_another_environment_counts_as_well() -> None:
    other = Counter(length=1)
    other.reset()
    session = await begin(ToolEnvironment(registry=[EnvironmentStepTool(other)], environment=Counter()))
    result = await session.step(calls(("environment_step", {"action": "x"})))
    assert (result.reward, result.terminated) == (1.0, True)
    await session.close()


async def test_parallel_episodes_share_nothing() -> None:
    made: list[str] = []

    class Spawned(Counter):
        def spawn(self) -> BaseEnvironment:
            made.append("environment")
            return Spawned(self.length)

    class SpawnedTool(LookupTool):
        def spawn(self) -> LookupTool:
            made.append("tool")
            return SpawnedTool({"copies": made.count("tool")})

    inner = Spawned(length=2)
    env = ToolEnvironment(registry=[EnvironmentStepTool(inner), SpawnedTool({})], environment=inner)
    one, other = [await begin(env.spawn()) for _ in range(2)]
    # one of each per instance: nothing is opened that nobody closes
    assert sorted(made) == ["environment"] * 2 + ["tool"] * 2
    look = await other.step(calls(("lookup", {"key": "copies"})))
    assert look.observation.tool_results[0].result == 2
    act = calls(("environment_step", {"action": "x"}))
    assert (await one.step(act)).observation.tool_results[0].result == "count 1"
    assert (await one.step(act)).done
    assert (await other.step(act)).observation.tool_results[0].result == "count 1"
    assert not hasattr(inner, "count"), "the instance itself must not be played"
    assert one.env.registry is not other.env.registry  # type: ignore[attr-defined]
    for session in (one, other):
        await session.close()


async def test_a_slow_environment_does_not_hold_up_the_others() -> None:
    loop, free = asyncio.get_running_loop(), threading.Event()

    class Waits(Counter):
        def step(self, action: str) -> Any:
            assert free.wait(10), "the loop was blocked"
            return super().step(action)

    session = await begin(ToolEnvironment(environment=Waits()))
    loop.call_later(0.01, free.set)
    assert (await session.step(Action(text="x"))).reward == 1.0
    await session.close()


async def test_one_limit_holds_for_the_inner_environment_too() -> None:
    free = threading.Event()

    class Hangs(Counter):
        def step(self, action: str) -> Any:
            free.wait(30)
            return super().step(action)

    session = EnvironmentSession(ToolEnvironment(environment=Hangs()), step_timeout=0.2)
    await session.reset(None, 0)
    with pytest.raises(EpisodeTimeout, match=r"ToolEnvironment\.step did not return within 0\.2 s"):
        await session.step(Action(text="x"))
    assert session.broken
    await session.close()
    free.set()


async def test_failures_of_the_inner_environment_and_of_tools_are_ours() -> None:
    class Raises(Counter):
        def step(self, action: str) -> Any:
            raise OSError("the cable was pulled")

    def broken(x: int) -> int:
        """Fails."""
        raise ConnectionResetError(x)

    session = await begin(ToolEnvironment(environment=Raises()))
    with pytest.raises(EnvironmentFailure, match=r"Raises\.step raised OSError: the cable was pulled"):
        await session.step(Action(text="x"))
    assert session.broken
    await session.close()
    session = await begin(ToolEnvironment(registry=[broken]))
    with pytest.raises(EnvironmentFailure, match="tool 'broken' raised ConnectionResetError"):
        await session.step(calls(("broken", {"x": 1})))


async def test_closing_closes_both() -> None:
    closed: list[str] = []

    class Closing(Counter):
        def close(self) -> None:
            closed.append("environment")

    class ClosingTool(CalculatorTool):
        async def close(self) -> None:
            closed.append("tool")

    session = await begin(ToolEnvironment(registry=[ClosingTool()], environment=Closing()))
    await session.close()
    assert closed == ["environment", "tool"]


def test_the_inner_environment_keeps_the_contract_with_tools_around_it() -> None:
    env = ToolEnvironment(registry=[CalculatorTool()], environment=GuessNumberEnvironment())
    samples = [calls(compute("1+1")), Action(text="4"), Action(text="x", parse_error="no"), calls(("no", {}))]
    report = check_environment(env, actions=samples)
    assert report.seeded
    # a demonstrator of the inner environment knows nothing of tools
    assert report.expert_success is None


def test_controls_of_the_inner_environment_get_the_tools() -> None:
    class Blind(Counter):
        def controls(self) -> Any:
            return {"blind": Counter(length=7), "constant": "x", "click": Action.of("click")}

        def tasks(self) -> list[Task]:
            return [Task("one"), Task("two")]

    env = ToolEnvironment(registry=[CalculatorTool()], environment=Blind())
    assert [task.id for task in env.tasks() or ()] == ["one", "two"]
    found = env.controls()
    assert set(found) == {"blind", "constant"}
    blind = found["blind"]
    assert isinstance(blind, ToolEnvironment)
    assert blind.registry.names == ("calculator",)
    assert blind._inner is not None
    assert blind._inner.env.length == 7  # type: ignore[attr-defined]
