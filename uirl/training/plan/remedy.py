"""Which keys to change so that a run fits."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from uirl.config import ConfigStore
from uirl.errors import ConfigError
from uirl.training.plan.moment import gib
from uirl.training.plan.plan import PLAYING, UPDATE, Plan

LEAST_CONTEXT = 1024
"""Tokens below which no context is proposed."""


def remedies(config: ConfigStore, plan: Plan, plan_of: Callable[[ConfigStore], Plan]) -> tuple[list[str], Plan]:
    """Return (changes of keys, the plan with all of them). Where it still does not fit, these are all that is known.

    Changes that cost time alone come first, then those that cost learning. One is kept only where it helps.
    """
    everything = list({_key(change): change for _, change in _changes(config, plan)}.values())
    strongest = _tried(config, everything, plan_of)
    if strongest is None or strongest.problems:
        return everything, strongest or plan
    kept: list[str] = []
    for moment, change in _changes(config, plan):
        if not plan.problems:
            break
        if plan.fits(moment):
            continue
        changes = [old for old in kept if _key(old) != _key(change)] + [change]
        tried = _tried(config, changes, plan_of)
        if tried is not None and tried.excess < plan.excess:
            kept, plan = changes, tried
    return kept, plan


def advice(changes: list[str], plan: Plan) -> str:
    """Return in words what `remedies` found."""
    if not plan.problems:
        return f"it fits with: {' '.join(changes)}"
    missing = f"{gib(plan.excess)} GiB are missing; take a smaller model or a larger GPU"
    return f"even with {' '.join(changes)} {missing}" if changes else missing


def _tried(config: ConfigStore, changes: list[str], plan_of: Callable[[ConfigStore], Plan]) -> Plan | None:
    """Return the plan with `changes`; None: they do not go together."""
    try:
        return plan_of(config.override(changes))
    except ConfigError:
        return None


def _changes(config: ConfigStore, plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield (the moment at which it helps, a change). A later change of a key goes further than an earlier one."""
    model, work = config.model, plan.workload
    if config.inference.sleep == "off" and config.override(["inference.sleep=auto"]).engine_sleep_level:
        yield UPDATE, "inference.sleep=auto"
    if not model.gradient_checkpointing:
        yield UPDATE, "model.gradient_checkpointing=true"
    if model.dtype == "float32":
        yield UPDATE, "model.dtype=bfloat16"
    if work.rows > 1:
        yield UPDATE, f"training.micro_batch_tokens={work.longest}"
    episodes = work.episodes
    while (episodes := episodes // 2) >= 1:
        yield PLAYING, f"rollout.parallel={episodes}"
    if work.pictures and not model.use_lora and not model.freeze_vision:
        yield UPDATE, "model.freeze_vision=true"
    if not model.use_lora and config.training.optimizer == "adamw":
        yield UPDATE, "training.optimizer=adamw_8bit"
    if not model.use_lora:
        yield UPDATE, "model.use_lora=true"
    if not model.built_in and model.quantization is None:
        yield UPDATE, "model.quantization=nf4"
    if work.pictures > 1:
        yield UPDATE, "rollout.max_images=1"
    context = work.longest
    while (context := context // 2) >= LEAST_CONTEXT:
        yield UPDATE, f"inference.max_context={context}"


def _key(change: str) -> str:
    return change.partition("=")[0]
