"""Roles, pools and strategies: what verl's own schema and its own trainer make of them, and what is refused early.

The configs that docs/verl.md and docs/verl_run_book.md show are composed and checked here too.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import types
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integrations.verl.pages import CONFIGS, PAGES, blocks
from tests.patience import PATIENCE
from uirl import ConfigError, ConfigStore, load_model
from uirl.integrations.verl.placement import check_placement, roles_of, strategy_keys
from uirl.integrations.verl.settings import create_verl_config, load_verl_config
from uirl.learner.lora import target_modules

pytestmark = pytest.mark.verl


ROOT = Path(__file__).parents[3]
SPLITS = {
    "fsdp2": strategy_keys("fsdp2", context=2, offload=True),
    "megatron": strategy_keys("megatron", tensor=4, pipeline=2, offload=True),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model")
    load_model(ConfigStore().override(["model.model_name=uirl/tiny-lm"]).model).save(folder)
    return str(folder)


def made(model: str, keys: dict[str, Any] | None = None, *own: str) -> Any:
    """verl's config of a GRPO run on 2 nodes of 8 GPUs: 32 groups of 8 episodes in 2 mini-batches."""
    store = ConfigStore().override(
        [
            "model.dtype=bfloat16",
            "ray.nnodes=2",
            "ray.gpus_per_node=8",
            "training.adv_estimator=grpo",
            "training.group_size=8",
            "training.batch_size=256",
            "training.minibatches=2",
            *own,
        ]
    )
    return create_verl_config(store, keys or {}, model_path=model, response_length=4096)


@pytest.mark.parametrize(("strategy", "rollout"), [("fsdp2", "vllm"), ("megatron", "sglang")])
@pytest.mark.parametrize(
    ("own", "roles"),
    [
        ((), {"actor_rollout": "ActorRolloutRefWorker"}),
        (("algorithm.kl_loss_coef=0.01",), {"actor_rollout_ref": "ActorRolloutRefWorker"}),
        (("model.use_lora=true", "algorithm.kl_loss_coef=0.01"), {"actor_rollout": "ActorRolloutRefWorker"}),
        (
            ("training.adv_estimator=gae", "training.group_size=1", "training.use_kl_in_reward=true"),
            {"actor_rollout_ref": "ActorRolloutRefWorker", "critic": "TrainingWorker"},
        ),
    ],
    ids=["grpo", "kl", "lora", "ppo"],
)
def test_every_combination_is_what_verls_own_trainer_makes_of_it(
    model: str, strategy: str, rollout: str, own: tuple[str, ...], roles: dict[str, str]
) -> None:
    from verl.trainer.ppo.utils import Role, need_critic, need_reference_policy
    from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    config = made(model, SPLITS[strategy], f"inference.backend={rollout}", *own)
    check_placement(config)
    if not (rollout == "vllm" and "model.use_lora=true" in own):
        # with adapters verl asks the installed vLLM for its largest rank
        validate_config(config, need_reference_policy(config), need_critic(config))
    for part in (config.actor_rollout_ref.rollout, config.algorithm):
        omega_conf_to_dataclass(part)
    ours = roles_of(config)
    assert {str(role): worker.__name__ for role, worker in ours.workers.items()} == roles
    assert ours.pools == {"global_pool": [8, 8]}
    theirs = types.SimpleNamespace(config=config)
    PPOTrainerSync._init_resource_pool_mgr(theirs)  # type: ignore[arg-type]
    assert set(theirs.role_worker_mapping) == set(ours.workers)
    assert theirs.mapping == ours.mapping
    assert theirs.resource_pool_manager.resource_pool_spec == ours.pools
    assert theirs.mapping[Role.RewardModel] == "global_pool"
    classes, manager = ours.for_ray()
    for role, worker in theirs.role_worker_mapping.items():
        assert classes[role].__ray_actor_class__ is worker.__ray_actor_class__
    assert manager.get_n_gpus() == 16


@pytest.mark.parametrize("strategy", SPLITS)
def test_policy_reference_and_critic_are_divided_alike(model: str, strategy: str) -> None:
    """verl picks its engine by a name that it fills in when a section becomes an object."""
    from verl.utils.config import omega_conf_to_dataclass

    config = made(model, SPLITS[strategy])
    for part in (config.actor_rollout_ref.actor, config.critic):
        settings = omega_conf_to_dataclass(part).engine
        assert (settings.strategy, settings.param_offload) == (strategy, True)
        if strategy == "megatron":
            assert (settings.tensor_model_parallel_size, settings.pipeline_model_parallel_size) == (4, 2)
        else:
            assert settings.ulysses_sequence_parallel_size == 2
    reference = config.actor_rollout_ref.ref
    assert reference.strategy == strategy
    if strategy == "megatron":
        split = reference.megatron
        assert (split.tensor_model_parallel_size, split.pipeline_model_parallel_size) == (4, 2)
    else:
        assert reference.ulysses_sequence_parallel_size == 2


