"""Our config in verl's terms: every key has a place or a reason, and verl's own schema has the last word."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.config.keys import leaves
from uirl import ConfigError, ConfigStore, load_model
from uirl.integrations.verl.config.mapping import ELSEWHERE, MAPPED, WITHOUT_EFFECT, create_verl_config, ignored
from uirl.integrations.verl.config.settings import Settings
from uirl.integrations.verl.trainer.trainer import create_trainer

pytestmark = pytest.mark.verl


def own(*overrides: str) -> ConfigStore:
    return ConfigStore().override(["model.model_name=/models/seven", *overrides])


def test_every_key_of_ours_is_mapped_or_says_why_not() -> None:
    keys = set(leaves(ConfigStore))

    def reasons(key: str) -> list[str]:
        named = (*ELSEWHERE, *WITHOUT_EFFECT)
        return [entry for entry in named if key == entry or key.startswith(entry + ".")]

    assert {key for key in keys if key not in MAPPED and not reasons(key)} == set()
    assert {key for key in MAPPED if reasons(key)} == set()
    assert {key for key in keys if len(reasons(key)) > 1} == set()
    known = keys | {key.rsplit(".", 1)[0] for key in keys}
    assert {entry for entry in (*MAPPED, *ELSEWHERE, *WITHOUT_EFFECT) if entry not in known} == set()


def test_what_is_set_in_vain_is_named(tmp_path: Path) -> None:
    assert ignored(own("inference.temperature=0.7", "training.minibatches=1")) == []
    vain = own("training.warm_start.steps=3", "training.max_seconds=60", f"logging.runs_dir={tmp_path}")
    found = ignored(vain)
    assert [line.partition(":")[0] for line in found] == ["training.max_seconds", "training.warm_start"]
    with pytest.warns(UserWarning, match=r"no effect under verl: .*training\.warm_start: run it with the local"):
        create_trainer(vain)


def test_the_mapped_values_say_the_same() -> None:
    made = create_verl_config(
        own(
            "training.adv_estimator=grpo",
            "training.group_size=16",
            "training.batch_size=128",
            "training.minibatches=2",
            "training.clip_ratio_low=0.2",
            "training.clip_ratio_high=0.3",
            "training.num_epochs=3",
            "training.num_iters_per_epoch=5",
            "checkpoint.save_interval=2",
            "inference.top_k=0",
            "algorithm.kl_loss_coef=0.01",
            "algorithm.tis_cap=2.5",
            "model.use_lora=true",
            "ray.nnodes=4",
        ),
        prompt_length=2048,
        response_length=8192,
    )
    rollout, actor = made.actor_rollout_ref.rollout, made.actor_rollout_ref.actor
    # verl counts prompts where we count episodes: 128 episodes are 8 groups of 16, in 2 mini-batches of 4 groups
    assert (made.data.train_batch_size, rollout.n, actor.ppo_mini_batch_size) == (8, 16, 4)
    assert (actor.clip_ratio_low, actor.clip_ratio_high) == (0.2, 0.3)
    assert (made.trainer.total_training_steps, made.trainer.save_freq, made.trainer.nnodes) == (15, 10, 4)
    assert (rollout.top_k, rollout.mode, rollout.name) == (-1, "async", "vllm")
    assert (actor.use_kl_loss, actor.kl_loss_coef, actor.kl_loss_type) == (True, 0.01, "low_var_kl")
    correction = made.algorithm.rollout_correction
    assert (correction.rollout_is, correction.rollout_is_threshold) == ("token", 2.5)
    assert made.actor_rollout_ref.model.lora_rank == 16
    assert (made.data.max_prompt_length, made.data.max_response_length) == (2048, 8192)
    assert made.actor_rollout_ref.model.path == "/models/seven"
    assert (made.algorithm.adv_estimator, made.critic.enable) == ("grpo", False)
    assert create_verl_config(own()).critic.enable


def test_verl_finds_the_config_valid(tmp_path: Path) -> None:
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    config = ConfigStore().override(["model.model_name=uirl/tiny-lm"])
    load_model(config.model).save(tmp_path)
    for estimator in ("gae", "grpo"):
        keys = (f"training.adv_estimator={estimator}", "training.clip_ratio_high=0.3", "inference.top_p=0.9")
        made = create_verl_config(own(*keys), model_path=str(tmp_path))
        validate_config(made, use_reference_policy=False, use_critic=estimator == "gae")
        actor, rollout, algorithm = (
            omega_conf_to_dataclass(part)
            for part in (made.actor_rollout_ref.actor, made.actor_rollout_ref.rollout, made.algorithm)
        )
        assert (algorithm.adv_estimator, actor.clip_ratio_high, rollout.top_p) == (estimator, 0.3, 0.9)
        assert rollout.val_kwargs.top_p == 0.9, "evaluation samples as training does"


def test_mistakes_name_the_nearest_key() -> None:
    with pytest.raises(ConfigError, match=r"verl has no key 'trainer.nnode': trainer holds no 'nnode'; .*'nnodes'"):
        create_verl_config(own(), ["trainer.nnode=2"])
    with pytest.raises(ConfigError, match="has no place under verl"):
        create_verl_config(own("training.adv_estimator=gigpo"))
    with pytest.raises(ConfigError, match="does not divide the 3 groups"):
        create_verl_config(
            own(
                "training.adv_estimator=grpo",
                "training.batch_size=24",
                "training.group_size=8",
                "training.minibatches=2",
            )
        )


def test_verls_own_keys_win_and_free_sections_take_anything() -> None:
    made = create_verl_config(
        own("inference.engine_options={swap_space: 8}"),
        {"trainer.total_epochs": 7, "actor_rollout_ref.actor.fsdp_config.strategy": "fsdp2"},
    )
    assert made.trainer.total_epochs == 7
    assert made.actor_rollout_ref.rollout.engine_kwargs.vllm.swap_space == 8
    assert made.actor_rollout_ref.actor.fsdp_config.strategy == "fsdp2"


def test_megatron_has_its_own_schema() -> None:
    made = create_verl_config(own(), megatron=True)
    assert "megatron" in made.actor_rollout_ref.actor


def test_imitation_of_successes_is_a_likelihood() -> None:
    made = create_verl_config(own("training.adv_estimator=rejection_sampling"))
    assert made.algorithm.adv_estimator == "uirl_rejection_sampling"
    assert made.actor_rollout_ref.actor.policy_loss.loss_mode == "gpg"


def test_batches_are_refilled_only_where_one_asks_for_it() -> None:
    """verl refills without limit: a task that is solved would be played for ever."""
    assert not create_verl_config(own()).algorithm.filter_groups.enable
    assert create_verl_config(own("algorithm.max_resamples=2")).algorithm.filter_groups.enable


def test_our_config_goes_along() -> None:
    config = own("environment.name=guess_number")
    assert Settings.read(create_verl_config(config).data).store() == config


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("trainer.nnodes", {"count": 2}, r"trainer\.nnodes cannot hold .*expected a value like 1"),
        ("actor_rollout_ref.rollout", 3, r"actor_rollout_ref\.rollout cannot hold 3.*expected keys and values"),
    ],
)
def test_a_value_that_a_key_cannot_hold_is_a_config_error(key: str, value: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        create_verl_config(own(), {key: value})


@pytest.mark.parametrize(
    "override",
    [
        ["data.mm_processor_kwargs.max_pixels=500000"],
        ["data.mm_processor_kwargs={max_pixels: 500000}"],
        {"data.mm_processor_kwargs": {"max_pixels": 500_000}},
    ],
)
def test_a_section_that_verl_leaves_empty_takes_anything(override: Any) -> None:
    assert create_verl_config(own(), override).data.mm_processor_kwargs.max_pixels == 500_000
    other = create_verl_config(own(), {"actor_rollout_ref.rollout.engine_kwargs.sglang.mem": 1})
    assert other.actor_rollout_ref.rollout.engine_kwargs.sglang.mem == 1
    other = create_verl_config(own(), ["actor_rollout_ref.actor.megatron.override_ddp_config.x=1"], megatron=True)
    assert other.actor_rollout_ref.actor.megatron.override_ddp_config.x == 1


@pytest.mark.parametrize(("server", "tokens"), [("vllm", 1024 + 512), ("sglang", 1024 + 512 + 1)])
def test_a_server_holds_the_longest_sequence_and_not_all_that_the_model_could(
    server: str, tokens: int, tmp_path: Path
) -> None:
    """verl's null is the model's maximum, for which a server wants a cache before it starts."""
    store = own(f"logging.runs_dir={tmp_path}", f"inference.backend={server}", "rollout.max_tokens=512")
    keys = {"actor_rollout_ref.actor.ppo_mini_batch_size": 128}
    assert create_trainer(store, overrides=keys).config.actor_rollout_ref.rollout.max_model_len == tokens
    asked = store.override(["inference.max_context=4000"])
    assert create_trainer(asked, overrides=keys).config.actor_rollout_ref.rollout.max_model_len == 4000


@pytest.mark.parametrize(
    ("server", "options", "message"),
    [
        ("vllm", "{do_resize: false}", r"mm_processor_kwargs\.do_resize has no place here"),
        ("sglang", "{max_pixels: 1000}", "SGLang server takes no data.mm_processor_kwargs"),
    ],
)
def test_picture_options_that_not_every_process_has_are_refused(
    server: str, options: str, message: str, tmp_path: Path
) -> None:
    store = own(f"logging.runs_dir={tmp_path}", f"inference.backend={server}")
    with pytest.raises(ConfigError, match=message):
        create_trainer(store, overrides={"data.mm_processor_kwargs": yaml.safe_load(options)})
