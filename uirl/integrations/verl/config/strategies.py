"""verl's keys that differ between FSDP and Megatron: how models are split among GPUs, adapters, recomputation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from uirl.config import ConfigStore
from uirl.config.rates import rate_of
from uirl.errors import ConfigError, did_you_mean
from uirl.integrations.verl.config.keys import ACTOR, HF
from uirl.learner.lora import VISION_ROOTS

STRATEGIES = ("fsdp", "fsdp2", "megatron")
"""Training engines of verl's for which there is a schema here (`actor_rollout_ref.actor.strategy`)."""
_HF_LAYERS: dict[str, Any] = {
    "all": "all-linear",
    "attention": ["q_proj", "k_proj", "v_proj", "o_proj"],
    "mlp": ["gate_proj", "up_proj", "down_proj"],
}
_HF_LAYERS_WITH_VISION = {
    "all": "all-linear",
    "attention": sorted([*_HF_LAYERS["attention"], "out_proj", "qkv", "qkv_proj", "proj"]),
    "mlp": sorted([*_HF_LAYERS["mlp"], "gate_up_proj", "fc1", "fc2", "linear_fc1", "linear_fc2"]),
}
_VISION = rf"(.*\.)?({'|'.join(sorted(VISION_ROOTS))})\..*"
_MEGATRON_LAYERS = {
    "all": ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"],
    "attention": ["linear_qkv", "linear_proj"],
    "mlp": ["linear_fc1", "linear_fc2"],
}


def strategy_keys(
    strategy: str = "fsdp2",
    *,
    tensor: int = 1,
    pipeline: int = 1,
    context: int = 1,
    expert: int = 1,
    offload: bool = False,
) -> dict[str, Any]:
    """Return verl's keys that divide the trained models (policy, reference, critic) among the GPUs; data parallel is
    the rest.

    Args:
        strategy: 'fsdp2': every GPU holds a slice of every layer. 'megatron': layers are split as the rest says.
        tensor: GPUs that share the matrices of a layer. Megatron's.
        pipeline: GPUs that share the layers. Megatron's.
        context: GPUs that share a sequence; with FSDP2 by Ulysses.
        expert: GPUs that share the experts of a layer. Megatron's.
        offload: Keep weights and optimiser in host memory while nobody trains.

    Raises ConfigError for a strategy that has no place here, and for a split that FSDP2 does not know.
    """
    if strategy not in STRATEGIES:
        raise ConfigError(f"strategy {strategy!r} has no place here; {did_you_mean(strategy, STRATEGIES)}")
    split = {"tensor": tensor, "pipeline": pipeline, "expert": expert}
    if strategy != "megatron":
        wrong = [f"{name}={count}" for name, count in split.items() if count != 1]
        if wrong:
            raise ConfigError(f"{strategy} does not split a model by {', '.join(wrong)}; use strategy megatron")
        return _fsdp_keys(strategy, context, offload)
    sizes = {f"{name}_model_parallel_size": count for name, count in split.items()}
    sizes |= {"context_parallel_size": context, "param_offload": offload, "optimizer_offload": offload}
    parts = (f"{ACTOR}.megatron", "critic.megatron")
    keys = {f"{part}.{name}": value for part in parts for name, value in sizes.items()}
    keys["actor_rollout_ref.ref.megatron.param_offload"] = offload
    return {f"{ACTOR}.strategy": "megatron", "critic.strategy": "megatron", **keys}


def _fsdp_keys(strategy: str, context: int, offload: bool) -> dict[str, Any]:
    keys: dict[str, Any] = {}
    for part, engine in ((ACTOR, "fsdp_config"), ("critic", "fsdp")):
        keys |= {f"{part}.strategy": strategy, f"{part}.ulysses_sequence_parallel_size": context}
        # the critic's engine reads its own section alone, the reference follows the policy's outer key
        keys[f"{part}.{engine}.ulysses_sequence_parallel_size"] = context
        keys |= {f"{part}.{engine}.param_offload": offload, f"{part}.{engine}.optimizer_offload": offload}
    return keys | {"actor_rollout_ref.ref.fsdp_config.param_offload": offload}


