"""What values of ours are in verl's terms, one function per kind of key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from uirl.config import ConfigStore
from uirl.errors import ConfigError

UNSET: Any = object()
"""verl's own value stays."""

KL_TYPES = {"k1": "k1", "k2": "k2", "k3": "low_var_kl"}

Convert = Callable[[Any, ConfigStore], Any]


def same(value: Any, config: ConfigStore) -> Any:
    """Return the value: it means the same under verl."""
    return value


def unless_null(replacement: Any) -> Convert:
    """Return a conversion that leaves values as they are, and puts `replacement` in place of null."""
    return lambda value, config: replacement if value is None else value


def loss(value: str, config: ConfigStore) -> str:
    """Return the name of verl's policy loss."""
    if config.training.adv_estimator == "rejection_sampling":
        return "gpg"  # -log_prob x advantage, where the advantage is 1 for what is kept
    return {"token": "vanilla", "sequence": "gspo"}[value]


def rollout_name(backend: str, config: ConfigStore) -> str:
    """Return the name of verl's rollout engine. Raises ConfigError for an engine that verl cannot update."""
    if backend in ("vllm", "sglang"):
        return backend
    if backend == "transformers":
        return "vllm"  # the embedded engine lives in one process; verl's default stands in
    raise ConfigError(f"inference.backend={backend!r} cannot be updated by verl; use vllm or sglang")


def dtype(value: str | None, config: ConfigStore) -> Any:
    """Return the precision of the rollouts; what nobody chose is that of our tiny models, or verl's own."""
    return "float32" if value is None and config.model.built_in else UNSET if value is None else value


def template(name: str | None, config: ConfigStore) -> Any:
    """Return the text of a chat template that goes by a name of ours."""
    from uirl.inference.models.templates import TEMPLATES

    return None if name is None else TEMPLATES.get(name, name)
