"""The keys of the config, other values for each, and whether a config is refused."""

from __future__ import annotations

import json
from typing import Any, get_args

from pydantic.fields import FieldInfo

from uirl import ConfigStore
from uirl.config import yaml_text
from uirl.config.keys import nested_section
from uirl.errors import ConfigError

TINY = [
    "model.model_name=uirl/tiny-lm",
    "model.device=cpu",
    "model.tiny.hidden_size=16",
    "model.tiny.intermediate_size=16",
    "model.tiny.vision_hidden_size=16",
    "model.tiny.num_heads=2",
    "model.tiny.num_layers=1",
    "model.tiny.vision_layers=1",
    "training.warmup_steps=2",
]


# -- the keys and their values -----------------------------------------------------------------------------------------


def field_of(key: str) -> FieldInfo:
    tree: Any = ConfigStore
    *sections, name = key.split(".")
    for section in sections:
        tree = nested_section(tree.model_fields[section])
    return tree.model_fields[name]


def value_of(config: ConfigStore, key: str) -> Any:
    value: Any = config
    for part in key.split("."):
        value = getattr(value, part)
    return value


VALUES: dict[str, list[Any]] = {
    "algorithm.dual_clip": [1.01],
    "algorithm.kl_target": [0.001],
    "algorithm.kl_loss_coef": [0.5],
    "algorithm.loss_length": [3],
    "algorithm.min_live_groups": [1.0],
    "algorithm.reward_threshold": [0.75],
    "algorithm.mismatch_range": [[0.0, 0.5]],
    "algorithm.stale_cap": [0.5],
    "algorithm.stale_range": [[0.0, 0.5]],
    "algorithm.target_kl": [1e-9],
    "algorithm.max_update_kl": [1e-6],
    "training.entropy_coef": [0.01],
    "training.target_entropy": [9.0],
    "algorithm.tis_cap": [0.5],
    "checkpoint.save_interval": [1],
    "checkpoint.keep_last_n": [1, None],
    "environment.name": ["simple_game"],
    "environment.options": [{"n": 3, "guesses": 2, "demonstrator": "random"}],
    "environment.eval_options": [{"n": 3}],
    "inference.api_key_env": ["SOME_KEY"],
    "inference.engine_options": [{"attention_backend": "triton"}],
    "inference.kv_cache_gib": [0.5],
    "inference.max_context": [60],
    "inference.seed": [5],
    "inference.server_model": ["some-model"],
    "inference.server_url": ["http://127.0.0.1:9"],
    "inference.system_prompt": ["hello"],
    "inference.top_k": [2],
    "inference.weights_dir": ["/somewhere"],
    "logging.run_name": ["other"],
    "model.attn_implementation": ["eager"],
    "model.dtype": ["bfloat16", "float16"],
    "model.chat_template": ["chatml"],
    "model.lora.lora_dropout": [0.5],
    "model.lora.target": ["attention", "mlp", ["q_proj"]],
    "model.max_image_pixels": [1000],
    "model.model_name": ["uirl/tiny-vlm"],
    "model.tiny.init_seed": [5],
    "model.tiny.image_size": [28],
    "model.tiny.merge_size": [4],
    "model.tiny.patch_size": [7],
    "model.tiny.words": [["1-4"]],
    "rollout.keep_images": [1],
    "rollout.max_images": [1],
    "rollout.max_seconds": [1e-6],
    "rollout.max_tokens": [15],
    "rollout.max_turns": [1],
    "rollout.parallel": [3],
    "rollout.token_budget": [14],
    "training.betas": [[0.5, 0.6]],
    "training.eval_every": [1],
    "training.eval_temperature": [0.0],
    "training.group_size": [2],
    "training.max_seconds": [1e-6],
    "training.stop_at_success": [0.0],
    "training.threads": [2],
    "training.warm_start.learning_rate": [0.002],
    "training.warm_start.betas": [[0.5, 0.6]],
    "training.warm_start.stop_at_success": [0.0],
    "training.clip_ratio": [0.01],
    "training.clip_ratio_low": [0.01],
    "training.clip_ratio_high": [0.01],
    "training.max_grad_norm": [0.01, None],
    "training.micro_batch_tokens": [1],
    "training.value_clip": [0.001, None],
    "training.value_learning_rate": [0.3],
}
"""Values of keys whose type alone does not say one that matters."""


def alternatives(key: str, current: Any) -> list[Any]:
    """Other values of a key: those of its literals, the other boolean, half of a number."""
    if key in VALUES:
        return VALUES[key]
    kinds = [kind for kind in (field_of(key).annotation, *get_args(field_of(key).annotation)) if kind is not None]
    literals = [value for kind in kinds for value in get_args(kind) if isinstance(value, str)]
    if literals:
        return [value for value in literals if value != current]
    if isinstance(current, bool) or bool in kinds:
        return [not current]
    if isinstance(current, int):
        return [current + 1 if current < 2 else current // 2]
    if isinstance(current, float):
        return [current / 2 or 0.5]
    raise AssertionError(f"{key}: name a value in VALUES, or say in ELSEWHERE who tries it")


def assignment(key: str, value: Any) -> str:
    return f"{key}={yaml_text.render(value).strip() if isinstance(value, str) else json.dumps(value)}"


def refused(config: ConfigStore) -> str | None:
    """Why the config is refused before anything begins; None: it is not."""
    try:
        config.check(training=True)
    except ConfigError as error:
        return str(error)
    return None


def build(*assignments: str) -> tuple[ConfigStore | None, str]:
    try:
        config = ConfigStore().override([*TINY, *assignments])
    except ConfigError as error:
        return None, str(error)
    why = refused(config)
    return (None, why) if why else (config, "")


def digest(policy: Any) -> float:
    """A number that changes with any weight."""
    return float(sum(p.detach().double().abs().sum() for p in policy.model.parameters()))
