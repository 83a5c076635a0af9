"""What nobody chose is chosen here: every key of a run that is null and depends on the model, its device or the plan.

The config that comes out has a value for each and is the one that the run uses, prints and saves.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from uirl.config import ConfigStore
from uirl.config.rates import choose_rates
from uirl.config.sections.rollout import PARALLEL
from uirl.config.sections.training import MICRO_BATCH_TOKENS
from uirl.errors import ContractError
from uirl.inference.models.precision import dtype_of
from uirl.learner import Policy
from uirl.training.plan import guard
from uirl.training.plan.plan import CACHE, PLAYING, UPDATE, Plan, Traces, plan_of
from uirl.training.plan.workload import CACHE_ROWS

CHECKPOINTING, TOKENS, AT_ONCE = "model.gradient_checkpointing", "training.micro_batch_tokens", "rollout.parallel"
AMPLE: dict[str, Any] = {CHECKPOINTING: False, TOKENS: MICRO_BATCH_TOKENS, AT_ONCE: PARALLEL}
"""The three keys that follow from memory, where it is no limit."""
ENOUGH = 4096
"""Tokens of a micro-batch down to which smaller ones cost less than activations that are computed again: that costs a
forward pass, 1.2 to 1.4 times an update; micro-batches of 768 tokens cost nothing (benchmarks/RESULTS.md)."""


@dataclass(frozen=True, slots=True)
class Settled:
    """A config without open keys."""

    config: ConfigStore
    chosen: Mapping[str, Any]
    """Key -> value of those that were null."""
    plan: Plan | None = None
    """What the plan says of `config`, where it was asked."""
    note: str = ""
    """How the plan answered, in words; empty: it was not asked."""

    def __str__(self) -> str:
        values = ", ".join(f"{key}={_written(value)}" for key, value in self.chosen.items())
        return f"chosen for this model and its device: {values}{self.note and f' ({self.note})'}"


def settle(
    config: ConfigStore,
    *,
    phases: Collection[str] = ("training", "warm_start"),
    here: tuple[bool, float | None] | None = None,
    policy: Policy | None = None,
    **sizes: Any,
) -> Settled:
    """Return a copy of `config` in which precision, learning rates, gradient checkpointing, the size of a micro-batch
    and the episodes at once have values. What is set stays as it is.

    `phases`: those of which the learning rates are wanted (`uirl.config.rates.USUAL`). `here`: (whether the model lies
    on a GPU, bytes of that GPU or of the machine; None: unknown); None: those of this machine. `policy`: one that is
    loaded already, which says what it is. `sizes`: `picture`, `tokens` and `traces` of `plan_of`.
    Raises CheckpointError where the config or the tokenizer of a checkpoint cannot be read.
    """
    config, model = config.model_copy(deep=True), config.model
    config.logging.keep_home()
    gpu, memory = guard.memory_here(config) if here is None else here
    chosen: dict[str, Any] = {}
    if model.dtype is None:
        loaded = None if policy is None else str(policy.loaded.dtype).removeprefix("torch.")
        chosen["model.dtype"] = config.model.dtype = loaded or dtype_of(model, gpu=gpu)  # type: ignore[assignment]
    chosen |= choose_rates(config, phases)
    if "training" in phases and config.training.entropy_coef is None:
        chosen["training.entropy_coef"] = config.training.entropy_coef = config.entropy_coef
    open_keys = [key for key, value in _by_memory(config) if value is None]
    ample = AMPLE | ({} if policy is None else {CHECKPOINTING: policy.gradient_checkpointing})
    found, planned, note = {key: ample[key] for key in open_keys}, None, ""
    if open_keys and policy is None and memory is not None and not model.built_in:
        try:
            plan = partial(plan_of, limit=memory, gpu=gpu, **{"traces": Traces(), **sizes})
            found, planned = _planned(config, open_keys, plan)
            note = "; it does not fit: ".join(["by the plan", *planned.problems])
        except ContractError as error:
            found |= {CHECKPOINTING: gpu} if CHECKPOINTING in open_keys else {}
            note = f"without a plan: {error}"
    return Settled(_with(config, found), chosen | found, planned, note)


def _planned(
    config: ConfigStore, open_keys: list[str], plan: Callable[[ConfigStore], Plan]
) -> tuple[dict[str, Any], Plan]:
    """Return (values of `open_keys`, the plan with them): the first that fit, in the order of what they cost.
    The micro-batch has fewer sequences, down to `ENOUGH` tokens; then activations are computed again; then it has fewer
    sequences still, and fewer episodes are played at once."""
    found = {key: AMPLE[key] for key in open_keys}
    now = plan(_with(config, found))
    if CHECKPOINTING in found and not now.fits(UPDATE):
        kept, fewer = found, now
        if TOKENS in found and _rows_that_fit(now) * now.workload.longest >= ENOUGH:
            kept, fewer = _fewer_at_once(config, found, now, plan)
        if fewer.fits(UPDATE) and kept[TOKENS] >= ENOUGH:
            found, now = kept, fewer
        else:
            found[CHECKPOINTING] = True
            now = plan(_with(config, found))
    found, now = _fewer_at_once(config, found, now, plan)
    if AT_ONCE in found and not now.fits(PLAYING) and (fitting := _episodes_that_fit(now)) < now.workload.episodes:
        found[AT_ONCE] = fitting
        now = plan(_with(config, found))
    return found, now


def _fewer_at_once(
    config: ConfigStore, found: dict[str, Any], now: Plan, plan: Callable[[ConfigStore], Plan]
) -> tuple[dict[str, Any], Plan]:
    """Return (`found` with a micro-batch that fits, or of one sequence; the plan with it)."""
    found = dict(found)
    while TOKENS in found and not now.fits(UPDATE) and now.workload.rows > 1:
        found[TOKENS] = _rows_that_fit(now) * now.workload.longest
        now = plan(_with(config, found))
    return found, now


def _rows_that_fit(plan: Plan) -> int:
    """Return how many sequences of a micro-batch fit, by what each of those in `plan` takes: fewer, at least one."""
    moment, rows = plan.moment(UPDATE), plan.workload.rows
    assert moment.limit is not None
    of_rows = sum(moment.parts.get(name, 0.0) for name in ("activations", "logits", "pictures"))
    fitting = int((moment.limit - (moment.total - of_rows)) / (of_rows / rows)) if of_rows else 1
    return max(1, min(fitting, rows - 1))


def _episodes_that_fit(plan: Plan) -> int:
    """Return for how many episodes an attention cache fits: a multiple of the rows in which it grows, at least one."""
    moment = plan.moment(PLAYING)
    assert moment.limit is not None
    cache, rows = moment.parts.get(CACHE, 0.0), -(-plan.workload.episodes // CACHE_ROWS)
    fitting = int((moment.limit - (moment.total - cache)) / (cache / rows)) if cache else rows
    return CACHE_ROWS * max(1, fitting)


def _by_memory(config: ConfigStore) -> Iterator[tuple[str, Any]]:
    yield CHECKPOINTING, config.model.gradient_checkpointing
    yield TOKENS, config.training.micro_batch_tokens
    yield AT_ONCE, config.rollout.parallel


def _with(config: ConfigStore, values: Mapping[str, Any]) -> ConfigStore:
    """Return a copy of `config` with `values` of the keys that follow from memory."""
    config = config.model_copy(deep=True)
    for key, value in values.items():
        section, _, name = key.partition(".")
        setattr(getattr(config, section), name, value)
    return config


def _written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
