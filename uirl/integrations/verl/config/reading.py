"""A run written in verl's terms: a YAML of verl's keys, with the sections `uirl` and `curriculum` beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from uirl.config import ConfigStore, yaml_text
from uirl.errors import ConfigError
from uirl.integrations.verl.config.keys import HF, OTHER_NAMES, ROLLOUT, as_mapping, compose
from uirl.integrations.verl.config.mapping import (
    FOR_SMALL_MODELS,
    MAPPED,
    OUR_ESTIMATORS,
    create_verl_config,
    same,
)
from uirl.integrations.verl.config.strategies import schema_of

OURS = ("uirl", "curriculum")
"""Sections of such a file that are ours: a whole ConfigStore, and its section `curriculum`, which may also name a class
of the user's own."""


def load_verl_config(
    path: str | Path, overrides: Mapping[str, Any] | Sequence[str] = (), *, model_path: str | None = None
) -> tuple[Any, ConfigStore, dict[str, Any]]:
    """Return (verl's config, ours, the section `curriculum` where it names a class of the user's own, else {}) of a
    YAML in verl's terms; `overrides` are verl's keys, or ours as `uirl.section.key`.

    What the file says in verl's terms is also written into our config, as far as we have a key for it, so that the
    two never disagree; ours goes along in `data.uirl`. Of `FOR_SMALL_MODELS`, what nobody wrote keeps verl's own value.
    `model_path` replaces the model of the file. Raises ConfigError for a key that neither verl nor we have.
    """
    flat, store, own_curriculum, written = _read(path, overrides)
    flat = _verls_own(flat, written) | flat
    if model_path is not None:
        flat[f"{HF}.path"] = model_path
    store = with_verl_values(store, flat)
    if "rollout.parallel" not in written:  # verl plays all episodes of an update at once
        store.rollout.parallel = max(store.rollout.parallel_limit, store.training.batch_size)
    return create_verl_config(store, flat, model_path=flat.get(f"{HF}.path")), store, own_curriculum


def read_verl_yaml(
    path: str | Path, overrides: Mapping[str, Any] | Sequence[str] = ()
) -> tuple[dict[str, Any], ConfigStore, dict[str, Any]]:
    """Return (verl's key -> value, our config, the section `curriculum` where it names a class of the user's own, else
    {}); verl need not be installed. Raises ConfigError."""
    return _read(path, overrides)[:3]


def _read(
    path: str | Path, overrides: Mapping[str, Any] | Sequence[str]
) -> tuple[dict[str, Any], ConfigStore, dict[str, Any], set[str]]:
    """Return the same as `read_verl_yaml`, and those keys of ours that the file or `overrides` write."""
    values = yaml_text.read(path) or {}
    if not isinstance(values, dict):
        raise ConfigError(f"{path} holds {type(values).__name__}; expected sections such as trainer: and algorithm:")
    sections = {name: values.pop(name, None) or {} for name in OURS}
    for name, section in sections.items():
        if not isinstance(section, dict):
            raise ConfigError(f"{path}: section {name} is {section!r:.60}; expected keys and values")
    flat = _in_verls_words(dict(_leaves(values)), str(path))
    store, changes = ConfigStore.build(sections["uirl"]), []
    written = {key for key, _ in _leaves(sections["uirl"])}
    for key, value in as_mapping(overrides).items():
        first, _, rest = key.partition(".")
        if first == "uirl":
            changes.append(f"{rest}={yaml_text.render(value).strip()}")
            written |= {key for key, _ in _leaves({rest: value})}
        elif first == "curriculum":
            sections["curriculum"][rest] = value
        else:
            # another spelling of the same key, one in the file and one on the command line, must not be written twice
            flat[OTHER_NAMES.get(key, key)] = value
    curriculum = sections["curriculum"]
    if "class" not in curriculum:
        changes += [f"curriculum.{key}={yaml_text.render(value).strip()}" for key, value in curriculum.items()]
        curriculum = {}
    return flat, store.override(changes), curriculum, written


