"""A run in verl's terms: what the file says is what verl and our own parts read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from uirl import ConfigError, ConfigStore
from uirl.integrations.verl.config.keys import compose
from uirl.integrations.verl.config.mapping import FIXED, FOR_SMALL_MODELS, MAPPED
from uirl.integrations.verl.config.reading import load_verl_config, read_verl_yaml, with_verl_values
from uirl.integrations.verl.config.settings import Settings

FILE = Path(__file__).parents[4] / "configs" / "verl_config.yaml"


DOCUMENT = Path(__file__).parent / "data" / "trainer.yaml"
"""The YAML that a founding document shows for verl's trainer, word for word."""


def file(folder: Path, text: str) -> Path:
    path = folder / "run.yaml"
    path.write_text(text)
    return path


@pytest.mark.verl
def test_the_file_of_the_project_is_taken_as_it_is() -> None:
    made, ours, own_curriculum = load_verl_config(FILE, ["trainer.nnodes=2"])
    actor, rollout = made.actor_rollout_ref.actor, made.actor_rollout_ref.rollout
    assert (rollout.n, rollout.mode, rollout.name) == (16, "async", "vllm")
    assert (actor.clip_ratio_low, actor.clip_ratio_high, actor.strategy) == (0.2, 0.3, "fsdp2")
    assert (made.trainer.nnodes, made.trainer.n_gpus_per_node) == (2, 8)
    assert (ours.curriculum.enabled, ours.curriculum.min_attempts_per_task, own_curriculum) == (True, 5, {})
    assert Settings.read(made.data).store() == ours
    assert (ours.training.group_size, ours.training.clip_range, ours.ray.nnodes) == (16, (0.2, 0.3), 2)
    assert ours.model.model_name == made.actor_rollout_ref.model.path == made.critic.model.path
    assert made.trainer.total_training_steps == ours.training.num_epochs * ours.training.num_iters_per_epoch
    assert ours.training.num_epochs == made.trainer.total_epochs == 10


def test_verls_words_become_ours() -> None:
    flat = {
        "actor_rollout_ref.rollout.n": 4,
        "data.train_batch_size": 6,
        "actor_rollout_ref.actor.ppo_mini_batch_size": 2,
        "actor_rollout_ref.actor.optim.lr": 2e-6,
        "algorithm.adv_estimator": "rloo",
        "trainer.total_epochs": 3,
        "trainer.total_training_steps": 12,
        "actor_rollout_ref.rollout.top_k": -1,
        "trainer.test_freq": -1,
        "trainer.experiment_name": "mine",
    }
    ours = with_verl_values(ConfigStore(), flat)
    training = ours.training
    assert (training.group_size, training.batch_size, training.minibatches) == (4, 24, 3)
    assert (training.learning_rate, training.adv_estimator) == (2e-6, "rloo")
    assert (training.num_epochs, training.num_iters_per_epoch) == (3, 4)
    assert (ours.inference.top_k, ours.logging.run_name) == (0, "mine")
    assert training.eval_every == ConfigStore().training.eval_every, "verl's -1 is never, which is left to verl"


def test_what_only_verl_knows_stays_verls() -> None:
    ours = with_verl_values(
        ConfigStore(), {"algorithm.adv_estimator": "opo", "actor_rollout_ref.rollout.name": "trtllm"}
    )
    assert ours == ConfigStore()


def test_the_command_line_wins_over_the_file_in_either_spelling(tmp_path: Path) -> None:
    path = file(tmp_path, "algorithm: {clip_eps_low: 0.1}\nuirl: {training: {seed: 3}}\n")
    flat, ours, curriculum = read_verl_yaml(
        path, ["actor_rollout_ref.actor.clip_ratio_low=1e-2", "uirl.training.seed=5", "curriculum.enabled=true"]
    )
    assert flat == {"actor_rollout_ref.actor.clip_ratio_low": 0.01}
    assert (ours.training.seed, ours.curriculum.enabled, curriculum) == (5, True, {})
    own = {"class": "mine:Own", "pace": 3}
    _, ours, curriculum = read_verl_yaml(file(tmp_path, "curriculum: {class: mine:Own}"), {"curriculum.pace": 3})
    assert (ours.curriculum, curriculum) == (ConfigStore().curriculum, own)


def test_the_file_of_the_document_is_read_as_it_stands() -> None:
    flat, own, curriculum = read_verl_yaml(DOCUMENT)
    assert flat["actor_rollout_ref.actor.clip_ratio"] == 0.2
    assert "algorithm.clip_ratio" not in flat
    ours = with_verl_values(own, flat)
    training = ours.training
    assert (training.num_epochs, training.gamma, training.lam, training.clip_range) == (10, 0.99, 0.95, (0.2, 0.2))
    assert (training.batch_size, training.episodes_per_group, ours.inference.temperature) == (32, 1, 0.7)
    assert (ours.logging.wandb_project, ours.logging.run_name) == ("my_project", "experiment_1")
    assert curriculum == {}
    other, _, _ = read_verl_yaml(DOCUMENT, ["algorithm.clip_ratio=0.1"])
    assert with_verl_values(own, other).training.clip_range == (0.1, 0.1)