def test_adapters_stand_in_the_keys_that_the_engine_reads(model: str) -> None:
    own = ("model.use_lora=true", "model.lora.r=8", "model.lora.lora_alpha=24", "model.lora.target=attention")
    flat = made(model, SPLITS["fsdp2"], *own).actor_rollout_ref.model
    assert (flat.lora_rank, flat.lora_alpha, flat.lora.rank) == (8, 24, 0)
    assert list(flat.target_modules) == ["q_proj", "k_proj", "v_proj", "o_proj"]
    section = made(model, SPLITS["megatron"], *own).actor_rollout_ref.model
    assert (section.lora_rank, section.lora.rank, section.lora.alpha) == (0, 8, 24)
    assert list(section.lora.target_modules) == ["linear_qkv", "linear_proj"]
    assert made(model, None, "model.use_lora=true").actor_rollout_ref.model.target_modules == "all-linear"
    with pytest.raises(ConfigError, match="names q_proj; Megatron merges layers"):
        made(model, SPLITS["megatron"], "model.use_lora=true", "model.lora.target=[q_proj]")


@pytest.mark.parametrize(("target", "vision"), [("attention", False), ("mlp", False), ("all", False), ("mlp", True)])
def test_adapters_are_in_the_layers_where_the_local_trainer_has_them(model: str, target: str, vision: bool) -> None:
    """The picture side is left alone unless one asks for it: verl's own default would adapt it too."""
    from omegaconf import OmegaConf

    own = ["model.use_lora=true", f"model.lora.target={target}", f"model.lora.vision={str(vision).lower()}"]
    from peft import LoraConfig, get_peft_model

    keys = made(model, SPLITS["fsdp2"], *own).actor_rollout_ref.model
    store = ConfigStore().override(["model.model_name=uirl/tiny-vlm", *own])
    policy = load_model(store.model).model
    expected = set(target_modules(policy, store.model.lora).layers)
    chosen = OmegaConf.to_container(keys)["target_modules"]
    settings = LoraConfig(r=4, target_modules=chosen, exclude_modules=keys.exclude_modules, task_type="CAUSAL_LM")
    adapted = get_peft_model(policy, settings).base_model.targeted_module_names
    assert set(adapted) == expected
    assert any("visual" in name for name in adapted) == vision


def test_dropout_of_adapters_is_handed_on_or_refused(model: str) -> None:
    own = ("model.use_lora=true", "model.lora.lora_dropout=0.1")
    assert made(model, SPLITS["megatron"], *own).actor_rollout_ref.model.lora.dropout == 0.1
    with pytest.raises(ConfigError, match=r"lora_dropout=0\.1, but the adapters of verl's FSDP engines have none"):
        made(model, SPLITS["fsdp2"], *own)


def test_the_warm_up_takes_as_many_steps_of_the_optimiser(model: str) -> None:
    """verl moves its schedule once per update, however many mini-batches that has."""
    # 10 steps in 2 mini-batches x 2 epochs = 2.5 updates
    config = made(model, None, "training.warmup_steps=10", "training.update_epochs=2")
    assert config.actor_rollout_ref.actor.optim.lr_warmup_steps == 3
    assert made(model, None, "training.warmup_steps=0").critic.optim.lr_warmup_steps == 0


def test_the_decay_of_the_learning_rate_is_said_in_the_words_of_each_engine(model: str) -> None:
    own = ("training.lr_schedule=cosine", "training.lr_final_ratio=0.1", "training.learning_rate=1e-5")
    fsdp = made(model, SPLITS["fsdp2"], *own)
    for optim in (fsdp.actor_rollout_ref.actor.optim, fsdp.critic.optim):
        assert (optim.lr_scheduler_type, optim.min_lr_ratio) == ("cosine", 0.1)
    linear = made(model, SPLITS["megatron"], "training.lr_schedule=linear", *own[1:]).critic.optim
    assert (linear.lr_decay_style, linear.min_lr) == ("linear", pytest.approx(1e-6))
    with pytest.raises(ConfigError, match="linear has no place under verl's FSDP engines"):
        made(model, SPLITS["fsdp2"], "training.lr_schedule=linear")


