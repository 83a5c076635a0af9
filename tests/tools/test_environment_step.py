"""EnvironmentStepTool: any `step` as a tool call."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from uirl.environments import GuessNumberEnvironment
from uirl.errors import ContractError, EnvironmentFailure
from uirl.tools import EnvironmentStepTool, ToolRegistry
from uirl.types import Action, Observation, StepResult


class World:
    """Answers every step with what it was given, and counts."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.actions: list[Any] = []
        self.threads: list[str] = []

    def step(self, action: Any) -> Any:
        self.actions.append(action)
        self.threads.append(threading.current_thread().name)
        return self.answers[min(len(self.actions), len(self.answers)) - 1]


def step(world: Any, **arguments: Any) -> tuple[bool, Any]:
    return ToolRegistry([EnvironmentStepTool(world)]).execute_tool("environment_step", **arguments)


@pytest.mark.parametrize(
    "answer",
    [
        ("seen", 0.5, True, {}),
        StepResult(Observation("seen"), 0.5, truncated=True),
        SimpleNamespace(observation="seen", reward=0.5, terminated=True),
        ({"text": "seen"}, 0.5, True, {}),
    ],
)
def test_every_shape_of_a_step(answer: Any) -> None:
    tool = EnvironmentStepTool(World(answer))
    registry = ToolRegistry([tool])
    assert registry.execute_tool("environment_step", action="go") == (True, "seen")
    assert (tool.total_reward, tool.done, tool.steps) == (0.5, True, 1)
    assert tool.last_step is not None
    assert (tool.last_step.observation.text, tool.last_step.reward) == ("seen", 0.5)
    assert registry.execute_tool("environment_step", action="go") == (
        False,
        "the episode is over; no further action is possible",
    )


def test_a_real_environment_is_played_to_its_end() -> None:
    environment = GuessNumberEnvironment()
    environment.reset(seed=3)
    tool = EnvironmentStepTool(environment)
    registry = ToolRegistry([tool])
    while not tool.done:
        expert = environment.expert_action()
        assert expert is not None
        text = expert if isinstance(expert, str) else expert.text
        assert registry.execute_tool("environment_step", action=text)[0]
    assert tool.total_reward > 0


def test_rewards_add_up_until_reset() -> None:
    tool = EnvironmentStepTool(World(("a", 1, False, {}), ("b", 0.25, False, {})))
    registry = ToolRegistry([tool])
    for _ in range(2):
        registry.execute_tool("environment_step", action="go")
    assert (tool.total_reward, tool.steps, tool.done) == (1.25, 2, False)
    registry.reset()
    assert (tool.total_reward, tool.steps, tool.last_step) == (0.0, 0, None)


def test_json_environments_get_an_action() -> None:
    world = World(("ok", 0.0, False, {}))
    world.action_format = "json"  # type: ignore[attr-defined]
    assert step(world, action="click", arguments={"x": 3}) == (True, "ok")
    assert world.actions[0].call == Action.of("click", x=3).call
    assert step(World(("ok", 0.0, False, {})), action="click", arguments={"x": 3})[0] is False


def test_nonsense_is_ours() -> None:
    with pytest.raises(EnvironmentFailure, match=r"World\.step returned None"):
        step(World(None), action="go")


def test_pictures_become_a_note() -> None:
    picture = Image.new("RGB", (2, 2))
    note = "[1 picture, not shown: a tool returns text]"
    assert step(World((picture, 0, False, {})), action="go") == (True, note)
    assert step(World(({"text": "map", "image": picture}, 0, False, {})), action="go") == (True, f"map\n{note}")


def test_steps_run_on_the_callers_thread() -> None:
    world = World(("ok", 0.0, False, {}))
    step(world, action="go")
    assert world.threads == [threading.current_thread().name]


async def test_steps_that_are_awaited() -> None:
    class Awaited(World):
        async def step(self, action: Any) -> Any:  # type: ignore[override]
            return super().step(action)

    assert step(Awaited(("ok", 0.0, True, {})), action="go") == (True, "ok")


def test_spawn_takes_another_environment() -> None:
    class Spawning(World):
        def spawn(self) -> World:
            return World(("other", 0.0, False, {}))

    for world in (World(("same", 0.0, True, {})), Spawning(("same", 0.0, True, {}))):
        registry = ToolRegistry([EnvironmentStepTool(world, name="act", description="Acts.")])
        registry.execute_tool("act", action="go")
        other = registry.spawn()
        assert other.describe() == registry.describe()
        assert other.execute_tool("act", action="go")[0], "its episode is not over"
        assert len(world.actions) == 1


def test_what_has_no_step_is_refused() -> None:
    with pytest.raises(ContractError, match=r"has no step\(action\)"):
        EnvironmentStepTool(object())
