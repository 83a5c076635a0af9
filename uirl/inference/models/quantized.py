"""Weights of 4 bits (NF4 with quantised scales: Dettmers et al. 2023, QLoRA, 2305.14314), by the package bitsandbytes.

The linear layers of the language model are quantised when a checkpoint is loaded. The vision tower, the projector, the
embeddings and the head stay as they are. What is computed is computed in `model.dtype`, on a GPU or a CPU.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from uirl.errors import ConfigError

BLOCK, BLOCKS = 64, 256
"""Numbers that share a scale, and scales that share one of their own."""


def bytes_of_quantized(numbers: int) -> float:
    """Return the bytes that so many weights take: half a byte each, a byte per scale, four per scale of scales."""
    return numbers / 2 + numbers / BLOCK + 4 * numbers / (BLOCK * BLOCKS)


def language_linears(model: Any) -> dict[str, nn.Linear]:
    """Return path -> linear layer of the language model, its head and adapters left out."""
    decoder, head = model.get_decoder(), model.get_output_embeddings()
    inside = next(f"{name}." for name, module in model.named_modules() if module is decoder)
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module is not head and name.startswith(inside) and ".lora_" not in name
    }


def quantization_options(hollow: Any, dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
    """Return what `from_pretrained` needs to quantise the model that `hollow` is without weights, onto `device`. Raises
    ConfigError where bitsandbytes is missing."""
    try:
        import bitsandbytes  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"model.quantization=nf4: cannot import bitsandbytes ({error}); pip install 'uirl[bitsandbytes]', or take "
            "model.quantization=null"
        ) from error
    from transformers import BitsAndBytesConfig

    chosen = language_linears(hollow)
    others = [name for name, module in hollow.named_modules() if isinstance(module, nn.Linear) and name not in chosen]
    how = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
        llm_int8_skip_modules=others,
    )
    return {"quantization_config": how, "device_map": {"": device}}


def keep_layout(model: nn.Module) -> None:
    """Let the quantised layers of `model` keep their weights as they are on a CPU too, where bitsandbytes packs them
    anew for the first forward without gradients: learner and engine share one module and one computation."""
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False  # type: ignore[assignment]


def is_quantized(parameter: Tensor) -> bool:
    """Return whether `parameter` [...] holds codes of 4 bits."""
    return getattr(parameter, "quant_state", None) is not None


def plain_weight(parameter: Tensor) -> Tensor:
    """Return the weight [...] that `parameter` stands for: itself, or what its codes of 4 bits mean."""
    if not is_quantized(parameter):
        return parameter
    from bitsandbytes.functional import dequantize_4bit

    return dequantize_4bit(parameter.data, parameter.quant_state)  # type: ignore[attr-defined]


@contextlib.contextmanager
def described_as_plain(model: Any) -> Iterator[None]:
    """Return a context in which `model` says nothing of its quantisation: what it saves then are plain weights."""
    kept = {name: vars(model).pop(name) for name in ("hf_quantizer", "quantization_method") if name in vars(model)}
    how = vars(model.config).pop("quantization_config", None)
    try:
        yield
    finally:
        vars(model).update(kept)
        if how is not None:
            model.config.quantization_config = how
