"""What the agent asks of verl's servers, and what it makes of their answers."""

from __future__ import annotations

import asyncio
import pickle
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image
from ray.exceptions import ActorDiedError

from tests.integrations.verl.loops import (
    SAMPLING,
    TEXT,
    Client,
    loop_of,
    play,
    prepared,
    rows,
)
from uirl.errors import ConfigError
from uirl.images import Screenshot, screenshot
from uirl.integrations.verl.rollout.agent import RemoteImage, ServerAgent
from uirl.integrations.verl.rollout.agent_loop import EpisodeFailed
from uirl.integrations.verl.rollout.context import context_of
from uirl.rollout.conversation import Context

pytestmark = pytest.mark.verl


class Recorder:
    """A server client that answers one end token and keeps nothing; `sizes`: of the pictures, as Ray sends them."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.sent: list[Any] = []
        self.sampling: dict[str, Any] = {}
        self.further: dict[str, Any] = {}

    async def generate(self, *, sampling_params: dict[str, Any], image_data: Any, **request: Any) -> Any:
        self.sizes.append(len(pickle.dumps(image_data)))
        self.sent += [weakref.ref(picture) for picture in image_data or ()]
        self.sampling, self.further = sampling_params, request
        return SimpleNamespace(token_ids=[2], log_probs=[-1.0], stop_reason="completed", extra_fields={})


def shown(*shots: Screenshot) -> Context:
    return Context((1, 2), shots, (1, 2), shots, True)


def ask(agent: ServerAgent, *contexts: Context) -> None:
    async def turns() -> None:
        for context in contexts:
            await agent.act(context, None, None, 8)  # type: ignore[arg-type]

    asyncio.run(turns())


def test_pictures_go_to_the_server_as_they_were_captured_and_are_forgotten() -> None:
    plain = Image.new("RGB", (640, 360), (20, 40, 60))
    shots = [screenshot(plain), screenshot(plain.rotate(180).resize((320, 360)))]
    client = Recorder()
    agent = ServerAgent(client, {}, "r", max_tokens=8, end_ids=[2])
    ask(agent, shown(*shots), shown(shots[1]))
    assert client.sizes[0] < sum(len(shot.data) for shot in shots) + 1000
    assert client.sizes[0] < 640 * 360 * 3 / 20, "not the pixels"
    assert [sent() for sent in client.sent] == [None] * 3, "the agent keeps none"
    (arrived,) = pickle.loads(pickle.dumps([RemoteImage(shots[0])]))
    assert (arrived.mode, arrived.tobytes()) == ("RGB", plain.tobytes())


@pytest.mark.parametrize(("server", "left"), [("sglang", True), ("vllm", False)])
def test_no_server_samples_placeholders_of_pictures(server: str, left: bool, tmp_path: Path) -> None:
    """verl tells vLLM to leave them out; SGLang is told with every request."""
    key = "actor_rollout_ref.rollout.name"
    config, _ = prepared(tmp_path, "inference.seed=null", verl={key: server})
    client = Recorder()
    context = asyncio.run(opened(config, client))
    asyncio.run(loop_of(config, client).run(dict(SAMPLING), **rows(config)[0]))
    pad = context.loaded.vision.image_token_id
    assert pad in context.loaded.banned_ids
    biases = client.sampling.get("logit_bias", {})
    assert biases == ({str(token): -1e9 for token in context.loaded.banned_ids} if left else {})


async def opened(config: Any, client: Any) -> Any:
    return await context_of(config, client)


def test_the_bounds_of_pictures_are_those_of_prompt_and_server(tmp_path: Path) -> None:
    config, _ = prepared(tmp_path, verl={"data.mm_processor_kwargs.max_pixels": 28 * 28})
    client = Recorder()
    context = asyncio.run(opened(config, client))
    large = screenshot(Image.new("RGB", (112, 112)))
    (encoded,) = context.loaded.vision.encode([large])
    assert encoded.tokens == 1, "28 x 28 pixels are one cell"
    agent = ServerAgent(client, {}, "r", max_tokens=8, end_ids=[2], picture_options=context.picture_options)
    ask(agent, shown(large))
    assert client.further["mm_processor_kwargs"] == {"max_pixels": 28 * 28}
    plain, _ = prepared(tmp_path / "plain")
    other = asyncio.run(opened(plain, Recorder()))
    assert other.picture_options == {}
    assert other.loaded.vision.encode([large])[0].tokens == 4, "its own bounds: processors share nothing"


def test_a_seed_is_refused_where_the_server_takes_none(tmp_path: Path) -> None:
    config, client = prepared(tmp_path, *TEXT, verl={"actor_rollout_ref.rollout.name": "sglang"})
    with pytest.raises(ConfigError, match="takes no seed per request"):
        play(config, client, *rows(config))


def test_a_server_that_died_is_an_engine_failure(tmp_path: Path) -> None:
    config, _ = prepared(tmp_path, *TEXT)

    class Dead:
        async def generate(self, *_: Any, **__: Any) -> Any:
            raise ActorDiedError

    with pytest.raises(EpisodeFailed, match="rollout server did not answer") as caught:
        play(config, Client(Dead()), *rows(config))
    assert caught.value.kind == "engine"
