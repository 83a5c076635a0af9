"""Where a window makes an episode several sequences, and which trainers of verl's read them as one episode."""

from __future__ import annotations

from typing import Any

from uirl.config import ConfigStore
from uirl.errors import ConfigError
from uirl.integrations.verl.config.mapping import ESTIMATORS

CREDITING = "uirl_sync"
"""`trainer.v1.trainer_mode` of our trainer, which gives credit to whole episodes."""
ROW_BY_ROW = ("grpo", "uirl_rejection_sampling")
"""Estimators that give the credit of an episode to each of its sequences under any trainer of verl's. The others would
count it once per sequence, in its group's baseline or in the returns."""


def reads_several(config: Any, *, credits_episodes: bool) -> str | None:
    """Return why several sequences of an episode would not be read as one; None: they are. `credits_episodes`: ours
    reads."""
    estimator = str(config.algorithm.adv_estimator)
    if not config.trainer.use_v1:
        return "verl's legacy trainer takes one per episode. Use trainer.use_v1=true"
    if estimator not in (ESTIMATORS.values() if credits_episodes else ROW_BY_ROW):
        return (
            f"algorithm.adv_estimator={estimator} would count it once per sequence under this trainer. Use one of "
            f"{', '.join(ESTIMATORS.values())} with trainer.v1.trainer_mode={CREDITING}"
        )
    return None


def check_window(config: Any, store: ConfigStore) -> None:
    """Raise ConfigError where a window rewrites history under a trainer that would drop those episodes.

    `config`: verl's. A chat template that rewrites history by itself is found when the first episode is played.
    """
    rollout = store.rollout
    if rollout.max_images is None and rollout.token_budget is None:
        return
    why = reads_several(config, credits_episodes=config.trainer.v1.trainer_mode == CREDITING)
    if why is not None:
        raise ConfigError(
            f"rollout.max_images={rollout.max_images} and rollout.token_budget={rollout.token_budget} let the context "
            "window rewrite the history of an episode, which makes it several sequences, and "
            f"{why}, or set both to null"
        )
