"""Settings that a training run would not read, given the others. Each is an error, so that no key is ignored."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any

from uirl.config.sections.curriculum import CurriculumConfig
from uirl.config.sections.training import GROUP_ESTIMATORS
from uirl.config.sections.verification import VerificationConfig
from uirl.config.tree import ConfigTree

Condition = Callable[[ConfigTree], bool]


def _estimators(*names: str) -> Condition:
    return lambda config: config.training.adv_estimator in names


def has_policy_loss(config: ConfigTree) -> bool:
    """Return whether the loss is that of the policy gradient, which compares log-probs."""
    return config.training.adv_estimator != "rejection_sampling"


def _over_http(config: ConfigTree) -> bool:
    inference = config.inference
    return inference.backend == "openai" or (
        inference.backend in ("vllm", "sglang") and inference.server_url is not None
    )


def reads_stale_correction(config: ConfigTree) -> bool:
    """Return whether `algorithm.stale_correction` says what samples of older weights weigh."""
    algorithm = config.algorithm
    compared = has_policy_loss(config) and config.training.old_log_probs != "rollout"
    return compared and algorithm.tis_cap is None and algorithm.mismatch_range is None


def _never(config: ConfigTree) -> bool:
    return False


_CRITIC = (_estimators("gae"), "by training.adv_estimator=gae, which has a critic")
_GROUPS = (_estimators(*GROUP_ESTIMATORS), f"by estimators that compare within a group ({', '.join(GROUP_ESTIMATORS)})")
_CLIPPED = (has_policy_loss, "by the clipped policy loss, which rejection_sampling does not have")
_HTTP = (_over_http, "where the engine is a server: inference.backend=openai, or vllm or sglang with a server_url")
_EMBEDDED = (
    lambda config: config.inference.backend == "transformers",
    "by the backend transformers; the others let replies end and drop their caches",
)
_LOCAL_SERVERS = (lambda config: config.inference.backend in ("vllm", "sglang"), "by the backends vllm and sglang")
_MISMATCH = (
    lambda config: has_policy_loss(config) and config.training.old_log_probs != "rollout",
    "by the clipped policy loss, with old_log_probs that are not the engine's own: it weighs one against the other",
)
_STALE = (
    reads_stale_correction,
    "by the clipped policy loss, with old_log_probs that are not the engine's own and without algorithm.tis_cap and "
    "algorithm.mismatch_range, which correct every sample",
)
_AUTO = (lambda config: config.actors.staleness == "auto", "where actors.staleness is auto")
_PROCESSES = (
    lambda config: config.actors.processes > 0 or config.ray.use_ray,
    "where other processes play (actors.processes above 0, or ray.use_ray)",
)
_RAY = (lambda config: config.ray.use_ray, "where ray.use_ray is true")
_RAY_ENGINES = (
    lambda config: config.ray.use_ray and config.actors.engines > 0,
    "where ray.use_ray is true and actors.engines is above 0",
)
_VERIFIED = (lambda config: config.verification.enabled, "where verification.enabled is true")
_JUDGED = (
    lambda config: config.verification.enabled and config.verification.judge is not None,
    "where verification.enabled is true and verification.judge names a model",
)
_CURRICULUM = (lambda config: config.curriculum.enabled, "where curriculum.enabled is true")
_SCHEDULE = (
    lambda config: config.curriculum.enabled and config.curriculum.schedule != "none",
    "where curriculum.enabled is true and curriculum.schedule is not none",
)
_VERL = (_never, "by runs under verl alone")


def _scheduled(key: str) -> tuple[Condition, str]:
    return lambda config: attrgetter(key)(config) != "constant", f"where {key} is linear or cosine"


def _set(key: str) -> tuple[Condition, str]:
    return lambda config: attrgetter(key)(config) is not None, f"where {key} is set"


READ: dict[str, tuple[Condition, str]] = {
    "training.clip_ratio": _CLIPPED,
    "training.clip_ratio_low": _CLIPPED,
    "training.clip_ratio_high": _CLIPPED,
    "training.old_log_probs": _CLIPPED,
    "training.lr_final_ratio": _scheduled("training.lr_schedule"),
    **dict.fromkeys(
        ("training.entropy_schedule", "training.entropy_min_p", "training.target_entropy"),
        (lambda config: config.entropy_coef > 0, "where training.entropy_coef is above 0"),
    ),
    "training.entropy_final_ratio": _scheduled("training.entropy_schedule"),
    "algorithm.ratio": _CLIPPED,
    "algorithm.dual_clip": _CLIPPED,
    "algorithm.target_kl": (
        lambda config: has_policy_loss(config) and config.training.minibatches * config.training.update_epochs > 1,
        "by the clipped policy loss, where an update has more than one step (training.minibatches, update_epochs)",
    ),
    "algorithm.max_update_kl": _CLIPPED,
    "algorithm.tis_cap": _MISMATCH,
    "algorithm.mismatch_range": _MISMATCH,
    "algorithm.mismatch_level": _set("algorithm.mismatch_range"),
    "algorithm.tis_level": _set("algorithm.tis_cap"),
    "algorithm.stale_correction": _STALE,
    "algorithm.stale_level": (
        lambda config: reads_stale_correction(config) and config.algorithm.stale_correction != "off",
        "where algorithm.stale_correction corrects",
    ),
    "algorithm.stale_cap": (
        lambda config: reads_stale_correction(config) and config.algorithm.stale_correction == "truncated",
        "where algorithm.stale_correction=truncated corrects",
    ),
    "algorithm.stale_range": (
        lambda config: reads_stale_correction(config) and config.algorithm.stale_correction == "masked",
        "where algorithm.stale_correction=masked corrects",
    ),
    **dict.fromkeys(("verification.rules", "verification.judge"), _VERIFIED),
    **dict.fromkeys(
        (
            f"verification.{name}"
            for name in VerificationConfig.model_fields
            if name not in ("enabled", "rules", "judge")
        ),
        _JUDGED,
    ),
    **dict.fromkeys((f"curriculum.{name}" for name in CurriculumConfig.model_fields if name != "enabled"), _CURRICULUM),
    **dict.fromkeys(
        (f"curriculum.{name}" for name in ("schedule_start", "schedule_end", "final_distribution")), _SCHEDULE
    ),
    "actors.max_gap": _AUTO,
    "actors.min_ess": _AUTO,
    "training.lam": _CRITIC,
    "training.value_coef": _CRITIC,
    "training.value_clip": _CRITIC,
    "training.value_learning_rate": _CRITIC,
    "training.gamma": (
        _estimators("gae", "reinforce_plus_plus", "turn_level", "gigpo"),
        "by gae, reinforce_plus_plus, turn_level and gigpo; the others look at whole episodes",
    ),
    "training.kl_coef": (lambda config: config.training.use_kl_in_reward, "where training.use_kl_in_reward is true"),
    "algorithm.whiten_advantages": (_estimators("gae", "reinforce_plus_plus"), "by gae and reinforce_plus_plus"),
    "algorithm.normalize_by_std": (_estimators("grpo", "turn_level", "gigpo"), "by grpo, turn_level and gigpo"),
    "algorithm.step_weight": (_estimators("gigpo"), "by gigpo"),
    "algorithm.step_credit": _GROUPS,
    **dict.fromkeys(
        ("algorithm.step_right", "algorithm.step_wrong"),
        (lambda config: config.algorithm.step_credit == "reward", "where algorithm.step_credit is reward"),
    ),
    "algorithm.step_certify": (
        lambda config: config.algorithm.step_credit != "off",
        "where algorithm.step_credit is not off",
    ),
    "algorithm.reward_threshold": (_estimators("rejection_sampling"), "by rejection_sampling"),
    "algorithm.skip_dead_groups": _GROUPS,
    "algorithm.min_live_groups": _GROUPS,
    "algorithm.max_resamples": _GROUPS,
    "algorithm.scale_step_by_live": (
        lambda config: (
            config.training.adv_estimator == "rejection_sampling"
            or (config.training.adv_estimator in GROUP_ESTIMATORS and config.algorithm.skip_dead_groups)
        ),
        "where an update leaves trajectories out: with rejection_sampling, or with an estimator that compares within a "
        "group and algorithm.skip_dead_groups",
    ),
    **dict.fromkeys(
        ("algorithm.kl_type", "algorithm.kl_loss_schedule"),
        (lambda config: config.algorithm.kl_loss_coef > 0, "where algorithm.kl_loss_coef is above 0"),
    ),
    "algorithm.kl_loss_final_ratio": _scheduled("algorithm.kl_loss_schedule"),
    "algorithm.kl_horizon": _set("algorithm.kl_target"),
    "rollout.retries": (lambda config: config.rollout.group_repair == "retry", "where rollout.group_repair is retry"),
    "inference.max_turns": (
        lambda config: config.inference.multi_turn and config.rollout.max_turns is None,
        "where inference.multi_turn is true and rollout.max_turns is null",
    ),
    "inference.server_url": (
        lambda config: config.inference.backend != "transformers",
        "by the backends vllm, sglang and openai",
    ),
    "inference.server_model": _HTTP,
    "inference.api_key_env": _HTTP,
    "inference.request_timeout": _HTTP,
    "inference.request_retries": _HTTP,
    "inference.weights_dir": (
        lambda config: (
            config.inference.backend in ("vllm", "sglang") or (config.actors.engines > 0 and not config.ray.use_ray)
        ),
        "by the backends vllm and sglang, and where actors.engines is above 0 without Ray",
    ),
    "inference.kv_cache_gib": (
        lambda config: config.inference.backend in ("transformers", "vllm", "scripted"),
        "by the backends transformers and vllm; sglang sizes its cache by inference.engine_options.mem_fraction_static",
    ),
    "inference.engine_options": _LOCAL_SERVERS,
    "inference.sleep": (
        lambda config: config.inference.backend == "vllm" and config.inference.server_url is None,
        "by the backend vllm without a server_url: others share the learner's weights or have a GPU of their own",
    ),
    "model.max_image_pixels": (
        lambda config: config.inference.backend in ("transformers", "vllm", "scripted"),
        "by the backends transformers and vllm, which get pictures as the learner sees them; for a server write the "
        "sizes into the model's preprocessor_config.json",
    ),
    "model.freeze_vision": (
        lambda config: not config.model.use_lora,
        "where model.use_lora is false: adapters train nothing else, and the vision tower by model.lora.vision alone",
    ),
    "model.adapter_path": (lambda config: config.model.use_lora, "where model.use_lora is true"),
    "model.attn_implementation": (
        lambda config: not config.model.built_in,
        "for a checkpoint: the built-in models have HuggingFace's default",
    ),
    "model.trust_remote_code": (
        lambda config: not config.model.built_in,
        "for a checkpoint: the built-in models bring no code",
    ),
    **dict.fromkeys(
        ("logging.store_images", "logging.store_learner_figures"),
        (lambda config: config.logging.store_trajectories, "where logging.store_trajectories is true"),
    ),
    "logging.project": (
        lambda config: not {"tensorboard"}.issuperset(config.logging.trackers),
        "where logging.trackers names wandb, trackio or mlflow",
    ),
    "actors.engines": (
        lambda config: config.inference.backend == "transformers",
        "by the backend transformers; the others have processes of their own",
    ),
    "actors.swap": _EMBEDDED,
    "actors.keep_cache": _EMBEDDED,
    "actors.close_after": (
        lambda config: config.group_floor < config.training.episodes_per_group,
        "where a group may go without some of its episodes: actors.group_floor below the size of a group",
    ),
    "actors.silence": _PROCESSES,
    "actors.pictures": _PROCESSES,
    "ray.num_actors": _RAY,
    "ray.actor_cpus": _RAY,
    "ray.actor_resources": _RAY,
    "ray.start_seconds": _RAY,
    "ray.engine_cpus": _RAY_ENGINES,
    "ray.engine_gpus": _RAY_ENGINES,
    "ray.address": (lambda config: config.ray.use_ray, "where ray.use_ray is true, and by runs under verl"),
    "ray.nnodes": _VERL,
    "ray.gpus_per_node": _VERL,
}
"""Key -> (whether it is read, by what it is read). Keys that are not here are always read. The sections `model.lora`,
`model.tiny` and `training.warm_start` have a switch of their own and are left as they are where it is off."""


def unused_settings(config: ConfigTree) -> Iterator[str]:
    """Yield one message per key that differs from its default and that nothing would read."""
    for key, (read, by) in READ.items():
        section, _, name = key.rpartition(".")
        owner = getattr(config, section)
        value, default = getattr(owner, name), _default(owner, name)
        if value != default and not read(config):
            yield f"{key}={value} does nothing here: it is read {by}. Leave it at {default}, or change the other"


def _default(section: Any, name: str) -> Any:
    return type(section).model_fields[name].get_default(call_default_factory=True)
