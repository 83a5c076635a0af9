"""Real vLLMs for the tests of this folder: each starts once, tiny, in float32, on the CPU."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest

from tests.inference.vllm.real.running import SMALL, Server, config_of, served
from uirl.inference.models.loading import load_model
from uirl.inference.vllm.engine import VLLMInferenceEngine
from uirl.learner import Policy


@pytest.fixture(scope="session", autouse=True)
def one_process_per_engine() -> None:
    # on a CPU vLLM gives its worker a process of its own, to set the number of threads; here there is one anyway
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")


@pytest.fixture(scope="module")
def lm_engine() -> Iterator[VLLMInferenceEngine]:
    """A text model in processes of its own."""
    config = config_of("uirl/tiny-lm")
    engine = VLLMInferenceEngine.from_config(config.engine_settings, load_model(config.model), shared=False)
    yield engine
    asyncio.run(engine.close())


@pytest.fixture(scope="module")
def vlm_policy() -> Policy:
    """A model that sees, with adapters in its text layers and its vision tower."""
    return Policy.from_config(config_of("uirl/tiny-vlm", "model.use_lora=true", "model.lora.vision=true"))


@pytest.fixture(scope="module")
def vlm_engine(vlm_policy: Policy) -> Iterator[VLLMInferenceEngine]:
    """The same in vLLM."""
    config = config_of("uirl/tiny-vlm", "model.use_lora=true", "model.lora.vision=true")
    engine = VLLMInferenceEngine.from_config(config.engine_settings, vlm_policy.loaded, shared=True)
    yield engine
    asyncio.run(engine.close())


@pytest.fixture(scope="session")
def lm_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of a text model, which takes adapters."""
    config = config_of("uirl/tiny-lm", *SMALL, "model.use_lora=true")
    with served(config, tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture(scope="session")
def vlm_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of the model that sees."""
    with served(config_of("uirl/tiny-vlm"), tmp_path_factory.mktemp("server")) as server:
        yield server
