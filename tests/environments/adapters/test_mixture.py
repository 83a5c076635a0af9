"""Several environments in one run: what a task keeps of its member, how often members are played, what is refused."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.training.test_loop import digits, settings
from uirl import BaseEnvironment, Observation, RayPPOTrainer, Task, TrajectoryStore, check_environment
from uirl.config import ConfigStore
from uirl.curriculum import Spread
from uirl.environments import create_environment
from uirl.environments.adapters.mixture import MixtureEnvironment
from uirl.environments.scripted import scripted_success
from uirl.environments.session import EnvironmentSession
from uirl.errors import ConfigError
from uirl.storage.export import export_sft
from uirl.storage.records import as_stored
from uirl.training import measure
from uirl.training.tasks.sources import UniformTasks
from uirl.types import Action, Trajectory

HERE = "tests.environments.adapters.test_mixture:"
LETTERS = "tests.training.tasks.letters:Letters"
MEMBERS = [
    {"name": "errands", "weight": 2},
    {"name": "guess_number", "label": "narrow", "options": {"n": 4, "guesses": 2}},
    {"name": LETTERS, "weight": 3},
]


class Slow(BaseEnvironment):
    """Blocks, so it has a thread; judged only at its end, which never comes by itself."""

    scored_at_end = True
    mistake_reward = -2.0

    def reset(self, seed: int | None = None) -> str:
        self.seen = seed
        return "slow"

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        return action, 0.0, False, {}

    def score_now(self) -> tuple[float, dict[str, Any]]:
        return 0.5, {"success": True}

    def get_state_description(self) -> str:
        return "slow"

    def get_prompt_prefix(self) -> str:
        return "be slow"


class Unseeded(Slow):
    def reset(self) -> str:  # type: ignore[override]
        return "slow"


class Deaf(Slow):
    def tasks(self) -> list[Task]:
        return [Task("a"), Task("b")]


class Styled(Slow):
    message_style = "mai_ui"


def mixture(*members: Any) -> MixtureEnvironment:
    made = create_environment("mixture", {"members": list(members or MEMBERS)})
    return made


def test_it_keeps_the_contract_and_every_demonstrator() -> None:
    report = check_environment(mixture(*MEMBERS[:2]), episodes=6)
    assert report.seeded
    assert report.expert_success == 1.0


def test_each_task_is_played_as_its_member_plays_it() -> None:
    world = mixture(MEMBERS[0], {"name": HERE + "Slow"}, MEMBERS[1])

    async def play() -> None:
        session = EnvironmentSession(world.spawn())
        errands, slow, narrow = world.tasks()
        alone = EnvironmentSession(create_environment("errands"))
        first = await session.reset(errands, 3)
        assert first == await alone.reset(None, 3)
        assert session.env.get_prompt_prefix() == alone.env.get_prompt_prefix() == world.prompt_prefix_of(errands)
        assert session.env.callable_tools() == alone.env.callable_tools()
        assert await session.expert_action() == await alone.expert_action()
        assert not session.env.scored_at_end
        assert (await session.reset(slow, 5)).text == "slow"
        assert session.env.get_prompt_prefix() == "be slow" == world.prompt_prefix_of(slow)
        assert (session.env.scored_at_end, session.env.mistake_reward) == (True, -2.0)
        assert (await session.step(Action(text="hello"))).observation.text == "hello"
        assert await session.score() == (0.5, {"success": True})
        await session.reset(narrow, 0)
        for turn in range(2):
            result = await session.step(Action(text="9"))
            assert result.done == (turn == 1), "the limit of this member"
        await session.close()
        await alone.close()

    asyncio.run(play())
    assert world.max_turns is None, "Slow has no limit"
    assert not world.has_demonstrator
    assert mixture(*MEMBERS[:2]).max_turns == 4


def test_a_limit_that_a_member_leaves_to_the_run_ends_it_out_of_turns() -> None:
    world = mixture({"name": LETTERS}, {"name": HERE + "Short"})

    async def play() -> Observation:
        session = EnvironmentSession(world.spawn())
        await session.reset(world.tasks()[-1], 0)
        await session.step(Action(text="a"))
        result = await session.step(Action(text="a"))
        await session.close()
        assert result.truncated
        return result.observation

    assert asyncio.run(play()).info["out_of_turns"] is True


class Short(Slow):
    scored_at_end = False
    max_turns = 2


def test_members_are_drawn_as_often_as_their_weights_say_and_again_the_same() -> None:
    tasks = mixture().tasks()
    assert [task.id for task in tasks[:3]] == ["errands", "narrow", "letters/0"]
    source = UniformTasks(tasks, seed=4)
    names = [spec.task for (spec,) in source.groups(600, 1)]
    assert Counter(task.environment for task in names) == {"errands": 200, "narrow": 100, "letters": 300}
    assert set(Counter(task.id for task in names if task.environment == "letters").values()) <= {42, 43, 44}
    for begin in range(0, 600, 12):
        count = Counter(task.environment for task in names[begin : begin + 12])
        assert abs(count["letters"] - 6) <= 1, "in any stretch"
    again = UniformTasks(tasks, seed=4)
    again.load_state_dict({"position": 550})
    assert [spec.task for (spec,) in again.groups(50, 1)] == names[550:]
    other = UniformTasks(tasks, seed=5)
    assert [spec.task for (spec,) in other.groups(50, 1)] != names[:50]
    assert as_stored(Trajectory(task=tasks[0])).task == tasks[0]


def test_a_spread_of_any_weights_is_within_a_few_draws() -> None:
    spread, counts = Spread([1, 1e-3, 7.5], 0), Counter[int]()
    for draw in range(100_000, 110_000):
        counts[spread.at(draw)] += 1
    for index, weight in enumerate((1, 1e-3, 7.5)):
        assert counts[index] == pytest.approx(10_000 * weight / 8.501, abs=4)


def test_a_weight_that_is_none_is_refused() -> None:
    for weight in (0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="expected a number > 0"):
            Task("a", weight=weight)


@pytest.mark.parametrize(
    ("members", "told"),
    [
        ([{"name": "errands"}, {"name": "screen"}], "'errands' and 'screen' have unlike action_format (qwen, json)"),
        ([{"name": "screen"}, {"name": "guess_number"}], "guess_number take text, and in the format 'json' of screen"),
        (
            [{"name": "errands", "options": {"describe": "template"}}, {"name": "guess_number"}],
            "unlike tools in the chat template (calculator, price, calendar, none): let members describe them",
        ),
        ([{"name": "errands"}, {"name": "errands"}], "two members are called 'errands'; give one of them"),
        ([{"name": HERE + "Slow"}, {"name": HERE + "Styled"}], "'slow' and 'styled' have unlike message_style"),
        ([{"name": HERE + "Unseeded"}], "'unseeded' takes no seed: Unseeded.reset()"),
        ([{"name": HERE + "Deaf"}], "'deaf' has tasks, and Deaf.reset(seed=None) takes no `task`"),
        ([{"name": "erands"}], "did you mean 'errands'?"),
        ([{"name": "guess_number", "options": {"m": 3}}], "environment 'guess_number' has no option 'm'"),
        ([{"name": "errands", "label": "a/b"}], "label"),
        ([], "members"),
    ],
)
def test_members_that_cannot_share_a_run_are_refused_by_name(members: list[Any], told: str) -> None:
    with pytest.raises(ConfigError) as error:
        create_environment("mixture", {"members": members})
    assert told in str(error.value)


def test_rows_of_a_file_name_their_member() -> None:
    world = mixture()

    async def first(task: Task) -> str:
        session = EnvironmentSession(world.spawn())
        try:
            return (await session.reset(task, 1)).text
        finally:
            await session.close()

    assert asyncio.run(first(Task("mine", environment="letters"))) == "say"
    with pytest.raises(ConfigError, match="'mine' is of no member of the mixture"):
        asyncio.run(first(Task("mine")))


def test_a_control_of_a_member_plays_all_episodes() -> None:
    world = mixture(*MEMBERS[:2])
    controls = world.controls()
    assert controls.keys() == {"errands/no_tools", "narrow/constant_guess"}
    unplugged = controls["errands/no_tools"]

    async def tools() -> list[Any]:
        session = EnvironmentSession(unplugged.spawn())
        seen = []
        for seed, task in enumerate(world.tasks()):
            await session.reset(task, seed)
            result = await session.step(Action.of("calculator", expression="1+1"))
            seen.append(result.observation.tool_results[0].success)
        await session.close()
        return seen

    assert asyncio.run(tools()) == [False, False]
    constant = controls["narrow/constant_guess"]
    replies = ("1", "2", "3")
    results = {scripted_success(constant, lambda turn, r=reply: Action(text=r), episodes=20) for reply in replies}
    assert len(results) == 1, "whatever the policy says"
    assert 0 < results.pop() < 1


def config_of(folder: Path, updates: int, **training: Any) -> ConfigStore:
    config = settings(folder, group_size=4, adv_estimator="grpo", num_epochs=1, num_iters_per_epoch=updates, **training)
    config.training.warm_start.enabled = False
    config.environment.name, config.environment.options = "mixture", {"members": MEMBERS}
    config.checkpoint.resume = "auto"
    return config


@pytest.mark.parametrize("curriculum", [False, True])
def test_a_run_says_the_success_of_each_and_continues_to_the_digit(
    tmp_path: Path, curriculum: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = []
    for name, stops in (("whole", [4]), ("parts", [1, 4])):
        for updates in stops:
            config = config_of(tmp_path / name, updates)
            config.curriculum.enabled = curriculum
            trainer = RayPPOTrainer(config)
            summary = trainer.fit()
            trainer.cleanup()
        rows = [{k: v for k, v in row.items() if k != "epoch"} for row in digits(trainer.run_path / "metrics.jsonl")]
        with TrajectoryStore(trainer.run_path / "trajectories.sqlite", read_only=True) as store:
            played = [(t.id, t.task.id, t.seed) for t in sorted(store, key=lambda t: t.id) if t.id.startswith("train")]
        seen.append((rows, played, summary["members"]))
    assert seen[0] == seen[1]
    rows, played, members = seen[0]
    assert members.keys() == {"errands", "letters", "narrow"}
    counts = [[row[f"count/episodes/{name}"] for name in members] for row in rows]
    assert [sum(count) for count in counts] == [16] * 4
    assert [sum(count) for count in zip(*counts, strict=True)] == [24, 28, 12], "of 16 groups: 5.3, 8 and 2.7"
    for row in rows:
        whole = sum(row[f"count/episodes/{name}"] * (row[f"success/{name}"] or 0.0) for name in members)
        assert whole / 16 == pytest.approx(row["success"])
    assert "success: letters" in capsys.readouterr().out
    if curriculum:
        assert summary["curriculum"]["draws"] == 16
        assert sum(rows[-1][f"curriculum/letters.{level}/tasks"] for level in summary_levels(rows[-1])) == 7
    report = measure(trainer.run_path, episodes=12)
    assert {name: row["episodes"] for name, row in report.members.items()} == {"errands": 4, "letters": 5, "narrow": 3}
    assert {name: report.row()[f"eval/success/{name}"] for name in members} == {
        name: row["success"] for name, row in report.members.items()
    }


def summary_levels(row: dict[str, Any]) -> set[str]:
    begin = "curriculum/letters."
    return {
        name.removeprefix(begin).split("/")[0] for name in row if name.startswith(begin) and name.endswith("/tasks")
    }


def test_a_warm_start_learns_from_all_and_examples_have_the_prompt_of_their_member(tmp_path: Path) -> None:
    config = config_of(tmp_path, 1)
    config.environment.options = {"members": MEMBERS[:2]}
    config.training.warm_start.enabled = True
    trainer = RayPPOTrainer(config)
    trainer.fit()
    trainer.cleanup()
    world = mixture(*MEMBERS[:2])
    with TrajectoryStore(trainer.run_path / "trajectories.sqlite", read_only=True) as store:
        file = tmp_path / "examples.jsonl"
        export_sft(store, file, lambda one: one.turns > 0, system_prompt=world.prompt_prefix_of)
        lines = file.read_text().splitlines()
    told = "Use a tool. Then answer with the result alone."
    assert all((told in line) == ('"task": "errands"' in line) for line in lines)
    assert sum(told in line for line in lines) > 0
