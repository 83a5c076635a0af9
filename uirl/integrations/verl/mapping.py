"""Our keys and verl's: one table, read in both directions; every key of ours is in it or named with the reason why not.

verl's schema has the last word: `uirl.integrations.verl.settings` refuses a key that verl does not have.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from uirl.config import ConfigStore, InferenceConfig, LoraConfig, TrainingConfig
from uirl.config.keys import at
from uirl.config.rates import rate_of
from uirl.errors import ConfigError
from uirl.learner.lora import VISION_ROOTS

ACTOR, ROLLOUT, HF = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.model"
UNSET: Any = object()
"""No value in the words of the other side, which keeps its own."""
ESTIMATORS = {
    **{name: name for name in ("gae", "grpo", "rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline")},
    "turn_level": "uirl_turn_level",
    "rejection_sampling": "uirl_rejection_sampling",
}
"""Our estimators -> verl's, or those of ours that `uirl.integrations.verl.update` registers with it."""
OUR_ESTIMATORS = {theirs: ours for ours, theirs in ESTIMATORS.items()}

There = Callable[[Any, ConfigStore], Any]
Back = Callable[[Any, ConfigStore, Mapping[str, Any]], Any]


@dataclass(frozen=True, slots=True)
class Key:
    """Where a key of ours stands in verl's config."""

    names: tuple[str, ...]
    there: There
    """(our value, our config) -> verl's; a tuple is spread over `names`. UNSET: verl's own stays."""
    back: Back | None
    """(verl's value of the first name, our config, verl's keys that are written) -> ours. UNSET, or None in place of
    the function: only verl reads it."""
    tiny: bool
    """Our default was chosen for tiny models on one machine."""


def _same(value: Any, _config: object) -> Any:
    return value


def _as_it_is(value: Any, _config: object, _flat: object) -> Any:
    return UNSET if value is None else value


def _key(names: str, there: There = _same, back: Back | None = None, tiny: bool = False) -> Key:
    """`names`: verl's, parted by blanks; `actor.`, `rollout.` and `model.` are sections of `actor_rollout_ref`."""
    short = ("actor", "rollout", "model")
    full = (f"actor_rollout_ref.{n}" if n.partition(".")[0] in short else n for n in names.split())
    return Key(tuple(full), there, back or (_as_it_is if there is _same else None), tiny)


def _null_as(replacement: Any) -> There:
    return lambda value, config: replacement if value is None else value


def _estimator(value: str) -> str:
    if value not in ESTIMATORS:
        raise ConfigError(
            f"training.adv_estimator={value!r} has no place under verl, which shows an estimator rewards, mask and "
            f"group but not the states that gigpo compares; expected one of {', '.join(ESTIMATORS)}"
        )
    return ESTIMATORS[value]


def _mini_batch(value: int, prompts: int) -> int:
    """Return the size of one optimiser step, which verl calls a mini-batch, in prompts."""
    if prompts % value:
        raise ConfigError(
            f"training.minibatches={value} does not divide the {prompts} groups of an update; verl splits an update by "
            "groups: change minibatches, batch_size or group_size"
        )
    return prompts // value


def _whole(number: Any, divisor: Any) -> Any:
    return UNSET if number is None or number % divisor else number // divisor


def _token_weights(value: float | None, inference: InferenceConfig) -> tuple[str | None, float]:
    """Return which weight between verl's log-probs and the engine's an update has, and its cap."""
    if value is not None and inference.filtered:
        raise ConfigError(
            f"algorithm.tis_cap={value} with inference.top_p={inference.top_p} and "
            f"top_k={inference.top_k}: the engine's log-probs are those of what it had left to choose from; use "
            "top_p=1 and top_k=0, or tis_cap=null"
        )
    return (None, 2.0) if value is None else ("token", value)


