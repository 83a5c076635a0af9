"""Where a model lies, and in which precision its weights are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from uirl.errors import CheckpointError, ConfigError
from uirl.inference.models.unpacked import folder_of

if TYPE_CHECKING:
    from uirl.config import ModelConfig

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def device_of(name: str) -> torch.device:
    """Return the device that `model.device` means here. Raises ConfigError for a GPU where there is none."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(f"model.device is {name!r}, but torch sees no GPU; use 'cpu' or 'auto'")
    return torch.device(name)


def dtype_of(model: ModelConfig, *, gpu: bool | None = None) -> str:
    """Return `model.dtype`, a key of `DTYPES`; where it is None, what the model and its device ask for.

    `gpu`: whether the model lies on a GPU; None: where `model.device` is one. Raises CheckpointError for a checkpoint
    whose config.json cannot be read.
    """
    if model.dtype is not None:
        return model.dtype
    if model.built_in or not (device_of(model.device).type == "cuda" if gpu is None else gpu):
        return "float32"
    return _dtype_of_checkpoint(folder_of(model.source), model.trust_remote_code)


def _dtype_of_checkpoint(path: str, trust_remote_code: bool) -> str:
    """Return the precision in which a checkpoint can be trained as it is stored: bfloat16 where its config.json names
    float16, in which small gradients vanish, or none."""
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot read the config.json of {path!r}: {str(error).rstrip('.')}") from error
    # of the whole model, or else of its text part
    stored = getattr(config, "dtype", None) or getattr(config.get_text_config(), "dtype", None)
    return "float32" if str(stored).removeprefix("torch.") == "float32" else "bfloat16"
