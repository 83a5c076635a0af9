"""verl's keys that nobody reads where our agent loop plays the episodes: set ones are refused, not passed over."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from uirl.errors import ConfigError
from uirl.integrations.verl.config.keys import ROLLOUT

MULTI_TURN = f"{ROLLOUT}.multi_turn"
CUSTOM_REWARD = "reward.custom_reward_function"


def check_idle_keys(config: Any) -> None:
    """Refuse keys of verl's own tool loop and reward manager under a dataset of ours, whose rows name our loop.

    `config`: verl's whole config. Raises ConfigError that names the key and what takes its place.
    """
    from verl.workers.config import MultiTurnConfig

    section = config.actor_rollout_ref.rollout.multi_turn
    for field in fields(MultiTurnConfig):
        if field.name.startswith("_") or section.get(field.name, field.default) == field.default:
            continue
        raise ConfigError(
            f"{MULTI_TURN}.{field.name}={section[field.name]!r} has no effect: it is read by verl's own tool loop, and "
            "these episodes are played by ours. Leave it out; turns are inference.max_turns of the section uirl, tools "
            "those of the environment"
        )
    if config.reward.custom_reward_function.path is not None:
        raise ConfigError(
            f"{CUSTOM_REWARD}.path={config.reward.custom_reward_function.path!r} has no effect: rewards are computed "
            "while the episode is played, by the environment or by `reward_fn` of create_trainer. Leave it out, or "
            "name a dataset of your own (data.custom_cls) whose rows name a loop of verl's"
        )
