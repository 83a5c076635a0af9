"""Error messages of the config: which key, what it got, what it expects, which key was probably meant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError

from uirl.config.aliases import ALIASES
from uirl.config.keys import KeyedModel, describe, dotted, nested_section, walk
from uirl.errors import ConfigError

FOREIGN_NAMES = {
    "model.name": "model.model_name",
    "lr": "training.learning_rate",
    "gae_lambda": "training.lam",
    "lambda": "training.lam",
    "discount": "training.gamma",
    "clip_epsilon": "training.clip_ratio",
    "clip_eps": "training.clip_ratio",
    "eps_low": "training.clip_ratio_low",
    "clip_eps_low": "training.clip_ratio_low",
    "eps_high": "training.clip_ratio_high",
    "clip_eps_high": "training.clip_ratio_high",
    "num_generations": "training.group_size",
    "num_iterations": "training.num_iterations",
    "ppo_epochs": "training.update_epochs",
    "grad_clip": "training.max_grad_norm",
    "vf_coef": "training.value_coef",
    "ent_coef": "training.entropy_coef",
    "max_new_tokens": "inference.max_tokens",
    "max_response_length": "inference.max_tokens",
    "max_model_len": "inference.max_context",
    "max_steps_per_episode": "rollout.max_turns",
    "max_steps": "rollout.max_turns",
    "env_name": "environment.name",
    "env_id": "environment.name",
    "torch_dtype": "model.dtype",
    "lora_config": "model.lora",
    "save_freq": "checkpoint.save_interval",
    "save_steps": "checkpoint.save_interval",
    "save_total_limit": "checkpoint.keep_last_n",
    "experiment_name": "logging.run_name",
}
"""Names that other frameworks have for our keys, bare or dotted. They are errors that name the right key."""


def config_error(section: type[KeyedModel], error: ValidationError, values: Any) -> ConfigError:
    """Make one `ConfigError` that lists every problem pydantic found when it built `section` from `values`."""
    lines: dict[str, str] = {}
    for problem in error.errors(include_url=False, include_context=False):
        owner, name, rest = _locate(section, problem["loc"])
        if problem["type"] in ("extra_forbidden", "invalid_key"):
            lines.setdefault(dotted(owner.key, str(rest[0] if rest else name)), owner.unknown_key(str(rest[0])))
        else:
            key, got = _value_at(section, owner, name, rest, values)
            field = owner.model_fields.get(name)
            # a field without a repr holds a secret
            shown = f"{got!r:.200}" if field is None or field.repr else f"a {type(got).__name__} that is not shown"
            lines.setdefault(dotted(owner.key, name), f"{key}: got {shown}, expected {_expected(owner, name)}")
    return ConfigError("\n".join(lines.values()))


def unknown_key(section: type[KeyedModel], name: str) -> str:
    """Write the message for a key that `section`, a part of the config tree, does not have."""
    return f"{dotted(section.key, name)} is not a config key; {_probably_meant(section, name)}"


def _expected(section: type[KeyedModel], name: str) -> str:
    if name not in section.model_fields:
        return "a mapping of config keys"
    field = section.model_fields[name]
    return describe(field.annotation, field.metadata)


def _locate(section: type[KeyedModel], loc: tuple[Any, ...]) -> tuple[type[KeyedModel], str, tuple[Any, ...]]:
    """Return (section that owns the problem, its field or '', what is left of `loc` below that field)."""
    for depth, part in enumerate(loc):
        field = section.model_fields.get(part) if isinstance(part, str) else None
        if field is None:
            return section, "", loc[depth:]
        inner = nested_section(field)
        if inner is None or depth == len(loc) - 1:
            return section, part, loc[depth + 1 :]
        section = inner
    return section, "", ()


def _value_at(
    root: type[KeyedModel], owner: type[KeyedModel], name: str, rest: Iterable[Any], values: Any
) -> tuple[str, Any]:
    """Return (dotted key, value there), as deep into a free mapping or list as the problem is."""
    path = owner.key.removeprefix(root.key).strip(".")
    for part in [*path.split("."), name] if path else [name]:
        if isinstance(values, Mapping):
            values = values.get(part)
    key = dotted(owner.key, name) or "the config"
    for part in rest:
        if isinstance(values, Mapping) and part in values:
            key, values = f"{key}.{part}", values[part]
        elif isinstance(values, list | tuple) and isinstance(part, int) and part < len(values):
            key, values = f"{key}[{part}]", values[part]
    return key, values


def _probably_meant(section: type[KeyedModel], name: str) -> str:
    tree_keys = [key for key, _ in walk(KeyedModel.config_tree or section)]
    section_keys = {field: dotted(section.key, field) for field in section.model_fields}
    aliases = [*ALIASES, *{alias.partition(".")[0] for alias in ALIASES}]
    near = {a.rpartition(".")[2]: a for a in aliases if a.rpartition(".")[0] == section.key} | section_keys
    full, last = dotted(section.key, name), name.rpartition(".")[2]
    above = {full.rsplit(".", depth)[0] for depth in range(1, full.count(".") + 1)}
    meant = (
        [FOREIGN_NAMES[foreign] for foreign in (full, last) if foreign in FOREIGN_NAMES][:1]
        or [key for key in tree_keys if key.rpartition(".")[2] == last]
        or [near[field] for field in get_close_matches(name, near, n=1, cutoff=0.7)]
        or get_close_matches(full, [key for key in tree_keys if key not in above], n=1, cutoff=0.7)
    )
    return f"did you mean {' or '.join(map(repr, meant))}?" if meant else "known: " + ", ".join(section_keys.values())
