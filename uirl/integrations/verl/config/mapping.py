"""`ConfigStore` -> verl's config, key by key. Every key of ours is mapped or named with the reason why it is not.

verl's own schema is composed by hydra from the installed package, so a key that verl moved is an error here and not a
setting that does nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from uirl.config import ConfigStore
from uirl.config.rates import rate_of
from uirl.errors import ConfigError
from uirl.integrations.verl.config.conversions import (
    KL_TYPES,
    UNSET,
    Convert,
    dtype,
    loss,
    rollout_name,
    same,
    template,
    unless_null,
)
from uirl.integrations.verl.config.keys import (
    ACTOR,
    CRITIC_READS,
    CRITIC_TOKENS,
    HF,
    ROLLOUT,
    as_mapping,
    compose,
    put,
)
from uirl.integrations.verl.config.settings import Settings
from uirl.integrations.verl.config.strategies import adapter_keys, decay_keys, recompute_keys, schema_of

ESTIMATORS = {
    "gae": "gae",
    "grpo": "grpo",
    "rloo": "rloo",
    "reinforce_plus_plus": "reinforce_plus_plus",
    "reinforce_plus_plus_baseline": "reinforce_plus_plus_baseline",
    "turn_level": "uirl_turn_level",
    "rejection_sampling": "uirl_rejection_sampling",
}
"""Our estimators -> verl's, or those of ours that `uirl.integrations.verl.trainer.estimators` registers with it."""
OUR_ESTIMATORS = {theirs: ours for ours, theirs in ESTIMATORS.items()}


def _estimator(value: str, config: ConfigStore) -> str:
    if value not in ESTIMATORS:
        raise ConfigError(
            f"training.adv_estimator={value!r} has no place under verl, which shows an estimator rewards, mask and "
            f"group but not the states that gigpo compares; expected one of {', '.join(ESTIMATORS)}"
        )
    return ESTIMATORS[value]


def _sequences(value: int, config: ConfigStore) -> int:
    """Return the size of one optimiser step, which verl calls a mini-batch, in prompts."""
    training = config.training
    prompts = training.batch_size // training.episodes_per_group
    if prompts % value:
        raise ConfigError(
            f"training.minibatches={value} does not divide the {prompts} groups of an update; verl splits an update by "
            "groups: change minibatches, batch_size or group_size"
        )
    return prompts // value


def _token_weights(value: float | None, config: ConfigStore) -> tuple[str | None, float]:
    """Return which weight between verl's log-probs and the engine's an update has, and its cap."""
    if value is not None and config.inference.filtered:
        raise ConfigError(
            f"algorithm.tis_cap={value} with inference.top_p={config.inference.top_p} and "
            f"top_k={config.inference.top_k}: the engine's log-probs are those of what it had left to choose from; use "
            "top_p=1 and top_k=0, or tis_cap=null"
        )
    return (None, 2.0) if value is None else ("token", value)


