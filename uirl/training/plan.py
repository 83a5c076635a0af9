"""What a run takes of its GPU, or of the machine without one; what its config leaves open, chosen by that; and which
keys make it fit."""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import torch
from PIL import Image

from uirl.algorithms import get_algorithm
from uirl.config import ConfigStore, InferenceConfig, LoraConfig, ModelConfig
from uirl.config.rates import choose_rates
from uirl.config.relations import broken_for_training
from uirl.config.sections.rollout import PARALLEL
from uirl.config.sections.training import MICRO_BATCH_TOKENS
from uirl.errors import ConfigError
from uirl.images import screenshot
from uirl.inference.embedded.packed_weights import packable
from uirl.inference.embedded.scheduler import SchedulerLimits
from uirl.inference.models.loading import LoadedModel, load_model
from uirl.inference.models.precision import DTYPES, device_of, dtype_of
from uirl.inference.models.quantized import bytes_of_quantized, language_linears
from uirl.learner import Policy, lora
from uirl.learner.lean_layers import keep_less
from uirl.learner.optimizer import bytes_of_moments
from uirl.learner.policy import tokens_projected
from uirl.runtime.memory import whole_memory
from uirl.training import memory
from uirl.training.memory import FP32, FREE, GIB, PICTURE, Moment, Shape, gib

PROCESS = 0.5 * GIB
"""The context of a GPU, or Python with its libraries. An allowance, not measured."""
ASLEEP = 1.0 * GIB
"""What an engine that sleeps keeps of a GPU: the context of its process, libraries, graphs. An allowance, not
measured."""
OPENING = 512
"""Tokens of system prompt and task that are assumed where nothing bounds a sequence."""
TEXT = 128
"""Tokens of text that an observation is assumed to have beside its picture."""
CACHE_ROWS = 16
"""The attention cache of the embedded engine grows by so many rows."""
UPDATE, PLAYING, SHARE = "updating the policy", "playing episodes", "the engine, in its share"
POSITIONS = "the model's positions"
CACHE, PACKED = "attention cache", "packed weights of decoding"
WEIGHTS, GRADIENTS, BEFORE = "weights", "gradients", "weights before the update"
CHECKPOINTING, TOKENS, AT_ONCE = "model.gradient_checkpointing", "training.micro_batch_tokens", "rollout.parallel"
ENOUGH = 4096
"""Tokens of a micro-batch down to which smaller ones cost less than activations that are computed again: that costs a
forward pass, 1.2 to 1.4 times an update; micro-batches of 768 tokens cost nothing (benchmarks/RESULTS.md)."""
LEAST_CONTEXT = 1024
"""Tokens below which no context is proposed."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What a step of the learner and the engine hold at most, in rows and tokens."""

    longest: int
    """Tokens of the longest sequence."""
    rows: int
    """Samples of the largest micro-batch."""
    width: int
    """Tokens of each: fewer than of the longest, where more of them fill the micro-batch better."""
    replies: int
    """Of these, the tokens that the policy sampled."""
    pictures: int
    """Pictures of the longest sequence."""
    pictures_each: int
    """Pictures of each sample of the largest micro-batch."""
    picture: tuple[int, int]
    """Their width and height in pixels."""
    picture_tokens: int
    alone: bool
    """One micro-batch is the whole minibatch, so that no gradient is there while it goes forward."""
    episodes: int
    """At once under way, each with a row of the attention cache."""
    prefill_rows: int
    bound: str | None
    """The key that bounds the width; None: nothing does, and texts are assumed to be short."""
    turns: int = 1
    """Of an episode, at most."""
    segments: int = 1
    """Sequences of an episode."""

    def __str__(self) -> str:
        width, height = self.picture
        shown = f", {self.pictures_each} picture(s) of {width}x{height} ({self.picture_tokens} tokens)"
        length = f"bounded by {self.bound}" if self.bound else f"assuming {OPENING} tokens of task, {TEXT} a turn"
        return (
            f"largest micro-batch: {self.rows} x {self.width} tokens ({length}), of which {self.replies} are "
            f"sampled{shown if self.pictures_each else ''}; {self.episodes} episode(s) at once"
        )


