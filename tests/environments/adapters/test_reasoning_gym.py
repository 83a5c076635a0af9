"""Questions of reasoning-gym: graded by the package, and no reply is executed on the way."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

from uirl.environments.adapters.reasoning_gym import EVALUATED, REFUSED, ReasoningGymEnvironment, is_plain
from uirl.environments.conformance import check_environment
from uirl.errors import ConfigError

pytestmark = pytest.mark.real

ATTACKS = (
    "__import__('os').system('touch {mark}')",
    "[__import__('pathlib').Path('{mark}').touch()]",
    "(lambda: open('{mark}', 'w'))()",
    "[open('{mark}', 'w') for _ in '1']",
    "open('{mark}', 'w') or 1",
    "x*__import__('os').system('touch {mark}')",
)
BOMBS = ("9**9**9", "9**999999999", "(2**20)**x", "[" * 3000 + "]" * 3000, "1+" * 100000 + "1")


def of(dataset: str, **options: object) -> ReasoningGymEnvironment:
    return ReasoningGymEnvironment(problems=[{"dataset": dataset}], **options)


@pytest.mark.parametrize("name", ["chain_sum", "needle_haystack", "word_sequence_reversal", "countdown", "syllogism"])
def test_the_contract_holds(name: str) -> None:
    assert check_environment(of(name)).expert_success == 1.0


@pytest.mark.parametrize("name", sorted(EVALUATED))
def test_no_reply_is_executed(name: str, tmp_path: Path) -> None:
    environment, mark = of(name, partial_credit=True), tmp_path / "mark"
    for reply in (*(attack.format(mark=mark) for attack in ATTACKS), *BOMBS):
        environment.reset(seed=3)
        _, reward, done, info = environment.step(reply)
        assert (reward, done, info["success"]) == (0.0, True, False)
    assert not mark.exists()
    environment.reset(seed=3)
    assert environment.step(str(environment.expert_action()))[1] == 1.0


def test_every_generator_that_evaluates_is_known() -> None:
    """A new release may bring others."""
    from reasoning_gym.factory import DATASETS

    found = set()
    for name, (dataset, _) in DATASETS.items():
        calls = [
            node.func
            for node in ast.walk(ast.parse(Path(inspect.getfile(dataset)).read_text()))
            if isinstance(node, ast.FunctionDef) and node.name == "score_answer"
            for node in ast.walk(node)
            if isinstance(node, ast.Call)
        ]
        names = {getattr(call, "id", None) or getattr(call, "attr", None) for call in calls}
        if names & {"eval", "exec", "parse_expr", "sympify"}:
            found.add(name)
    assert found - REFUSED - {"number_sorting"} == EVALUATED, "number_sorting evaluates its own answer alone"


def test_what_is_right_otherwise_than_the_generators_answer_is_right() -> None:
    environment = ReasoningGymEnvironment(problems=[{"dataset": "countdown", "min_numbers": 2, "max_numbers": 2}])
    for seed in range(5):
        environment.reset(seed=seed)
        answer = str(environment.expert_action())
        _, reward, _, info = environment.step(f" ({answer}) ")
        assert (reward, info["success"]) == (1.0, True)


def test_partial_credit_is_no_success() -> None:
    environment = of("countdown", partial_credit=True)
    environment.reset(seed=1)
    _, reward, _, info = environment.step("1 + 1")
    assert 0 < reward < 1
    assert info["success"] is False
    strict = of("countdown")
    strict.reset(seed=1)
    assert strict.step("1 + 1")[1] == 0.0


def test_tasks_are_the_problems_and_seeds_their_instances() -> None:
    environment = ReasoningGymEnvironment(
        problems=[
            {"dataset": "word_sequence_reversal", "min_words": 3, "max_words": 3},
            {"dataset": "word_sequence_reversal", "min_words": 5, "max_words": 5},
        ]
    )
    tasks = environment.tasks()
    assert [task.id for task in tasks] == [
        "word_sequence_reversal min_words=3 max_words=3",
        "word_sequence_reversal min_words=5 max_words=5",
    ]
    for task, words in zip(tasks, (3, 5), strict=True):
        seen = {environment.reset(task, seed=seed).text for seed in range(20)}
        assert len(seen) > 15
        assert len(str(environment.expert_action()).split(", ")) == words
        assert environment.reset(task, seed=7).text == environment.reset(task, seed=7).text


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        ({"dataset": "chain_sums"}, "no generator 'chain_sums'; did you mean 'chain_sum'"),
        ({"dataset": "codeio"}, "executes code"),
        ({"dataset": "chain_sum", "terms": 2}, "does not take"),
        ({"dataset": "chain_sum", "min_terms": 9, "max_terms": 2}, "does not take"),
        ({"dataset": "chain_sum", "seed": 2}, "the run's own"),
        ({}, "no generator None"),
    ],
)
def test_what_does_not_exist_is_refused(problem: dict, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ReasoningGymEnvironment(problems=[problem])


@pytest.mark.parametrize("reply", ["1+2*3", "[1, 2]", "['a', 'b']", "x**2/3 + C", "-(4 - 1)*2", "(1, 2)"])
def test_arithmetic_and_lists_are_plain(reply: str) -> None:
    assert is_plain(reply)
