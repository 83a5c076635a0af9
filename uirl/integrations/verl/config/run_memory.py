"""What lies on a GPU and on a host at each moment of a run under verl, in bytes, from verl's config."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from uirl.config import ConfigStore
from uirl.integrations.verl.config import memory
from uirl.integrations.verl.placement import (
    Part,
    adapter_ranks,
    has_adapters,
    longest_sequence,
    needs_reference,
    trained_parts,
)
from uirl.integrations.verl.settings import Settings
from uirl.training.plan.moment import GIB
from uirl.training.plan.shape import Shape, Vision
from uirl.training.plan.windows import rows_within_budget

BESIDE = 3 * GIB
"""Per GPU: contexts, kernels and graphs of the trainer and of the server that sleeps. An allowance, not measured."""
SERVER_WORK = 4 * GIB
"""Per GPU of an awake server: activations of a prefill and CUDA graphs. An allowance, not measured."""
PROCESS = 2 * GIB
"""Host memory of a process with torch and CUDA in it. An allowance, not measured."""


class RunMemory:
    """The bytes of a run at each of its moments, part by part."""

    def __init__(self, config: Any, shape: Shape, gpu: float, picture: tuple[int, int]) -> None:
        self.config, self.shape, self.gpu = config, shape, gpu
        self.store: ConfigStore = Settings.read(config.data).store()
        self.nodes, self.per_node = config.trainer.nnodes, config.trainer.n_gpus_per_node
        self.gpus = self.nodes * self.per_node
        self.longest = longest_sequence(config)
        rollout = config.actor_rollout_ref.rollout
        self.rollout, self.tensor = rollout, rollout.tensor_model_parallel_size
        size = self.tensor * rollout.data_parallel_size * rollout.pipeline_model_parallel_size
        self.servers = self.gpus // size
        max_pixels = (config.data.get("mm_processor_kwargs") or {}).get("max_pixels") or math.inf
        self.patches = 0 if shape.vision is None else memory.patches_of(shape.vision, *picture, max_pixels)
        self.adapters = _adapter_parameters(config, shape) if has_adapters(config) else 0.0
        self.reference = _reference(config, shape, self.gpus)
        self.fused = bool(config.actor_rollout_ref.model.use_fused_kernels)
        self.parts = trained_parts(config)

    # GPUs

    def on_gpu(self) -> Iterator[tuple[str, dict[str, float]]]:
        for part in self.parts:
            critic = part.name == "critic"
            yield f"updating the {'critic' if critic else 'policy'}", self._updating(part)
        yield "scoring what was sampled", self._scoring(self.parts[0])
        yield "sending weights to the servers", self._sending(self.parts[0])
        util = self.rollout.gpu_memory_utilization
        yield "playing episodes", self._waiting() | {"rollout server (gpu_memory_utilization)": util * self.gpu}

    def _updating(self, part: Part) -> dict[str, float]:
        shape, states = self.shape, self._at_work(part)
        tokens = self._tokens(part)
        recompute = self._recomputes(part)
        kept, layer = memory.text_activations(shape, tokens, recompute=recompute)
        seen, cell = self._vision(part, tokens, recompute)
        vocabulary = 1 if part.name == "critic" else shape.vocabulary
        entropy = part.name != "critic" and part.section.entropy_coeff != 0
        logits = memory.loss_logits(vocabulary, tokens, entropy=entropy)
        if self.fused and part.name != "critic":
            logits = memory.fused_logits(vocabulary, tokens)
        head, body = (0.0, 0.0)
        if part.strategy == "megatron":
            tensor = part.section.megatron.tensor_model_parallel_size
            # the first stage of a pipeline keeps its layers' inputs for as many micro-batches as there are stages
            kept, layer, logits = kept / tensor, layer / tensor, logits / tensor
        else:
            head, body = memory.gathered(shape, trained=not self.adapters)
        at_logits, at_layer = logits + head, max(layer, cell) + body
        return {
            "weights": states.weights,
            "gradients": states.gradients,
            "states of the optimiser": states.optimizer,
            "other models that stay": self._others(part),
            "inputs of the layers" if recompute else "activations of all layers": kept,
            "the same of the vision layers": seen,
            "logits, and the output layer in full" if at_logits > at_layer else "one layer in full": max(
                at_logits, at_layer
            ),
            "contexts, graphs, the server asleep": BESIDE + self._asleep(),
        }

    def _scoring(self, part: Part) -> dict[str, float]:
        shape, tokens = self.shape, float(self.rollout.log_prob_max_token_len_per_gpu)
        if not self.rollout.log_prob_use_dynamic_bsz:
            tokens = (self.rollout.log_prob_micro_batch_size_per_gpu or 1) * self.longest / part.context
        engine = _engine(part)
        logits = memory.score_logits(shape.vocabulary, tokens, chunked=bool(engine.entropy_from_logits_with_chunking))
        if self.fused:
            logits = memory.fused_logits(shape.vocabulary, tokens)
        if part.strategy == "megatron":
            logits /= part.section.megatron.tensor_model_parallel_size
        states = self._at_work(part)
        in_full = memory.gathered(shape, trained=False)[1] if part.strategy != "megatron" else 0.0
        return {
            "weights": states.weights,
            "states of the optimiser": 0.0 if engine.optimizer_offload else states.optimizer,
            "other models that stay": self._others(part),
            "layers in full": in_full,
            "logits and probabilities": logits,
            "contexts, graphs, the server asleep": BESIDE + self._asleep(),
        }

    def _sending(self, part: Part) -> dict[str, float]:
        states = self._at_work(part)
        bucket = self.rollout.checkpoint_engine.update_weights_bucket_megabytes * 2**20
        return {
            "weights": states.weights,
            "states of the optimiser": 0.0 if _engine(part).optimizer_offload else states.optimizer,
            "other models that stay": self._others(part),
            "weights of the server": memory.server_weights(self.shape.parameters, self.tensor),
            "the largest matrix in full": memory.FP32 * self.shape.head_parameters,
            "buckets on their way": 2.0 * bucket,
            "contexts, graphs": BESIDE,
        }

    def _waiting(self) -> dict[str, float]:
        """Return the bytes of the trained models and of the reference that stay on a GPU while no model is trained."""
        return {
            "trained models that stay": sum(self._resident(part) for part in self.parts),
            "reference": self.reference.on_gpu,
        }

    def _states(self, part: Part) -> memory.States:
        parameters = self.shape.parameters
        if part.strategy == "megatron":
            return memory.megatron_states(parameters, self.gpus, part.model)
        engine = _engine(part)
        slices = engine.fsdp_size if 0 < engine.fsdp_size < self.gpus else self.gpus
        adapters = 0.0 if part.name == "critic" else self.adapters
        return memory.fsdp_states(parameters, slices, adapters=adapters, weight=_weight(engine.model_dtype))

    def _at_work(self, part: Part) -> memory.States:
        """Return the states of `part` that are on a GPU while it is used: none where FSDP2 keeps them on the host
        throughout."""
        return memory.States(0, 0, 0) if _engine(part).get("offload_policy") else self._states(part)

    def _resident(self, part: Part) -> float:
        engine, states = _engine(part), self._at_work(part)
        weights = 0.0 if engine.param_offload else states.weights
        return weights + (0.0 if engine.optimizer_offload else states.optimizer)

    def _others(self, part: Part) -> float:
        stay = sum(self._resident(other) for other in self.parts if other.name != part.name)
        return stay + self.reference.on_gpu

    def _asleep(self) -> float:
        """Return the bytes of weights that a sleeping server keeps: SGLang's with adapters (`engine_workers.py`)."""
        keeps = self.adapters and self.rollout.name == "sglang"
        return memory.server_weights(self.shape.parameters, self.tensor) if keeps else 0.0

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
        pictures = tokens * part.context // (self.patches / vision.merge**2)
        kept, layer = memory.vision_activations(vision, pictures * self.patches, recompute=recompute)
        frozen = part.section.get("freeze_vision_tower") or (self.adapters and not self.store.model.lora.vision)
        pixels = memory.pixels(vision, pictures * self.patches)
        return (pixels if frozen else kept + pixels), layer

    # hosts

    def on_host(self) -> Iterator[tuple[str, dict[str, float]]]:
        processes = {"processes": PROCESS * (2 * self.per_node + self.rollout.agent.num_workers)}
        offloaded = sum(self._offloaded(part) for part in self.parts) * self.per_node
        if any(part.strategy != "megatron" for part in self.parts):
            yield "loading the model", processes | {"weights in float32": memory.loading(self.shape, self.per_node)}
        asleep = 0.0
        if self.adapters and self.rollout.name == "vllm":  # asleep at level 1, which moves the weights to the host
            asleep = memory.server_weights(self.shape.parameters, 1) * max(1, self.servers // self.nodes)
        yield (
            "learning",
            processes
            | {
                "models offloaded": offloaded,
                "reference": self.reference.on_host * self.per_node,
                "weights of sleeping servers": asleep,
                "pictures of an update": self.picture_bytes(),
            },
        )

    def _offloaded(self, part: Part) -> float:
        engine, states = _engine(part), self._states(part)
        if engine.get("offload_policy"):
            return states.total
        weights = states.weights + states.gradients if engine.param_offload else 0.0
        return weights + (states.optimizer if engine.optimizer_offload else 0.0)

    def picture_bytes(self) -> float:
        """Return the bytes of the pictures of all sequences of an update as verl keeps them, on one node at worst."""
        vision = self.shape.vision
        if vision is None:
            return 0.0
        episodes = self.config.data.train_batch_size * self.rollout.n
        return episodes * sum(self._picture_rows(vision)) * memory.packed_pixels(vision, self.patches)

    def _picture_rows(self, vision: Vision) -> list[int]:
        """Return the number of pictures in each sequence of the longest episode, under the limits of
        `RolloutContext`."""
        rollout, turns = self.store.rollout, self.store.turn_limit
        tokens = self.patches // vision.merge**2
        if rollout.max_images is None and rollout.token_budget is None:
            return [max(1, min(turns, self.longest // tokens))]
        reply = self.store.inference.max_tokens
        room = max(1, self.longest - reply)
        return rows_within_budget(
            turns,
            rollout.max_images,
            rollout.keep_images,
            budget=min(rollout.token_budget or room, room),
            picture_tokens=tokens,
            reply_tokens=reply,
        )

    # servers

    def cache_tokens(self) -> float:
        weights = memory.server_weights(self.shape.parameters, self.tensor)
        room = self.rollout.gpu_memory_utilization * self.gpu - weights - SERVER_WORK
        return room / memory.kv_cache(self.shape, 1, self.tensor)


@dataclass(frozen=True, slots=True)
class _Reference:
    """Weights that are not trained, in bytes per GPU and, of each GPU, on the host."""

    on_gpu: float = 0.0
    on_host: float = 0.0


def _reference(config: Any, shape: Shape, gpus: int) -> _Reference:
    """Return the memory of the reference: verl keeps FSDP's on the host, and Megatron's, in bfloat16, where it is told
    to."""
    if not needs_reference(config):
        return _Reference()
    ref = config.actor_rollout_ref.ref
    if config.actor_rollout_ref.actor.strategy != "megatron":
        return _Reference(on_host=_weight(ref.fsdp_config.model_dtype) * shape.parameters / gpus)
    split = ref.megatron.tensor_model_parallel_size * ref.megatron.pipeline_model_parallel_size
    share = memory.BF16 * shape.parameters / split
    return _Reference(on_host=share) if ref.megatron.param_offload else _Reference(on_gpu=share)


def _weight(dtype: Any) -> int:
    """Return the bytes of a weight in what verl calls a `model_dtype`."""
    return memory.FP32 if str(dtype) in ("fp32", "float32") else memory.BF16


def _engine(part: Part) -> Any:
    if part.strategy == "megatron":
        return part.section.megatron
    return part.section.fsdp if part.name == "critic" else part.section.fsdp_config


def _adapter_parameters(config: Any, shape: Shape) -> float:
    """Return the number of parameters of adapters on every linear layer of the text part: rank x (inputs + outputs)
    each."""
    rank = max(adapter_ranks(config).values())
    wide, narrow = shape.width, shape.intermediate
    sums = 2 * (wide + shape.queries) + 2 * (wide + shape.keys) + 3 * (wide + narrow)
    return float(rank * sums * shape.layers)
