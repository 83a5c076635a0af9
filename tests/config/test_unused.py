"""A setting that a run would not read is refused by name; the same setting beside its reader is not."""

from pathlib import Path

import pytest

from uirl import load_config
from uirl.config import ConfigStore
from uirl.config.unused import READ
from uirl.errors import ConfigError

READER = {
    "training.lam=0.5": "training.adv_estimator=gae",
    "training.value_coef=0.1": "training.adv_estimator=gae",
    "training.gamma=0.9": "training.adv_estimator=gigpo",
    "training.clip_ratio=0.1": "training.adv_estimator=grpo",
    "training.lr_final_ratio=0.1": "training.lr_schedule=cosine",
    "training.entropy_schedule=linear": "training.entropy_coef=0.1",
    "training.entropy_min_p=0.001": "training.entropy_coef=0.1",
    "training.target_entropy=0.5": "training.entropy_coef=0.1",
    "algorithm.kl_loss_schedule=linear": "algorithm.kl_loss_coef=0.1",
    "algorithm.kl_loss_final_ratio=0.1": "algorithm.kl_loss_schedule=cosine algorithm.kl_loss_coef=0.1",
    "training.entropy_final_ratio=0.1": "training.entropy_schedule=cosine training.entropy_coef=0.1",
    "training.kl_coef=0.5": "training.use_kl_in_reward=true",
    "algorithm.normalize_by_std=false": "training.adv_estimator=turn_level",
    "algorithm.max_resamples=2": "training.adv_estimator=rloo",
    "algorithm.step_credit=spare": "training.adv_estimator=rloo",
    "algorithm.kl_type=k2": "algorithm.kl_loss_coef=0.1",
    "algorithm.mismatch_range=[0.5, 2]": "training.adv_estimator=grpo",
    "algorithm.tis_level=sequence": "algorithm.tis_cap=2",
    "algorithm.stale_correction=truncated": "training.adv_estimator=grpo",
    "algorithm.stale_level=token": "training.adv_estimator=grpo",
    "algorithm.stale_cap=3": "algorithm.stale_correction=truncated",
    "algorithm.stale_range=[0.1, 2]": "training.adv_estimator=grpo",
    "algorithm.target_kl=0.02": "training.update_epochs=2",
    "algorithm.max_update_kl=0.1": "training.adv_estimator=grpo",
    "algorithm.tis_cap=2": "training.adv_estimator=grpo",
    "rollout.retries=5": "rollout.group_repair=retry",
    "inference.max_turns=3": "rollout.max_turns=null",
    "inference.request_retries=1": "inference.backend=openai",
    "inference.engine_options={a: 1}": "inference.backend=vllm",
    "model.freeze_vision=true": "model.use_lora=false",
    "model.trust_remote_code=true": "model.local_path=/somewhere",
    "actors.close_after=3": "training.group_size=4",
    "logging.project=mine": "logging.trackers=[wandb]",
    "logging.store_images=false": "logging.store_trajectories=true",
    "logging.store_learner_figures=false": "logging.store_trajectories=true",
}
WITHOUT = [
    "training.adv_estimator=rejection_sampling",
    "rollout.group_repair=shrink",
    "rollout.max_turns=4",
    "logging.store_trajectories=false",
    "training.entropy_coef=0",
    "model.use_lora=true",
]


@pytest.mark.parametrize("setting", READER)
def test_a_setting_without_its_reader_is_refused_by_name(setting: str) -> None:
    key = setting.partition("=")[0]
    alone = ConfigStore().override([*WITHOUT, setting])  # fine to evaluate with
    with pytest.raises(ConfigError, match=rf"^{key}=.* does nothing here: it is read "):
        alone.check(training=True)
    beside = ["training.adv_estimator=gae", *READER[setting].split(" ")]
    ConfigStore().override([*WITHOUT, setting, *beside]).check(training=True)


@pytest.mark.parametrize("estimator", [[], ["training.adv_estimator=gae", "training.value_learning_rate=4.0e-3"]])
def test_the_recipe_from_chance_reads_all_that_it_sets_with_either_estimator(estimator: list[str]) -> None:
    recipe = Path(__file__).parents[2] / "configs" / "guess_number_from_chance.yaml"
    config = load_config(recipe, estimator)
    config.check(training=True)
    assert config.training.episodes_per_group == (1 if estimator else 8)


def test_the_table_names_keys_that_there_are() -> None:
    for key in READ:
        section, _, name = key.rpartition(".")
        assert hasattr(getattr(ConfigStore(), section), name), key


def test_a_server_that_gets_whole_pictures_cannot_keep_the_limit_of_pixels() -> None:
    config = ConfigStore().override(["model.max_image_pixels=500000", "inference.backend=sglang"])
    with pytest.raises(ConfigError, match=r"^model.max_image_pixels=500000 does nothing here: .* preprocessor_config"):
        config.check(training=True)
    config.override(["inference.backend=vllm"]).check(training=True)