MAPPED: dict[str, tuple[Sequence[str], Convert]] = {
    "model.dtype": ([f"{ROLLOUT}.dtype"], dtype),
    "model.tensor_parallel_size": ([f"{ROLLOUT}.tensor_model_parallel_size"], same),
    "model.trust_remote_code": ([f"{HF}.trust_remote_code", "data.trust_remote_code"], same),
    "model.chat_template": ([f"{HF}.custom_chat_template"], template),
    "model.attn_implementation": ([f"{HF}.override_config.attn_implementation"], unless_null(UNSET)),
    "model.gradient_checkpointing": (
        [f"{HF}.enable_gradient_checkpointing", "critic.model.enable_gradient_checkpointing"],
        unless_null(UNSET),
    ),
    "model.max_image_pixels": (["data.mm_processor_kwargs.max_pixels"], unless_null(UNSET)),
    "model.freeze_vision": ([f"{ACTOR}.freeze_vision_tower"], same),
    "model.adapter_path": ([f"{HF}.lora_adapter_path"], unless_null(UNSET)),
    "model.lora.lora_alpha": ([f"{HF}.lora_alpha"], same),
    "inference.backend": ([f"{ROLLOUT}.name"], rollout_name),
    "inference.temperature": ([f"{ROLLOUT}.temperature"], same),
    "inference.top_p": ([f"{ROLLOUT}.top_p", f"{ROLLOUT}.val_kwargs.top_p"], same),
    "inference.top_k": ([f"{ROLLOUT}.top_k", f"{ROLLOUT}.val_kwargs.top_k"], lambda value, config: value or -1),
    "inference.max_batch_size": ([f"{ROLLOUT}.max_num_seqs"], same),
    "inference.max_context": ([f"{ROLLOUT}.max_model_len"], same),
    "inference.kv_cache": ([f"{ROLLOUT}.enable_prefix_caching"], same),
    "training.seed": ([f"{ROLLOUT}.seed", "data.seed", f"{ACTOR}.data_loader_seed"], same),
    "training.num_epochs": (["trainer.total_epochs"], same),
    "training.num_iters_per_epoch": (
        ["trainer.total_training_steps"],
        lambda value, config: value * config.training.num_epochs,
    ),
    "training.batch_size": (
        ["data.train_batch_size"],
        lambda value, config: value // config.training.episodes_per_group,
    ),
    "training.group_size": ([f"{ROLLOUT}.n"], lambda value, config: config.training.episodes_per_group),
    "training.minibatches": ([f"{ACTOR}.ppo_mini_batch_size", "critic.ppo_mini_batch_size"], _sequences),
    "training.update_epochs": ([f"{ACTOR}.ppo_epochs", "critic.ppo_epochs"], same),
    "training.micro_batch_tokens": (
        [f"{ACTOR}.ppo_max_token_len_per_gpu", "critic.ppo_max_token_len_per_gpu"],
        lambda value, config: config.training.micro_batch_limit,
    ),
    "training.learning_rate": ([f"{ACTOR}.optim.lr"], lambda value, config: rate_of(config, "training")),
    "training.betas": ([f"{ACTOR}.optim.betas", "critic.optim.betas"], lambda value, config: list(value)),
    "training.weight_decay": ([f"{ACTOR}.optim.weight_decay", "critic.optim.weight_decay"], same),
    "training.warmup_steps": (
        [f"{ACTOR}.optim.lr_warmup_steps", "critic.optim.lr_warmup_steps"],
        # ours counts steps of the optimiser, verl's schedule moves once per update
        lambda value, config: math.ceil(value / (config.training.minibatches * config.training.update_epochs)),
    ),
    "training.max_grad_norm": ([f"{ACTOR}.optim.clip_grad", "critic.optim.clip_grad"], unless_null(1e9)),
    "training.adv_estimator": (["algorithm.adv_estimator"], _estimator),
    "training.gamma": (["algorithm.gamma"], same),
    "training.lam": (["algorithm.lam"], same),
    "training.clip_ratio": ([f"{ACTOR}.clip_ratio"], same),
    "training.clip_ratio_low": ([f"{ACTOR}.clip_ratio_low"], lambda value, config: config.training.clip_range[0]),
    "training.clip_ratio_high": ([f"{ACTOR}.clip_ratio_high"], lambda value, config: config.training.clip_range[1]),
    "training.entropy_coef": ([f"{ACTOR}.entropy_coeff"], lambda value, config: config.entropy_coef),
    "training.value_clip": (["critic.cliprange_value"], unless_null(1e9)),
    "training.value_learning_rate": (
        ["critic.optim.lr"],
        lambda value, config: rate_of(config, "training") if value is None else value,
    ),
    "training.use_kl_in_reward": (["algorithm.use_kl_in_reward"], same),
    "training.kl_coef": (["algorithm.kl_ctrl.kl_coef"], same),
    "training.eval_every": (["trainer.test_freq"], unless_null(-1)),
    "training.eval_temperature": (
        [f"{ROLLOUT}.val_kwargs.temperature"],
        lambda value, config: config.inference.temperature if value is None else value,
    ),
    "algorithm.loss_aggregation": ([f"{ACTOR}.loss_agg_mode", "critic.loss_agg_mode"], same),
    "algorithm.loss_length": ([f"{ACTOR}.loss_scale_factor"], same),
    "algorithm.ratio": ([f"{ACTOR}.policy_loss.loss_mode"], loss),
    "algorithm.dual_clip": ([f"{ACTOR}.clip_ratio_c"], unless_null(1e9)),
    "algorithm.tis_cap": (
        ["algorithm.rollout_correction.rollout_is", "algorithm.rollout_correction.rollout_is_threshold"],
        _token_weights,
    ),
    "algorithm.normalize_by_std": (["algorithm.norm_adv_by_std_in_grpo"], same),
    "algorithm.max_resamples": (
        ["algorithm.filter_groups.enable"],
        lambda value, config: value > 0 and config.algorithm.skip_dead_groups,
    ),
    "algorithm.kl_loss_coef": (
        [f"{ACTOR}.use_kl_loss", f"{ACTOR}.kl_loss_coef"],
        lambda value, config: (value > 0, value),
    ),
    "algorithm.kl_type": ([f"{ACTOR}.kl_loss_type"], lambda value, config: KL_TYPES[value]),
    "algorithm.kl_target": (
        ["algorithm.kl_ctrl.type", "algorithm.kl_ctrl.target_kl"],
        lambda value, config: ("fixed", 0.1) if value is None else ("adaptive", value),
    ),
    "algorithm.kl_horizon": (["algorithm.kl_ctrl.horizon"], same),
    "checkpoint.output_dir": (["trainer.default_local_dir"], unless_null(UNSET)),
    "checkpoint.save_interval": (
        ["trainer.save_freq"],
        lambda value, config: -1 if value is None else value * config.training.num_iters_per_epoch,
    ),
    "checkpoint.keep_last_n": (["trainer.max_actor_ckpt_to_keep", "trainer.max_critic_ckpt_to_keep"], same),
    "checkpoint.resume": (["trainer.resume_mode"], lambda value, config: "auto" if value else "disable"),
    "ray.address": (["ray_kwargs.ray_init.address"], unless_null(UNSET)),
    "ray.nnodes": (["trainer.nnodes"], same),
    "ray.gpus_per_node": (["trainer.n_gpus_per_node"], same),
    "logging.wandb": (
        ["trainer.logger"],
        lambda value, config: [
            "console",
            *(["wandb"] if value else []),
            *(["tensorboard"] * config.logging.tensorboard),
        ],
    ),
    "logging.wandb_project": (["trainer.project_name"], same),
    "logging.run_name": (
        ["trainer.experiment_name"],
        lambda value, config: config.environment.label if value is None else value,
    ),
}
"""Our key -> (verl's keys, what our value is there). A tuple is spread over the keys."""

