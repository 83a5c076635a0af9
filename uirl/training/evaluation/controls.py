"""What a policy scores that cannot see, is not told, or does not think. A run without them proves little."""

from __future__ import annotations

from typing import Literal

from uirl.rollout.players import Order
from uirl.training.assembly import Assembly
from uirl.training.channels.base import Channel
from uirl.training.evaluation.evaluation import evaluate_episodes


async def play_controls(
    parts: Assembly, channel: Channel, speakers: set[str], *, episodes: int, metric: Literal["success", "reward"]
) -> dict[str, float]:
    """Return name -> `metric` of each control of the environment, played by the actors of `channel`; a control of which
    nobody says it is left out. `speakers`: see `report_on`."""
    results: dict[str, float] = {}
    training, tasks = parts.config.training, parts.tasks.evaluation
    for name in parts.eval_environment.controls():
        player = channel.player(Order("eval", training.eval_temperature, control=name))
        report = await evaluate_episodes(
            player, tasks, episodes=episodes, split="test", seed=training.seed, speakers=speakers
        )
        value: float | None = getattr(report, metric)
        if value is not None:
            results[name] = value
    parts.engine.stats()
    return results