WRONG: dict[str, tuple[dict[str, Any], tuple[str, ...], str]] = {
    "three copies on 16 GPUs": (strategy_keys("megatron", tensor=3), (), r"3 x 1 GPUs .* not divide the 16 GPUs"),
    "a sequence on three": (strategy_keys("fsdp2", context=3), (), r"1 x 3 GPUs .* not divide the 16 GPUs"),
    "a server across nodes": (
        {},
        ("inference.backend=vllm", "model.tensor_parallel_size=12"),
        r"server of 12 GPUs .* 2 nodes of 8",
    ),
    "an odd server": ({}, ("inference.backend=vllm", "model.tensor_parallel_size=3"), r"server of 3 GPUs"),
    "no room for a sequence": ({}, ("training.micro_batch_tokens=2048",), r"holds no sequence of 5120 .* to 5120"),
    "a short server": ({}, ("inference.max_context=4096",), r"max_model_len=4096 is less than the 5120 tokens"),
    "a mini-batch of 8": ({}, ("training.minibatches=32",), r"ppo_mini_batch_size=1 x rollout.n=8 = 8 .* 16 copies"),
    "adapters for FSDP": (
        SPLITS["megatron"] | {"actor_rollout_ref.model.lora_rank": 16},
        (),
        r"rank 16 .* key that megatron does not read.*model.lora.rank",
    ),
    "adapters for Megatron": (
        {"actor_rollout_ref.model.lora.rank": 16},
        (),
        r"rank 16 .* key that fsdp does not read.*model.lora_rank",
    ),
    "another engine": ({"actor_rollout_ref.actor.strategy": "veomni"}, (), r"actor.strategy='veomni' has no place"),
    "a critic of another kind": ({"critic.strategy": "megatron"}, (), r"critic.strategy='megatron', but .* for fsdp"),
    "an unknown server": ({"actor_rollout_ref.rollout.name": "vlm"}, (), r"rollout.name='vlm' is unknown.*vllm"),
    "no room to score a sequence": (
        {"actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu": 4096},
        (),
        r"rollout.log_prob_max_token_len_per_gpu=4096 on 1 GPUs holds no sequence of 5120",
    ),
    "no room for the reference": (
        {"actor_rollout_ref.ref.log_prob_max_token_len_per_gpu": 4096},
        ("algorithm.kl_loss_coef=0.1",),
        r"ref.log_prob_max_token_len_per_gpu=4096 on 1 GPUs holds no sequence of 5120",
    ),
    "no room for the critic": (
        {"critic.ppo_max_token_len_per_gpu": 4096, "critic.use_dynamic_bsz": False},
        ("training.adv_estimator=gae", "training.batch_size=512"),
        r"critic.ppo_max_token_len_per_gpu=4096 on 1 GPUs holds no sequence of 5120",
    ),
    "lengths in verl's other place": (
        {"actor_rollout_ref.rollout.response_length": 65536},
        (),
        r"holds no sequence of 66560 .* to 66560",
    ),
    "an order that tears episodes": ({"actor_rollout_ref.actor.shuffle": True}, (), r"actor.shuffle=true would tear"),
    "no GPU": ({"trainer.n_gpus_per_node": 0}, (), r"n_gpus_per_node=0 is no GPU"),
}


def test_the_critic_takes_the_micro_batches_that_its_key_says(model: str) -> None:
    """verl's V1 trainer reads them off a key that its schema does not hold."""
    from omegaconf import OmegaConf
    from verl.utils.config import omega_conf_to_dataclass

    for schema in ("fsdp2", "megatron"):
        config = made(model, SPLITS[schema] | {"critic.ppo_max_token_len_per_gpu": 7000}, "training.adv_estimator=gae")
        OmegaConf.resolve(config)
        assert omega_conf_to_dataclass(config.critic).ppo_infer_max_token_len_per_gpu == 7000
    own = made(model, {"critic.ppo_infer_max_token_len_per_gpu": 8000, "critic.ppo_max_token_len_per_gpu": 7000})
    assert own.critic.ppo_infer_max_token_len_per_gpu == 8000, "verl's own key wins"


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_go_together_is_refused(model: str, case: str) -> None:
    keys, own, message = WRONG[case]
    with pytest.raises(ConfigError, match=message):
        check_placement(made(model, keys, *own))


