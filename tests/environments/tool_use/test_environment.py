"""ToolEnvironment: calls are executed, answers go where they belong, mistakes are observations."""

from __future__ import annotations

import asyncio
import inspect
import random
import threading
from typing import Any

import pytest

from tests.inference.pictures import picture
from tests.rollout.worlds import collector, play_with, scripted, specs
from uirl.environments import (
    BaseEnvironment,
    EnvironmentSession,
    GuessNumberEnvironment,
    ToolEnvironment,
    check_environment,
)
from uirl.errors import ConfigError, ContractError, EnvironmentFailure, EpisodeTimeout
from uirl.parsers import create_parser
from uirl.tools import CalculatorTool, EnvironmentStepTool, LookupTool, Tool, ToolRegistry
from uirl.types import Action, Observation, StepResult, Task, ToolCall


def calls(*named: tuple[str, dict[str, Any]]) -> Action:
    return Action(tool_calls=tuple(ToolCall(name, arguments) for name, arguments in named))


def compute(expression: str) -> tuple[str, dict[str, Any]]:
    return "calculator", {"expression": expression}


async def begin(
    env: BaseEnvironment, seed: int = 0, task: Task | None = None, limit: float = 20.0
) -> EnvironmentSession:
    session = EnvironmentSession(env, 60.0, 60.0)
    await session.reset(task, seed)
    return session


class Counter(BaseEnvironment):
    """Counts its steps and pays 1 for each; over after `length`; shows a picture."""

    def __init__(self, length: int = 2, pictures: bool = False) -> None:
        super().__init__()
        self.length, self.pictures = length, pictures
        self.threads: set[int] = set()

    def reset(self, seed: int | None = None) -> Any:
        self.count, self.said = 0, []
        self.threads.add(threading.get_ident())
        return "begin"

    def step(self, action: str) -> Any:
        self.count += 1
        self.said.append(action)
        self.threads.add(threading.get_ident())
        seen = Observation(f"count {self.count}", (picture(self.count),) if self.pictures else ())
        return seen, 1.0, self.count == self.length, {"success": self.count == self.length}

    def get_state_description(self) -> str:
        self.threads.add(threading.get_ident())
        return f"count {self.count}"

    def get_prompt_prefix(self) -> str:
        return "Count."


class Quiz(ToolEnvironment):
    """Asks for twice a number; the right one pays 1."""

    def ask(self, rng: random.Random, task: Task | None) -> str:
        self.number = rng.randint(1, 9)
        return f"twice {self.number}"

    def judge(self, answer: str) -> Any:
        hit = answer == str(2 * self.number)
        return "", float(hit), True, {"success": hit}


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


# -- an inner environment ----------------------------------------------------------------------------------------


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


# -- how the policy hears of its tools ---------------------------------------------------------------------------


def test_three_ways_to_describe_the_tools() -> None:
    class Shouts:
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
