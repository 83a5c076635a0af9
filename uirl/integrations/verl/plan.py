"""What a run under verl takes of its GPUs and hosts, from verl's config: the sum that `uirl verl --plan` prints.

The formulas are those of `uirl.training.memory`; here stand verl's ways with them. States: what verl 0.9.1 keeps in
float32 (`workers/engine/fsdp/transformer_impl.py`) and Megatron's distributed optimizer. Logits:
`utils/torch_functional.py` of verl. Servers: `workers/engine_workers.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from uirl.integrations.verl.placement import (
    Part,
    adapter_ranks,
    check_heads,
    has_adapters,
    longest_sequence,
    needs_reference,
    trained_parts,
)
from uirl.integrations.verl.settings import Settings
from uirl.training import memory
from uirl.training.memory import BF16, FP32, FREE, GIB, PICTURE, Moment, Shape, Vision

LOSS_LOGIT, ENTROPY_LOGIT = 8, 8
"""Per entry of the logits in the loss: bfloat16, its gradient, and a float32 copy while log-probs are taken; and where
entropy is part of the loss, float32 probabilities and their gradient."""
SCORE_LOGIT, CHUNKED_LOGIT = 14, 6
"""Per entry where log-probs and entropy are read without gradients: bfloat16, and in float32 a copy, the probabilities
and their product with the logits (`entropy_from_logits`, not compiled); and where entropy is computed in chunks."""
CHUNK = 2048
FUSED_TOKENS, FUSED_ENTRIES = 512, 1024
"""Tokens whose logits exist at a time where they are made and used in one kernel (`use_fused_kernels`): chunks of
`utils/experimental/torch_functional.py`. The Triton kernel holds no more than 1024 entries per token."""
BESIDE, SERVER_WORK, PROCESS = 3 * GIB, 4 * GIB, 2 * GIB
"""Allowances, not measured: per GPU, contexts, kernels and graphs of the trainer and of the server that sleeps; of an
awake server, activations of a prefill and CUDA graphs; host memory of a process with torch and CUDA in it."""
CONTEXTS = "contexts, graphs, the server asleep"


@dataclass(frozen=True, slots=True)
class Plan:
    """The moments of a run, and what its rollout servers can hold."""

    moments: tuple[Moment, ...]
    cache_tokens: float
    """Tokens that the cache of one rollout server holds."""
    longest: int
    """Tokens of the longest sequence."""
    servers: int

    @property
    def problems(self) -> list[str]:
        """Return the reasons why the run does not fit; empty: it does."""
        out = [moment.problem for moment in self.moments if moment.excess]
        if self.cache_tokens < self.longest:
            out.append(
                f"the cache of a rollout server holds {max(0, int(self.cache_tokens))} tokens, and a sequence may have "
                f"{self.longest}; raise rollout.gpu_memory_utilization or rollout.tensor_model_parallel_size"
            )
        return out

    def __str__(self) -> str:
        lines = [str(moment) for moment in self.moments]
        episodes = self.cache_tokens / self.longest
        lines.append(
            f"servers: {self.servers}, each with a cache of {self.cache_tokens / 1000:.0f} thousand tokens: "
            f"{self.servers * max(0, int(episodes))} of the longest episodes at once, the others wait"
        )
        return "\n".join([*lines, *(f"does not fit: {problem}" for problem in self.problems)])


def plan_of(
    config: Any,
    shape: Shape,
    *,
    gpu_gib: float = 80.0,
    host_gib: float | None = None,
    picture: tuple[int, int] = PICTURE,
) -> Plan:
    """Return the plan of a run. `config`: verl's whole config. `gpu_gib`, `host_gib`: memory of a GPU and of a node;
    None: unknown. `picture`: width and height of a screenshot in pixels. Raises ConfigError for a split that does not
    divide the attention heads of the model."""
    check_heads(config, shape.heads, shape.kv_heads)
    run = _Run(config, shape, gpu_gib * GIB, picture)
    host = None if host_gib is None else (1 - FREE) * host_gib * GIB
    moments = [Moment("GPU", name, parts, (1 - FREE) * gpu_gib * GIB) for name, parts in run.on_gpu()]
    moments += [Moment("host", name, parts, host) for name, parts in run.on_host()]
    return Plan(tuple(moments), run.cache_tokens(), run.longest, run.servers)


@dataclass(frozen=True, slots=True)
class _States:
    """Of one GPU, in bytes."""

    weights: float = 0.0
    gradients: float = 0.0
    optimizer: float = 0.0


class _Run:
    """The bytes of a run at each of its moments, part by part."""

    def __init__(self, config: Any, shape: Shape, gpu: float, picture: tuple[int, int]) -> None:
        self.config, self.shape, self.gpu = config, shape, gpu
        self.store = Settings.read(config.data).store()
        self.nodes, self.per_node = config.trainer.nnodes, config.trainer.n_gpus_per_node
        self.gpus = self.nodes * self.per_node
        self.longest = longest_sequence(config)
        self.rollout = rollout = config.actor_rollout_ref.rollout
        self.tensor = rollout.tensor_model_parallel_size
        self.servers = self.gpus // (self.tensor * rollout.data_parallel_size * rollout.pipeline_model_parallel_size)
        max_pixels = (config.data.get("mm_processor_kwargs") or {}).get("max_pixels") or math.inf
        self.patches = 0 if shape.vision is None else memory.patches_of(shape.vision, *picture, max_pixels)
        rank = max(adapter_ranks(config).values())
        self.adapters = float(rank * shape.text.layers * shape.text.adapted) if has_adapters(config) else 0.0
        self.server_weights = BF16 * shape.parameters / self.tensor
        self.fused = bool(config.actor_rollout_ref.model.use_fused_kernels)
        self.parts = trained_parts(config)
        self.reference_on_gpu, self.reference_on_host = self._reference()

    # GPUs

    def on_gpu(self) -> Iterator[tuple[str, dict[str, float]]]:
        for part in self.parts:
            yield f"updating the {'critic' if part.name == 'critic' else 'policy'}", self._updating(part)
        part, used = self.parts[0], self.rollout.gpu_memory_utilization * self.gpu
        yield "scoring what was sampled", self._scoring(part)
        yield "sending weights to the servers", self._resting(part) | self._sending()
        stay = {"trained models that stay": sum(map(self._resident, self.parts)), "reference": self.reference_on_gpu}
        yield "playing episodes", stay | {"rollout server (gpu_memory_utilization)": used}

    def _updating(self, part: Part) -> dict[str, float]:
        states, tokens, recompute = self._states_at_work(part), self._tokens(part), self._recomputes(part)
        kept, layer = memory.activations(self.shape.text, tokens, itemsize=BF16, recompute=recompute)
        seen, cell = self._vision(part, tokens, recompute)
        logits, head, body = self._loss_logits(part, tokens), 0.0, 0.0
        if part.strategy == "megatron":
            tensor = part.section.megatron.tensor_model_parallel_size
            # the first stage of a pipeline keeps its layers' inputs for as many micro-batches as there are stages
            kept, layer, logits = kept / tensor, layer / tensor, logits / tensor
        else:
            head, body = self._gathered(trained=not self.adapters)
        at_logits, at_layer = logits + head, max(layer, cell) + body
        fullest = "logits, and the output layer in full" if at_logits > at_layer else "one layer in full"
        return {
            "weights": states.weights,
            "gradients": states.gradients,
            "states of the optimiser": states.optimizer,
            "other models that stay": self._others(part),
            "inputs of the layers" if recompute else "activations of all layers": kept,
            "the same of the vision layers": seen,
            fullest: max(at_logits, at_layer),
            CONTEXTS: BESIDE + self._asleep(),
        }

    def _loss_logits(self, part: Part, tokens: float) -> float:
        if part.name == "critic":
            return tokens * LOSS_LOGIT
        if self.fused:
            return self._fused_logits(tokens)
        return tokens * self.shape.vocabulary * (LOSS_LOGIT + ENTROPY_LOGIT * (part.section.entropy_coeff != 0))

    def _fused_logits(self, tokens: float) -> float:
        """Return the bytes of logits that are never all there: the larger of both kernels."""
        return max(min(tokens, FUSED_TOKENS) * self.shape.vocabulary * SCORE_LOGIT, tokens * FUSED_ENTRIES * BF16)

    def _scoring(self, part: Part) -> dict[str, float]:
        tokens, vocabulary = float(self.rollout.log_prob_max_token_len_per_gpu), self.shape.vocabulary
        if not self.rollout.log_prob_use_dynamic_bsz:
            tokens = (self.rollout.log_prob_micro_batch_size_per_gpu or 1) * self.longest / part.context
        logits = tokens * vocabulary * SCORE_LOGIT
        if self.fused:
            logits = self._fused_logits(tokens)
        elif _engine(part).entropy_from_logits_with_chunking:
            logits = tokens * vocabulary * CHUNKED_LOGIT + min(tokens, CHUNK) * vocabulary * 3 * FP32
        megatron = part.strategy == "megatron"
        return self._resting(part) | {
            "layers in full": 0.0 if megatron else self._gathered(trained=False)[1],
            "logits and probabilities": logits / (part.section.megatron.tensor_model_parallel_size if megatron else 1),
            CONTEXTS: BESIDE + self._asleep(),
        }

    def _sending(self) -> dict[str, float]:
        return {
            "weights of the server": self.server_weights,
            "the largest matrix in full": FP32 * self.shape.head_parameters,
            "buckets on their way": 2.0 * self.rollout.checkpoint_engine.update_weights_bucket_megabytes * 2**20,
            "contexts, graphs": BESIDE,
        }

    def _resting(self, part: Part) -> dict[str, float]:
        """Return what is there of a model that is used and not trained."""
        states = self._states_at_work(part)
        return {
            "weights": states.weights,
            "states of the optimiser": 0.0 if _engine(part).optimizer_offload else states.optimizer,
            "other models that stay": self._others(part),
        }

    def _gathered(self, *, trained: bool) -> tuple[float, float]:
        """Return the bytes that FSDP holds in full beside its shards, as (while logits are differentiated, while a
        layer is): the output layer, which stays, and two layers in bfloat16; gradients of the current one, in bfloat16
        and in float32 on their way. The embedding is gathered like a layer."""
        layer, root = self.shape.text.parameters, BF16 * self.shape.head_parameters
        grown = (BF16 + FP32) if trained else 0
        return root + BF16 * layer + grown * self.shape.head_parameters, root + 2 * BF16 * layer + grown * layer

    def _states(self, part: Part) -> _States:
        """Return what FSDP shards over its slices, all of it in one precision; or what Megatron splits, bfloat16
        weights and float32 gradients, with float32 weights and moments over all GPUs."""
        parameters, engine = self.shape.parameters, _engine(part)
        if part.strategy == "megatron":
            return _States(
                BF16 * parameters / part.model, FP32 * parameters / part.model, 3 * FP32 * parameters / self.gpus
            )
        slices = engine.fsdp_size if 0 < engine.fsdp_size < self.gpus else self.gpus
        adapters, weight = 0.0 if part.name == "critic" else self.adapters, _weight(engine.model_dtype) / slices
        trained = adapters or parameters
        return _States(weight * (parameters + adapters), weight * trained, 2 * weight * trained)

    def _states_at_work(self, part: Part) -> _States:
        """Return the states of `part` that are on a GPU while it is used: none where FSDP2 keeps them on the host."""
        return _States() if _engine(part).get("offload_policy") else self._states(part)

    def _resident(self, part: Part) -> float:
        engine, states = _engine(part), self._states_at_work(part)
        return states.weights * (not engine.param_offload) + states.optimizer * (not engine.optimizer_offload)

    def _others(self, part: Part) -> float:
        return self.reference_on_gpu + sum(self._resident(other) for other in self.parts if other.name != part.name)

    def _asleep(self) -> float:
        """Return the bytes of weights that a sleeping server keeps: SGLang's with adapters (`engine_workers.py`)."""
        return self.server_weights if self.adapters and self.rollout.name == "sglang" else 0.0

    def _tokens(self, part: Part) -> float:
        """Return the tokens of a micro-batch on each GPU. verl's critic fills its own up whatever its `use_dynamic_bsz`
        says."""
        if part.name == "critic":
            return float(part.section.ppo_infer_max_token_len_per_gpu)
        if part.section.use_dynamic_bsz:
            return float(part.section.ppo_max_token_len_per_gpu)
        return (part.section.ppo_micro_batch_size_per_gpu or 1) * self.longest / part.context

    def _recomputes(self, part: Part) -> bool:
        if part.strategy == "megatron":
            return part.section.megatron.override_transformer_config.recompute_granularity == "full"
        model = self.config.critic.model if part.name == "critic" else self.config.actor_rollout_ref.model
        return bool(model.enable_gradient_checkpointing)

    def _vision(self, part: Part, tokens: float, recompute: bool) -> tuple[float, float]:
        """Return the bytes (kept, of the current layer) of the vision layers, which see every picture of a micro-batch
        on each GPU that shares it."""
        vision = self.shape.vision
        if vision is None or self.patches == 0:
            return 0.0, 0.0
        patches = tokens * part.context // (self.patches / vision.merge**2) * self.patches
        kept, layer = memory.activations(vision.tower, patches, itemsize=BF16, recompute=recompute)
        frozen = part.section.get("freeze_vision_tower") or (self.adapters and not self.store.model.lora.vision)
        return patches * vision.patch_numbers * FP32 + (0.0 if frozen else kept), layer

    def _reference(self) -> tuple[float, float]:
        """Return the bytes of the reference (on a GPU, on the host for each GPU): verl keeps FSDP's on the host, and
        Megatron's, in bfloat16, where it is told to."""
        if not needs_reference(self.config):
            return 0.0, 0.0
        ref = self.config.actor_rollout_ref.ref
        if self.config.actor_rollout_ref.actor.strategy != "megatron":
            return 0.0, _weight(ref.fsdp_config.model_dtype) * self.shape.parameters / self.gpus
        split = ref.megatron.tensor_model_parallel_size * ref.megatron.pipeline_model_parallel_size
        share = BF16 * self.shape.parameters / split
        return (0.0, share) if ref.megatron.param_offload else (share, 0.0)

    # hosts

    def on_host(self) -> Iterator[tuple[str, dict[str, float]]]:
        processes = {"processes": PROCESS * (2 * self.per_node + self.rollout.agent.num_workers)}
        if any(part.strategy != "megatron" for part in self.parts):
            # one float32 copy on the first node, in every process where embedding and output layer are one
            # (`get_init_weight_context_manager`)
            copies = self.per_node if self.shape.tied else 1
            yield "loading the model", processes | {"weights in float32": FP32 * self.shape.parameters * copies}
        asleep = 0.0
        if self.adapters and self.rollout.name == "vllm":  # asleep at level 1, which moves the weights to the host
            asleep = BF16 * self.shape.parameters * max(1, self.servers // self.nodes)
        kept = {
            "models offloaded": sum(map(self._offloaded, self.parts)) * self.per_node,
            "reference": self.reference_on_host * self.per_node,
            "weights of sleeping servers": asleep,
            "pictures of an update": 0.0 if self.shape.vision is None else self._pictures(self.shape.vision),
        }
        yield "learning", processes | kept

    def _offloaded(self, part: Part) -> float:
        engine, states = _engine(part), self._states(part)
        every = engine.get("offload_policy")
        weights = (states.weights + states.gradients) if every or engine.param_offload else 0.0
        return weights + (states.optimizer if every or engine.optimizer_offload else 0.0)

    def _pictures(self, vision: Vision) -> float:
        """Return the bytes of the pictures of all sequences of an update, on one node at worst, as our workers keep
        them (`uirl.integrations.verl.workers`): a byte per number, one frame."""
        episodes = self.config.data.train_batch_size * self.rollout.n
        return float(episodes * sum(self._picture_rows(vision)) * self.patches * vision.patch_numbers / vision.frames)

    def _picture_rows(self, vision: Vision) -> list[int]:
        """Return the number of pictures in each sequence of the longest episode, under the limits of
        `RolloutContext`."""
        rollout, turns = self.store.rollout, self.store.turn_limit
        tokens, reply = self.patches // vision.merge**2, self.store.inference.max_tokens
        if rollout.max_images is None and rollout.token_budget is None:
            return [max(1, min(turns, self.longest // tokens))]
        room = max(1, self.longest - reply)
        sizes = {"budget": min(rollout.token_budget or room, room), "picture_tokens": tokens, "reply_tokens": reply}
        return rows_within_budget(turns, rollout.max_images, rollout.keep_images, **sizes)

    # servers

    def cache_tokens(self) -> float:
        room = self.rollout.gpu_memory_utilization * self.gpu - self.server_weights - SERVER_WORK
        return room / memory.kv_cache(self.shape, 1, self.tensor)


def rows_within_budget(
    turns: int, max_images: int | None, keep_images: int | None, *, budget: int, picture_tokens: int, reply_tokens: int
) -> list[int]:
    """Return the same as `rows_of_episode` where a prompt holds `budget` tokens, of which a picture takes
    `picture_tokens`, and a budget drops the oldest turns one by one. How many fit depends on the length of replies, up
    to `reply_tokens` each: of all numbers that may fit, the one with the most pictures in all sequences together."""
    least, most = (max(1, budget // each) for each in (picture_tokens + reply_tokens, picture_tokens))
    cases = []
    for fitting in range(min(least, turns), min(most, turns) + 1):
        by_budget = max_images is None or fitting < max_images
        limits = (fitting, None) if by_budget else (max_images, keep_images)
        cases.append(memory.rows_of_episode(turns, *limits))
    return max(cases, key=sum)


def _weight(dtype: Any) -> int:
    """Return the bytes of a weight in what verl calls a `model_dtype`."""
    return FP32 if str(dtype) in ("fp32", "float32") else BF16


def _engine(part: Part) -> Any:
    if part.strategy == "megatron":
        return part.section.megatron
    return part.section.fsdp if part.name == "critic" else part.section.fsdp_config
