"""Small engines and clients for the tests of the endpoint."""

from __future__ import annotations

import asyncio
import base64
import copy
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from tests.patience import PATIENCE
from uirl.errors import EngineFailure
from uirl.images import Screenshot
from uirl.inference import GenerationRequest, InferenceEngine, LoadedModel, ScriptedInferenceEngine
from uirl.inference.base import Generation
from uirl.inference.models.templates import TEMPLATES
from uirl.serving import AgentSession, ModelEndpoint
from uirl.types import Trajectory

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "the sum",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}
CALLS_ADD = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'


def with_tools(loaded: LoadedModel) -> LoadedModel:
    """The model with a chat template that shows tools."""
    tokenizer = copy.deepcopy(loaded.tokenizer)
    tokenizer.chat_template = TEMPLATES["hermes"]
    return replace(loaded, tokenizer=tokenizer)


def says(loaded: LoadedModel, *replies: str) -> ScriptedInferenceEngine:
    """An engine that says `replies` in turn, for ever, each closed by the end token."""
    ids = [loaded.tokenizer(text + "<|im_end|>", add_special_tokens=False)["input_ids"] for text in replies]
    said = iter(range(10**9))
    return ScriptedInferenceEngine(lambda request: ids[next(said) % len(ids)], end_ids=loaded.end_ids)


class Watched(InferenceEngine):
    """An engine that keeps what it was asked, and does something before each answer."""

    def __init__(self, engine: InferenceEngine, before: Callable[[GenerationRequest], Awaitable[None]] | None = None):
        self.engine, self.before = engine, before
        self.requests: list[GenerationRequest] = []
        self.released: list[str] = []

    @property
    def policy_version(self) -> int:  # type: ignore[override]
        return self.engine.policy_version

    async def generate(self, request: GenerationRequest) -> Generation:
        self.requests.append(request)
        if self.before is not None:
            await self.before(request)
        return await self.engine.generate(request)

    async def update_weights(self, weights: Any, version: int, *, adapter: Any = None) -> None:
        await self.engine.update_weights(weights, version, adapter=adapter)

    def release(self, session_id: str) -> None:
        self.released.append(session_id)
        self.engine.release(session_id)


def breaks(loaded: LoadedModel, *, at: int, error: Exception | None = None) -> Watched:
    """An engine whose call number `at` (from 0) fails."""

    async def before(request: GenerationRequest) -> None:
        if len(engine.requests) == at + 1:
            raise error or EngineFailure("the card fell out")

    engine = Watched(says(loaded, "yes"), before)
    return engine


class Gate:
    """Lets calls wait until it is opened."""

    def __init__(self) -> None:
        self.opened, self._reached = asyncio.Event(), asyncio.Event()

    async def __call__(self, request: GenerationRequest) -> None:
        self._reached.set()
        await self.opened.wait()

    async def reached(self) -> None:
        """Returns when a call waits; a guard ends the test where none ever comes."""
        await asyncio.wait_for(self._reached.wait(), PATIENCE)


CERTIFICATES = ssl.create_default_context()
"""Loaded once: it is most of what making a client costs, and nothing here is encrypted."""
CLIENTS: list[AsyncOpenAI] = []
"""Those of the running test."""


def client_of(place: AgentSession | ModelEndpoint | str, **options: Any) -> AsyncOpenAI:
    """A client for a session, an endpoint or an address."""
    key = "none" if isinstance(place, str) else place.api_key or "none"
    base_url = place if isinstance(place, str) else place.base_url
    defaults = {"base_url": base_url, "api_key": key, "max_retries": 0}
    http = DefaultAsyncHttpxClient(verify=CERTIFICATES, base_url=base_url)
    CLIENTS.append(AsyncOpenAI(**defaults | options, http_client=http))
    return CLIENTS[-1]


async def ask(client: AsyncOpenAI, messages: list[Any], **options: Any) -> Any:
    """The first choice of a chat call."""
    made = await client.chat.completions.create(model="any", messages=messages, **options)
    return made.choices[0]


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def data_url(shot: Screenshot) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64.b64encode(shot.data).decode()}"}}


def fed(record: Trajectory) -> list[tuple[int, ...]]:
    """The prompt of every turn, as the record tells it."""
    prompts = []
    ids: tuple[int, ...] = ()
    for turn in record.turns:
        ids = turn.context_ids if turn.starts_segment else ids + turn.context_ids
        prompts.append(ids)
        ids += turn.response_ids
    return prompts


async def converse(client: Any, turns: int, opening: str = "hi", **options: Any) -> list[Any]:
    """A conversation of `turns` calls, as agents hold them; the messages."""
    messages: list[Any] = [user(opening)]
    for turn in range(turns):
        choice = await ask(client, messages, **options)
        messages += [choice.message, user(f"again {turn}")]
    return messages
