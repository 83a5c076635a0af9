"""A run in verl's terms: what the file says is what verl and our own parts read."""

from __future__ import annotations

from pathlib import Path

import pytest

from uirl import ConfigError, ConfigStore
from uirl.integrations.verl.reading import load_verl_config, read_verl_yaml, with_verl_values
from uirl.integrations.verl.settings import Settings

FILE = Path(__file__).parents[3] / "configs" / "verl_config.yaml"


DOCUMENT = Path(__file__).parent / "data" / "trainer.yaml"
"""The YAML that a founding document shows for verl's trainer, word for word."""


def file(folder: Path, text: str) -> Path:
    path = folder / "run.yaml"
    path.write_text(text)
    return path


@pytest.mark.verl
def test_the_file_of_the_project_is_taken_as_it_is() -> None:
    made, ours, curriculum = load_verl_config(FILE, ["trainer.nnodes=2"])
    actor, rollout = made.actor_rollout_ref.actor, made.actor_rollout_ref.rollout
    assert (rollout.n, rollout.mode, rollout.name) == (16, "async", "vllm")
    assert (actor.clip_ratio_low, actor.clip_ratio_high, actor.strategy) == (0.2, 0.3, "fsdp2")
    assert (made.trainer.nnodes, made.trainer.n_gpus_per_node) == (2, 8)
    assert curriculum["enabled"] is True
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
    assert (ours.training.seed, curriculum) == (5, {"enabled": True})


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
