"""Conversations of BFCL over its simulators: ground truth solves them, and the package's own checker agrees."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from uirl.environments.adapters.bfcl import CALLS, MORE_TOOLS, UNFIT, BFCLEnvironment, _entry_of
from uirl.environments.conformance import check_environment
from uirl.environments.scripted import Play, play_episode
from uirl.environments.session import EnvironmentSession
from uirl.errors import ConfigError
from uirl.types import Action, StepResult, Task, ToolCall

pytestmark = pytest.mark.real

FILES = "multi_turn_base_0"


async def plays(env: BFCLEnvironment, tasks: list[Task], choose: Any = None) -> list[Play]:
    session = EnvironmentSession(env.spawn())
    try:
        return [await play_episode(session, choose, task=task, seed=0) for task in tasks]
    finally:
        await session.close()


def calls(*made: tuple[str, dict[str, Any]]) -> Action:
    return Action(tool_calls=tuple(ToolCall(name, arguments) for name, arguments in made))


def play(id: str, *actions: Action, **options: Any) -> list[StepResult]:
    async def run() -> list[StepResult]:
        session = EnvironmentSession(BFCLEnvironment(**options))
        await session.reset(Task(id), 0)
        results: list[StepResult] = []
        for action in actions:
            results.append(await session.step(action))
            if results[-1].done:
                break
        await session.close()
        return results

    return asyncio.run(run())


def test_the_contract_holds() -> None:
    report = check_environment(BFCLEnvironment(count=3))
    assert report.expert_success == 1.0


@pytest.mark.parametrize("category", ["base", "miss_func", "miss_param", "long_context"])
def test_ground_truth_solves_every_conversation_and_silence_none(category: str) -> None:
    env = BFCLEnvironment(categories=[category])
    tasks = env.tasks()
    assert len(tasks) == 200 - sum(category in id for id in UNFIT)
    assert all(one.success for one in asyncio.run(plays(env, tasks)))
    few = tasks[::10]
    assert not any(one.success for one in asyncio.run(plays(env, few, lambda turn: Action(text="Done."))))


def test_a_random_agent_solves_nothing() -> None:
    env = BFCLEnvironment(max_turns=20)
    draws = random.Random(0)

    def anything(turn: int) -> Action:
        if draws.random() < 0.3:
            return Action(text="Done.")
        values = {"file_name": "log.txt", "folder": "document", "a": True, "content": "x", "numbers": [1.0, 2.0]}
        return calls((draws.choice(["ls", "cd", "cat", "pwd", "touch", "mean", "get_stock_info", "lockDoors"]), values))

    assert not any(one.success for one in asyncio.run(plays(env, env.tasks()[::4], anything)))


def ours_and_theirs(id: str, turns: list[list[str]]) -> tuple[bool, bool]:
    from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker

    from uirl.environments.adapters.bfcl import _read, _scene_of

    entry, truth = _entry_of(id)
    scene = _scene_of(entry)
    actions = [
        action
        for made in turns
        for action in ([calls(*(_read(call, scene) for call in made))] if made else []) + [Action(text="Done.")]
    ]
    ours = play(id, *actions)[-1].observation.info["success"]
    name = f"m{abs(hash((id, str(turns))))}"
    theirs = multi_turn_checker([[made] if made else [] for made in turns], truth, entry, "multi_turn_base", name)
    return ours, theirs["valid"]


def test_the_checker_of_the_package_agrees() -> None:
    seen = []
    for number in range(0, 60, 3):
        id = f"multi_turn_base_{number}"
        truth = _entry_of(id)[1]
        for turns in (truth, [truth[0][:-1], *truth[1:]], [*truth[:-1], truth[-1][:-1]], [[], *truth[1:]]):
            ours, theirs = ours_and_theirs(id, turns)
            assert ours == theirs, (id, turns)
            seen.append(ours)
    assert {True, False} == set(seen)


def test_what_was_asked_for_is_checked_message_by_message() -> None:
    first = calls(("cd", {"folder": "document"}), ("mkdir", {"dir_name": "temp"}),
                  ("mv", {"source": "final_report.pdf", "destination": "temp"}))  # fmt: skip
    after, said, wrong = play(FILES, first, Action(text="Done."), Action(text="Done."), partial_credit=True)
    assert (after.reward, after.done) == (0.0, False)
    assert (said.reward, said.done) == (0.25, False)
    assert said.observation.text.startswith("Perform a detailed search using grep")
    assert (wrong.reward, wrong.done) == (0.0, True)
    assert wrong.observation.info == {"success": False, "right_messages": 1}
    more = play(FILES, first, calls(("rm", {"file_name": "previous_report.pdf"})), Action(text="Done."))
    assert more[-1].observation.info["success"] is False, "what else was done is seen too"


def test_a_function_that_is_missing_comes_with_its_message() -> None:
    async def run() -> None:
        env = BFCLEnvironment(categories=["miss_func"])
        task = next(t for t in env.tasks() if _entry_of(t.id)[0]["missed_function"].get("2") == ["mv"])
        session = EnvironmentSession(env)
        await session.reset(task, 0)
        assert "- mv(" not in session.env.get_prompt_prefix() == env.prompt_prefix_of(task)
        result = await session.step(Action.of("mv", source="a", destination="b"))
        assert "unknown tool 'mv'" in result.observation.tool_results[0].text
        texts = []
        await session.reset(task, 0)
        while not texts or MORE_TOOLS not in texts[-1]:
            action = await session.expert_action()
            texts.append((await session.step(action)).observation.text)
        assert "- mv(" in texts[-1]
        await session.close()

    asyncio.run(run())


def with_files(env: BFCLEnvironment, *kinds: str) -> str:
    """A conversation over a file system in which copies can be made."""
    for task in env.tasks():
        entry = _entry_of(task.id)[0]
        copies = "cp" not in entry.get("excluded_function", ())
        if copies and {"GorillaFileSystem", *kinds} <= {*entry["involved_classes"]}:
            return task.id
    raise AssertionError("there is none")


BOMBS = [
    [("power", {"base": 9.0, "exponent": 9**9})],
    [("power", {"base": 10**400, "exponent": 2})],
    [("square_root", {"number": 2.0, "precision": 10**9})],
    [("logarithm", {"value": 2.0, "base": 10.0, "precision": 10**9})],
    [("mean", {"numbers": [10**400]})],
    [("echo", {"content": "x" * 10**6, "file_name": "a"})],
    [("cd", {"folder": "__import__('os').system('touch /tmp/x')"})],
    [("_load_scenario", {"scenario": {}}), ("__init__", {})],
    [("cp", {"source": "document", "destination": "document"}), ("find", {"path": ".", "name": "x"})],
    [("mkdir", {"dir_name": "d0"}), *(("cp", {"source": f"d{i}", "destination": f"d{i}"}) for i in range(3))],
    [*(("mkdir", {"dir_name": f"d{i}"}) for i in range(CALLS + 50))],
]


@pytest.mark.parametrize("bomb", BOMBS, ids=lambda bomb: bomb[0][0])
def test_no_call_takes_the_process_down(bomb: list[tuple[str, dict[str, Any]]]) -> None:
    env = BFCLEnvironment()
    entry = with_files(env, "MathAPI")
    *_, last = play(entry, calls(*bomb), Action(text="Done."))
    assert (last.done, last.observation.info["success"]) == (True, False)


def test_copies_of_copies_fill_the_disk_and_no_more() -> None:
    env = BFCLEnvironment()
    entry = with_files(env)
    made: list[tuple[str, dict[str, Any]]] = [("mkdir", {"dir_name": "a"}), ("mkdir", {"dir_name": "b"})]
    made += [("cp", {"source": "a", "destination": "b"}), ("cp", {"source": "b", "destination": "a"})] * 60
    results = play(entry, calls(*made, ("find", {"path": "."}), ("ls", {"a": True})), Action(text="Done."))
    assert results[-1].observation.info["success"] is False


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"first": 200}, "no conversation from number 200 on"),
        ({"categories": []}, "categories"),
        ({"max": 3}, "max_turns"),
    ],
)
def test_options_that_leave_nothing_are_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        BFCLEnvironment(**options)


def test_parts_of_a_category_do_not_meet() -> None:
    train, held_out = BFCLEnvironment(count=150), BFCLEnvironment(first=150)
    assert len(train.tasks()) == 150
    assert not {t.id for t in train.tasks()} & {t.id for t in held_out.tasks()}
    assert BFCLEnvironment(describe="none").get_prompt_prefix() == BFCLEnvironment().options.instructions
    assert "<tool_call>" in BFCLEnvironment().get_prompt_prefix()
    assert BFCLEnvironment(action_format="hermes").action_format == "hermes"
