"""What a policy scores that cannot see, is not told, or does not think. A run without them proves little."""

from __future__ import annotations

from uirl.environments import BaseEnvironment
from uirl.parsers import create_parser
from uirl.rollout.collector import MakeAgent
from uirl.rollout.episode import ConstantAgent
from uirl.training.assembly import Assembly
from uirl.training.evaluation.evaluation import evaluate_episodes
from uirl.types import Action


async def play_controls(parts: Assembly, *, episodes: int) -> dict[str, float]:
    """Return name -> success (reward where success is not defined) of each control of the environment."""
    results: dict[str, float] = {}
    for name, control in parts.eval_environment.controls().items():
        if isinstance(control, BaseEnvironment):
            collector = parts.collector_for(control)
            agent = parts.agents(temperature=parts.config.training.eval_temperature)
        else:
            collector = parts.eval_collector
            parser = create_parser(parts.eval_environment.action_format)
            parser = parser.for_tools(parts.eval_environment.callable_tools())
            text = parser.render(control) if isinstance(control, Action) else control
            agent = _always(ConstantAgent(parts.chat, text))
        seed = parts.config.training.seed
        tasks = parts.tasks.evaluation
        report = await evaluate_episodes(collector, agent, tasks, episodes=episodes, split="test", seed=seed)
        if isinstance(control, BaseEnvironment):
            await collector.close()
        value = report.success if report.success is not None else report.reward
        if value is not None:
            results[name] = value
    parts.engine.stats()
    return results


def _always(constant: ConstantAgent) -> MakeAgent:
    return lambda spec: constant