def _verls_own(flat: Mapping[str, Any], written: set[str]) -> dict[str, Any]:
    """Return verl's key -> its own value, where ours would be a default `FOR_SMALL_MODELS` that nobody wrote."""
    silent = [key for key in FOR_SMALL_MODELS if key not in written and not set(MAPPED[key][0]) & set(flat)]
    values = compose(schema_of(flat))  # raises ConfigError where verl is not installed
    from omegaconf import OmegaConf

    out = {key: OmegaConf.select(values, key) for ours in silent for key in MAPPED[ours][0]}
    return {key: OmegaConf.to_container(v) if OmegaConf.is_config(v) else v for key, v in out.items()}


def with_verl_values(config: ConfigStore, flat: Mapping[str, Any]) -> ConfigStore:
    """Return `config` with what `flat` (verl's key -> value) says, where we have a key of that meaning. Raises
    ConfigError."""
    found: dict[str, Any] = {}
    for key, (targets, convert) in MAPPED.items():
        back = BACK.get(key) or (_same if convert is same else None)
        if back is not None and targets[0] in flat:
            value = back(flat[targets[0]], config, flat)
            found |= {} if value is _NOTHING else {key: value}
    model = flat.get(f"{HF}.path")
    if model is not None:
        found["model.local_path" if Path(str(model)).exists() else "model.model_name"] = str(model)
    return config.override([f"{key}={yaml_text.render(value).strip()}" for key, value in found.items()])


def _in_verls_words(flat: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Return `flat` with the other names people write for verl's keys replaced by verl's own. Raises ConfigError where
    both stand there."""
    for key, theirs in OTHER_NAMES.items():
        if key in flat and theirs in flat:
            raise ConfigError(f"{path}: {key} and {theirs} say the same thing; keep one of them")
    return {OTHER_NAMES.get(key, key): value for key, value in flat.items()}


_NOTHING: Any = object()
"""verl's value means nothing in our terms, and only verl reads it."""


def _same(value: Any, config: ConfigStore, flat: Mapping[str, Any]) -> Any:
    return _NOTHING if value is None else value


def _episodes(value: Any, config: ConfigStore, flat: Mapping[str, Any]) -> Any:
    return value * flat.get(f"{ROLLOUT}.n", config.training.episodes_per_group)


def _minibatches(value: Any, config: ConfigStore, flat: Mapping[str, Any]) -> Any:
    prompts = flat.get("data.train_batch_size", config.training.batch_size // config.training.episodes_per_group)
    return _NOTHING if prompts % value else prompts // value


def _estimator(value: Any, config: ConfigStore, flat: Mapping[str, Any]) -> Any:
    return OUR_ESTIMATORS.get(value, _NOTHING)


def _updates_per_epoch(value: Any, config: ConfigStore, flat: Mapping[str, Any]) -> Any:
    epochs = flat.get("trainer.total_epochs", config.training.num_epochs)
    return _NOTHING if value is None or value % epochs else value // epochs


def _limit(value: Any, config: ConfigStore, flat: Mapping[str, Any]) -> Any:
    return None if value >= 1e9 else value


def _backend(value: Any, config: ConfigStore, flat: Mapping[str, Any]) -> Any:
    return value if value in ("vllm", "sglang") else _NOTHING


Back = Callable[[Any, ConfigStore, Mapping[str, Any]], Any]
BACK: dict[str, Back] = {
    "model.dtype": _same,
    "model.gradient_checkpointing": _same,
    "training.learning_rate": _same,
    "training.entropy_coef": _same,
    "training.micro_batch_tokens": _same,
    "training.betas": _same,
    "training.warmup_steps": lambda value, config, flat: _NOTHING if value > 0 else 0,
    "training.value_clip": _limit,
    "training.value_learning_rate": _same,
    "algorithm.dual_clip": _limit,
    "training.group_size": _same,
    "training.batch_size": _episodes,
    "training.minibatches": _minibatches,
    "training.num_iters_per_epoch": _updates_per_epoch,
    "training.adv_estimator": _estimator,
    "training.clip_ratio_low": _same,
    "training.clip_ratio_high": _same,
    "training.max_grad_norm": _same,
    "training.eval_every": lambda value, config, flat: value if value and value > 0 else _NOTHING,
    "training.eval_temperature": _same,
    "inference.backend": _backend,
    "inference.top_k": lambda value, config, flat: max(0, value),
    "checkpoint.output_dir": _same,
    "logging.run_name": _same,
}
"""Our key -> its value from that of the first of verl's keys, for those that are not the same on both sides."""


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