FOR_SMALL_MODELS = (
    "model.dtype",
    "training.micro_batch_tokens",
    "training.learning_rate",
    "training.betas",
    "training.warmup_steps",
    "training.entropy_coef",
    "training.lam",
    "training.value_clip",
    "training.value_learning_rate",
    "algorithm.dual_clip",
)
"""Keys of `MAPPED` whose defaults were chosen for tiny models on one machine. A `ConfigStore` means what it says, these
included; a file in verl's terms that does not write them keeps verl's own values."""

BY_OUR_LOOP = "read by our agent loop, which runs inside verl's workers"
BY_MODEL_FOLDER = "the policy is written to a folder that verl loads"
ELSEWHERE: dict[str, str] = {
    **dict.fromkeys(("model.model_name", "model.local_path", "model.tiny"), BY_MODEL_FOLDER),
    **dict.fromkeys(
        ("model.use_lora", "model.lora.r", "model.lora.target", "model.lora.lora_dropout", "model.lora.vision"),
        "each of verl's engines has keys and layer names of its own: `strategies.adapter_keys`",
    ),
    **dict.fromkeys(
        (
            "environment",
            "rollout",
            "verification",
            "inference.max_tokens",
            "inference.max_turns",
            "inference.multi_turn",
        ),
        BY_OUR_LOOP,
    ),
    **dict.fromkeys(
        ("training.lr_schedule", "training.lr_final_ratio"), "each engine has keys of its own: `strategies.decay_keys`"
    ),
    "curriculum": "read by our dataset, which asks it for each row",
    "inference.system_prompt": BY_OUR_LOOP,
    "inference.seed": "read by our dataset and our agent loop; null: the servers' draws are not repeatable",
    "inference.engine_options": "goes to actor_rollout_ref.rollout.engine_kwargs under the name of the engine",
    "training.eval_episodes": "the size of the validation dataset",
    "algorithm.skip_dead_groups": "verl knows one way, to refill the batch without limit: see algorithm.max_resamples",
    "algorithm.reward_threshold": "read by our estimator `uirl_rejection_sampling`",
    "logging.runs_dir": "our run directory beside verl's checkpoints",
    "logging.tensorboard": "goes with logging.wandb into trainer.logger",
    **dict.fromkeys(("logging.store_trajectories", "logging.store_images"), BY_OUR_LOOP),
}
"""Our key, or a whole section -> why verl has no such key and who reads it instead."""

