"""Questions in words: solved by the right tool alone, told apart by what they hide, and never paid without a tool."""

from __future__ import annotations

import random
from datetime import date, timedelta

import pytest

from uirl.environments.conformance import check_environment
from uirl.environments.scripted import play_episode, scripted_success
from uirl.environments.session import EnvironmentSession
from uirl.environments.tool_use.errands import KINDS, ErrandsEnvironment, Kind
from uirl.tools import CalendarTool
from uirl.tools.base import ToolError
from uirl.types import Action


@pytest.mark.parametrize("kind", KINDS)
async def test_each_kind_takes_as_many_turns_as_it_needs(kind: Kind) -> None:
    session = EnvironmentSession(ErrandsEnvironment(kinds=[kind]))
    for seed in range(10):
        play = await play_episode(session, seed=seed)
        assert play.success is True
        assert len(play.actions) == (3 if kind == "price" else 2)


def test_the_contract_holds() -> None:
    assert check_environment(ErrandsEnvironment(), episodes=10).expert_success == 1.0


def test_without_tools_nothing_is_solved() -> None:
    control = ErrandsEnvironment().controls()["no_tools"]
    assert isinstance(control, ErrandsEnvironment)
    assert scripted_success(control, episodes=20) == 0.0


def test_a_careless_demonstrator_errs_about_as_often_as_he_says() -> None:
    environment = ErrandsEnvironment(demonstrator="careless", carelessness=0.3, spare_turns=0)
    assert 0.5 < scripted_success(environment, episodes=200) < 0.8


def test_equal_questions_with_other_prices_are_other_instances() -> None:
    environment, seen = ErrandsEnvironment(kinds=["price"], largest=4), {}
    for seed in range(3000):
        first = environment.reset(seed=seed)
        seen.setdefault(first.text, set()).add(first.state_key)
    assert max(len(keys) for keys in seen.values()) > 1


@pytest.mark.parametrize("answer", ["", "42", "the result", "2000-01-01 or 2000-01-02", "0" * 10000])
def test_a_guess_is_not_paid(answer: str) -> None:
    environment = ErrandsEnvironment()
    for seed in range(5):
        environment.reset(seed=seed)
        result = environment.step(Action(text=answer))
        assert (result.reward, result.done, result.observation.info["success"]) == (0.0, True, False)


def test_the_calendar_agrees_with_python_and_says_what_it_cannot_do() -> None:
    rng, tool = random.Random(0), CalendarTool()
    for _ in range(100):
        day = date(1990, 1, 1) + timedelta(days=rng.randrange(20000))
        days = rng.randint(-5000, 5000)
        assert tool.execute(day.isoformat(), days) == (day + timedelta(days=days)).isoformat()
    for wrong in ("", "14/03/2026", "2026-02-30", "x" * 5000):
        with pytest.raises(ToolError, match="expected YYYY-MM-DD"):
            tool.execute(wrong, 1)
    with pytest.raises(ToolError, match="there is no date"):
        tool.execute("2026-03-14", 10**9)
    with pytest.raises(ToolError, match="there is no date"):
        tool.execute("2026-03-14", -(10**30))
