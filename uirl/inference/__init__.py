"""Engines that sample from the policy, the models they load, and chat templates.

`base.py` is the engine contract and `conformance.py` its suite; `registry.py` names the engines: `embedded/`,
`vllm/`, `sglang/`, `openai/`, and `scripted.py` for tests. `models/` loads models and turns messages (`messages.py`)
and pictures into what they read; `router.py` makes one engine of several; `text_front.py` is the plain way in: texts
in, texts out. The engines of other programs share `http.py` (the client of a server), `servers.py` (settings) and
`weight_files.py` (weights on their way).
"""

from uirl.inference.base import BaseInferenceEngine, Generation, GenerationRequest, InferenceEngine, SamplingParams
from uirl.inference.conformance import EngineReport, check_engine, recompute_with
from uirl.inference.embedded.engine import TransformersInferenceEngine
from uirl.inference.messages import Message
from uirl.inference.models.chat import ChatRenderer
from uirl.inference.models.loading import LoadedModel, load_model
from uirl.inference.registry import BACKENDS, create_engine
from uirl.inference.router import Router, RouterLimits
from uirl.inference.scripted import ScriptedInferenceEngine
from uirl.inference.text_front import BatchInferenceManager, GenerationOutput, TextEngine, create_inference_engine

__all__ = [
    "BACKENDS",
    "BaseInferenceEngine",
    "BatchInferenceManager",
    "ChatRenderer",
    "EngineReport",
    "Generation",
    "GenerationOutput",
    "GenerationRequest",
    "InferenceEngine",
    "LoadedModel",
    "Message",
    "Router",
    "RouterLimits",
    "SamplingParams",
    "ScriptedInferenceEngine",
    "TextEngine",
    "TransformersInferenceEngine",
    "check_engine",
    "create_engine",
    "create_inference_engine",
    "load_model",
    "recompute_with",
]