def _loss(value: str, estimator: str) -> str:
    if estimator == "rejection_sampling":
        return "gpg"  # -log_prob x advantage, where the advantage is 1 for what is kept
    return {"token": "vanilla", "sequence": "gspo"}[value]


def _backend(value: str) -> str:
    if value not in ("vllm", "sglang", "transformers"):
        raise ConfigError(f"inference.backend={value!r} cannot be updated by verl; use vllm or sglang")
    return "vllm" if value == "transformers" else value  # the embedded engine lives in one process


def _template(name: str | None) -> Any:
    from uirl.inference.models.templates import TEMPLATES

    return None if name is None else TEMPLATES.get(name, name)


_LIMIT: Back = lambda value, config, flat: None if value >= 1e9 else value  # noqa: E731

MAPPED: dict[str, Key] = {
    "model.dtype": _key("rollout.dtype",
        lambda v, c: v or ("float32" if c.model.built_in else UNSET), _as_it_is, tiny=True),
    "model.tensor_parallel_size": _key("rollout.tensor_model_parallel_size"),
    "model.trust_remote_code": _key("model.trust_remote_code data.trust_remote_code"),
    "model.chat_template": _key("model.custom_chat_template", lambda v, c: _template(v)),
    "model.attn_implementation": _key("model.override_config.attn_implementation", _null_as(UNSET)),
    "model.gradient_checkpointing": _key(
        "model.enable_gradient_checkpointing critic.model.enable_gradient_checkpointing", _null_as(UNSET), _as_it_is),
    "model.max_image_pixels": _key("data.mm_processor_kwargs.max_pixels", _null_as(UNSET)),
    "model.freeze_vision": _key("actor.freeze_vision_tower"),
    "model.adapter_path": _key("model.lora_adapter_path", _null_as(UNSET)),
    "model.lora.lora_alpha": _key("model.lora_alpha"),
    "inference.backend": _key("rollout.name", lambda v, c: _backend(v),
        lambda v, c, f: v if v in ("vllm", "sglang") else UNSET),
    "inference.temperature": _key("rollout.temperature"),
    "inference.top_p": _key("rollout.top_p rollout.val_kwargs.top_p"),
    "inference.top_k": _key("rollout.top_k rollout.val_kwargs.top_k", lambda v, c: v or -1, lambda v, c, f: max(0, v)),
    "inference.max_batch_size": _key("rollout.max_num_seqs"),
    "inference.max_context": _key("rollout.max_model_len"),
    "inference.kv_cache": _key("rollout.enable_prefix_caching"),
    "training.seed": _key("rollout.seed data.seed actor.data_loader_seed"),
    "training.num_epochs": _key("trainer.total_epochs"),
    "training.num_iters_per_epoch": _key("trainer.total_training_steps", lambda v, c: v * c.training.num_epochs,
        lambda v, c, flat: _whole(v, flat.get("trainer.total_epochs", c.training.num_epochs))),
    # verl counts prompts where we count episodes
    "training.batch_size": _key("data.train_batch_size", lambda v, c: c.training.groups,
        lambda v, c, flat: v * flat.get(f"{ROLLOUT}.n", c.training.episodes_per_group)),
    "training.group_size": _key("rollout.n", lambda v, c: c.training.episodes_per_group, _as_it_is),
    "training.minibatches": _key("actor.ppo_mini_batch_size critic.ppo_mini_batch_size",
        lambda v, c: _mini_batch(v, c.training.groups),
        lambda v, c, flat: _whole(flat.get("data.train_batch_size", c.training.groups), v)),
    "training.update_epochs": _key("actor.ppo_epochs critic.ppo_epochs"),
    "training.micro_batch_tokens": _key("actor.ppo_max_token_len_per_gpu critic.ppo_max_token_len_per_gpu",
        lambda v, c: c.training.micro_batch_limit, _as_it_is, tiny=True),
    "training.learning_rate": _key("actor.optim.lr", lambda v, c: rate_of(c, "training"), _as_it_is, tiny=True),
    "training.betas": _key("actor.optim.betas critic.optim.betas", lambda v, c: list(v), _as_it_is, tiny=True),
    "training.weight_decay": _key("actor.optim.weight_decay critic.optim.weight_decay"),
    # ours counts steps of the optimiser, verl's schedule moves once per update
    "training.warmup_steps": _key("actor.optim.lr_warmup_steps critic.optim.lr_warmup_steps",
        lambda v, c: math.ceil(v / (c.training.minibatches * c.training.update_epochs)),
        lambda v, c, f: UNSET if v > 0 else 0, tiny=True),
    "training.max_grad_norm": _key("actor.optim.clip_grad critic.optim.clip_grad", _null_as(1e9), _as_it_is),
    "training.adv_estimator": _key("algorithm.adv_estimator", lambda v, c: _estimator(v),
        lambda v, c, f: OUR_ESTIMATORS.get(v, UNSET)),
    "training.gamma": _key("algorithm.gamma"),
    "training.lam": _key("algorithm.lam", tiny=True),
    "training.clip_ratio": _key("actor.clip_ratio"),
    "training.clip_ratio_low": _key("actor.clip_ratio_low", lambda v, c: c.training.clip_range[0], _as_it_is),
    "training.clip_ratio_high": _key("actor.clip_ratio_high", lambda v, c: c.training.clip_range[1], _as_it_is),
    "training.entropy_coef": _key("actor.entropy_coeff", lambda v, c: c.entropy_coef, _as_it_is, tiny=True),
    "training.value_clip": _key("critic.cliprange_value", _null_as(1e9), _LIMIT, tiny=True),
    "training.value_learning_rate": _key("critic.optim.lr", lambda v, c: rate_of(c, "training") if v is None else v,
        _as_it_is, tiny=True),
    "training.use_kl_in_reward": _key("algorithm.use_kl_in_reward"),
    "training.kl_coef": _key("algorithm.kl_ctrl.kl_coef"),
    "training.eval_every": _key("trainer.test_freq", _null_as(-1), lambda v, c, f: v if v and v > 0 else UNSET),
    "training.eval_temperature": _key("rollout.val_kwargs.temperature",
        lambda v, c: c.inference.temperature if v is None else v, _as_it_is),
    "algorithm.loss_aggregation": _key("actor.loss_agg_mode critic.loss_agg_mode"),
    "algorithm.loss_length": _key("actor.loss_scale_factor"),
    "algorithm.ratio": _key("actor.policy_loss.loss_mode", lambda v, c: _loss(v, c.training.adv_estimator)),
    "algorithm.dual_clip": _key("actor.clip_ratio_c", _null_as(1e9), _LIMIT, tiny=True),
    "algorithm.tis_cap": _key(
        "algorithm.rollout_correction.rollout_is algorithm.rollout_correction.rollout_is_threshold",
        lambda v, c: _token_weights(v, c.inference)),
    "algorithm.normalize_by_std": _key("algorithm.norm_adv_by_std_in_grpo"),
    "algorithm.max_resamples": _key("algorithm.filter_groups.enable",
        lambda v, c: v > 0 and c.algorithm.skip_dead_groups),
    "algorithm.kl_loss_coef": _key("actor.use_kl_loss actor.kl_loss_coef", lambda v, c: (v > 0, v)),
    "algorithm.kl_type": _key("actor.kl_loss_type", lambda v, c: {"k1": "k1", "k2": "k2", "k3": "low_var_kl"}[v]),
    "algorithm.kl_target": _key("algorithm.kl_ctrl.type algorithm.kl_ctrl.target_kl",
        lambda v, c: ("fixed", 0.1) if v is None else ("adaptive", v)),
    "algorithm.kl_horizon": _key("algorithm.kl_ctrl.horizon"),
    "checkpoint.output_dir": _key("trainer.default_local_dir", _null_as(UNSET), _as_it_is),
    "checkpoint.save_interval": _key("trainer.save_freq",
        lambda v, c: -1 if v is None else v * c.training.num_iters_per_epoch),
    "checkpoint.keep_last_n": _key("trainer.max_actor_ckpt_to_keep trainer.max_critic_ckpt_to_keep"),
    "checkpoint.resume": _key("trainer.resume_mode", lambda v, c: "auto" if v else "disable"),
    "ray.address": _key("ray_kwargs.ray_init.address", _null_as(UNSET)),
    "ray.nnodes": _key("trainer.nnodes"),
    "ray.gpus_per_node": _key("trainer.n_gpus_per_node"),
    "logging.trackers": _key("trainer.logger", lambda v, c: ["console", *v]),
    "logging.project": _key("trainer.project_name"),
    "logging.run_name": _key("trainer.experiment_name", lambda v, c: c.environment.label if v is None else v,
        _as_it_is),
}  # fmt: skip
"""Our key -> where it stands in verl's config."""

