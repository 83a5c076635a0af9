"""How many bytes a policy takes, under verl's engines and servers: arithmetic alone, in bytes, per GPU or per node.

Sources. Activations: the tensors PyTorch keeps for the backward pass of a Qwen2.5 layer, counted one by one (a test
counts them in PyTorch); recomputation as in Korthikanti et al. 2022 (arXiv 2205.05198). States: Rajbhandari et al. 2019
(ZeRO, arXiv 1910.02054), with what verl 0.9.1 keeps in float32 (`workers/engine/fsdp/transformer_impl.py`) and
Megatron's distributed optimizer. Logits: `utils/torch_functional.py` of verl. Servers: `workers/engine_workers.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from uirl.training.plan.shape import Shape, Vision

BF16, FP32 = 2, 4
LOSS_LOGIT = 8
"""Per entry of the logits in the loss: bfloat16, its gradient, and a float32 copy while log-probs are taken."""
ENTROPY_LOGIT = 8
"""More of it where entropy is part of the loss: float32 probabilities and their gradient."""
SCORE_LOGIT = 14
"""Per entry where log-probs and entropy are read without gradients: bfloat16, and in float32 a copy, the probabilities
and their product with the logits (`entropy_from_logits`, not compiled)."""
CHUNKED_LOGIT = 6
"""The same where entropy is computed in chunks."""
FUSED_TOKENS = 512
"""Tokens whose logits exist at a time where they are made and used in one kernel (`use_fused_kernels`): chunks of
`utils/experimental/torch_functional.py`. The Triton kernel holds no more than 1024 entries per token."""
FUSED_ENTRIES = 1024


# states


@dataclass(frozen=True, slots=True)
class States:
    """Of one GPU."""

    weights: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        return self.weights + self.gradients + self.optimizer


def fsdp_states(parameters: float, gpus: int, *, adapters: float = 0.0, weight: int = FP32) -> States:
    """Return the bytes per GPU of weights (`weight` bytes each), gradients and two Adam states that FSDP shards over
    `gpus`. With `adapters` parameters these alone have gradients and states."""
    trained = adapters or parameters
    total = parameters + adapters
    return States(weight * total / gpus, weight * trained / gpus, 2 * weight * trained / gpus)


def megatron_states(parameters: float, gpus: int, split: int) -> States:
    """Return the bytes per GPU of bfloat16 weights and float32 gradients on each of `split` GPUs, and of float32
    weights and two Adam states over all."""
    return States(BF16 * parameters / split, FP32 * parameters / split, 12 * parameters / gpus)


def gathered(shape: Shape, *, trained: bool) -> tuple[float, float]:
    """Return the bytes that FSDP holds in full beside its shards, as (while logits are differentiated, while a layer
    is): the output layer, which stays, and two layers in bfloat16; gradients of the current one, in bfloat16 and in
    float32 on their way."""
    layer, head = shape.layer_parameters, shape.head_parameters
    grown = (BF16 + FP32) if trained else 0
    # the embedding is gathered like a layer; where it is the output layer it is there already
    root = BF16 * head
    return root + BF16 * layer + grown * head, root + 2 * BF16 * layer + grown * layer


# activations


def layer_activations(width: int, intermediate: int, queries: int, keys: int) -> int:
    """Return the bytes per token that the backward pass of one layer needs: two float32 RMSNorms (6 bytes per number),
    their outputs, queries, keys, values and what attention returns, and four tensors of the gated MLP. bfloat16, flash
    attention."""
    norms = 2 * (FP32 + BF16 + BF16) * width
    attention = BF16 * (2 * queries + 2 * keys)
    return norms + attention + 4 * BF16 * intermediate


def text_activations(shape: Shape, tokens: float, *, recompute: bool) -> tuple[float, float]:
    """Return the bytes of activations (kept over the whole forward pass, of the current layer) for `tokens` tokens.
    With gradient checkpointing (`recompute`) the input of every layer is kept, and one layer at a time is computed
    again."""
    layer = tokens * layer_activations(shape.width, shape.intermediate, shape.queries, shape.keys)
    if not recompute:
        return shape.layers * layer, 0.0
    return tokens * shape.layers * BF16 * shape.width, layer


def vision_activations(vision: Vision, patches: float, *, recompute: bool) -> tuple[float, float]:
    """Return the same as `text_activations` for the vision layers, whose heads together are as wide as the layer and
    whose residual is bfloat16."""
    layer = patches * layer_activations(vision.width, vision.intermediate, vision.width, vision.width)
    if not recompute:
        return vision.layers * layer, 0.0
    return patches * vision.layers * BF16 * vision.width, layer


def fused_logits(vocabulary: int, tokens: float) -> float:
    """Return the bytes of the logits of `tokens` tokens, never all held at once, with or without gradients: the larger
    of both kernels."""
    return max(min(tokens, FUSED_TOKENS) * vocabulary * SCORE_LOGIT, tokens * FUSED_ENTRIES * BF16)


def loss_logits(vocabulary: int, tokens: float, *, entropy: bool) -> float:
    """Return the bytes of the logits of `tokens` tokens, with gradients; `entropy`: its bonus is part of the loss."""
    return tokens * vocabulary * (LOSS_LOGIT + ENTROPY_LOGIT * entropy)


def score_logits(vocabulary: int, tokens: float, *, chunked: bool, chunk: int = 2048) -> float:
    """Return the bytes of the logits of `tokens` tokens whose log-probs and entropy are read without gradients, as
    before every update."""
    if chunked:
        return tokens * vocabulary * CHUNKED_LOGIT + min(tokens, chunk) * vocabulary * 3 * FP32
    return tokens * vocabulary * SCORE_LOGIT


# pictures


def patches_of(vision: Vision, width: int, height: int, max_pixels: float = math.inf) -> int:
    """Return the number of patches of a picture, resized to whole cells of `patch x merge` pixels and at most
    `max_pixels`, as Qwen-VL's processor does (`smart_resize`)."""
    cell = vision.patch * vision.merge
    rows, columns = max(1, round(height / cell)), max(1, round(width / cell))
    if rows * columns * cell**2 > max_pixels:
        shrink = math.sqrt(width * height / max_pixels)
        rows = max(1, math.floor(height / shrink / cell))
        columns = max(1, math.floor(width / shrink / cell))
    return rows * columns * vision.merge**2


def pixels(vision: Vision, patches: float) -> float:
    """Return the bytes of the patches of pictures as a processor makes them for the model: float32."""
    return patches * vision.patch_numbers * FP32


def packed_pixels(vision: Vision, patches: float) -> float:
    """Return the bytes of the same patches as our workers keep them (`uirl.integrations.verl.workers`): a byte
    per number, one frame."""
    return patches * vision.patch_numbers / vision.frames


# servers


def kv_cache(shape: Shape, tokens: float, split: int = 1) -> float:
    """Return the bytes of bfloat16 keys and values of `tokens` tokens, on each of `split` GPUs. Where there are more
    GPUs than heads, each has a copy of one."""
    return tokens * 2 * shape.layers * max(shape.keys / split, shape.head) * BF16


def server_weights(parameters: float, split: int) -> float:
    """Return the bytes of the bfloat16 weights of a rollout server on each of its GPUs."""
    return BF16 * parameters / split


# hosts


def loading(shape: Shape, gpus_per_node: int) -> float:
    """Return the bytes on the first node while verl's FSDP engine loads: one float32 copy, in every process where
    embedding and output layer are one (`get_init_weight_context_manager`)."""
    return FP32 * shape.parameters * (gpus_per_node if shape.tied else 1)
