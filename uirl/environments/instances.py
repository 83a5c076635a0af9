"""Whether tasks and seeds reach an environment: what episodes show that differ in nothing else."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

from uirl.environments.base import BaseEnvironment
from uirl.environments.conformance import sample_actions, text_and_images
from uirl.environments.session import EnvironmentSession, reset_arguments
from uirl.types import Action, Task

STEPS = 8
"""Longest look at an episode, in turns."""


def takes_task(environment: BaseEnvironment) -> bool:
    """Return whether `reset` is told which task to play."""
    return "task" in reset_arguments(environment, Task("any"), None)


def takes_seed(environment: BaseEnvironment) -> bool:
    """Return whether `reset` is told which instance to make."""
    return "seed" in reset_arguments(environment, None, 0)


def signature_of(environment: BaseEnvironment) -> str:
    """Return `Class.reset(...)` with its parameters and defaults."""
    whole = inspect.signature(environment.reset)
    bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in whole.parameters.values()]
    shown = whole.replace(parameters=bare, return_annotation=inspect.Signature.empty)
    return f"{type(environment).__name__}.reset{shown}"


async def look_alike(
    environment: BaseEnvironment,
    episodes: Iterable[tuple[Task | None, int | None]],
    *,
    fresh: bool,
    timeout: float = 60.0,
) -> bool:
    """Return whether episodes that begin with these (task, seed) cannot be told apart: by system prompt, first
    observation, state, the answers to some actions, and the demonstrator's way. It ends at the first difference.

    `fresh`: each on an instance of its own; else one after the other on the same. Raises RolloutFailure.
    """
    first = None
    session = None
    try:
        for task, seed in episodes:
            if session is None or fresh:
                if session is not None:
                    await session.close()
                session = EnvironmentSession(environment.spawn(), timeout, timeout)
            seen = await _seen(session, task, seed)
            if first is not None and seen != first:
                return False
            first = seen
    finally:
        if session is not None:
            await session.close()
    return True


async def _seen(session: EnvironmentSession, task: Task | None, seed: int | None) -> list[Any]:
    """Return everything a policy could tell an episode by, in plain values."""
    observation = await session.reset(task, seed)
    seen: list[Any] = [text_and_images(observation), session.env.get_prompt_prefix(), await session.state_description()]
    for action in sample_actions(session.env)[:STEPS]:
        if await _step(session, action, seen):
            break
    await session.reset(task, seed)
    for _ in range(STEPS):
        shown = await session.expert_action()
        seen.append(shown)
        if shown is None or await _step(session, shown, seen):
            break
    return seen


async def _step(session: EnvironmentSession, action: Action, seen: list[Any]) -> bool:
    result = await session.step(action)
    observation = result.observation
    seen.append((text_and_images(observation), result.reward, result.done, observation.info.get("success")))
    return result.done
