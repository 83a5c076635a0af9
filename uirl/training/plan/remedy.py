"""Which keys to change so that a run fits."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

from uirl.config import ConfigStore
from uirl.config.relations import broken_for_training
from uirl.errors import ConfigError, ContractError
from uirl.training.plan.moment import gib
from uirl.training.plan.plan import PLAYING, UPDATE, Plan

LEAST_CONTEXT = 1024
"""Tokens below which no context is proposed."""


def remedies(config: ConfigStore, plan: Plan, plan_of: Callable[[ConfigStore], Plan]) -> tuple[list[str], Plan]:
    """Return (changes of keys, the plan with all of them and nothing else). Where it does not fit, they are all those
    that go together.

    Changes that cost time alone come first, then those that cost learning. None is among those that fit without which
    it fits too.
    """
    steps = list(_changes(config, plan))
    everything: list[str] = []
    for _, change in steps:
        if _changed(config, more := _with(config, everything, change)) is not None:
            everything = more
    strongest = _tried(config, everything, plan_of)
    kept: list[str] = []
    for moment, change in steps if strongest is None or not strongest.problems else ():
        tried = None if plan.fits(moment) else _tried(config, more := _with(config, kept, change), plan_of)
        if tried is not None and tried.excess < plan.excess:
            kept, plan = more, tried
    if plan.problems:
        return (kept, plan) if strongest is None else (everything, strongest)
    for needless in list(kept):
        fewer = _tried(config, less := [other for other in kept if other != needless], plan_of)
        if fewer is not None and not fewer.problems:
            kept, plan = less, fewer
    return kept, plan


def advice(changes: list[str], plan: Plan) -> str:
    """Return in words what `remedies` found."""
    if not plan.problems:
        return f"it fits with: {' '.join(changes)}"
    missing = f"{gib(plan.excess)} GiB are missing; take a smaller model or a larger GPU"
    return f"even with {' '.join(changes)} {missing}" if changes else missing


def _with(config: ConfigStore, changes: list[str], change: tuple[str, ...]) -> list[str]:
    """Return `changes` and `change`, whose keys count, without what `config` says already."""
    merged = {_key(part): part for part in (*changes, *change)}
    return [part for part in merged.values() if not _says(config, part)]


def _says(config: ConfigStore, change: str) -> bool:
    key, _, value = change.partition("=")
    section, _, name = key.rpartition(".")
    return json.dumps(getattr(getattr(config, section), name)).strip('"') == value


def _changed(config: ConfigStore, changes: list[str]) -> ConfigStore | None:
    """Return `config` with `changes`; None: they do not go together in a run that learns."""
    try:
        changed = config.override(changes)
    except ConfigError:
        return None
    return changed if set(broken_for_training(changed)) <= set(broken_for_training(config)) else None


def _tried(config: ConfigStore, changes: list[str], plan_of: Callable[[ConfigStore], Plan]) -> Plan | None:
    """Return the plan with `changes`; None: they do not go together, or the model cannot be planned with them."""
    changed = _changed(config, changes)
    try:
        return None if changed is None else plan_of(changed)
    except (ConfigError, ContractError):
        return None


def _changes(config: ConfigStore, plan: Plan) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield (the moment at which it helps, a change with the keys that have to follow it). A later change of a key goes
    further than an earlier one."""
    model, work = config.model, plan.workload
    if config.inference.sleep == "off" and config.override(["inference.sleep=auto"]).engine_sleep_level:
        yield UPDATE, ("inference.sleep=auto",)
    if not model.gradient_checkpointing:
        yield UPDATE, ("model.gradient_checkpointing=true",)
    if model.dtype == "float32":
        yield UPDATE, ("model.dtype=bfloat16",)
    if work.rows > 1:
        yield UPDATE, (f"training.micro_batch_tokens={work.longest}",)
    episodes = work.episodes
    while (episodes := episodes // 2) >= 1:
        yield PLAYING, (f"rollout.parallel={episodes}",)
    if work.pictures and not model.use_lora and not model.freeze_vision:
        yield UPDATE, ("model.freeze_vision=true",)
    if not model.use_lora and config.training.optimizer == "adamw":
        yield UPDATE, ("training.optimizer=adamw_8bit",)
    if not model.use_lora:
        sleep = ("inference.sleep=auto",) if config.inference.sleep == 2 else ()
        yield UPDATE, ("model.use_lora=true", "model.freeze_vision=false", *sleep)
    if not model.built_in and model.quantization is None:
        here = config.inference.backend == "transformers"
        yield UPDATE, ("model.quantization=nf4", *(("actors.staleness=0", "actors.engines=0") if here else ()))
    if work.pictures > 1:
        kept = () if config.rollout.keep_images is None else ("rollout.keep_images=1",)
        yield UPDATE, ("rollout.max_images=1", *kept)
    context = work.longest
    while (context := context // 2) >= LEAST_CONTEXT:
        yield UPDATE, (f"inference.max_context={context}",)


def _key(change: str) -> str:
    return change.partition("=")[0]
