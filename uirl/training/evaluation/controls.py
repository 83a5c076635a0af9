"""What a policy scores that cannot see, is not told, or does not think. A run without them proves little."""

from __future__ import annotations

from typing import Literal

from uirl.environments import BaseEnvironment
from uirl.rollout.players import Order
from uirl.training.assembly import Assembly
from uirl.training.channels.base import Channel
from uirl.training.evaluation.evaluation import evaluate_episodes, specs_of
from uirl.training.record.progress import say

LOOKED_AT = 4
"""Instances by which it is told whether a control hides anything."""


async def play_controls(
    parts: Assembly, channel: Channel, speakers: set[str], *, episodes: int, metric: Literal["success", "reward"]
) -> dict[str, float]:
    """Return name -> `metric` of each control of the environment, played by the actors of `channel`; a control of which
    nobody says it is left out, and so is one that hides nothing, as where a subclass forgets it. `speakers`: see
    `report_on`."""
    results: dict[str, float] = {}
    training, tasks = parts.config.training, parts.tasks.evaluation
    found = parts.eval_environment.controls()
    seen = await _seen(parts, channel, None) if any(isinstance(one, BaseEnvironment) for one in found.values()) else []
    for name, control in found.items():
        if seen and isinstance(control, BaseEnvironment) and await _seen(parts, channel, name) == seen:
            say(f"control {name}: left out, the policy saw in it what it sees without; does `reset` or `step` heed it?")
            continue
        player = channel.player(Order("eval", training.eval_temperature, control=name))
        report = await evaluate_episodes(
            player, tasks, episodes=episodes, split="test", seed=training.seed, speakers=speakers
        )
        value: float | None = getattr(report, metric)
        if value is not None:
            results[name] = value
    parts.engine.stats()
    return results


async def _seen(parts: Assembly, channel: Channel, control: str | None) -> list[object]:
    """Return all that the policy is shown while it plays greedily some instances of a control; None: those of the
    environment itself. Empty where an episode failed."""
    specs = specs_of(parts.tasks.evaluation, LOOKED_AT, split="test", seed=parts.config.training.seed)
    played = (await channel.player(Order("eval", 0.0, control=control)).collect(specs))[: len(specs)]
    if any(episode.failure is not None for episode in played):
        return []
    return [[(turn.context_ids, turn.context_images) for turn in episode.turns] for episode in played]
