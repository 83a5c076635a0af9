"""The calculator and the lookup task: rules, demonstrators, controls, and the tokens they cost a tiny model."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

from uirl.environments import (
    CalculatorEnvironment,
    LookupEnvironment,
    check_environment,
    create_environment,
    scripted_success,
)
from uirl.environments.tool_use.arithmetic import NAMES, ArithmeticEnvironment
from uirl.errors import ConfigError
from uirl.inference.models.tiny import build_tokenizer
from uirl.parsers import create_parser
from uirl.tools import ToolRegistry
from uirl.types import Action, StepResult

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("calculator", {}),
    ("calculator", {"digits": 1, "operators": "+", "spare_turns": 0}),
    ("calculator", {"terms": 5, "digits": 3}),
    ("lookup", {}),
    ("lookup", {"terms": 3, "names": 3, "operators": "*", "spare_turns": 0}),
]


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_the_tasks_keep_the_contract(name: str, options: dict[str, Any]) -> None:
    report = check_environment(create_environment(name, options), episodes=10)
    assert report.seeded
    assert report.expert_success == 1.0


def step(env: ArithmeticEnvironment, action: Action) -> StepResult:
    result = env.step(action)
    assert isinstance(result, StepResult), "a step of quick tools must not wait"
    return result


def test_an_episode_with_the_calculator() -> None:
    env = CalculatorEnvironment()
    question = env.reset(seed=3).text
    # random.Random(3): 40, 85 and '*' are drawn in this order
    assert question == "40*85"
    called = step(env, Action.of("calculator", expression=question))
    assert called.observation.tool_results[0].text == "3400"
    assert (called.reward, called.done, called.observation.info) == (0.0, False, {"success": False})
    assert env.expert_action() == Action(text="3400")
    right = step(env, Action(text="3400\n"))
    assert (right.reward, right.terminated) == (1.0, True)
    assert right.observation.info == {"success": True, "answer": "3400"}
    env.reset(seed=3)
    wrong = step(env, Action(text="3401"))
    assert (wrong.reward, wrong.terminated, wrong.observation.info["success"]) == (0.0, True, False)


def test_an_episode_of_looking_up() -> None:
    env = LookupEnvironment()
    question = env.reset(seed=1).text
    one, two = re.split(r"[-+*]", question)
    assert env.expert_action() == Action.of("lookup", key=one)
    first = step(env, env.expert_action()).observation.tool_results[0].result
    second = step(env, env.expert_action()).observation.tool_results[0].result
    expression = question.replace(one, str(first)).replace(two, str(second))
    assert env.expert_action() == Action.of("calculator", expression=expression)
    step(env, env.expert_action())
    assert step(env, env.expert_action()).observation.info == {"success": True, "answer": str(eval(expression))}
    assert env.max_turns == 5


def test_two_look_ups_in_one_reply_save_a_turn() -> None:
    env = LookupEnvironment(spare_turns=0)
    names = re.split(r"[-+*]", env.reset(seed=1).text)
    calls = tuple(Action.of("lookup", key=name).tool_calls[0] for name in names)
    step(env, Action(tool_calls=calls))
    for _ in range(2):
        last = step(env, env.expert_action())
    assert last.observation.info["success"] is True


def test_tables_are_drawn_per_episode() -> None:
    env = LookupEnvironment(names=4)
    tables = []
    for seed in range(50):
        env.reset(seed=seed)
        tables.append(
            tuple(step(env, Action.of("lookup", key=name)).observation.tool_results[0].result for name in NAMES[:4])
        )
        missing = step(env, Action.of("lookup", key=NAMES[4])).observation.tool_results[0]
        assert not missing.success
    assert len(set(tables)) == 50
    assert all(10 <= value <= 99 for table in tables for value in table)


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_the_answer_is_what_python_says(name: str, options: dict[str, Any]) -> None:
    env = create_environment(name, options)
    assert isinstance(env, ArithmeticEnvironment)
    operators = set()
    for seed in range(200):
        problem = env.draw(random.Random(seed))
        table = {
            key: ToolRegistry(problem.tools).execute_tool("lookup", key=key)[1] for key in NAMES if name == "lookup"
        }
        assert problem.answer == str(eval(problem.question, {"__builtins__": {}}, table))
        operators |= set(problem.question) & set("+-*")
    assert operators == set(env.options.operators)


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        # one call, and a mistake in it loses the episode: 1 - 0.78 = 0.22
        ("calculator", {"carelessness": 0.78}, 0.22),
        ("calculator", {"carelessness": 0.5}, 0.5),
        # three calls without a mistake: 0.6^3 = 0.216
        ("lookup", {"carelessness": 0.4}, 0.216),
    ],
)
def test_the_careless_demonstrator_leaves_something_to_learn(
    name: str, options: dict[str, Any], expected: float
) -> None:
    env = create_environment(name, {"demonstrator": "careless", **options})
    assert env.demonstrator_may_fail
    # 1000 episodes, standard deviation at most 0.016
    assert scripted_success(env, episodes=1000) == pytest.approx(expected, abs=0.05)


@pytest.mark.parametrize("name", ["calculator", "lookup"])
def test_carelessness_changes_the_demonstrator_and_not_the_problem(name: str) -> None:
    kinds = set()
    for seed in range(60):
        problems = []
        for demonstrator in ("expert", "careless"):
            env = create_environment(name, {"demonstrator": demonstrator})
            assert isinstance(env, ArithmeticEnvironment)
            env.reset(seed=seed)
            action = env.expert_action()
            assert action == env.expert_action()
            problems.append((env._problem.question, env._problem.answer, env._problem.state_key))
            if demonstrator == "careless":
                kinds.add(action.call.name if action.call else "guess")
        assert problems[0] == problems[1]
    assert kinds == {"guess", name}


def test_a_careless_call_is_wrong_in_one_character() -> None:
    env = CalculatorEnvironment(demonstrator="careless", carelessness=1.0)
    for seed in range(100):
        question = env.reset(seed=seed).text
        call = env.expert_action().call
        if call is not None:
            written = call.arguments["expression"]
            assert len(written) == len(question)
            assert sum(a != b for a, b in zip(written, question, strict=True)) == 1
            assert [c in "+-*" for c in written] == [c in "+-*" for c in question]
            assert step(env, env.expert_action()).observation.tool_results[0].success


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_controls_fail(name: str, options: dict[str, Any]) -> None:
    env = create_environment(name, options)
    controls = env.controls()
    unplugged, constant = controls["no_tools"], controls["constant_answer"]
    assert isinstance(unplugged, ArithmeticEnvironment)
    assert isinstance(constant, str)
    # the demonstrator calls tools that are not there, until its turns are over
    assert scripted_success(unplugged, episodes=20) == 0.0
    session = unplugged.spawn()
    session.reset(seed=0)
    assert "there are none" in session.step(session.expert_action()).observation.tool_results[0].text
    # sums of two digits hit a constant in at most one case of ten, everything else is rarer
    assert scripted_success(env, lambda turn: Action(text=constant), episodes=300) < 0.15
    assert scripted_success(env, episodes=5) == 1.0, "the environment itself keeps its tools"


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("calculator", {"terms": 1}, "calculator.terms: got 1, expected whole number >= 2 and <= 9"),
        ("calculator", {"operators": "+/"}, "operators: got '+/', expected text like ^[-+*]+$"),
        ("calculator", {"names": 3}, "no option 'names'"),
        ("lookup", {"names": 3, "terms": 4}, "lookup: names must be at least terms (4), got 3"),
    ],
)
def test_wrong_options_are_refused(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        create_environment(name, options)
    assert words in str(caught.value)


def test_tools_are_described_to_models_that_read() -> None:
    env = LookupEnvironment(describe="prompt")
    prefix = env.get_prompt_prefix()
    assert prefix.startswith("Look up the value of every name")
    assert "- lookup(key: string)" in prefix
    assert "- calculator(expression: string)" in prefix
    assert create_parser("qwen").describe() in prefix
    shown = LookupEnvironment()
    assert [tool["function"]["name"] for tool in shown.tool_schemas()] == ["lookup", "calculator"]
    assert shown.get_prompt_prefix() == LookupEnvironment.instructions
    silent = LookupEnvironment(describe="none")
    assert (silent.get_prompt_prefix(), list(silent.tool_schemas())) == ("", [])


# -- what a turn costs a tiny model ------------------------------------------------------------------------------


def test_a_call_costs_a_tiny_model_little_more_than_its_argument() -> None:
    tokenizer, parser = build_tokenizer(640, calls=True), create_parser("qwen")
    compute = tokenizer.tokenize(parser.render(Action.of("calculator", expression="12*34")))
    assert compute[1:-1] == ["1", "2", "*", "3", "4"]
    for name in NAMES:
        # the name is the token that the question and the call share
        assert tokenizer.tokenize(parser.render(Action.of("lookup", key=name)))[1:-1] == [name]
        assert tokenizer.tokenize(f"{name}*{name}") == [name, "*", name]


def test_calls_leave_the_other_tokens_alone() -> None:
    plain, calls = build_tokenizer(512), build_tokenizer(640, calls=True)
    # the default job is tuned on these tokens of the vision model
    assert plain.tokenize('{"action":"click","target":"red","x":1,"y":23}') == [
        '{"action":"click","target":"', 'red","x":', "1", ',"y":', "2", "3", "}",
    ]  # fmt: skip
    assert len(plain) == 484
    for text in ("guess 1-7", "higher", "lower", "right", "not a number", '{"action":"type","text":"4"}'):
        assert calls.tokenize(text) == plain.tokenize(text)
