"""Engines over stand-ins of OpenAI-compatible servers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.inference.openai.stand_in_openai import StandInOpenAI
from tests.inference.openai.world import config_of
from uirl.inference import LoadedModel
from uirl.inference.openai.engine import OpenAIInferenceEngine


@pytest.fixture
def make() -> Iterator[Any]:
    """A function that makes (engine, stand-in server) of a grade; the servers end with the test."""
    servers: list[StandInOpenAI] = []

    def build(loaded: LoadedModel, grade: str, **options: Any) -> tuple[OpenAIInferenceEngine, StandInOpenAI]:
        server = StandInOpenAI(loaded, grade, **options)
        servers.append(server)
        config = config_of(server.url)
        return OpenAIInferenceEngine.from_config(config.engine_settings, loaded, shared=True), server

    yield build
    for server in servers:
        server.close()