OWN_SERVERS = "verl starts its own rollout servers"
WITHOUT_EFFECT: dict[str, str] = {
    "evolve": "rounds of fine-tuning are `uirl evolve`, with our learner",
    "inference.kv_cache_gib": "verl sizes the caches of its servers (actor_rollout_ref.rollout.gpu_memory_utilization)",
    "inference.sleep": "verl puts its servers to sleep itself; set actor_rollout_ref.rollout.free_cache_engine",
    "logging.store_learner_figures": "verl's learner does not hand over its figures token by token",
    "model.quantization": "verl's adapters stand on weights of 16 bits",
    "model.picture_cache_gib": "verl's workers hold the encoded pictures of an update themselves",
    "model.device": "verl places models on the devices of its resource pool (trainer.device)",
    **dict.fromkeys(("inference.server_url", "inference.server_model", "inference.api_key_env"), OWN_SERVERS),
    **dict.fromkeys(("inference.request_timeout", "inference.request_retries", "inference.weights_dir"), OWN_SERVERS),
    **dict.fromkeys(("training.max_seconds", "training.stop_at_success"), "verl ends by steps and epochs"),
    "training.old_log_probs": "verl recomputes them",
    "training.optimizer": "set verl's own: actor_rollout_ref.actor.optim.optimizer_impl and .optimizer (FSDP)",
    "training.value_coef": "verl's critic is a model of its own with its own optimiser",
    **dict.fromkeys(
        (f"{key}_{end}" for key in ("training.entropy", "algorithm.kl_loss") for end in ("schedule", "final_ratio")),
        "under verl the weights of entropy and KL stay what they are at the start",
    ),
    **dict.fromkeys(("training.entropy_min_p", "training.target_entropy"), "verl's bonus has all tokens, one weight"),
    "training.share_prompts": "verl's engines read every sequence by itself",
    "training.padding_free": "set verl's own: use_remove_padding of actor_rollout_ref.model and critic.model",
    "training.threads": "verl's workers own their processes",
    "training.warm_start": "run it with the local trainer first and continue its checkpoint under verl",
    "algorithm.whiten_advantages": "verl always whitens the advantages of gae and reinforce_plus_plus",
    "algorithm.step_weight": "belongs to gigpo, which does not run under verl",
    **dict.fromkeys(
        ("algorithm.step_credit", "algorithm.step_right", "algorithm.step_wrong", "algorithm.step_certify"),
        "verl assigns credit where the episodes of a group are tokens alone",
    ),
    "algorithm.min_live_groups": "verl keeps groups without a signal, or refills the batch (algorithm.max_resamples)",
    **dict.fromkeys(
        ("algorithm.target_kl", "algorithm.max_update_kl"),
        "verl takes all steps of an update as they come; algorithm.kl_loss_coef holds the policy near the reference",
    ),
    "algorithm.mismatch_range": "verl masks by algorithm.rollout_correction.rollout_rs and its thresholds; set those",
    "algorithm.tis_level": "verl's rollout_is=sequence weighs by a product, not by a geometric mean",
    **dict.fromkeys(
        ("algorithm.stale_correction", "algorithm.stale_level", "algorithm.stale_cap", "algorithm.stale_range"),
        "verl's trainer is synchronous here: nothing is stale",
    ),
    "algorithm.mismatch_level": "the name in verl's rollout_rs says the level",
    "algorithm.scale_step_by_live": "verl keeps groups without a signal, or refills the batch",
    "checkpoint.save_seconds": "verl saves by steps (checkpoint.save_interval)",
    "checkpoint.keep_best": "verl keeps its newest checkpoints, whatever they reach",
    "checkpoint.from_step": "verl goes back with trainer.resume_mode=resume_path and trainer.resume_from_path",
    "checkpoint.save_optimizer": "verl saves model, optimiser and extra state together",
    "actors": "verl plays with workers of its own (actor_rollout_ref.rollout.agent.num_workers)",
    **dict.fromkeys(
        ("ray.actor_cpus", "ray.actor_resources", "ray.start_seconds", "ray.engine_cpus", "ray.engine_gpus"),
        "verl reserves places for workers of its own",
    ),
    "ray.use_ray": "verl always runs on Ray",
    "ray.num_actors": "verl's agent-loop workers (actor_rollout_ref.rollout.agent.num_workers)",
    "logging.print_every": "verl prints every step",
}
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
"""What a run of ours needs of verl, whatever the config says. The dataset moves with the curriculum, so it is read in
order and in the trainer's own process."""


