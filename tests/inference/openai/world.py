"""Requests and settings for servers that are OpenAI-compatible."""

from __future__ import annotations

from typing import Any

from uirl.config import ConfigStore
from uirl.inference import ChatRenderer, GenerationRequest, LoadedModel, Message, SamplingParams

KEY = "sk-very-secret-4711"


TALK = (Message("system", "be brief"), Message("user", "guess 1-7"))


def config_of(url: str) -> ConfigStore:
    config = ConfigStore()
    config.inference.backend, config.inference.server_url = "openai", url
    config.inference.api_key_env, config.inference.request_retries = "TEST_KEY", 0
    return config


def asked_of(loaded: LoadedModel, messages: tuple[Message, ...] = TALK, **sampling: Any) -> GenerationRequest:
    shots = tuple(shot for m in messages for shot in m.images)
    params = SamplingParams(**({"max_tokens": 8, "seed": 3} | sampling))
    return GenerationRequest(tuple(ChatRenderer(loaded).whole(messages)), shots, params, messages=messages)


ADD = {"type": "function", "function": {"name": "add", "description": "a + b", "parameters": {"type": "object"}}}
