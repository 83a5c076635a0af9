"""Runs of real verl on this machine: verl's keys for a CPU, and trainers that are ready to fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from uirl.config import ConfigStore
from uirl.integrations.verl import create_trainer

_A = "actor_rollout_ref"

CPU: dict[str, Any] = {
    "trainer.device": "cpu",
    "trainer.nnodes": 1,
    "trainer.n_gpus_per_node": 1,
    "trainer.logger": ["console"],
    "trainer.val_before_train": False,
    "data.max_prompt_length": 64,
    "data.max_response_length": 128,
    f"{_A}.model.use_remove_padding": False,
    f"{_A}.model.enable_gradient_checkpointing": False,
    f"{_A}.model.lora_alpha": 32,
    f"{_A}.model.override_config.attn_implementation": "sdpa",
    f"{_A}.actor.strategy": "fsdp2",
    f"{_A}.actor.use_torch_compile": False,
    f"{_A}.actor.use_dynamic_bsz": False,
    f"{_A}.actor.ppo_micro_batch_size_per_gpu": 8,
    f"{_A}.rollout.name": "cpu",
    f"{_A}.rollout.tensor_model_parallel_size": 1,
    f"{_A}.rollout.free_cache_engine": False,
    f"{_A}.rollout.log_prob_use_dynamic_bsz": False,
    f"{_A}.rollout.log_prob_micro_batch_size_per_gpu": 16,
    f"{_A}.rollout.agent.num_workers": 1,
    f"{_A}.ref.strategy": "fsdp2",
    f"{_A}.ref.log_prob_use_dynamic_bsz": False,
    f"{_A}.ref.log_prob_micro_batch_size_per_gpu": 16,
    f"{_A}.ref.use_torch_compile": False,
    "critic.strategy": "fsdp2",
    "critic.use_dynamic_bsz": False,
    "critic.ppo_micro_batch_size_per_gpu": 8,
    "critic.model.use_remove_padding": False,
    "critic.model.enable_gradient_checkpointing": False,
    "critic.model.override_config.attn_implementation": "sdpa",
    "reward.num_workers": 1,
    "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
    "transfer_queue.backend.SimpleStorage.total_storage_size": 1000,
    **{
        f"{part}.{key}": value
        for part in (f"{_A}.actor.fsdp_config", f"{_A}.ref.fsdp_config", "critic.fsdp")
        for key, value in {
            "strategy": "fsdp2",
            "use_torch_compile": False,
            "model_dtype": "fp32",
            "mixed_precision.param_dtype": "fp32",
            "mixed_precision.reduce_dtype": "fp32",
        }.items()
    },
}
"""verl's keys for two CPU cores and a tiny model in float32."""


def config(runs_dir: Path, *overrides: str) -> ConfigStore:
    """A GRPO run of three steps: 4 groups of 4 episodes each, tiny text or vision model, seeded draws."""
    return ConfigStore().override(
        [
            f"logging.runs_dir={runs_dir}",
            "logging.run_name=run",
            "logging.trackers=[]",
            "model.device=cpu",
            "model.tiny.hidden_size=64",
            "model.tiny.intermediate_size=96",
            "model.tiny.vision_hidden_size=32",
            "inference.max_tokens=8",
            "inference.seed=1",
            "training.adv_estimator=grpo",
            "training.group_size=4",
            "training.batch_size=16",
            "training.minibatches=1",
            "training.num_epochs=1",
            "training.num_iters_per_epoch=3",
            "training.learning_rate=2e-3",
            "training.warmup_steps=0",
            "training.eval_every=null",
            "training.eval_episodes=4",
            "algorithm.skip_dead_groups=false",
            "checkpoint.save_interval=1",
            *overrides,
        ]
    )


def trainer(store: ConfigStore, environment: Any = None, *, verl: dict[str, Any] | None = None, **options: Any) -> Any:
    """A trainer for this machine; `verl` are further keys of verl's."""
    return create_trainer(store, environment, overrides={**CPU, **(verl or {})}, **options)