FOR_SMALL_MODELS = tuple(key for key, row in MAPPED.items() if row.tiny)
"""Keys whose defaults were chosen for tiny models. A `ConfigStore` means what it says, these included; a file in verl's
terms that does not write them keeps verl's own values."""


def _by_key(table: str) -> dict[str, str]:
    rows = [line.partition(" | ") for line in table.strip().splitlines()]
    return {key: why for keys, _, why in rows for key in keys.split()}


ELSEWHERE = _by_key(
    """
model.model_name model.local_path model.tiny | the folder that verl loads the policy from
model.use_lora model.lora.r model.lora.target model.lora.lora_dropout model.lora.vision | keys of each engine's own
training.lr_schedule training.lr_final_ratio | keys of each engine's own
environment rollout verification algorithm.reward_threshold | our agent loop and our estimator, in verl's processes
inference.max_tokens inference.max_turns inference.multi_turn inference.system_prompt | our agent loop
inference.seed | our dataset and our agent loop; null: the servers' draws are not repeatable
logging.runs_dir logging.store_trajectories logging.store_images | our record beside verl's checkpoints
curriculum training.eval_episodes | our dataset
inference.engine_options | actor_rollout_ref.rollout.engine_kwargs, under the name of the engine
algorithm.skip_dead_groups | verl refills the batch without limit: see algorithm.max_resamples
"""
)
"""Our key, or a whole section -> who reads it in place of a key of verl's."""

