"""verl's own keys: its whole config as its command composes it, and how one of its keys is set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from uirl.config import yaml_text
from uirl.errors import ConfigError, did_you_mean

ACTOR, ROLLOUT, HF = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.model"

FREE = ("override_config", "engine_kwargs", "ray_init", "mixed_precision", "mm_processor_kwargs")
"""Sections in which anything goes: verl hands them on as they are."""
CRITIC_TOKENS = "critic.ppo_max_token_len_per_gpu"
"""Tokens of a micro-batch of the critic, on each GPU."""
CRITIC_READS = "critic.ppo_infer_max_token_len_per_gpu"
"""What verl's trainers take in its place, in every pass: a key its schema does not hold, and 32768 where none stands
(`trainer/ppo/v1/trainer_base.py`)."""
UNLISTED = (f"{ROLLOUT}.agent.agent_loop_manager_class", CRITIC_READS)
"""Keys that verl reads although its schema does not hold them."""

OTHER_NAMES = {
    "algorithm.clip_ratio": f"{ACTOR}.clip_ratio",
    "algorithm.clip_eps_low": f"{ACTOR}.clip_ratio_low",
    "algorithm.clip_eps_high": f"{ACTOR}.clip_ratio_high",
}
"""Names under which people write verl keys -> where verl has them."""


def compose(name: str = "ppo_trainer") -> Any:
    """Return verl's own config of that name with all its defaults, as its command composes it."""
    try:
        import verl
        from hydra import compose as hydra_compose
        from hydra import initialize_config_dir
    except ImportError as error:
        raise ConfigError(f"verl is not installed ({error}); pip install 'uirl[verl]'") from error
    folder = Path(verl.__file__).parent / "trainer" / "config"
    with initialize_config_dir(str(folder), version_base=None):
        return hydra_compose(name)


def put(config: Any, key: str, value: Any) -> None:
    """Set one of verl's keys. Raises ConfigError, with the nearest one, for a key verl does not have.

    In the sections `FREE`, and in those that verl leaves empty, anything goes. Raises ConfigError as well for a value
    that the key cannot hold.
    """
    from omegaconf.errors import OmegaConfBaseException

    try:
        _put(config, OTHER_NAMES.get(key, key), value)
    except OmegaConfBaseException as error:
        raise ConfigError(f"verl's key {key} cannot hold {value!r:.80}: {error}") from error


def _put(config: Any, key: str, value: Any) -> None:
    from omegaconf import OmegaConf, open_dict

    free = any(f".{section}." in f".{key}." for section in FREE)
    if free or key in UNLISTED:
        with open_dict(config):
            OmegaConf.update(config, key, value, force_add=True)
        return
    node: Any = config
    path = key.split(".")
    for i, part in enumerate(path):
        # keys(), not `in`: omegaconf hides keys whose value is still missing
        names = [str(name) for name in node.keys()] if OmegaConf.is_dict(node) else []  # noqa: SIM118
        if OmegaConf.is_dict(node) and not names and i:
            with open_dict(config):
                OmegaConf.update(config, key, value, force_add=True)
            return
        if part not in names:
            raise ConfigError(
                f"verl has no key {key!r}: {'.'.join(path[:i]) or 'the top'} holds no {part!r}; "
                f"{did_you_mean(part, names)}"
            )
        node = node[part] if i < len(path) - 1 else node
    open_value = OmegaConf.is_interpolation(node, path[-1]) or OmegaConf.is_missing(node, path[-1])
    current = None if open_value else node[path[-1]]
    is_section = OmegaConf.is_dict(current)
    if current is not None and value is not None and is_section != isinstance(value, Mapping):
        expected = "keys and values" if is_section else f"a value like {current!r:.60}"
        raise ConfigError(f"verl's key {key} cannot hold {value!r:.80}; expected {expected}")
    OmegaConf.update(config, key, value)


def as_mapping(overrides: Mapping[str, Any] | Sequence[str]) -> dict[str, Any]:
    """Return verl's key -> value of a mapping or of texts 'KEY=VALUE' in which values are YAML. Raises ConfigError."""
    if isinstance(overrides, Mapping):
        return dict(overrides)
    out = {}
    for text in overrides:
        key, sign, value = text.partition("=")
        if not sign or not key:
            raise ConfigError(f"got {text!r}, expected KEY=VALUE, e.g. trainer.nnodes=2")
        out[key.lstrip("+")] = yaml_text.parse(value, f"the value of {key}")
    return out
