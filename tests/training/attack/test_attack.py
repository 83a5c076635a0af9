"""Attackers find flaws that were planted, and none where there is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.training.attack.flaws import FLAWS, PAGES, Endless, Flaw, Page, SuccessUnlessWrong
from uirl import attack
from uirl.cli.main import main
from uirl.environments import GuessNumberEnvironment, create_environment
from uirl.environments.text.questions import QuestionsEnvironment
from uirl.environments.tool_use.arithmetic import CalculatorEnvironment
from uirl.errors import ConfigError, EnvironmentFailure, RolloutFailure
from uirl.metrics import clopper_pearson
from uirl.training.attack.attackers import ATTACKERS
from uirl.types import Task

SOUND: dict[str, dict[str, Any]] = {
    "guess_number": {},
    "simple_game": {},
    "screen": {},
    "screen_suite": {},
    "calculator": {},
    "lookup": {},
    "errands": {},
    "gymnasium": {"env": "FrozenLake-v1", "max_turns": 10},
}


@pytest.mark.parametrize("name", SOUND)
def test_nothing_gets_through_where_there_is_no_flaw(name: str) -> None:
    report = attack(create_environment(name, SOUND[name]), episodes=6, turns=8)
    assert not report.through, report
    assert {one.name for one in report.attacks} | set(report.not_tried) == {one.name for one in ATTACKERS}
    assert report.bound < 0.05


@pytest.mark.slow
@pytest.mark.parametrize("name", ["data_entry"])
def test_nothing_gets_through_on_a_page(name: str) -> None:
    report = attack(create_environment(name), episodes=2)
    assert not report.through, report


def test_questions_are_attacked_on_tasks() -> None:
    tasks = [Task(f"q{i}", goal=f"What is {i} + {i}?", checks={"answer": str(2 * i)}) for i in range(20, 30)]
    report = attack(QuestionsEnvironment(), tasks=tasks, episodes=10)
    assert not report.through, report
    # ten tasks without a seed are ten instances, however often they are played
    assert next(one for one in report.attacks if one.name == "endless" or one.name == "echo").episodes <= 40


@pytest.mark.parametrize("name", FLAWS)
def test_a_planted_flaw_is_found(name: str) -> None:
    assert found(FLAWS[name]).through, name


@pytest.mark.parametrize("name", PAGES)
def test_a_flaw_of_a_page_is_found(name: str) -> None:
    assert found(PAGES[name]).through, name


def test_a_sound_page_is_not_accused() -> None:
    report = attack(Page(), episodes=1, only=["devtools", "files", "judge", "point", "submit"])
    assert not report.through, report


def found(flaw: Flaw) -> Any:
    return attack(flaw.make(), only=[flaw.found_by], **flaw.options)


def test_at_least_forty_flaws_are_planted() -> None:
    assert len(FLAWS) + len(PAGES) >= 40


def test_a_report_says_what_got_through_and_how_much_may() -> None:
    report = attack(SuccessUnlessWrong(), only=["nothing", "random"], episodes=10)
    (first, *_) = report.through
    assert first.how == "solved"
    told = str(report)
    assert "nothing (says nothing, to the end):" in told
    assert "said  ''" in told
    plain = json.loads(json.dumps(report.to_dict()))
    assert plain["attacks"]["nothing"]["bound"] == 1.0
    assert plain["attacks"]["nothing"]["through"][0]["transcript"]
    assert report.bound == 1.0


def test_the_bound_is_the_rule_of_three_or_exact() -> None:
    assert clopper_pearson(0, 100)[1] == pytest.approx(1 - 0.05 ** (1 / 100))
    assert clopper_pearson(0, 1000)[1] == pytest.approx(3 / 1000, rel=0.01)
    # Clopper and Pearson's table: of 10, one-sided 95 %
    assert clopper_pearson(1, 10)[1] == pytest.approx(0.3942, abs=1e-4)
    assert clopper_pearson(9, 10)[0] == pytest.approx(1 - 0.3942, abs=1e-4)
    assert clopper_pearson(10, 10) == (pytest.approx(0.05**0.1), 1.0)
    assert clopper_pearson(0, 0) == (0.0, 1.0)
    with pytest.raises(ValueError, match="3 of 2"):
        clopper_pearson(3, 2)


def test_equal_episodes_of_one_instance_are_counted_once() -> None:
    class Unseeded(GuessNumberEnvironment):
        def reset(self) -> str:  # type: ignore[override]
            return super().reset(seed=1)

    report = attack(Unseeded(), only=["echo"], episodes=30)
    assert report.attacks[0].episodes < 10


def test_blind_play_that_solves_by_luck_is_told_and_judged_by_its_share() -> None:
    coin = GuessNumberEnvironment(n=2, guesses=1)
    allowed = attack(coin, only=["random"], episodes=60, chance=0.5)
    assert not allowed.through
    assert allowed.attacks[0].solved > 0
    strict = attack(coin, only=["random"], episodes=60, chance=0.01)
    assert len(strict.through) == strict.attacks[0].solved


def test_an_environment_that_never_begins_is_the_persons() -> None:
    class Broken(GuessNumberEnvironment):
        def reset(self, *, seed: int | None = None) -> str:
            raise EnvironmentFailure("no server")

    with pytest.raises(RolloutFailure, match="no server"):
        attack(Broken(), only=["nothing"], episodes=2)


def test_an_unknown_attacker_is_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'nothing'"):
        attack(GuessNumberEnvironment(), only=["nothin"])


def test_what_does_not_apply_is_listed_with_its_reason() -> None:
    report = attack(GuessNumberEnvironment(), only=["devtools", "endless", "files", "clock"])
    assert set(report.not_tried) == {"devtools", "endless", "files", "clock"}
    assert "limit of 3 turns" in report.not_tried["endless"]
    assert "endless" not in attack(Endless(), only=["endless"]).not_tried


def test_an_attacker_that_finds_no_place_for_its_words_says_nothing() -> None:
    class Numbers(CalculatorEnvironment):
        def callable_tools(self) -> Any:
            value = {"type": "object", "properties": {"value": {"type": "integer"}}, "required": ["value"]}
            return [{"type": "function", "function": {"name": "enter", "description": "", "parameters": value}}]

    report = attack(Numbers(), only=["devtools"], episodes=2)
    assert [(one.name, one.through) for one in report.attacks] == [("devtools", ())], report


def test_the_command_exits_with_1_where_something_got_through(tmp_path: Path, capsys: Any) -> None:
    assert main(["attack", "guess_number", "--only", "echo", "--episodes", "4"]) == 0
    assert "0 of 4 got through" in capsys.readouterr().out
    file = tmp_path / "report.json"
    name = "tests.training.attack.flaws:SuccessUnlessWrong"
    assert main(["attack", name, "--only", "nothing", "--episodes", "3", "--json", str(file)]) == 1
    assert "turn 0 shown 'guess 1-7'" in capsys.readouterr().out
    assert json.loads(file.read_text())["through"] > 0


def test_the_command_takes_a_config_and_its_judge(tmp_path: Path, capsys: Any) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("default: {regex: {of: reply, pattern: '[0-9]', no: decisive}}\n")
    changes = ["verification.enabled=true", f"verification.rules={rules}"]
    assert main(["attack", "guess_number.yaml", *changes, "--only", "list", "--episodes", "3"]) == 1
    assert "list (names every answer at once)" in capsys.readouterr().out
