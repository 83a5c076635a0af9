"""The inside of an engine process, asked over a socket, and what is done about a process that cannot start."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import torch

from tests.inference.fake_engines import FakeEngine
from tests.patience import until
from uirl import ConfigStore
from uirl.errors import PromptTooLong, StorageError
from uirl.inference import Generation, GenerationRequest, SamplingParams
from uirl.inference.models.loading import LoadedModel
from uirl.inference.weight_files import WeightFiles
from uirl.inference.workers import EngineWorker, RemoteEngine, engine_workers
from uirl.workers.peer import Peer

REQUEST = GenerationRequest((1, 2, 3), (), SamplingParams(max_tokens=4, seed=1), "e")


@asynccontextmanager
async def connected(host: EngineWorker) -> AsyncIterator[Peer]:
    ours, theirs = socket.socketpair()
    near = Peer(*await asyncio.open_connection(sock=ours), {}, name="host")
    far = Peer(*await asyncio.open_connection(sock=theirs), host.handlers, name="learner")
    yield near
    near.close()
    far.close()


async def test_it_answers_for_its_engine(tmp_path: Path) -> None:
    engine = FakeEngine()
    files = WeightFiles(tmp_path)
    snapshot = files.write_snapshot([("a", torch.ones(2))], 3, None)
    async with connected(EngineWorker(engine)) as peer:
        await peer.call("load", str(snapshot.folder), 3)
        assert engine.weights == {"a": [1.0, 1.0]}
        generation, counts = await peer.call("generate", REQUEST, returns=tuple[Generation, dict[str, float]])
        assert (generation.policy_version, counts) == (3, {"generated_tokens": 4.0})
        engine.broken = PromptTooLong("too long")
        with pytest.raises(PromptTooLong, match="too long"):
            await peer.call("generate", REQUEST)
        peer.notify("release", "e")
        await until(lambda: engine.released == ["e"])
    files.close()


async def test_giving_a_call_up_gives_the_reply_up(tmp_path: Path) -> None:
    engine, files = FakeEngine(), WeightFiles(tmp_path)
    snapshot = files.write_snapshot([("a", torch.ones(2))], 1, None)
    async with connected(EngineWorker(engine)) as peer:
        await peer.call("load", str(snapshot.folder), 1)
        engine.hold()
        call = asyncio.ensure_future(peer.call("generate", REQUEST))
        await until(lambda: engine.asked)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        engine.hold()  # what is asked now is answered after the first would have been
        second = asyncio.ensure_future(peer.call("generate", REQUEST))
        await until(lambda: len(engine.asked) == 2)
        engine._free._loop.call_soon_threadsafe(engine.let_go)
        await second
        assert len(engine.served) == 1


async def test_weights_that_are_gone_are_no_update(tmp_path: Path) -> None:
    engine, files = FakeEngine(), WeightFiles(tmp_path)
    snapshot = files.write_snapshot([("a", torch.ones(2))], 1, None)
    snapshot.remove()
    async with connected(EngineWorker(engine)) as peer:
        with pytest.raises(StorageError, match="the weights of version 1 are gone"):
            await peer.call("load", str(snapshot.folder), 1)
    assert engine.policy_version == 0


def test_a_config_starts_as_many_as_it_says(lm: LoadedModel, tmp_path: Path) -> None:
    config = ConfigStore()
    config.model.model_name = "uirl/tiny-lm"
    config.actors.engines, config.training.threads, config.inference.weights_dir = 3, 2, str(tmp_path)
    config.actors.keep_cache = True
    router = engine_workers(config.engine_settings, config.ray, config.training.threads, lm)
    engines = router.engines
    assert all(isinstance(engine, RemoteEngine) for engine in engines)
    assert [engine.supervisor.name for engine in engines] == ["engine-0", "engine-1", "engine-2"]
    assert {engine._threads for engine in engines} == {2}
    told = engines[0]._config
    assert told["actors"] == {"swap": "token", "keep_cache": True}
    assert Path(told["model"]["local_path"]).is_relative_to(tmp_path)
