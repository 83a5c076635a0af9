"""Engines over stand-ins of SGLang."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.inference.sglang.stand_in_sglang import SGLangLogic, StandInSGLang, World, install
from uirl.config import ConfigStore
from uirl.inference import LoadedModel
from uirl.inference.sglang.engine import SGLangInferenceEngine


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A function that makes engines, 'server' or 'process'; what they stand on ends with the test."""
    servers: list[StandInSGLang] = []
    engines: list[SGLangInferenceEngine] = []

    def build(where: str, loaded: LoadedModel, *, lora: bool = False, **options: Any) -> World:
        config = ConfigStore()
        config.inference.backend = "sglang"
        config.inference.request_retries = 0
        config.model.model_name = loaded.name
        config.model.use_lora = lora
        server = None
        if where == "server":
            server = StandInSGLang(SGLangLogic(loaded, lora=lora, **options))
            servers.append(server)
            config.inference.server_url = server.url
            logic = server.logic
            engine = SGLangInferenceEngine.from_config(config.engine_settings, loaded, shared=True)
        else:
            made = install(monkeypatch, **options)
            engine = SGLangInferenceEngine.from_config(config.engine_settings, loaded, shared=True)
            logic = made[0].logic
        engines.append(engine)
        return World(engine, logic, server)

    yield build
    for server in servers:
        server.close()
    for engine in engines:
        engine._files.close()