WITHOUT_EFFECT = _by_key(
    """
evolve | rounds of fine-tuning are `uirl evolve`, with our learner
inference.kv_cache_gib | verl sizes the caches of its servers (actor_rollout_ref.rollout.gpu_memory_utilization)
inference.sleep | verl puts its servers to sleep itself; set actor_rollout_ref.rollout.free_cache_engine
inference.server_url inference.server_model inference.api_key_env | verl starts its own rollout servers
inference.request_timeout inference.request_retries inference.weights_dir | verl starts its own rollout servers
model.quantization | verl's adapters stand on weights of 16 bits
model.picture_cache_gib | verl's workers hold the encoded pictures of an update themselves
model.device | verl places models on the devices of its resource pool (trainer.device)
training.max_seconds training.stop_at_success | verl ends by steps and epochs
training.old_log_probs | verl recomputes them
training.optimizer | set verl's own: actor_rollout_ref.actor.optim.optimizer_impl and .optimizer (FSDP)
training.value_coef | verl's critic is a model of its own with its own optimiser
training.entropy_schedule training.entropy_final_ratio | under verl the weight of entropy stays as at the start
algorithm.kl_loss_schedule algorithm.kl_loss_final_ratio | under verl the weight of the KL term stays as at the start
training.entropy_min_p training.target_entropy | verl's bonus has all tokens, one weight
training.share_prompts | verl's engines read every sequence by itself
training.padding_free | set verl's own: use_remove_padding of actor_rollout_ref.model and critic.model
training.threads | verl's workers own their processes
training.warm_start | run it with the local trainer first and continue its checkpoint under verl
algorithm.whiten_advantages | verl always whitens the advantages of gae and reinforce_plus_plus
algorithm.step_weight | belongs to gigpo, which does not run under verl
algorithm.step_credit algorithm.step_right algorithm.step_wrong algorithm.step_certify | verl's credit sees tokens alone
algorithm.min_live_groups algorithm.scale_step_by_live | verl keeps dead groups, or refills (algorithm.max_resamples)
algorithm.target_kl algorithm.max_update_kl | verl takes all steps of an update; set algorithm.kl_loss_coef
algorithm.mismatch_range algorithm.mismatch_level | set algorithm.rollout_correction.rollout_rs and its thresholds
algorithm.tis_level | verl's rollout_is=sequence weighs by a product, not by a geometric mean
algorithm.stale_correction algorithm.stale_level algorithm.stale_cap algorithm.stale_range | nothing is stale here
checkpoint.save_seconds | verl saves by steps (checkpoint.save_interval)
checkpoint.keep_best | verl keeps its newest checkpoints, whatever they reach
checkpoint.from_step | verl goes back with trainer.resume_mode=resume_path and trainer.resume_from_path
checkpoint.save_optimizer | verl saves model, optimiser and extra state together
actors ray.num_actors | verl plays with workers of its own (actor_rollout_ref.rollout.agent.num_workers)
ray.actor_cpus ray.actor_resources ray.start_seconds ray.engine_cpus ray.engine_gpus | verl has its own resource pools
ray.use_ray | verl always runs on Ray
logging.print_every | verl prints every step
logging.store_learner_figures | verl's learner does not hand over its figures token by token
"""
)
"""Our key, or a whole section, that nobody reads under verl -> why. `ignored` names those that are set."""