def _largest_micro_batch(samples: int, longest: int, limit: int) -> tuple[int, int]:
    """Return (samples, tokens of each) of the micro-batch with the most tokens, of `samples` of up to `longest` tokens:
    two sequences of half the limit are more than one of a little over half."""
    rows = max(1, limit // longest)
    if samples <= rows:
        return samples, longest
    shorter = limit // (rows + 1)
    return (rows + 1, shorter) if (rows + 1) * shorter > rows * longest else (rows, longest)


# the sum


@dataclass(frozen=True, slots=True)
class Plan:
    """The moments of a run at which it takes most."""

    model: str
    parameters: int
    trained: int
    workload: Workload
    moments: tuple[Moment, ...]
    cached: int
    """Episodes whose attention cache has room at once where this process samples: the others wait."""
    kept: Mapping[str, float]
    """What it keeps for good, in bytes: weights, gradients, optimiser, copies."""
    reads: Mapping[str, float] = field(default_factory=dict)
    """What engine and learner count in a step whose episodes are all as long as they may be: `MicroBatchRoom.read`."""

    @property
    def problems(self) -> list[str]:
        """Return the reasons why the run does not fit; empty: it does."""
        return [moment.problem for moment in self.moments if moment.excess]

    @property
    def excess(self) -> float:
        """Return the bytes above the limits, of all moments together; 0: it fits. Less is nearer."""
        return sum(moment.excess for moment in self.moments)

    def fits(self, name: str) -> bool:
        """Return whether the moment of that name fits."""
        return not any(moment.excess for moment in self.moments if moment.name == name)

    def __str__(self) -> str:
        head = f"{self.model}: {self.parameters / 1e6:.4g} M parameters, {self.trained / 1e6:.4g} M of them are trained"
        return "\n".join([head, str(self.workload), *map(str, self.moments)])


@dataclass(frozen=True, slots=True)
class Described:
    """A model without its weights."""

    loaded: LoadedModel
    shape: Shape

    @staticmethod
    def of(model: ModelConfig) -> Described:
        """Return the model of a run. Raises CheckpointError where its config or its tokenizer cannot be read."""
        loaded = load_model(model.model_copy(update={"dtype": "float32", "device": "cpu"}), weights=False)
        keep_less(loaded.model)
        return Described(loaded, memory.shape_of(loaded.model))


def plan_of(
    config: ConfigStore,
    *,
    limit: float | None,
    gpu: bool = True,
    picture: tuple[int, int] = PICTURE,
    tokens: int | None = None,
    model: Described | None = None,
    learners: int = 1,
) -> Plan:
    """Return the plan of a run. `limit`: bytes of a GPU or, without `gpu`, of the machine; None: unknown. `picture`:
    width and height of a screenshot. `tokens`: of the longest sequence; None: what the config bounds it to, or what its
    turns add up to. `model`: that of the run, where a caller has it. `learners`: processes that learn together, each on
    a GPU of its own; the plan is that of the one which plays.

    Raises CheckpointError where the config or the tokenizer of the model cannot be read.
    """
    model = model or Described.of(config.model)
    run = _Run(config, model, picture, tokens, gpu)
    here = config.inference.backend == "transformers" and not config.actors.engines
    may = None if limit is None else (1 - FREE) * limit
    states = run.states(learners)
    waiting = {name: size for name, size in states.items() if name not in (GRADIENTS, BEFORE)}
    beside = {"contexts, libraries": PROCESS} | ({} if gpu else {"pictures kept": run.pictures_kept()})
    share = run.share(limit)
    awake = {"engine": share}
    asleep = {"engine, asleep": ASLEEP} if gpu and config.engine_sleep_level else awake
    playing = waiting | beside | awake
    cache: dict[str, float] = {}
    held = run.work.episodes
    if here:
        playing |= run.prefill()
        # the engine is made before the optimiser has moments
        free = math.inf if limit is None else limit - PROCESS - states[WEIGHTS] - states["adapters"]
        size, held = run.cache(free / 2)
        cache = {_of(CACHE, held, run.work): size}
        packed = 0.0 if gpu else run.packed()
        free = None if may is None else may - sum({**playing, **cache}.values())
        if free is None or free > 2 * packed:  # else the engine does without
            cache[PACKED] = packed
    ahead = cache if config.actors.run_ahead else {}
    where = "GPU" if gpu else "host"
    moments = [
        Moment(where, UPDATE, _there(run.update(states) | beside | asleep | ahead), may),
        Moment(where, PLAYING, _there(playing | cache), may),
    ]
    if share:
        weights = run.engine_weights()
        size, there = run.cache(share - weights)
        moments.append(Moment(where, SHARE, {WEIGHTS: weights, _of(CACHE, there, run.work): size}, share))
    sizes = model.shape.parameters, sum(run.trained)
    return Plan(model.loaded.name, *sizes, run.work, tuple(moments), held, states, run.reads())


def _of(part: str, held: int, work: Workload) -> str:
    return part if held == work.episodes else f"{part}: room for {held} of {work.episodes} episodes, the others wait"


def _there(parts: Mapping[str, float]) -> dict[str, float]:
    return {name: float(size) for name, size in parts.items() if size > 0}


def _share_of(inference: InferenceConfig) -> tuple[str, float] | None:
    """Return (the key, its value) of the share of a GPU that an engine of its own takes; None: none is here. Raises
    ConfigError for what is no share."""
    if inference.backend not in ("vllm", "sglang") or inference.server_url is not None:
        return None
    name, usual = ("gpu_memory_utilization", 0.45) if inference.backend == "vllm" else ("mem_fraction_static", 0.9)
    share = inference.engine_options.get(name, usual)
    if not isinstance(share, (int, float)) or not 0 < share <= 1:
        raise ConfigError(f"inference.engine_options.{name} is {share!r}; expected a share of the GPU, as {usual}")
    return f"inference.engine_options.{name}", float(share)


class _Run:
    """The bytes of a run, part by part."""

    def __init__(
        self, config: ConfigStore, model: Described, picture: tuple[int, int], tokens: int | None, gpu: bool
    ) -> None:
        self.config, self.loaded, self.shape = config, model.loaded, model.shape
        self.work = work = self.workload(picture, tokens)
        self.itemsize = DTYPES[dtype_of(config.model, gpu=gpu)].itemsize
        self.adapters = _adapters(config.model.lora, model.loaded) if config.model.use_lora else []
        self.trained = self.adapters or _trainable(model.loaded, freeze_vision=config.model.freeze_vision)
        self.critic = get_algorithm(config.training.adv_estimator).needs_critic
        self.vision = self.shape.vision if work.pictures else None
        self.eyes_trained = config.model.lora.vision if config.model.use_lora else not config.model.freeze_vision

    def workload(self, picture: tuple[int, int], tokens: int | None) -> Workload:
        """Return what it holds at most. `picture`: width and height of a screenshot. `tokens`: of the longest sequence;
        None: what the config bounds it to, or what its turns add up to."""
        config, loaded = self.config, self.loaded
        inference, training, rollout = config.inference, config.training, config.rollout
        own = config.environment.options.get("max_turns")
        turns = min(config.turn_limit, own) if isinstance(own, int) else config.turn_limit
        of_picture = 0 if loaded.vision is None else loaded.vision.tokens_of(picture)
        segments = memory.rows_of_episode(turns, rollout.max_images, rollout.keep_images)
        shown = max(segments) if of_picture else 0
        # a window of pictures drops only these: the words of all turns stay
        whole = OPENING + turns * (TEXT + inference.max_tokens) + shown * of_picture
        budget = None if rollout.token_budget is None else OPENING + rollout.token_budget + inference.max_tokens
        bounds = {
            POSITIONS: loaded.max_positions,
            "inference.max_context": inference.max_context,
            "rollout.max_tokens": rollout.max_tokens,
            "rollout.token_budget": budget,
            "--tokens": tokens,
        }
        limits = {name: bound for name, bound in bounds.items() if bound is not None}
        bound = min(limits, key=lambda name: limits[name])
        longest = min(whole, limits[bound]) if limits.keys() == {POSITIONS} else limits[bound]
        samples = math.ceil(training.batch_size / training.minibatches) * len(segments)
        rows, width = _largest_micro_batch(samples, longest, training.micro_batch_limit)
        pictures, each = (min(shown, max(0, n - 2) // of_picture) if of_picture else 0 for n in (longest, width))
        at_once = min(
            rollout.parallel_limit, max(training.batch_size, training.eval_episodes), inference.max_batch_size
        )
        return Workload(
            longest=longest,
            rows=rows,
            width=width,
            replies=min(turns * inference.max_tokens, width - each * of_picture - 1),
            pictures=pictures,
            pictures_each=each,
            picture=picture,
            picture_tokens=of_picture,
            # of a shorter width, sequences of the longest are more than one micro-batch
            alone=samples == rows and width == longest,
            episodes=at_once,
            prefill_rows=min(at_once, max(1, SchedulerLimits(1, 1).max_prefill_tokens // longest)),
            bound=bound if longest == limits[bound] else None,
            turns=turns,
            segments=len(segments),
        )

    def states(self, learners: int = 1) -> dict[str, float]:
        """Return what stays: two moments of what is trained, and float32 masters of what is narrower; of several
        `learners` each keeps a slice of these, and of masters of everything."""
        config, model, size = self.config, self.loaded.model, self.itemsize
        head = [self.shape.text.width, 1] if self.critic else []
        trained = sum(self.trained)
        weights = self.shape.parameters * size + sum(buffer.nbytes for buffer in model.buffers())
        out = {WEIGHTS: float(weights), "adapters": float(size * sum(self.adapters))}
        if config.model.quantization is not None:
            narrow = [linear.weight.numel() for linear in language_linears(model).values()]
            out[WEIGHTS] += sum(bytes_of_quantized(numbers) - size * numbers for numbers in narrow)
            out["a layer in full"] = float(size * max(narrow))
        if config.inference.backend == "transformers" and config.actors.run_ahead and not config.actors.engines:
            out["the engine's copy of the weights"] = out[WEIGHTS]
        moments = 2 * FP32 * (trained + sum(head))
        if config.training.optimizer == "adamw_8bit":
            moments = sum(bytes_of_moments(numbers) for numbers in (*self.trained, *head))
        return out | {
            "value head": float(FP32 * sum(head)),
            "reference": float(size * trained) if config.needs_reference and not self.adapters else 0.0,
            "optimizer": (moments + (FP32 * trained if size < FP32 or learners > 1 else 0)) / learners,
            GRADIENTS: float(FP32 * (trained + sum(head))),
            BEFORE: FP32 * (trained + sum(head)) / learners if config.algorithm.max_update_kl is not None else 0.0,
        }

    def reads(self) -> dict[str, float]:
        """Return `Plan.reads`. Prompts that samples share count for each of them."""
        work, training = self.work, self.config.training
        replies, rows = work.turns * self.config.inference.max_tokens, training.batch_size * work.segments
        said = min(training.batch_size * replies, rows * (work.longest - 1))
        patch = 0.0 if self.vision is None else self.vision.merge**2 * self.vision.patch_numbers
        pixels = {"pixels": rows * work.pictures * work.picture_tokens * patch}
        once = pixels | {"tokens": rows * work.longest, "pairs": rows * work.longest * (work.longest + 1) / 2}
        passes = (self.critic or training.old_log_probs == "recompute") + self.config.needs_reference
        times = {"learned": training.update_epochs, "scored": passes, "prefill": 1}
        out = {f"{kind}_{name}": count * number for kind, count in times.items() for name, number in once.items()}
        out |= {f"{kind}_replies": times[kind] * said for kind in ("learned", "scored")}
        out |= {"prefill_tokens": once["tokens"] - said, "decode_pairs": said * work.longest / 2}
        out["prefill_steps"] = work.turns * math.ceil(training.batch_size / work.prefill_rows)
        out["decode_steps"] = replies * math.ceil(training.batch_size / work.episodes)
        return out | dict.fromkeys(("decode_tokens", "decode_replies"), said)

    def update(self, states: Mapping[str, float]) -> dict[str, float]:
        """Return the parts of an update when it holds most: on its way back through the last layers, with the logits or
        with a layer at work."""
        work, text, size = self.work, self.shape.text, self.itemsize
        recompute = bool(self.config.model.gradient_checkpointing)
        kept, at_work = memory.activations(text, work.rows * work.width, itemsize=size, recompute=recompute)
        if self.config.model.attn_implementation == "eager":
            scores = float(work.rows * work.width**2 * self.shape.heads * (size + FP32))
            kept, at_work = (
                (kept, at_work + 2 * scores) if recompute else (kept + text.layers * scores, at_work + scores)
            )
        sampled = work.rows * work.replies
        kept += sampled * text.width * (2 * size + FP32 * self.critic)
        pixels = 0.0
        if self.vision is not None:
            patches = self._patches() * work.rows * work.pictures_each
            pixels = patches * self.vision.patch_numbers * size
            if self.eyes_trained:
                seen, cell = memory.activations(self.vision.tower, patches, itemsize=size, recompute=recompute)
                kept += seen + patches / self.vision.merge**2 * self.vision.around * size
                at_work = max(at_work, cell)
        logits = self._logits(sampled)
        arriving = 0.0 if self.adapters else float(self.shape.head_parameters * (size + FP32 * (not self.shape.tied)))
        parts = {"activations": kept + max(0.0, at_work - logits), "logits": logits, "pictures": pixels}
        if work.alone and states[GRADIENTS] < sum(parts.values()):
            states = {**states, GRADIENTS: 0.0}  # they come as activations go
        elif work.alone:
            parts = {}
        return {**states, **parts, "gradients on their way": arriving}

    def _logits(self, sampled: int) -> float:
        """Return the bytes of the logits that wait for the backward pass and of the chunk that is scored."""
        kept, at_once = tokens_projected(self.loaded, self.itemsize)
        waiting = min(sampled, kept)
        return float((waiting + min(sampled - waiting, at_once)) * self.shape.vocabulary * self.itemsize)

    def prefill(self) -> dict[str, float]:
        """Return the bytes of the largest prefill and of a draw of tokens for all that run."""
        work, text, size = self.work, self.shape.text, self.itemsize
        most = float(
            work.prefill_rows * work.longest * size * (4 * text.width + (4 if self.adapters else 3) * text.widest)
        )
        logits = work.episodes * self.shape.vocabulary * (size + 2 * FP32)
        pixels = 0.0
        if self.vision is not None:
            patches = self._patches() * work.prefill_rows * work.pictures
            pixels = patches * self.vision.patch_numbers * size
            most = max(most, patches * size * 5 * self.vision.tower.widest)
        return {"activations": max(most, logits), "pictures": pixels}

    def cache(self, most: float) -> tuple[float, int]:
        """Return (bytes of keys and values, episodes they are of, each of the longest): of all under way, or of as many
        as have room in `inference.kv_cache_gib` or, without it, in `most` bytes, one at least."""
        work, own = self.work, self.config.inference.kv_cache_gib
        most = most if own is None else own * GIB
        one = memory.kv_cache(self.shape, -(-work.longest // 64) * 64, self.engine_split(), self.itemsize)
        # where there is room, it grows by sixteen rows, and rows by an eighth
        rows, longer = -(-work.episodes // CACHE_ROWS) * CACHE_ROWS, -(-work.longest * 9 // 8 // 64) * 64
        ample = memory.kv_cache(self.shape, rows * longer, self.engine_split(), self.itemsize)
        if ample <= most:
            return ample, work.episodes
        held = max(1, int(min(work.episodes, most // one)))
        return held * one, held

    def engine_split(self) -> int:
        """Return the GPUs that an engine is split over."""
        split = self.config.inference.engine_options.get("tensor_parallel_size", 1)
        return split if isinstance(split, int) else 1

    def engine_weights(self) -> float:
        """Return the bytes of the weights that an engine of its own holds, which are not quantized."""
        return self.shape.parameters * self.itemsize / self.engine_split()

    def share(self, limit: float | None) -> float:
        """Return the bytes that an engine of its own takes of the GPU."""
        found, own = _share_of(self.config.inference), self.config.inference.kv_cache_gib
        if found is None or limit is None:
            return 0.0
        # vLLM takes no share where the size of its cache is said
        return found[1] * limit if own is None else self.engine_weights() + own * GIB

    def packed(self) -> float:
        """Return the bytes of the second copy of large matrices that a CPU decodes with."""
        return float(sum(linear.weight.nbytes for linear in packable(self.loaded.model))) * (self.itemsize == FP32)

    def pictures_kept(self) -> float:
        """Return the bytes of encoded pictures that wait in main memory for their next use."""
        if self.vision is None:
            return 0.0
        all_of_them = self.config.training.batch_size * self.config.turn_limit * self._picture().bytes
        return float(min(self.config.model.picture_cache_gib * GIB, all_of_them))

    def _picture(self) -> Any:
        assert self.loaded.vision is not None
        return self.loaded.vision.encode([screenshot(Image.new("RGB", self.work.picture))])[0]

    def _patches(self) -> float:
        assert self.vision is not None
        numbers = sum(t.numel() for t in self._picture().tensors.values() if t.is_floating_point())
        return numbers / self.vision.patch_numbers


def _trainable(loaded: LoadedModel, *, freeze_vision: bool) -> list[int]:
    """Return the numbers of each weight that is trained without adapters. Raises ConfigError for a text model whose
    vision tower shall be frozen."""
    loaded.model.requires_grad_(True)
    if freeze_vision:
        lora.freeze_vision(loaded.model, loaded.name)
    return [parameter.numel() for parameter in loaded.model.parameters() if parameter.requires_grad]


def _adapters(settings: LoraConfig, loaded: LoadedModel) -> list[int]:
    """Return the numbers of each matrix of the adapters. Raises ConfigError where no layer is adapted."""
    out: list[int] = []
    loaded.model.requires_grad_(False)
    for name in lora.target_modules(loaded.model, settings).weights:
        *experts, one, other = loaded.model.get_parameter(name).shape
        out += [settings.r * math.prod(experts) * one, settings.r * math.prod(experts) * other]
    return out


# what nobody chose


@dataclass(frozen=True, slots=True)
class Settled:
    """A config without open keys."""

    config: ConfigStore
    chosen: Mapping[str, Any]
    """Key -> value of those that were null."""
    plan: Plan | None = None
    """What the plan says of `config`; None: it was not asked, as for a built-in model."""
    how: Mapping[str, Any] = field(default_factory=dict)
    """How it is planned: the keyword arguments of `plan_of`."""

    def __str__(self) -> str:
        values = ", ".join(f"{key}={_written(value)}" for key, value in self.chosen.items())
        asked = None if AMPLE.keys().isdisjoint(self.chosen) else self.plan
        how = "" if asked is None else "; it does not fit: ".join(["by the plan", *asked.problems])
        return f"chosen for this model and its device: {values}{how and f' ({how})'}"

    def value(self, key: str) -> Any:
        """Return the value of a dotted key, which may lie in a mapping; None: it is not there."""
        section, _, name = key.rpartition(".")
        found = attrgetter(section)(self.config)
        return found.get(name) if isinstance(found, dict) else getattr(found, name)

    def tried(self, changes: Sequence[str]) -> Plan | None:
        """Return the plan with `changes` of keys; None: they do not go together in a run that learns."""
        try:
            changed = self.config.override(changes)
            goes = set(broken_for_training(changed)) <= set(broken_for_training(self.config))
            return plan_of(changed, **self.how) if goes else None
        except ConfigError:
            return None


AMPLE: dict[str, Any] = {CHECKPOINTING: False, TOKENS: MICRO_BATCH_TOKENS, AT_ONCE: PARALLEL}
"""The three keys that follow from memory, where it is no limit."""


def memory_here(named: str) -> tuple[bool, int | None]:
    """Return (whether `model.device` is a GPU, all bytes of that GPU or of this machine; None: unknown)."""
    device = device_of(named)
    if device.type == "cuda":
        return True, torch.cuda.get_device_properties(device).total_memory
    return False, whole_memory()


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
    loaded already, which says what it is. `sizes`: `picture`, `tokens`, `model` and `learners` of
    `plan_of`.
    Raises CheckpointError where the config or the tokenizer of a checkpoint cannot be read.
    """
    config, model = config.model_copy(deep=True), config.model
    config.logging.keep_home()
    gpu, limit = memory_here(model.device) if here is None else here
    chosen: dict[str, Any] = {}
    if model.dtype is None:
        loaded = None if policy is None else str(policy.loaded.dtype).removeprefix("torch.")
        chosen["model.dtype"] = config.model.dtype = loaded or dtype_of(model, gpu=gpu)  # type: ignore[assignment]
    chosen |= choose_rates(config, phases)
    ample = AMPLE | ({} if policy is None else {CHECKPOINTING: policy.gradient_checkpointing})
    found = {key: value for key, value in ample.items() if attrgetter(key)(config) is None}
    if policy is not None or limit is None or model.built_in:
        return Settled(config.with_keys(found), chosen | found)
    how = sizes | {"model": sizes.get("model") or Described.of(config.model), "limit": limit, "gpu": gpu}
    found = _planned(found, lambda values: plan_of(config.with_keys(values), **how))
    settled = config.with_keys(found)
    return Settled(settled, chosen | found, plan_of(settled, **how), how)


def _planned(found: dict[str, Any], plan: Callable[[dict[str, Any]], Plan]) -> dict[str, Any]:
    """Return the values of the open keys `found` that fit, in the order of what they cost: fewer sequences in a
    micro-batch, down to `ENOUGH` tokens; then activations are computed again; then fewer sequences still. And fewer
    episodes are played at once."""

    def fits(moment: str, **more: Any) -> bool:
        return plan(found | more).fits(moment)

    def roomy(**more: Any) -> bool:
        planned = plan(found | more)
        return planned.fits(PLAYING) and planned.cached == planned.workload.episodes

    work = plan(found).workload
    for again in ({}, {CHECKPOINTING: True}) if CHECKPOINTING in found else ({},):
        found = found | again
        if fits(UPDATE):
            break
        if TOKENS in found and work.rows > 1:
            rows = _most(work.rows - 1, lambda n: fits(UPDATE, **{TOKENS: n * work.longest}))
            tokens = {TOKENS: rows * work.longest}
            if again or CHECKPOINTING not in found or (tokens[TOKENS] >= ENOUGH and fits(UPDATE, **tokens)):
                found |= tokens
                break
    if AT_ONCE in found and not roomy():
        sixteens = -(-work.episodes // CACHE_ROWS) - 1
        found[AT_ONCE] = CACHE_ROWS * _most(sixteens, lambda n: roomy(**{AT_ONCE: CACHE_ROWS * n}))
    return found


def _most(highest: int, fits: Callable[[int], bool]) -> int:
    """Return the largest number up to `highest` that fits, where less takes less; 1 where none does."""
    return max(1, bisect_left(range(1, highest + 1), True, key=lambda n: not fits(n)))


def _written(value: Any) -> str:
    return json.dumps(value).strip('"')


# what would fit


def require_room(settled: Settled) -> None:
    """Raise ConfigError where what a run keeps for good (weights, gradients, optimiser, copies) is more than all the
    memory there is. What only its longest sequences take does not count: they may never come, and micro-batches
    shrink."""
    plan = settled.plan
    if plan is None:
        return
    moment, kept = plan.moments[0], sum(plan.kept.values())
    whole = (moment.limit or math.inf) / (1 - FREE)
    if kept <= whole:
        return
    parts = ", ".join(f"{name} {gib(size)}" for name, size in plan.kept.items() if size)
    raise ConfigError(
        f"{settled.config.model.source} cannot be trained here: got {parts}, {gib(kept)} GiB in all, expected at most "
        f"the {gib(whole)} GiB of this {'GPU' if moment.where == 'GPU' else 'machine'}; "
        f"{advice(*remedies(settled, plan))}. `uirl plan` says what takes how much"
    )


def remedies(settled: Settled, plan: Plan) -> tuple[list[str], Plan]:
    """Return (changes of keys, the plan with all of them and nothing else). `plan`: that of `settled`.

    Changes that cost time alone come first, then those that cost learning. None is among those that fit without which
    it fits too.
    """
    kept: list[str] = []
    for change in _changes(settled, plan):
        if not plan.problems:
            break
        merged = dict(part.split("=", 1) for part in (*kept, *change))
        # without what the config says already
        more = [f"{key}={new}" for key, new in merged.items() if _written(settled.value(key)) != new]
        tried = settled.tried(more)
        if tried is not None and tried.excess < plan.excess:
            kept, plan = more, tried
    for needless in list(kept) if not plan.problems else ():
        fewer = settled.tried(less := [other for other in kept if other != needless])
        if fewer is not None and not fewer.problems:
            kept, plan = less, fewer
    return kept, plan


def advice(changes: list[str], plan: Plan) -> str:
    """Return in words what `remedies` found."""
    if not plan.problems:
        return f"it fits with: {' '.join(changes)}"
    most = max(moment.excess for moment in plan.moments)
    missing = f"{gib(most)} GiB are missing; take a smaller model or a larger GPU"
    return f"even with {' '.join(changes)} {missing}" if changes else missing


def _changes(settled: Settled, plan: Plan) -> Iterator[tuple[str, ...]]:
    """Yield changes, each with the keys that have to follow it. A later change of a key goes further than an earlier
    one."""
    config, work = settled.config, plan.workload
    model = config.model
    if config.inference.sleep == "off" and config.override(["inference.sleep=auto"]).engine_sleep_level:
        yield ("inference.sleep=auto",)
    yield ("model.gradient_checkpointing=true",)
    if model.dtype == "float32":
        yield ("model.dtype=bfloat16",)
    if work.rows > 1:
        yield (f"training.micro_batch_tokens={work.longest}",)
    share = _share_of(config.inference)
    shares = () if share is None else tuple((f"{share[0]}={tenth / 10}",) for tenth in range(1, 10))
    yield from shares
    yield from ((f"rollout.parallel={episodes}",) for episodes in _halves(work.episodes, 1))
    if config.inference.backend == "transformers":
        cache = sum(size for moment in plan.moments for part, size in moment.parts.items() if part.startswith(CACHE))
        yield from ((f"inference.kv_cache_gib={size}",) for size in _halves(math.ceil(cache / GIB), 1))
    if not model.use_lora:
        if work.pictures:
            yield ("model.freeze_vision=true",)
        yield ("training.optimizer=adamw_8bit",)
        sleep = ("inference.sleep=auto",) if config.inference.sleep == 2 else ()
        yield ("model.use_lora=true", "model.freeze_vision=false", *sleep)
    if not model.built_in:
        here = config.inference.backend == "transformers"
        yield ("model.quantization=nf4", *(("actors.staleness=0", "actors.engines=0") if here else ()))
        yield from shares
    if work.pictures > 1:
        kept = () if config.rollout.keep_images is None else ("rollout.keep_images=1",)
        yield ("rollout.max_images=1", *kept)
    yield from ((f"inference.max_context={context}",) for context in _halves(work.longest, LEAST_CONTEXT))


def _halves(number: int, least: int) -> Iterator[int]:
    while (number := number // 2) >= least:
        yield number
