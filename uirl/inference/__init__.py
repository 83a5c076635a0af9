"""Engines that sample from the policy, the models they load, and chat templates."""

from uirl.inference.chat import ChatRenderer
from uirl.inference.check import EngineReport, check_engine, recompute_with
from uirl.inference.contract import BaseInferenceEngine, Generation, GenerationRequest, InferenceEngine, SamplingParams
from uirl.inference.front import BatchInferenceManager, GenerationOutput, TextEngine, create_inference_engine
from uirl.inference.messages import Message
from uirl.inference.models import LoadedModel, load_model
from uirl.inference.scripted import ScriptedInferenceEngine
from uirl.inference.table import BACKENDS, create_engine
from uirl.inference.transformers_engine import TransformersInferenceEngine

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
