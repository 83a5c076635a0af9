"""Real programs on a real X desktop: the same instance looks the same, and only what was asked for is a success."""

from __future__ import annotations

import pytest

from uirl.environments.conformance import check_environment
from uirl.environments.desktop.environment import DesktopEnvironment
from uirl.environments.desktop.tasks import table
from uirl.environments.scripted import play_episode
from uirl.environments.session import EnvironmentSession
from uirl.images import screenshot
from uirl.types import Action, Task

pytestmark = pytest.mark.real
DONE = Action.of("terminate", status="success")


async def test_the_expert_solves_every_task_and_an_agent_that_does_nothing_none() -> None:
    session = EnvironmentSession(DesktopEnvironment())
    for name in table():
        task = Task(f"desktop/{name}")
        played = await play_episode(session, task=task, seed=1)
        assert played.success is True, (name, played.results[-1].observation.info)
        idle = await play_episode(session, lambda turn: DONE, task=task, seed=1)
        assert (idle.success, idle.total_reward) == (False, 0.0), name
    await session.close()


def test_it_keeps_the_contract_of_environments() -> None:
    actions = [Action.of("click", x=300, y=200), Action.of("keys", keys="ctrl+a"), Action.of("type", text="x")]
    check_environment(DesktopEnvironment(tasks=("mousepad-append", "calculator-add"), max_turns=8), actions=actions)


async def test_a_seed_makes_the_same_picture_and_another_one_another() -> None:
    seen = []
    for seed in (1, 1, 2):
        env = DesktopEnvironment(tasks=("files-rename",))
        seen.append(screenshot(env.reset(seed=seed).images[0]).hash)
        env.close()
    assert seen[0] == seen[1] != seen[2]
