"""Scripted episodes without a model: demonstrators, fixed actions, controls such as a constant click."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from uirl.environments.base import BaseEnvironment
from uirl.environments.session import EnvironmentSession
from uirl.types import Action, Observation, StepResult, Task

Choose = Callable[[int], Action]
"""The action for turn 0, 1, 2, ..."""


@dataclass(frozen=True, slots=True)
class Play:
    """What happened in one scripted episode."""

    first: Observation
    actions: tuple[Action, ...]
    results: tuple[StepResult, ...]
    """One per action."""

    @property
    def done(self) -> bool:
        return bool(self.results) and self.results[-1].done

    @property
    def success(self) -> bool | None:
        """The environment's word (`info['success']` of the last step); None: it said nothing."""
        success = self.results[-1].observation.info.get("success") if self.results else None
        return None if success is None else bool(success)

    @property
    def total_reward(self) -> float:
        return sum(result.reward for result in self.results)

    @property
    def observations(self) -> tuple[Observation, ...]:
        return (self.first, *(result.observation for result in self.results))


async def play_episode(
    session: EnvironmentSession,
    choose: Choose | None = None,
    *,
    task: Task | None = None,
    seed: int | None = None,
    turn_limit: int = 200,
) -> Play:
    """Play one episode, until it is done or `max_turns` of the environment (else `turn_limit`) actions were taken.

    `choose` None plays the environment's demonstrator, and stops where that has no action.
    """
    first = await session.reset(task, seed)
    actions: list[Action] = []
    results: list[StepResult] = []
    for turn in range(session.env.max_turns or turn_limit):
        action = await session.expert_action() if choose is None else choose(turn)
        if action is None:
            break
        actions.append(action)
        results.append(await session.step(action))
        if results[-1].done:
            break
    return Play(first, tuple(actions), tuple(results))


def scripted_success(
    env: BaseEnvironment, choose: Choose | None = None, *, episodes: int = 100, seed: int = 0
) -> float:
    """Return the share of scripted episodes that succeed, on instances `seed`, `seed + 1`, ...: the controls of a run.

    `choose` None plays the demonstrator: `scripted_success(env, lambda turn: env.constant_click_action())` is the
    score of a constant click. Runs on a `spawn()` of `env`, outside of any event loop.
    """

    async def run() -> float:
        session = EnvironmentSession(env.spawn())
        try:
            plays = [await play_episode(session, choose, seed=seed + i) for i in range(episodes)]
        finally:
            await session.close()
        return sum(p.success is True for p in plays) / episodes

    return asyncio.run(run())
