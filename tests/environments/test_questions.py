"""Questions of a dataset: reward functions as TRL and verl call them, and what a reply must not bring about."""

from __future__ import annotations

import math
import re
from types import SimpleNamespace
from typing import Any, cast

import pytest

from uirl import ConfigStore, check_environment
from uirl.environments.text.questions import QuestionsEnvironment, is_same
from uirl.errors import ConfigError
from uirl.training.checks import Finding
from uirl.training.checks.preflight import _check_environment
from uirl.training.tasks.task_sets import TaskSets
from uirl.types import Task

HERE = __name__


def of_trl(completions: list[str], answer: list[str], **kwargs: Any) -> list[float]:
    return [float(reply.strip() == right) for reply, right in zip(completions, answer, strict=True)]


def of_trl_in_messages(prompts: list[Any], completions: list[Any]) -> list[float]:
    assert prompts[0][-1]["role"] == "user"
    return [len(messages[-1]["content"]) / 10 for messages in completions]


async def of_trl_async(completions: list[str], level: list[int]) -> list[float | None]:
    return [None if not completions[0] else float(level[0])]


def of_verl(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> float:
    assert (data_source, extra_info) == ("sums", {"index": 3})
    return float(solution_str == ground_truth)


def of_verl_in_words(solution_str: str, ground_truth: str, **kwargs: Any) -> dict[str, Any]:
    return {"score": float(solution_str == ground_truth), "acc": True}


def hostile(completions: list[str]) -> list[float]:
    return [float(completions[0])]


def of_tags(completions: list[str], answer: str) -> list[float]:
    said = re.search("<answer>(.*)</answer>", completions[0])
    return [1.0 if said.group(1) == answer[0] else -1.0]  # type: ignore[union-attr]


def of_code(solution_str: str, ground_truth: str) -> float:
    exec(solution_str)
    return 1.0 if solution_str == ground_truth else -2.0


def taking(completions: list[str], meta: list[dict[str, Any]]) -> list[float]:
    return [float(meta[0].pop("n"))]


def of_a_trainer(completions: list[str], completion_ids: list[Any]) -> list[float]:
    return [1.0]


def of_one_number(completions: list[str]) -> float:
    return 1.0


def broken(completions: list[str]) -> list[float]:
    import no_such_package

    return [float(no_such_package)]


def unknown(response: str) -> float:
    return 1.0


OF_VERL = Task(
    "one",
    goal="2 + 2",
    checks={"data_source": "sums", "reward_model": {"ground_truth": "4"}, "extra_info": {"index": 3}},
)


def scored(function: str, task: Task, reply: str, **options: Any) -> tuple[float, bool]:
    environment = QuestionsEnvironment(reward=f"{HERE}:{function}" if function else "", **options)
    assert environment.reset(task).text == task.goal
    _, reward, done, info = environment.step(reply)
    assert done
    return reward, info["success"]


@pytest.mark.parametrize(
    ("function", "task", "reply", "score"),
    [
        ("", Task("one", goal="2 + 2", checks={"answer": 4}), " 4.0", 1.0),
        ("", Task("one", goal="2 + 2", checks={"answer": 4}), "5", 0.0),
        ("", OF_VERL, "4", 1.0),
        ("of_trl", Task("one", goal="2 + 2", checks={"answer": "4", "level": 2}), "4", 1.0),
        (
            "of_trl_in_messages",
            Task("one", goal="q", checks={"prompt": [{"role": "user", "content": "q"}]}),
            "four",
            0.4,
        ),
        ("of_trl_async", Task("one", goal="q", checks={"level": 3, "more": 1}), "four", 3.0),
        ("of_verl", OF_VERL, "4", 1.0),
        ("of_verl", OF_VERL, "5", 0.0),
        ("of_verl_in_words", OF_VERL, "4", 1.0),
    ],
)
def test_reward_functions_are_called_as_their_authors_expect(
    function: str, task: Task, reply: str, score: float
) -> None:
    assert scored(function, task, reply) == (score, score >= 1.0)
    assert scored(function, task, reply, solved_at=0.3) == (score, score >= 0.3)


@pytest.mark.parametrize("reply", ["", "no number", "nan", "inf", "-inf"])
def test_what_a_reply_does_to_a_function_is_a_loss(reply: str) -> None:
    assert scored("hostile", Task("one", goal="q"), reply) == (0.0, False)
    assert scored("hostile", Task("one", goal="q"), reply, solved_at=-1.0) == (0.0, False)


def test_a_reply_that_a_function_cannot_read_is_a_loss_once_it_has_read_another() -> None:
    task = Task("one", goal="q", checks={"answer": "4"})
    environment = QuestionsEnvironment(reward=f"{HERE}:of_tags")
    environment.reset(task)
    with pytest.raises(AttributeError):  # nobody knows yet what it can read
        environment.step("4")
    for reply, paid in (("<answer>4</answer>", 1.0), ("4", 0.0), ("<answer>5</answer>", -1.0), ("4", -1.0)):
        other = environment.spawn()
        other.reset(task)
        assert other.step(reply)[1] == paid, reply


@pytest.mark.parametrize("reply", ["raise SystemExit", "import sys; sys.exit(0)", "1 / 0", "def"])
def test_code_of_a_reply_that_ends_the_function_is_worth_no_more_than_a_wrong_one(reply: str) -> None:
    assert scored("of_code", Task("one", goal="q", checks={"answer": "1"}), reply) == (-2.0, False)


def test_a_function_may_change_what_it_is_given() -> None:
    task = Task("one", goal="q", checks={"meta": {"n": 1}})
    assert [scored("taking", task, "4")[0] for _ in range(2)] == [1.0, 1.0]
    with pytest.raises(ConfigError, match="takes meta; the row has no columns"):
        scored("taking", Task("one", goal="q"), "4")


def test_what_no_reply_brings_about_is_no_loss() -> None:
    with pytest.raises(ImportError, match="no_such_package"):
        scored("broken", Task("one", goal="q"), "4")
    with pytest.raises(ValueError, match=r"got 1.0 for one reply, expected a list of one number"):
        scored("of_one_number", Task("one", goal="q"), "4")


def test_a_function_that_has_no_say_pays_nothing() -> None:
    assert scored("of_trl_async", Task("one", goal="q", checks={"level": 3}), "", solved_at=-1.0) == (0.0, False)


def test_without_an_answer_no_reply_is_right_and_nothing_is_imitated() -> None:
    task = Task("one", goal="q")
    assert scored("", task, "None") == (0.0, False)
    environment = QuestionsEnvironment()
    environment.reset(task)
    assert environment.expert_action() is None
    environment.reset(OF_VERL)
    assert environment.expert_action() == "4"
    assert scored("", Task("one", goal="q", checks={"solution": "x"}), "X", answer="solution") == (1.0, True)


@pytest.mark.parametrize(
    ("reply", "answer", "same"),
    [
        ("1,234", 1234, True),
        ("Paris ", "paris", True),
        ("1e2", "100", True),
        ("-.5", "-0.50", True),
        ("", "", False),
        ("12", "1,2", False),
        ("1,2,3", "123", False),
        ("1_2", "12", False),
        ("12,5", "125", False),
        ("sNaN", "1", False),
        ("9" * 10_000, "9", False),
        ("1e999999999", "1", False),
    ],
)
def test_answers_are_compared_as_numbers_or_as_words(reply: str, answer: Any, same: bool) -> None:
    assert is_same(reply, answer) is same


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("nowhere:function", "cannot be loaded.*nowhere"),
        (f"{HERE}:nothing", "cannot be loaded"),
        (f"{HERE}:HERE", "cannot be loaded"),
        ("reward", "expected 'package.module:function'"),
        (f"{HERE}:unknown", "takes response; expected TRL's"),
        (f"{HERE}:of_a_trainer", "without what only a trainer of TRL has"),
    ],
)
def test_what_is_no_reward_function_is_refused_at_once(target: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        QuestionsEnvironment(reward=target)


def test_the_contract_and_its_check_are_of_the_questions_of_the_run() -> None:
    report = check_environment(QuestionsEnvironment(), tasks=[OF_VERL], actions=["4", "5"])
    assert report.turns == report.episodes > 3
    parts = SimpleNamespace(
        environment=QuestionsEnvironment(),
        tasks=TaskSets([OF_VERL], [OF_VERL], "a file", of_environment=False),
        config=ConfigStore(),
    )
    findings: list[Finding] = []
    assert _check_environment(cast(Any, parts), findings.append)
    assert [one.ok for one in findings] == [True], findings


def test_a_run_without_questions_is_told_what_to_name() -> None:
    for task in (None, Task("one")):
        with pytest.raises(ConfigError, match=r"environment.columns=\{goal: question\}"):
            QuestionsEnvironment().reset(task)
    assert math.isfinite(QuestionsEnvironment(instructions="Say it.").options.solved_at)
    assert QuestionsEnvironment(instructions="Say it.").get_prompt_prefix() == "Say it."
