"""The configs for real models that users start from, composed: the values that the field uses, and no tiny model's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.integrations.verl.pages import SHIPPED
from uirl import ConfigStore
from uirl.integrations.verl.settings import load_verl_config

pytestmark = pytest.mark.verl


def composed(name: str, folder: Path, *overrides: str) -> tuple[Any, ConfigStore]:
    """verl's config and ours of one of the files."""
    path = folder / "config.yaml"
    path.write_text(SHIPPED[name])
    made, ours, _ = load_verl_config(path, overrides)
    return made, ours


def recomputes(made: Any) -> list[bool]:
    """Whether policy and critic recompute activations in the backward pass, in the key that their engine reads."""
    if made.actor_rollout_ref.actor.strategy != "megatron":
        parts = (made.actor_rollout_ref.model, made.critic.model)
        return [part.enable_gradient_checkpointing for part in parts]
    settings = [part.megatron.override_transformer_config for part in (made.actor_rollout_ref.actor, made.critic)]
    wanted = ("full", "uniform", 1)
    return [(s.recompute_granularity, s.recompute_method, s.recompute_num_layers) == wanted for s in settings]


@pytest.mark.parametrize("name", SHIPPED)
def test_activations_are_recomputed_unless_somebody_says_otherwise(name: str, tmp_path: Path) -> None:
    made, _ = composed(name, tmp_path)
    assert recomputes(made) == [True, True]
    off, _ = composed(name, tmp_path, "uirl.model.gradient_checkpointing=false")
    assert recomputes(off) == [False, False]


@pytest.mark.parametrize("name", SHIPPED)
def test_the_values_are_those_for_large_models(name: str, tmp_path: Path) -> None:
    made, ours = composed(name, tmp_path)
    actor, rollout = made.actor_rollout_ref.actor, made.actor_rollout_ref.rollout
    assert (actor.entropy_coeff, actor.clip_ratio_c) == (0, 3.0)
    assert list(actor.optim.betas) == [0.9, 0.999]
    assert actor.optim.lr <= 1e-5
    assert rollout.dtype == "bfloat16"
    assert ours.rollout.parallel >= ours.training.batch_size, "all episodes of an update at once"
    said = (ours.training.entropy_coef, ours.algorithm.dual_clip, ours.training.learning_rate, ours.model.dtype)
    assert said == (0, 3.0, actor.optim.lr, "bfloat16"), "the record says what verl did"