FIXED = {
    f"{ROLLOUT}.mode": "async",
    f"{ROLLOUT}.calculate_log_probs": True,
    f"{ROLLOUT}.logprobs_mode": "processed_logprobs",
    f"{ROLLOUT}.agent.default_agent_loop": "uirl",
    f"{ACTOR}.use_dynamic_bsz": True,
    "critic.use_dynamic_bsz": True,
    "data.dataloader_num_workers": 0,
    "data.shuffle": False,
    "trainer.use_v1": True,
}
"""What a run of ours needs of verl. The dataset moves with the curriculum, so it is read in order and in the trainer's
own process."""


def verl_values(config: ConfigStore, keys: Iterable[str]) -> dict[str, Any]:
    """Return verl's key -> value for those of our `keys` (of `MAPPED`) that say something there. Raises ConfigError."""
    values: dict[str, Any] = {}
    for key in keys:
        row = MAPPED[key]
        value = row.there(attrgetter(key)(config), config)
        spread = value if isinstance(value, tuple) else (value,) * len(row.names)
        values |= {name: v for name, v in zip(row.names, spread, strict=True) if v is not UNSET}
    return values


def ignored(values: Mapping[str, Any]) -> list[str]:
    """Return the settings of a config (`to_dict`) that differ from their defaults and have no effect under verl, each
    with the reason."""
    default = ConfigStore().to_dict()
    return [f"{key}: {why}" for key, why in WITHOUT_EFFECT.items() if at(values, key) != at(default, key)]


# keys that differ between verl's engines

_HF_LAYERS = {"attention": ["q_proj", "k_proj", "v_proj", "o_proj"], "mlp": ["gate_proj", "up_proj", "down_proj"]}
_VISION_LAYERS = {
    "attention": ["out_proj", "qkv", "qkv_proj", "proj"],
    "mlp": ["gate_up_proj", "fc1", "fc2", "linear_fc1", "linear_fc2"],
}
_MEGATRON_LAYERS = {"attention": ["linear_qkv", "linear_proj"], "mlp": ["linear_fc1", "linear_fc2"]}
_VISION = rf"(.*\.)?({'|'.join(sorted(VISION_ROOTS))})\..*"