def test_a_split_that_fsdp_does_not_know_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"fsdp2 does not split a model by tensor=2; use strategy megatron"):
        strategy_keys("fsdp2", tensor=2)
    with pytest.raises(ConfigError, match="'fsdp3' has no place here"):
        strategy_keys("fsdp3")


def test_a_reward_pool_of_its_own(model: str) -> None:
    keys = {f"reward.reward_model.{k}": v for k, v in {"enable_resource_pool": True, "nnodes": 1}.items()}
    ours = roles_of(made(model, keys | {"reward.reward_model.n_gpus_per_node": 4}))
    assert ours.pools == {"global_pool": [8, 8], "reward_pool": [4]}
    assert {str(role): pool for role, pool in ours.mapping.items()} == {
        "actor_rollout": "global_pool",
        "rm": "reward_pool",
    }


@pytest.mark.parametrize(("page", "number"), CONFIGS)
def test_a_config_of_the_pages_is_valid(page: str, number: int, model: str, tmp_path: Path) -> None:
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    path = tmp_path / "config.yaml"
    path.write_text(blocks(page, "yaml")[number])
    named = yaml.safe_load(path.read_text())["actor_rollout_ref"]["model"]["path"]
    config, _, _ = load_verl_config(path)
    assert config.actor_rollout_ref.model.path == named
    check_placement(config)
    roles_of(config)
    config.actor_rollout_ref.model.path = model
    if config.actor_rollout_ref.model.lora_rank == 0:  # with adapters verl asks the installed vLLM for its largest rank
        validate_config(config, need_reference_policy(config), need_critic(config))


COMMANDS = sorted({line.strip() for page in PAGES for block in blocks(page, "bash") for line in block.splitlines()})


@pytest.mark.parametrize("line", [line for line in COMMANDS if re.search(r"uirl verl --config configs/", line)])
def test_a_command_of_the_pages_is_one(line: str) -> None:
    from uirl.cli.main import command_parser

    options = command_parser().parse_args(shlex.split(line, comments=True)[1:])
    config, own, _ = load_verl_config(ROOT / options.config, options.overrides)
    check_placement(config)
    assert own.model.dtype == "bfloat16"


STUBS = {
    "scontrol": 'echo "n1"; echo "n2"',
    "srun": 'while [[ "$1" == --* ]]; do shift; done; exec "$@"',
    "hostname": "echo 10.0.0.1",
    "sleep": "exit 0",
    "ray": '[[ "$RAY_AUTH_MODE" == token && -s "$RAY_AUTH_TOKEN_PATH" ]] || exit 1',
    "python": '[[ "$*" == *secrets* || -s "${RAY_AUTH_TOKEN_PATH:-}" ]] && echo "$GPUS"',
    "uirl": 'printf "%s\\n" "$RAY_ADDRESS" "$(stat -c %a "$RAY_AUTH_TOKEN_PATH")" "$@" > "$LOG"',
}
"""The programs of a cluster, as the script for Slurm sees them."""


def test_the_script_for_slurm_joins_the_nodes_with_a_token_and_starts_the_run(tmp_path: Path) -> None:
    """Two nodes of four GPUs; where Ray finds fewer it ends. The run says its address of Ray and the token's mode."""
    from uirl.cli.main import command_parser

    for name, body in STUBS.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "UIRL_BIN": str(tmp_path), "LOG": str(tmp_path / "log")}
    env |= {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_GPUS_ON_NODE": "4"}
    command = ["bash", str(ROOT / "scripts" / "verl_slurm.sh"), str(ROOT / "configs/verl_config.yaml"), "data.seed=1"]
    few, done = (
        subprocess.run(command, env=env | {"GPUS": gpus}, capture_output=True, text=True, timeout=PATIENCE)
        for gpus in ("4", "8")
    )
    assert few.returncode == 1
    assert "Ray found 4 GPUs, expected 8 on 2 nodes" in few.stderr
    assert done.returncode == 0, done.stderr
    address, mode, *words = (tmp_path / "log").read_text().splitlines()
    options = command_parser().parse_args(words)
    config, own, _ = load_verl_config(options.config, options.overrides)
    assert (config.trainer.nnodes, config.trainer.n_gpus_per_node, config.data.seed) == (2, 4, 1)
    assert own.ray.address == address == "10.0.0.1:6379"
    assert mode == "600", "others can read the token"