def create_verl_config(
    config: ConfigStore,
    overrides: Mapping[str, Any] | Sequence[str] = (),
    *,
    model_path: str | None = None,
    prompt_length: int = 1024,
    response_length: int | None = None,
    megatron: bool = False,
) -> Any:
    """Return verl's whole config (OmegaConf) that says what `config` says; `overrides` are verl's own keys and win.

    `config` itself goes along in `data.uirl`. `model_path`: the folder verl loads; None: `model.local_path` or
    `model.model_name`. `prompt_length`: most tokens of the opening prompt. `response_length`: most tokens of everything
    after it, all turns and observations together; None: `rollout.max_tokens`, or 4 times what all replies may take.
    `megatron`: verl's schema for it even if `overrides` name no strategy. Raises ConfigError for what verl cannot do,
    for keys verl does not have, and where verl is not installed.
    """
    verl_keys = as_mapping(overrides)
    schema = "ppo_megatron_trainer" if megatron else schema_of(verl_keys)
    composed = compose(schema)
    strategy = "megatron" if schema == "ppo_megatron_trainer" else "fsdp2"
    values = FIXED | adapter_keys(config, strategy) | recompute_keys(config, strategy) | decay_keys(config, strategy)
    values |= verl_values(config, MAPPED)
    path = model_path or config.model.source
    values |= {f"{HF}.path": path, "critic.model.path": path, "critic.model.tokenizer_path": path}
    values["data.max_prompt_length"] = prompt_length
    values["data.max_response_length"] = response_length or _response_length(config)
    values["critic.enable"] = config.training.adv_estimator == "gae"
    options = dict(config.inference.engine_options)
    if options:
        values[f"{ROLLOUT}.engine_kwargs.{values[f'{ROLLOUT}.name']}"] = options
    values |= verl_keys
    for key, value in values.items():
        put(composed, key, value)
    tell_critic(composed)
    Settings(config=config.to_dict()).write(composed)
    return composed


def verl_values(config: ConfigStore, keys: Iterable[str]) -> dict[str, Any]:
    """Return verl's key -> value for those of our `keys` (of `MAPPED`) that say something there."""
    values: dict[str, Any] = {}
    for key in keys:
        targets, convert = MAPPED[key]
        value = convert(attrgetter(key)(config), config)
        spread = value if isinstance(value, tuple) else (value,) * len(targets)
        values |= {target: v for target, v in zip(targets, spread, strict=True) if v is not UNSET}
    return values


def tell_critic(config: Any) -> None:
    """Write the tokens of the critic's micro-batches where verl reads them, unless somebody did. `config`: verl's."""
    from omegaconf import OmegaConf

    if OmegaConf.select(config, CRITIC_READS) is None:
        put(config, CRITIC_READS, f"${{{CRITIC_TOKENS}}}")


def ignored(config: ConfigStore) -> list[str]:
    """Return the settings of `config` that differ from their defaults and have no effect under verl, each with the
    reason."""
    default = ConfigStore()
    return [
        f"{key}: {why}" for key, why in WITHOUT_EFFECT.items() if attrgetter(key)(config) != attrgetter(key)(default)
    ]


def _response_length(config: ConfigStore) -> int:
    if config.rollout.max_tokens is not None:
        return config.rollout.max_tokens
    return 4 * config.inference.max_tokens * config.turn_limit