@pytest.mark.verl
def test_verl_takes_the_file_of_the_document() -> None:
    made, ours, _ = load_verl_config(DOCUMENT, ["algorithm.clip_ratio=0.1"])
    actor = made.actor_rollout_ref.actor
    assert (actor.clip_ratio, actor.clip_ratio_low, actor.clip_ratio_high) == (0.1, 0.1, 0.1)
    assert (made.trainer.total_epochs, made.trainer.device, made.trainer.project_name) == (10, "cuda", "my_project")
    assert (made.data.train_batch_size, made.actor_rollout_ref.rollout.n) == (32, 1)
    assert Settings.read(made.data).store() == ours


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "algorithm: {clip_ratio: 0.1}\nactor_rollout_ref: {actor: {clip_ratio: 0.2}}",
            "algorithm.clip_ratio and actor_rollout_ref.actor.clip_ratio say the same thing",
        ),
        ("- a list", "holds list; expected sections"),
        ("uirl: 3", "section uirl is 3"),
        ("uirl: {training: {sed: 3}}", "sed"),
        ("a: [", "is not YAML"),
    ],
)
def test_files_that_cannot_be_read_are_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_verl_yaml(file(tmp_path, text))


@pytest.mark.verl
def test_a_key_that_nobody_has_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"verl has no key 'trainer\.nnode'.*did you mean 'nnodes'"):
        load_verl_config(file(tmp_path, "trainer: {nnode: 2}"))


OURS_WHATEVER_THE_FILE_SAYS = {
    *FIXED,
    "actor_rollout_ref.actor.data_loader_seed",  # of a run there is one seed
    "actor_rollout_ref.rollout.seed",
    "data.seed",
    "actor_rollout_ref.actor.ppo_mini_batch_size",  # how large an update is, and how many there are
    "actor_rollout_ref.rollout.tensor_model_parallel_size",
    "critic.ppo_mini_batch_size",
    "data.train_batch_size",
    "trainer.total_epochs",
    "trainer.total_training_steps",
    "data.max_prompt_length",
    "data.max_response_length",
    "actor_rollout_ref.rollout.name",
    "actor_rollout_ref.rollout.val_kwargs.temperature",  # evaluation samples as training does
    "trainer.test_freq",  # evaluations, checkpoints, their number and their place
    "trainer.save_freq",
    "trainer.max_actor_ckpt_to_keep",
    "trainer.max_critic_ckpt_to_keep",
    "trainer.resume_mode",
    "trainer.logger",
    "trainer.project_name",
    "trainer.experiment_name",
    "critic.enable",
    "actor_rollout_ref.model.path",
    "critic.model.path",
    "critic.model.tokenizer_path",
    "actor_rollout_ref.model.lora_alpha",
    "actor_rollout_ref.actor.kl_loss_coef",  # of a term that is off
}
"""verl's keys that hold our value in a file that says nothing of them. None of them is about large models."""


def leaves_of(config: Any) -> dict[str, Any]:
    """Dotted key -> value of verl's whole config, without what only repeats another key."""
    from omegaconf import OmegaConf

    def walk(node: Any, prefix: str) -> Iterator[tuple[str, Any]]:
        for key, value in node.items():
            if isinstance(value, dict) and value:
                yield from walk(value, f"{prefix}{key}.")
            elif not (isinstance(value, str) and ("${" in value or value == "???")):
                yield f"{prefix}{key}", value

    return dict(walk(OmegaConf.to_container(config), ""))


@pytest.mark.verl
def test_a_file_that_says_nothing_holds_no_default_of_ours_that_suits_tiny_models(tmp_path: Path) -> None:
    from omegaconf import OmegaConf

    made, ours, _ = load_verl_config(file(tmp_path, "uirl: {}\n"))
    theirs = compose()
    theirs.actor_rollout_ref.rollout.name = "vllm"
    mine = {key: value for key, value in leaves_of(made).items() if not key.startswith("data.uirl")}
    differs = {key for key, value in mine.items() if value != OmegaConf.select(theirs, key)}
    assert differs - OURS_WHATEVER_THE_FILE_SAYS == set()
    # and ours tell what verl will do
    assert (ours.training.entropy_coef, ours.algorithm.dual_clip, ours.training.learning_rate) == (0, 3.0, 1e-6)
    assert (ours.model.dtype, ours.training.betas, ours.training.warmup_steps) == ("bfloat16", (0.9, 0.999), 0)
    assert ours.training.value_learning_rate == made.critic.optim.lr == 1e-5


@pytest.mark.verl
def test_what_the_file_or_the_command_line_writes_holds_even_where_it_is_our_default(tmp_path: Path) -> None:
    text = "uirl: {training: {entropy_coef: 0.02, betas: [0.9, 0.99]}, model: {gradient_checkpointing: false}}\n"
    made, ours, _ = load_verl_config(file(tmp_path, text), ["uirl.algorithm.dual_clip=null", "uirl.training.lam=0.95"])
    actor = made.actor_rollout_ref.actor
    assert (actor.entropy_coeff, actor.clip_ratio_c, list(actor.optim.betas)) == (0.02, 1e9, [0.9, 0.99])
    assert (made.algorithm.lam, ours.training.lam, ours.algorithm.dual_clip) == (0.95, 0.95, None)
    assert not made.actor_rollout_ref.model.enable_gradient_checkpointing
    assert not made.critic.model.enable_gradient_checkpointing
    assert ours.training.entropy_coef == 0.02


def test_the_keys_for_small_models_are_mapped_ones() -> None:
    assert [key for key in FOR_SMALL_MODELS if key not in MAPPED] == []
