"""What a run under verl takes of its GPUs and hosts, from verl's config: the sum that `uirl verl --plan` prints."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from uirl.config import ConfigStore
from uirl.errors import ConfigError
from uirl.integrations.verl.config import memory
from uirl.integrations.verl.config.memory import GIB, Shape, Vision
from uirl.integrations.verl.config.roles import Part, has_adapters, longest_sequence, needs_reference, trained_parts
from uirl.integrations.verl.config.settings import Settings

FREE = 0.1
"""Share of a GPU and of a host that stays free, for fragments, communication buffers and what is not counted."""
BESIDE = 3 * GIB
"""Per GPU: contexts, kernels and graphs of the trainer and of the server that sleeps. An allowance, not measured."""
SERVER_WORK = 4 * GIB
"""Per GPU of an awake server: activations of a prefill and CUDA graphs. An allowance, not measured."""
PROCESS = 2 * GIB
"""Host memory of a process with torch and CUDA in it. An allowance, not measured."""
PICTURE = (1280, 720)
"""Width and height of a screenshot where nobody says otherwise."""


@dataclass(frozen=True, slots=True)
class Moment:
    """When a GPU or a host is fullest, and what lies there then, in bytes."""

    where: str
    """'GPU' or 'host'."""
    name: str
    parts: Mapping[str, float]
    limit: float | None
    """Bytes that may be used; None: unknown."""

    @property
    def total(self) -> float:
        return sum(self.parts.values())

    @property
    def fits(self) -> bool:
        return self.limit is None or self.total <= self.limit


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
        """Why it does not fit; empty: it does."""
        out = [
            f"{moment.name}: {moment.total / GIB:.0f} GiB of a {moment.where}, and "
            f"{(moment.limit or 0) / GIB:.0f} may be used"
            for moment in self.moments
            if not moment.fits
        ]
        if self.cache_tokens < self.longest:
            out.append(
                f"the cache of a rollout server holds {max(0, int(self.cache_tokens))} tokens, and a sequence may have "
                f"{self.longest}; raise rollout.gpu_memory_utilization or rollout.tensor_model_parallel_size"
            )
        return out

    def __str__(self) -> str:
        lines = []
        for moment in self.moments:
            limit = "" if moment.limit is None else f" of {moment.limit / GIB:.0f}"
            lines.append(f"{moment.where}, {moment.name}: {moment.total / GIB:.0f}{limit} GiB")
            lines += [f"  {size / GIB:8.1f}  {name}" for name, size in moment.parts.items() if size]
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
    """The plan of a run. `config`: verl's whole config. `gpu_gib`, `host_gib`: memory of a GPU and of a node; None:
    unknown. `picture`: width and height of a screenshot in pixels. Raises ConfigError as `trained_parts` does."""
    run = _Run(config, shape, gpu_gib * GIB, picture)
    may = (1 - FREE) * gpu_gib * GIB
    moments = [Moment("GPU", name, parts, may) for name, parts in run.on_gpu()]
    host = None if host_gib is None else (1 - FREE) * host_gib * GIB
    moments += [Moment("host", name, parts, host) for name, parts in run.on_host()]
    return Plan(tuple(moments), run.cache_tokens(), run.longest, run.servers)


class _Run:
    """The numbers of verl's config that the sum needs."""

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
        most = (config.data.get("mm_processor_kwargs") or {}).get("max_pixels") or math.inf
        self.patches = 0 if shape.vision is None else memory.patches_of(shape.vision, *picture, most)
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
        """What of the trained models and the reference stays on a GPU while nobody trains."""
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
        """What of its states is on a GPU while it works: nothing where FSDP2 keeps them on the host throughout."""
        return memory.States(0, 0, 0) if _engine(part).get("offload_policy") else self._states(part)

    def _resident(self, part: Part) -> float:
        engine, states = _engine(part), self._at_work(part)
        weights = 0.0 if engine.param_offload else states.weights
        return weights + (0.0 if engine.optimizer_offload else states.optimizer)

    def _others(self, part: Part) -> float:
        stay = sum(self._resident(other) for other in self.parts if other.name != part.name)
        return stay + self.reference.on_gpu

    def _asleep(self) -> float:
        """Weights that a sleeping server keeps: SGLang's with adapters (`engine_workers.py`)."""
        keeps = self.adapters and self.rollout.name == "sglang"
        return memory.server_weights(self.shape.parameters, self.tensor) if keeps else 0.0

    def _tokens(self, part: Part) -> float:
        """Tokens of a micro-batch on each GPU. verl's critic fills its own up whatever its `use_dynamic_bsz` says."""
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
        """Of the vision layers, which see every picture of a micro-batch on each GPU that shares it."""
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
        """Pictures of all sequences of an update as verl keeps them, on one node at worst."""
        vision = self.shape.vision
        if vision is None:
            return 0.0
        rollout = self.store.rollout
        rows = memory.rows_of_episode(self.store.turn_limit, rollout.max_images, rollout.image_block)
        episodes = self.config.data.train_batch_size * self.rollout.n
        return episodes * sum(rows) * memory.packed_pixels(vision, self.patches)

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
    """verl keeps FSDP's on the host, and Megatron's, in bfloat16, where it is told to."""
    if not needs_reference(config):
        return _Reference()
    ref = config.actor_rollout_ref.ref
    if config.actor_rollout_ref.actor.strategy != "megatron":
        return _Reference(on_host=_weight(ref.fsdp_config.model_dtype) * shape.parameters / gpus)
    split = ref.megatron.tensor_model_parallel_size * ref.megatron.pipeline_model_parallel_size
    share = memory.BF16 * shape.parameters / split
    return _Reference(on_host=share) if ref.megatron.param_offload else _Reference(on_gpu=share)