def schema_of(keys: Mapping[str, Any]) -> str:
    """Return the name of verl's schema that knows the strategy in `keys` (verl's key -> value)."""
    return "ppo_megatron_trainer" if keys.get(f"{ACTOR}.strategy") == "megatron" else "ppo_trainer"


def adapter_keys(config: ConfigStore, strategy: str) -> dict[str, Any]:
    """Return verl's keys for `model.use_lora` and `model.lora`; its two engines read different ones and other layer
    names.

    Raises ConfigError for dropout of adapters with FSDP, whose adapters have none.
    """
    model, lora = config.model, config.model.lora
    if strategy != "megatron":
        if model.use_lora and lora.lora_dropout:
            raise ConfigError(
                f"model.lora.lora_dropout={lora.lora_dropout}, but the adapters of verl's FSDP engines have none; "
                "set it to 0"
            )
        return {
            f"{HF}.lora_rank": lora.r if model.use_lora else 0,
            f"{HF}.target_modules": _hf_layers(lora.target, lora.vision),
            f"{HF}.exclude_modules": _VISION if model.use_lora and not lora.vision else None,
        }
    rows: dict[str, Any] = {"rank": lora.r, "alpha": lora.lora_alpha, "dropout": lora.lora_dropout}
    rows["target_modules"] = _megatron_layers(lora.target)
    return {f"{HF}.lora_rank": 0, **{f"{HF}.lora.{name}": value for name, value in rows.items() if model.use_lora}}


def recompute_keys(config: ConfigStore, strategy: str) -> dict[str, Any]:
    """Return verl's keys for `model.gradient_checkpointing` that Megatron reads, which recomputes nothing by itself;
    FSDP's is one key of the model (`uirl.integrations.verl.config.mapping.MAPPED`) and on by itself."""
    if strategy != "megatron" or config.model.gradient_checkpointing is False:
        return {}
    how = {"granularity": "full", "method": "uniform", "num_layers": 1}
    parts = (f"{ACTOR}.megatron", "critic.megatron")
    return {f"{p}.override_transformer_config.recompute_{key}": how[key] for p in parts for key in how}


def decay_keys(config: ConfigStore, strategy: str) -> dict[str, Any]:
    """Return verl's keys for `training.lr_schedule` and `training.lr_final_ratio`; FSDP counts the end as a share,
    Megatron as a rate.

    Raises ConfigError for the linear decay, which FSDP's schedules of verl's do not have.
    """
    training = config.training
    if training.lr_schedule == "constant":
        return {}
    rate = rate_of(config, "training")
    ends = {ACTOR: rate, "critic": training.value_learning_rate or rate}
    keys: dict[str, Any] = {}
    for part, rate in ends.items():
        if strategy == "megatron":
            keys[f"{part}.optim.lr_decay_style"] = training.lr_schedule
            keys[f"{part}.optim.min_lr"] = rate * training.lr_final_ratio
        elif training.lr_schedule == "linear":
            raise ConfigError(
                "training.lr_schedule=linear has no place under verl's FSDP engines, which know constant and cosine; "
                "use cosine, or Megatron"
            )
        else:
            keys[f"{part}.optim.lr_scheduler_type"] = "cosine"
            keys[f"{part}.optim.min_lr_ratio"] = training.lr_final_ratio
    return keys


def _hf_layers(target: str | list[str], vision: bool) -> Any:
    layers = _HF_LAYERS_WITH_VISION if vision else _HF_LAYERS
    return layers[target] if isinstance(target, str) else list(target)


def _megatron_layers(target: str | list[str]) -> list[str]:
    if isinstance(target, str):
        return _MEGATRON_LAYERS[target]
    layers = _MEGATRON_LAYERS["all"]
    foreign = sorted(set(target) - set(layers))
    if foreign:
        raise ConfigError(
            f"model.lora.target names {', '.join(foreign)}; Megatron merges layers and calls them {', '.join(layers)}. "
            "Use these names, or 'attention', 'mlp', 'all'"
        )
    return list(target)
