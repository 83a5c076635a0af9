"""`uirl check` blames nothing in 32 sound configurations: estimators, adapters, turns, tools, pictures, windows."""

from __future__ import annotations

import pytest

from uirl.cli.begin import path_of
from uirl.config import load_config
from uirl.training.checks.preflight import preflight

pytestmark = pytest.mark.slow

ALONE = "training.value_learning_rate=null"
"""Of a critic, which the config of `screen` has."""
GROUPS = ("training.adv_estimator=grpo", "training.group_size=8", ALONE)
SOUND: list[tuple[str, ...]] = [
    ("screen",),
    ("screen", *GROUPS),
    ("screen", "training.adv_estimator=rloo", ALONE),
    ("screen", "training.adv_estimator=reinforce_plus_plus", ALONE),
    ("screen", "training.adv_estimator=reinforce_plus_plus_baseline", ALONE),
    ("screen", "training.adv_estimator=turn_level", ALONE),
    ("screen", "training.adv_estimator=gigpo", ALONE),
    ("screen", "training.adv_estimator=rejection_sampling", "training.clip_ratio_high=null", ALONE),
    ("screen", "model.use_lora=true"),
    ("screen", *GROUPS, "model.use_lora=true", "model.lora.r=4", "model.lora.target=all"),
    ("screen", "model.dtype=bfloat16"),
    ("screen", "model.freeze_vision=true"),
    ("screen", "rollout.max_images=1"),
    ("screen", "rollout.token_budget=120"),
    ("screen", "inference.temperature=0.5"),
    ("screen", "inference.temperature=1.3"),
    ("screen", "inference.top_p=0.9"),
    ("screen", "inference.top_k=20"),
    ("screen", "environment.options.action_format=pyautogui", "inference.max_tokens=24"),
    ("screen", "environment.options.action_format=computer", "inference.max_tokens=24"),
    ("screen", *GROUPS, "algorithm.loss_aggregation=seq-mean-token-mean", "algorithm.tis_cap=2"),
    ("screen", *GROUPS, "algorithm.loss_aggregation=seq-mean-token-sum-norm", "algorithm.mismatch_range=[0.5,2]"),
    ("screen", *GROUPS, "algorithm.kl_loss_coef=0.01", "training.padding_free=false", "training.share_prompts=false"),
    ("screen", "environment.options.level=1", "inference.max_turns=1"),
    ("guess_number",),
    ("guess_number", "training.adv_estimator=gae", "model.use_lora=true"),
    ("guess_number", "training.adv_estimator=rloo", "model.dtype=bfloat16", "rollout.token_budget=64"),
    ("guess_number_from_chance",),
    ("calculator",),
    ("calculator", "environment.options.action_format=hermes"),
    ("lookup",),
    ("lookup", "training.adv_estimator=gae", "environment.options.action_format=json"),
]


@pytest.mark.parametrize("changes", SOUND, ids=" ".join)
def test_a_sound_configuration_is_blamed_for_nothing(changes: tuple[str, ...]) -> None:
    config = load_config(path_of(changes[0]), list(changes[1:]))
    blamed = [finding for finding in preflight(config) if not finding.ok]
    assert not blamed, blamed