def _weight(dtype: Any) -> int:
    """Bytes of a weight in what verl calls a `model_dtype`."""
    return memory.FP32 if str(dtype) in ("fp32", "float32") else memory.BF16


def _engine(part: Part) -> Any:
    if part.strategy == "megatron":
        return part.section.megatron
    return part.section.fsdp if part.name == "critic" else part.section.fsdp_config


def _adapter_parameters(config: Any, shape: Shape) -> float:
    """Of adapters on every linear layer of the text part: rank x (inputs + outputs) each."""
    model = config.actor_rollout_ref.model
    rank = max(int(model.get("lora_rank") or 0), int(model.get("lora", {}).get("rank") or 0))
    wide, narrow = shape.width, shape.intermediate
    sums = 2 * (wide + shape.queries) + 2 * (wide + shape.keys) + 3 * (wide + narrow)
    return float(rank * sums * shape.layers)


def shape_of(config: Any) -> Shape:
    """The shape of the model that a HuggingFace config describes, whose parameters are counted without making them.

    Raises ConfigError for a mixture of experts, whose activations are not worked out here.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    text, seen = config.get_text_config(), getattr(config, "vision_config", None)
    if any(getattr(text, name, None) for name in ("num_experts", "num_local_experts", "n_routed_experts")):
        raise ConfigError(f"the memory of a mixture of experts ({config.model_type}) is not worked out here")
    with torch.device("meta"):
        kind: Any = AutoModelForCausalLM if seen is None else AutoModelForImageTextToText
        model = kind.from_config(config)
    heads = text.num_attention_heads
    head = getattr(text, "head_dim", None) or text.hidden_size // heads
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    vision = None
    if seen is not None and hasattr(seen, "patch_size"):
        width = getattr(seen, "embed_dim", None) or seen.hidden_size
        vision = Vision(
            parameters=sum(size for name, size in sizes.items() if "visual" in name or "vision" in name),
            layers=getattr(seen, "depth", None) or seen.num_hidden_layers,
            width=width,
            intermediate=getattr(seen, "intermediate_size", None) or int(width * getattr(seen, "mlp_ratio", 4)),
            patch=seen.patch_size,
            merge=getattr(seen, "spatial_merge_size", 1),
            frames=getattr(seen, "temporal_patch_size", 1),
        )
    return Shape(
        parameters=sum(sizes.values()),
        layers=text.num_hidden_layers,
        width=text.hidden_size,
        intermediate=text.intermediate_size,
        queries=heads * head,
        keys=getattr(text, "num_key_value_heads", heads) * head,
        head=head,
        vocabulary=text.vocab_size,
        tied=bool(config.tie_word_embeddings),
        vision=vision,
    )
