"""One SGLang for a test: its logic, and what runs it."""

from __future__ import annotations

from tests.inference.sglang.stand_in_sglang import SGLangLogic, StandInSGLang
from uirl.inference import GenerationRequest, SamplingParams
from uirl.inference.sglang.engine import SGLangInferenceEngine

ASKED = GenerationRequest((30, 31, 32, 33), (), SamplingParams(max_tokens=6, seed=3))


class World:
    """An engine and what stands behind it."""

    def __init__(self, engine: SGLangInferenceEngine, logic: SGLangLogic, server: StandInSGLang | None) -> None:
        self.engine, self.logic, self.server = engine, logic, server
