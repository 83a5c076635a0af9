"""Memory as arithmetic: each formula against what PyTorch, HuggingFace or our own code makes of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.integrations.verl.models import PARAMETERS, qwen
from uirl.inference.models.packing import pack_pixels
from uirl.integrations.verl.config import memory
from uirl.training.plan.shape import shape_of


class Kept:
    """A context that counts the bytes PyTorch keeps for the backward pass, each storage once, parameters not."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._own = {p.untyped_storage().data_ptr() for p in module.parameters()}
        self._alive: dict[int, torch.Tensor] = {}
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._keep, lambda tensor: tensor)

    def _keep(self, tensor: torch.Tensor) -> torch.Tensor:
        self._alive[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    def __enter__(self) -> Kept:
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._hooks.__exit__(*error)

    @property
    def bytes(self) -> int:
        return sum(t.untyped_storage().nbytes() for ptr, t in self._alive.items() if ptr not in self._own)


@pytest.mark.parametrize(("width", "intermediate"), [(256, 1024), (128, 768)])
def test_a_layer_keeps_what_the_formula_says(width: int, intermediate: int) -> None:
    from transformers import Qwen2Config
    from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer, Qwen2RotaryEmbedding

    config = Qwen2Config(
        hidden_size=width,
        intermediate_size=intermediate,
        num_attention_heads=4,
        num_key_value_heads=4,
        num_hidden_layers=1,
        attn_implementation="sdpa",
    )
    layer = Qwen2DecoderLayer(config, 0).to(torch.bfloat16)
    tokens = 512
    hidden = torch.randn(1, tokens, width, dtype=torch.bfloat16, requires_grad=True)
    places = Qwen2RotaryEmbedding(config)(hidden, torch.arange(tokens)[None])
    with Kept(layer) as kept:
        layer(hidden, position_embeddings=places)
    assert kept.bytes / tokens == pytest.approx(memory.layer_activations(width, intermediate, width, width), rel=0.1)


@pytest.mark.parametrize("size", PARAMETERS)
def test_parameters_are_those_of_the_published_checkpoints(size: str) -> None:
    shape = shape_of(qwen(size))
    assert shape.parameters == PARAMETERS[size]
    text = shape.parameters - (shape.vision.parameters if shape.vision else 0)
    matrices = shape.layers * shape.layer_parameters + (1 if shape.tied else 2) * shape.head_parameters
    assert matrices == pytest.approx(text, rel=1e-3)
    assert (shape.queries, shape.tied) == (shape.width, size == "3B")


def test_a_mixture_of_experts_is_refused() -> None:
    from transformers import Qwen3MoeConfig

    from uirl import ConfigError

    with pytest.raises(ConfigError, match="mixture of experts"):
        shape_of(Qwen3MoeConfig())


@pytest.mark.parametrize("size", [(1280, 720), (1080, 2400), (30, 800), (5000, 4000)])
def test_a_picture_has_the_patches_that_the_processor_makes(size: tuple[int, int]) -> None:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    vision = shape_of(qwen("7B")).vision
    assert vision is not None
    limit = 4_000_000
    height, width = smart_resize(size[1], size[0], factor=28, min_pixels=1, max_pixels=limit)
    assert memory.patches_of(vision, *size, limit) == height * width // 14**2


def test_a_screenshot_is_as_large_as_verl_and_our_workers_keep_it() -> None:
    vision = shape_of(qwen("7B")).vision
    assert vision is not None
    patches = memory.patches_of(vision, 1280, 720)
    assert memory.pixels(vision, patches) == pytest.approx(22.5e6, rel=0.01)
    # a made-up picture of as many patches: three colours, two equal frames of bytes
    one = torch.randint(0, 256, (patches, 3, 1, 14 * 14), generator=torch.Generator().manual_seed(0)).float() / 255
    pixels = one.expand(-1, -1, 2, -1).reshape(patches, -1)
    assert pixels.nbytes == memory.pixels(vision, patches)
    frames = type("Processor", (), {"temporal_patch_size": 2})()
    packed = pack_pixels(pixels, frames)
    assert packed.codes.nbytes == memory.packed_pixels(vision, patches)


def test_states_are_sixteen_bytes_in_all_and_adapters_alone_have_them() -> None:
    assert memory.fsdp_states(8e9, 8).total == 16 * 1e9
    with_adapters = memory.fsdp_states(8e9, 8, adapters=8e7)
    assert (with_adapters.weights, with_adapters.gradients, with_adapters.optimizer) == (4.04e9, 4e7, 8e7)
    assert memory.megatron_states(8e9, 8, 4).total == 6 * 2e9 + 12 * 1e9