def adapter_keys(on: bool, lora: LoraConfig, strategy: str) -> dict[str, Any]:
    """Return verl's keys for `model.use_lora` (`on`) and `model.lora`, which its two engines read in different places
    and with different names of layers. Raises ConfigError for dropout with FSDP and for layers that Megatron does not
    have."""
    if strategy == "megatron":
        rows: dict[str, Any] = {"rank": lora.r, "alpha": lora.lora_alpha, "dropout": lora.lora_dropout}
        rows["target_modules"] = _megatron_layers(lora.target)
        return {f"{HF}.lora_rank": 0, **({f"{HF}.lora.{name}": value for name, value in rows.items()} if on else {})}
    if on and lora.lora_dropout:
        raise ConfigError(
            f"model.lora.lora_dropout={lora.lora_dropout}, but the adapters of verl's FSDP engines have none; "
            "set it to 0"
        )
    return {
        f"{HF}.lora_rank": lora.r if on else 0,
        f"{HF}.target_modules": _hf_layers(lora.target, lora.vision),
        f"{HF}.exclude_modules": _VISION if on and not lora.vision else None,
    }


def _hf_layers(target: str | list[str], vision: bool) -> Any:
    if not isinstance(target, str):
        return list(target)
    if target == "all":
        return "all-linear"
    return sorted(_HF_LAYERS[target] + _VISION_LAYERS[target]) if vision else _HF_LAYERS[target]


def _megatron_layers(target: str | list[str]) -> list[str]:
    layers = _MEGATRON_LAYERS["attention"] + _MEGATRON_LAYERS["mlp"]
    if isinstance(target, str):
        return _MEGATRON_LAYERS.get(target, layers)
    foreign = sorted(set(target) - set(layers))
    if foreign:
        raise ConfigError(
            f"model.lora.target names {', '.join(foreign)}; Megatron merges layers and calls them {', '.join(layers)}. "
            "Use these names, or 'attention', 'mlp', 'all'"
        )
    return list(target)


def recompute_keys(wanted: bool | None, strategy: str) -> dict[str, Any]:
    """Return the keys for `model.gradient_checkpointing` with Megatron, which recomputes nothing by itself; FSDP's is
    one key of the model, and on by itself."""
    if strategy != "megatron" or wanted is False:
        return {}
    how = {"granularity": "full", "method": "uniform", "num_layers": 1}
    parts = (f"{ACTOR}.megatron", "critic.megatron")
    return {f"{p}.override_transformer_config.recompute_{key}": how[key] for p in parts for key in how}


def decay_keys(training: TrainingConfig, rate: float, strategy: str) -> dict[str, Any]:
    """Return verl's keys for `training.lr_schedule` and `training.lr_final_ratio`; FSDP counts the end as a share,
    Megatron as a rate. Raises ConfigError for the linear decay with FSDP."""
    if training.lr_schedule == "constant":
        return {}
    if training.lr_schedule == "linear" and strategy != "megatron":
        raise ConfigError(
            "training.lr_schedule=linear has no place under verl's FSDP engines, which know constant and cosine; "
            "use cosine, or Megatron"
        )
    keys: dict[str, Any] = {}
    for part, own in ((ACTOR, rate), ("critic", training.value_learning_rate or rate)):
        if strategy == "megatron":
            keys[f"{part}.optim.lr_decay_style"] = training.lr_schedule
            keys[f"{part}.optim.min_lr"] = own * training.lr_final_ratio
        else:
            keys[f"{part}.optim.lr_scheduler_type"] = "cosine"
            keys[f"{part}.optim.min_lr_ratio"] = training.lr_final_ratio
    return keys
