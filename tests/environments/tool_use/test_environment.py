"""ToolEnvironment: calls are executed, answers go where they belong, mistakes are observations."""

from __future__ import annotations

import asyncio
import inspect
import random
from typing import Any

import pytest

from tests.environments.tool_use.quizzes import Counter, Quiz, begin, calls, compute
from tests.rollout.worlds import collector, play_with, scripted, specs
from uirl.environments import GuessNumberEnvironment, ToolEnvironment
from uirl.errors import ConfigError, ContractError, EnvironmentFailure
from uirl.parsers import TextParser, create_parser
from uirl.tools import CalculatorTool, EnvironmentStepTool, LookupTool, Tool, ToolRegistry
from uirl.types import Action, Observation, StepResult, Task


async def test_calls_are_executed_in_order_and_shown_next() -> None:
    env = ToolEnvironment(registry=[CalculatorTool(), LookupTool({"pi": 3})])
    session = await begin(env, task=Task("t", goal="compute something"))
    assert env.get_prompt_prefix() == ""
    result = await session.step(calls(compute("2*21"), ("lookup", {"key": "pi"})))
    assert [(r.name, r.success, r.result) for r in result.observation.tool_results] == [
        ("calculator", True, 42),
        ("lookup", True, 3),
    ]
    assert (result.observation.text, result.reward, result.done) == ("", 0.0, False)
    assert await session.state_description() == (
        'compute something\ncalculator({"expression": "2*21"}) -> 42\nlookup({"key": "pi"}) -> 3'
    )
    await session.reset(None, 1)
    assert await session.state_description() == ""


async def test_mistakes_of_the_policy_are_observations() -> None:
    session = await begin(Quiz(registry=[CalculatorTool()]))
    read = await session.step(Action(text="<tool_call>{", parse_error="JSON ends before it is closed"))
    assert read.observation == Observation("JSON ends before it is closed", info={"success": False})
    wrong = await session.step(calls(("calculate", {"expression": "1"}), ("calculator", {"text": "1"}), compute("1/0")))
    unknown, arguments, refused = wrong.observation.tool_results
    assert not any(result.success for result in (unknown, arguments, refused))
    assert "did you mean 'calculator'" in unknown.text
    assert "expression" in arguments.text
    assert refused.text == "division by zero"
    assert (wrong.reward, wrong.done, wrong.observation.info) == (0.0, False, {"success": False})


@pytest.mark.parametrize(
    "answer",
    [
        Action(text="14"),
        Action(text=" 14\n"),
        Action(text="<think>7 and 7</think>\n14", thought="<think>7 and 7</think>"),
        calls(("answer", {"text": "14"})),
        calls(compute("7+7"), ("answer", {"text": "14"}), compute("1+1")),
    ],
)
async def test_an_answer_in_any_form_is_judged(answer: Action) -> None:
    class Tidy(Quiz):
        def judge(self, answer: str) -> Any:
            return super().judge(answer.strip())

    session = await begin(Tidy(registry=[CalculatorTool()]), seed=seed_of(7))
    result = await session.step(answer)
    assert (result.reward, result.terminated) == (1.0, True)
    assert result.observation.info == {"success": True}
    # what is called after the end is not executed
    assert [r.result for r in result.observation.tool_results] == [14] * (len(answer.tool_calls) > 1)


def seed_of(number: int) -> int:
    return next(seed for seed in range(1000) if random.Random(seed).randint(1, 9) == number)


async def test_a_tool_called_answer_is_a_tool() -> None:
    session = await begin(ToolEnvironment(registry=[LookupTool({"text": 5}, name="answer")]))
    result = await session.step(calls(("answer", {"key": "text"})))
    assert (result.observation.tool_results[0].result, result.done) == (5, False)


async def test_without_a_judge_an_answer_ends_the_episode_and_nothing_is_said() -> None:
    session = await begin(ToolEnvironment(registry=[CalculatorTool()]), task=Task("t", goal="say hello"))
    result = await session.step(Action(text="hello"))
    assert (result.reward, result.terminated, result.observation.info) == (0.0, True, {})


async def test_a_judge_may_take_its_time_and_go_on() -> None:
    class Patient(Quiz):
        async def judge(self, answer: str) -> Any:
            await asyncio.sleep(0)
            return ("right", 1.0, True, {}) if answer == "yes" else ("try again", 0.0, False, {})

    session = await begin(Patient())
    assert (await session.step(Action(text="no"))).observation.text == "try again"
    assert (await session.step(Action(text="yes"))).done


async def test_a_judge_that_returns_nonsense_is_a_failure() -> None:
    class Broken(Quiz):
        def judge(self, answer: str) -> Any:
            return "fine"

    with pytest.raises(EnvironmentFailure, match=r"Broken\.judge returned 'fine'"):
        await (await begin(Broken())).step(Action(text="1"))


# -- how the policy hears of its tools ---------------------------------------------------------------------------


