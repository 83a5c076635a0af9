"""The table of engines: what `inference.backend` may say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from uirl.errors import ConfigError, did_you_mean
from uirl.inference.base import InferenceEngine
from uirl.inference.models.loading import LoadedModel
from uirl.runtime.lazy import load

if TYPE_CHECKING:
    from uirl.config import ConfigStore

BACKENDS = {
    "transformers": "uirl.inference.embedded.engine:TransformersInferenceEngine",
    "vllm": "uirl.inference.vllm.engine:VLLMInferenceEngine",
    "sglang": "uirl.inference.sglang.engine:SGLangInferenceEngine",
    "openai": "uirl.inference.openai.engine:OpenAIInferenceEngine",
}
"""Name -> class with a constructor `from_config(settings, loaded, *, shared)`, loaded when asked for."""


def create_engine(config: ConfigStore, loaded: LoadedModel, *, shared: bool = False) -> InferenceEngine:
    """Build the engine that `config.inference.backend` names, for `loaded`. `shared`: `loaded` is the learner's own
    module.

    Raises ConfigError for a name that is not in `BACKENDS` and for 'scripted', which needs a script.
    """
    backend = config.inference.backend
    if backend == "scripted":
        raise ConfigError("inference.backend=scripted needs a script; make a ScriptedInferenceEngine in Python")
    if backend not in BACKENDS:
        raise ConfigError(f"inference.backend {backend!r} is not known; {did_you_mean(backend, BACKENDS)}")
    engine: InferenceEngine = load(BACKENDS[backend]).from_config(config.engine_settings, loaded, shared=shared)
    return engine
