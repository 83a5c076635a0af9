"""Where trajectories come from: which software, which model, which engine."""

from __future__ import annotations

import functools
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from uirl.config import ConfigStore

_PACKAGES = ("uirl", "torch", "transformers", "tokenizers", "numpy", "pillow")
"""Those that decide what is sampled, fed and learned."""
_SERVERS = ("vllm", "sglang")
"""Backends with the name of the package that samples."""


def origin_of(config: ConfigStore, packages: Sequence[str] = (), **more: Any) -> dict[str, Any]:
    """Return what a store records of the trajectories of a run: versions of the software (of further `packages` too),
    model and engine, and `more`.

    It is the same for equal configs on equal machines, so that a store keeps it once.
    """
    model, backend = config.model, config.inference.backend
    packages = [*_PACKAGES, *packages]
    packages += [backend] if backend in _SERVERS else []
    packages += ["peft"] if model.use_lora else []
    packages += ["bitsandbytes"] if model.quantization is not None else []
    return {
        "software": {"python": platform.python_version(), **{name: _version(name) for name in packages}},
        "model": {
            "name": model.model_name,
            "local_path": model.local_path,
            "dtype": model.dtype,
            "lora": model.lora.r if model.use_lora else None,
            **({} if model.quantization is None else {"quantization": model.quantization}),
        },
        "engine": backend,
        **more,
    }


@functools.cache
def _version(package: str) -> str | None:
    """Return the version of an installed package; None: it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