def test_three_ways_to_describe_the_tools() -> None:
    class Shouts(TextParser):
        def describe(self) -> str:
            return "Shout the call."

    def made(**options: Any) -> ToolEnvironment:
        return ToolEnvironment(registry=[CalculatorTool()], environment=Counter(), instructions="Be quick.", **options)

    template, prompt, none = (made(describe=how) for how in ("template", "prompt", "none"))
    assert [s["function"]["name"] for s in template.tool_schemas()] == ["calculator"]
    assert template.get_prompt_prefix() == none.get_prompt_prefix() == "Be quick.\n\nCount."
    assert list(prompt.tool_schemas()) == list(none.tool_schemas()) == []
    opening, inner, tools, how = prompt.get_prompt_prefix().split("\n\n")
    assert (opening, inner) == ("Be quick.", "Count.")
    assert tools == prompt.registry.describe()
    assert how == create_parser("qwen").describe()
    assert made(describe="prompt", action_format=Shouts()).get_prompt_prefix().endswith("Shout the call.")


def test_a_parser_in_the_hand_cannot_be_looked_up_by_name() -> None:
    env = ToolEnvironment(action_format=create_parser("react"))
    with pytest.raises(ConfigError, match="<ReActActionParser>"):
        create_parser(env.action_format)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"describe": "loud"}, "describe must be one of"),
        ({"max_turns": 0}, "max_turns must be a positive int"),
        ({"max_turns": True}, "max_turns must be a positive int"),
        ({"action_format": "text"}, "'text' knows no calls"),
        ({"action_format": 3}, "name of a parser or a parser, got 3"),
        ({"registry": [3]}, "expected a Tool or a function"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ToolEnvironment(**options)


# -- quick ones do not wait --------------------------------------------------------------------------------------


class SlowTool(Tool):
    name = "slow"
    description = "Takes its time."

    async def execute(self) -> str:
        await asyncio.sleep(0)
        return "done"


class Liar(SlowTool):
    runs_inline = True

    def execute(self) -> Any:  # type: ignore[override]
        return super().execute()


async def test_quick_tools_answer_at_once_and_slow_ones_are_awaited() -> None:
    quick, slow = Quiz(registry=[CalculatorTool()]), Quiz(registry=[CalculatorTool(), SlowTool()])
    for env in (quick, slow):
        assert env.reset(seed=0).startswith("twice")
    assert isinstance(quick.step(calls(compute("1+1"))), StepResult)
    waiting = slow.step(calls(("slow", {})))
    assert inspect.isawaitable(waiting)
    assert (await waiting).observation.tool_results[0].result == "done"
    inner = ToolEnvironment(registry=[CalculatorTool()], environment=GuessNumberEnvironment())
    assert inner.reset(seed=0).text == "guess 1-7"
    assert isinstance(inner.step(Action(text="4")), StepResult)


async def test_a_tool_that_only_says_it_is_quick_is_named() -> None:
    env = Quiz(registry=[Liar()])
    env.reset(seed=0)
    with pytest.raises(ContractError, match="said to be quick waited"):
        env.step(calls(("slow", {})))


# -- in an episode -----------------------------------------------------------------------------------------------


async def test_the_record_of_an_episode_with_tools(lm: Any) -> None:
    parser = create_parser("qwen")
    replies = [parser.render(calls(compute("2*3"))), "<tool_call>{", parser.render(calls(("none", {}))), "6"]
    runner = collector(lm, Quiz(registry=[CalculatorTool()], describe="none"))
    engine = scripted(lm, *replies)
    played = [(await runner.collect([spec], play_with(engine, 60)))[0] for spec in specs(2)]
    for record in played:
        assert record.failure is None
        assert [turn.tool_call.success if turn.tool_call else None for turn in record.turns] == [
            True,
            None,
            False,
            None,
        ]
        assert record.metrics["parse_errors"] == 1
        assert record.stop_reason == "terminated"
        assert record.metrics["success"] == float(record.turns[0].observation.text == "twice 3")
    text = lm.tokenizer.decode(engine.requests[1].prompt_ids)
    assert text.endswith("</tool_call><|im_end|><|tool|>6<|assistant|>")


async def test_many_episodes_of_a_registry_at_once(lm: Any) -> None:
    parser = create_parser("qwen")
    inner = GuessNumberEnvironment()
    env = ToolEnvironment(registry=ToolRegistry([EnvironmentStepTool(inner), CalculatorTool()]), environment=inner)
    env._describe = "none"
    runner = collector(lm, env)
    act = parser.render(calls(("environment_step", {"action": "4"})))
    played = await runner.collect(specs(16), play_with(scripted(lm, act), 60))
    for record in played:
        assert record.failure is None
        # three guesses of 4: a hit pays 1 and ends, else the game is lost after the third
        assert record.stop_reason == "terminated"
        assert record.total_reward() == record.metrics["success"]
        assert len(record) == (1 if record.success else 3)
    assert {record.success for record in played} == {True, False}
    await runner.close()
