"""Whole episodes against a model behind a server, without verl."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integrations.verl.worlds import Fragile, Ladder, TwoLooks
from uirl.errors import ConfigError
from uirl.inference import LoadedModel, ScriptedInferenceEngine
from uirl.integrations.verl.interaction import Interaction


def says(*replies: str) -> Any:
    """Makes an engine that gives these replies in turn, for ever."""

    def make(loaded: LoadedModel) -> ScriptedInferenceEngine:
        ids = [[*loaded.tokenizer(text, add_special_tokens=False)["input_ids"], 2] for text in replies]
        said = iter(range(10**9))
        return ScriptedInferenceEngine(lambda request: ids[next(said) % len(ids)], end_ids=(2,))

    return make


def test_an_interaction_tells_how_it_went() -> None:
    loop = Interaction(TwoLooks(), agent_type="text", engine=says("ab", "12"), max_step=5)
    result = loop.run("interaction_1", "letters/few", seed=3)
    loop.close()
    assert result["interaction_id"] == "interaction_1"
    assert (result["task_name"], result["steps"], result["reward"]) == ("letters/few", 2, 0.5)
    assert result["success"] is False
    assert result["trajectory"].actions == ["ab", "12"]
    assert result["failure"] is None


def test_the_curriculum_chooses_and_hears() -> None:
    ladder = Ladder()
    ladder.register_tasks(["letters/some"])
    loop = Interaction(TwoLooks(), agent_type="text", engine=says("ab"), task_curriculum=ladder)
    assert loop.run("a")["task_name"] == "letters/some"
    loop.run("b")
    loop.close()
    assert ladder.reports == [["letters/some", True, 1], ["letters/some", True, 2]]


def test_a_failed_episode_has_no_reward() -> None:
    ladder = Ladder()
    ladder.register_tasks(["letters/few"])
    loop = Interaction(Fragile(), agent_type="text", engine=says("ab"), task_curriculum=ladder)
    result = loop.run("a", seed=4)
    loop.close()
    assert result["reward"] is None
    assert "the cable was pulled" in result["failure"]
    assert ladder.reports == []


def test_the_reward_calculator_and_the_limit_of_steps_hold() -> None:
    loop = Interaction(
        TwoLooks(), agent_type="text", engine=says("ab"), max_step=1, reward_calculator=lambda trajectory: 7.0
    )
    result = loop.run("a", "letters/few")
    loop.close()
    assert (result["steps"], result["reward"], result["stop_reason"]) == (1, 7.0, "max_turns")


def test_what_does_not_exist_is_told() -> None:
    with pytest.raises(ConfigError, match="unknown action format 'mai_agent'"):
        Interaction(TwoLooks(), agent_type="mai_agent", engine=says("ab"))
    loop = Interaction(TwoLooks(), agent_type="mai_ui_agent", engine=says("ab"))
    with pytest.raises(ConfigError, match="did you mean 'letters/few'"):
        loop.run("a", "letters/fwe")
    loop.close()
