"""Qwen2.5-VL as its config.json files describe it (huggingface.co/Qwen/Qwen2.5-VL-7B-Instruct ...): sizes alone."""

from __future__ import annotations

from typing import Any

from tests.published import PARAMETERS as ALL
from tests.published import QWEN2_5_VL, published_config

PARAMETERS = {size: ALL[f"Qwen2.5-VL-{size}"] for size in QWEN2_5_VL}


def qwen(size: str) -> Any:
    """The HuggingFace config of one of them."""
    return published_config(f"Qwen2.5-VL-{size}")
