"""Engines that sample from the policy, the models they load, and chat templates."""

from uirl.inference.base import BaseInferenceEngine, Generation, GenerationRequest, InferenceEngine, SamplingParams
from uirl.inference.conformance import EngineReport, check_engine, recompute_with
from uirl.inference.embedded.engine import TransformersInferenceEngine
from uirl.inference.messages import Message
from uirl.inference.models.chat import ChatRenderer
from uirl.inference.models.loading import LoadedModel, load_model
from uirl.inference.registry import BACKENDS, create_engine
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
