"""The table of engines: what `inference.backend` may say."""

from __future__ import annotations

from typing import Any

from uirl.errors import ConfigError, did_you_mean
from uirl.inference.contract import InferenceEngine
from uirl.inference.models import LoadedModel
from uirl.inference.transformers_engine import TransformersInferenceEngine

BACKENDS = {
    "transformers": "the embedded engine: continuous batching over HF models in this process",
    "scripted": "replies from a script, for tests (uirl.ScriptedInferenceEngine)",
}


def create_engine(config: Any, loaded: LoadedModel, *, shared: bool = False) -> InferenceEngine:
    """The engine that an `InferenceConfig` names. `shared`: `loaded` is the learner's own module.

    Raises ConfigError for a name that is not in `BACKENDS` and for 'scripted', which needs a script.
    """
    if config.backend == "transformers":
        return TransformersInferenceEngine(
            loaded,
            shared=shared,
            max_batch_size=config.max_batch_size,
            max_context=config.max_context,
            kv_cache=config.kv_cache,
        )
    if config.backend == "scripted":
        raise ConfigError("inference.backend=scripted needs a script; make a ScriptedInferenceEngine in Python")
    raise ConfigError(f"inference.backend {config.backend!r} is not built in; {did_you_mean(config.backend, BACKENDS)}")
