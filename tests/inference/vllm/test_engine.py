"""The engine around vLLM: who waits for whom, what a failed update leaves, what is told. A stand-in plays vLLM; the
real one is in tests/inference/vllm/real."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.patience import PATIENCE
from uirl.config import ConfigStore, LoraConfig
from uirl.errors import ConfigError, ContractError, EngineFailure
from uirl.inference import GenerationRequest, LoadedModel, SamplingParams
from uirl.inference.http import ServerFailure
from uirl.inference.models.loading import load_model
from uirl.inference.vllm.engine import VLLMInferenceEngine
from uirl.inference.vllm.process import VLLMProcess
from uirl.inference.vllm.requests import Adapter, VLLMBackend, VLLMRequest, VLLMResponse
from uirl.inference.vllm.server import VLLMServer
from uirl.inference.weight_files import WeightFiles
from uirl.learner import Policy
from uirl.learner.lora import peft_config, peft_weights

REQUEST = GenerationRequest((10, 11), (), SamplingParams(max_tokens=2, seed=1))


class StandIn(VLLMBackend):
    """Answers with the number of the weights it holds; a request whose seed is 99 waits until it is let go."""

    def __init__(self) -> None:
        self.weights = 0
        self.adapter: str | None = None
        self.there: list[str] = []
        self.go = asyncio.Event()
        self.began = asyncio.Event()
        self.stopped = 0
        self.fails: str | None = None
        self.closed = False

    async def start(self) -> int:
        return 64

    async def generate(self, call: VLLMRequest, adapter: Adapter | None) -> VLLMResponse:
        before = self.weights
        self.adapter = adapter.name if adapter else None
        if call.sampling["seed"] == 99:
            self.began.set()
            try:
                await self.go.wait()
            except asyncio.CancelledError:
                self.stopped += 1
                raise
        assert self.weights == before, "weights changed under a request"
        return VLLMResponse(call.prompt_ids, (before,), (-0.5,), "length", 1)

    async def load(self, folder: Path) -> None:
        assert list(folder.glob("*.safetensors"))
        if self.fails:
            raise EngineFailure(self.fails)
        await asyncio.sleep(0.01)
        self.weights += 1

    async def swap(self, old: Adapter | None, new: Adapter | None) -> None:
        if self.fails and new is not None:
            raise EngineFailure(self.fails)
        assert self.there == ([old.name] if old else [])
        if new is not None:
            assert (new.folder / "adapter_config.json").exists()
            assert old is None or (old.name != new.name and old.number != new.number)
        self.there = [new.name] if new else []

    async def close(self, adapter: Adapter | None) -> None:
        self.closed = True


def engine_of(backend: StandIn, loaded: LoadedModel, tmp_path: Path, **options: Any) -> VLLMInferenceEngine:
    return VLLMInferenceEngine(backend, loaded, files=WeightFiles(tmp_path), **options)


def push(engine: VLLMInferenceEngine, version: int) -> Any:
    return engine.update_weights(engine.loaded.model.named_parameters(), version)


async def test_no_response_spans_an_update(lm: LoadedModel, tmp_path: Path) -> None:
    backend = StandIn()
    engine = engine_of(backend, lm, tmp_path)
    waiting = replace(REQUEST, sampling=SamplingParams(max_tokens=2, seed=99))
    early = asyncio.ensure_future(engine.generate(waiting))
    await wait_for(backend.began)
    update = asyncio.ensure_future(push(engine, 1))
    while engine._gate._open.is_set():  # the files are written and the update waits for the request
        await asyncio.sleep(0.01)
    assert list(engine._files.path.glob("*/*.safetensors"))
    late = [asyncio.ensure_future(engine.generate(REQUEST)) for _ in range(3)]
    await asyncio.sleep(0.1)
    assert backend.weights == 0
    assert not update.done()
    assert not any(task.done() for task in late)
    engine._loop._loop.call_soon_threadsafe(backend.go.set)
    first = await early
    assert (first.token_ids, first.policy_version) == ((0,), 0)
    await update
    assert {(made.token_ids, made.policy_version) for made in await asyncio.gather(*late)} == {((1,), 1)}
    assert engine.policy_version == 1
    assert [p.name for p in engine._files.path.iterdir()] == ["lock"]  # nothing of the update stays on the RAM disk


async def wait_for(event: asyncio.Event) -> None:
    """Waits for an event of another loop."""
    while not event.is_set():
        await asyncio.sleep(0.005)


async def test_a_cancelled_caller_stops_the_work_and_holds_up_no_update(lm: LoadedModel, tmp_path: Path) -> None:
    backend = StandIn()
    engine = engine_of(backend, lm, tmp_path)
    waiting = asyncio.ensure_future(engine.generate(replace(REQUEST, sampling=SamplingParams(seed=99))))
    await wait_for(backend.began)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await asyncio.wait_for(push(engine, 3), PATIENCE)
    assert backend.stopped == 1
    assert engine.policy_version == 3


async def test_after_a_failed_update_nothing_is_sampled_until_one_succeeds(lm: LoadedModel, tmp_path: Path) -> None:
    backend = StandIn()
    engine = engine_of(backend, lm, tmp_path)
    backend.fails = "half of it"
    with pytest.raises(EngineFailure, match="half of it"):
        await push(engine, 1)
    with pytest.raises(EngineFailure, match=r"half of it.*push the weights again"):
        await engine.generate(REQUEST)
    assert engine.policy_version == 0
    backend.fails = None
    await push(engine, 2)
    assert (await engine.generate(REQUEST)).policy_version == 2
    assert [p.name for p in engine._files.path.iterdir()] == ["lock"]


async def test_weights_that_do_not_fit_change_nothing(lm: LoadedModel, tmp_path: Path) -> None:
    backend = StandIn()
    engine = engine_of(backend, lm, tmp_path)
    with pytest.raises(ContractError, match="does not have"):
        await engine.update_weights([("nonsense", torch.zeros(1))], 1)
    with pytest.raises(ContractError, match="shares"):
        await engine.update_weights(None, 1)
    with pytest.raises(ContractError, match="takes no adapters"):
        await engine.update_weights([], 1, adapter={})
    assert (await engine.generate(REQUEST)).policy_version == 0


async def test_adapters_are_swapped_under_new_names(lm: LoadedModel, tmp_path: Path) -> None:
    config = ConfigStore().override(["model.model_name=uirl/tiny-lm", "model.use_lora=true"]).model
    policy = Policy(load_model(config), lora_config=LoraConfig())
    backend = StandIn()
    engine = engine_of(backend, policy.loaded, tmp_path, takes_adapters=True)

    async def swap(version: int) -> str | None:
        described = peft_config(policy.model, LoraConfig())
        await engine.update_weights(peft_weights(policy.model), version, adapter=described)
        assert (await engine.generate(REQUEST)).policy_version == version
        return backend.adapter

    assert (await engine.generate(REQUEST)).policy_version == 0
    assert backend.adapter is None
    names = [await swap(version) for version in (1, 1, 2)]
    assert len(set(names)) == 3
    assert None not in names
    assert len(list(engine._files.path.glob("*/adapter_model.safetensors"))) == 1
    backend.fails = "no room"
    with pytest.raises(EngineFailure, match="no room"):
        await swap(3)
    backend.fails = None
    assert (await engine.generate(REQUEST)).policy_version == 2  # the last adapter still stands
    assert backend.adapter == names[-1]
    await engine.update_weights(policy.weights(), 4)
    assert (await engine.generate(REQUEST)).policy_version == 4
    assert backend.adapter is None
    assert not list(engine._files.path.glob("*/adapter_model.safetensors"))


@pytest.mark.parametrize("held", [True, False])
async def test_an_adapter_never_stands_on_other_weights_than_its_own(held: bool, tmp_path: Path) -> None:
    config = ConfigStore().override(["model.model_name=uirl/tiny-lm", "model.use_lora=true"]).model
    policy = Policy(load_model(config), lora_config=LoraConfig())
    backend = StandIn()
    engine = engine_of(backend, policy.loaded, tmp_path, takes_adapters=True, holds_base=held)
    described = peft_config(policy.model, LoraConfig())
    for version in (1, 2):
        await engine.update_weights(peft_weights(policy.model), version, adapter=described)
        assert backend.weights == (0 if held else 1)  # the base goes once, and only where nobody knows what is there
    await engine.update_weights(policy.weights(), 3)
    await engine.update_weights(peft_weights(policy.model), 4, adapter=described)
    assert backend.weights == (2 if held else 3)
    assert (await engine.generate(REQUEST)).policy_version == 4
    backend.fails = "half of it"
    with pytest.raises(EngineFailure, match="half of it"):
        await engine.update_weights(policy.weights(), 5)
    backend.fails = None
    await engine.update_weights(peft_weights(policy.model), 6, adapter=described)
    assert backend.weights == (3 if held else 4)
    assert (await engine.generate(REQUEST)).policy_version == 6


async def test_closing_answers_whoever_waits(lm: LoadedModel, tmp_path: Path) -> None:
    backend = StandIn()
    engine = engine_of(backend, lm, tmp_path)
    waiting = asyncio.ensure_future(engine.generate(replace(REQUEST, sampling=SamplingParams(seed=99))))
    await wait_for(backend.began)
    folder = engine._files.path
    await engine.close()
    await engine.close()
    with pytest.raises(EngineFailure, match="closed"):
        await waiting
    with pytest.raises(EngineFailure, match="closed"):
        await engine.generate(REQUEST)
    with pytest.raises(EngineFailure, match="closed"):
        await push(engine, 1)
    assert backend.closed
    assert not folder.exists()


def test_it_serves_one_event_loop_after_another(lm: LoadedModel, tmp_path: Path) -> None:
    engine = engine_of(StandIn(), lm, tmp_path)
    for version in range(1, 3):
        asyncio.run(push(engine, version))
        assert asyncio.run(engine.generate(REQUEST)).policy_version == version
    asyncio.run(engine.close())


async def test_the_counters(lm: LoadedModel, tmp_path: Path) -> None:
    engine = engine_of(StandIn(), lm, tmp_path)
    for _ in range(3):
        await engine.generate(REQUEST)
    await push(engine, 1)
    counted = engine.stats()
    assert (counted["generated_tokens"], counted["prefill_tokens"], counted["reused_tokens"]) == (3, 3, 3)
    assert counted["busy_seconds"] > 0
    assert counted["update_seconds"] > 0.01
    assert engine.stats() == {}


async def test_the_context_is_the_smaller_of_both(lm: LoadedModel, tmp_path: Path) -> None:
    for asked, limit in ((None, 64), (20, 20), (100, 64)):
        engine = engine_of(StandIn(), lm, tmp_path, max_context=asked)
        with pytest.raises(EngineFailure, match=f"1 to {limit - 1} "):
            await engine.generate(GenerationRequest(tuple(range(10, 10 + limit))))
        assert (await engine.generate(GenerationRequest(tuple(range(10, 9 + limit))))).token_ids
        await engine.close()


class Answers:
    """A client whose server says what it is given by method and path."""

    base_url = "http://there:8000"

    def __init__(self, **changes: Any) -> None:
        self.describe = {"logprobs_mode": "processed_logprobs", "max_model_len": 128, "max_lora_rank": 8}
        self.paths = ["/inference/v1/generate", "/collective_rpc", "/pause", "/reset_prefix_cache"]
        self.paths.append("/v1/load_lora_adapter")
        self.cards: list[dict[str, Any]] = [{"id": "m", "parent": None}, {"id": "adapter", "parent": "m"}]
        self.__dict__ |= changes

    async def get(self, path: str, **options: Any) -> Any:
        return {"paths": dict.fromkeys(self.paths)} if path == "/openapi.json" else {"data": self.cards}

    async def post(self, path: str, body: Any = None, **options: Any) -> Any:
        if self.describe is None:
            failure = ServerFailure("500: no attribute uirl_describe")
            failure.status = 500
            raise failure
        return {"results": [self.describe]}


async def test_a_server_that_fits_is_taken() -> None:
    server = VLLMServer(Answers(), lora_rank=8)
    assert await server.start() == 128
    assert server._model == "m"


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"paths": ["/collective_rpc", "/pause", "/reset_prefix_cache"]}, {}, "without --enable-scale-out"),
        ({"paths": ["/inference/v1/generate"]}, {}, "without VLLM_SERVER_DEV_MODE=1"),
        ({"paths": Answers().paths[:-1]}, {"lora_rank": 4}, "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"),
        ({"describe": None}, {}, "without --worker-extension-cls"),
        ({"describe": {**Answers().describe, "logprobs_mode": "raw_logprobs"}}, {}, "--logprobs-mode"),
        ({"describe": {**Answers().describe, "max_lora_rank": None}}, {"lora_rank": 4}, "up to rank None"),
        ({}, {"lora_rank": 16}, "model.lora.r is 16"),
        ({}, {"model": "other"}, "serves m"),
        ({"cards": [{"id": "a"}, {"id": "b"}]}, {}, "serves a, b"),
    ],
)
async def test_a_server_that_does_not_fit_is_told_apart(changes: Any, options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        await VLLMServer(Answers(**changes), **options).start()


def test_an_argument_that_an_older_vllm_does_not_have_is_a_config_error() -> None:
    """Keywords of ours that came with vLLM 0.32 reach its argument class as they are."""

    def engine_args(*, model: str) -> None: ...

    process = VLLMProcess.__new__(VLLMProcess)
    process._vllm = SimpleNamespace(AsyncLLM=SimpleNamespace(from_engine_args=None), AsyncEngineArgs=engine_args)
    process._arguments = {"model": "folder", "mm_device_do_normalize": False}
    with pytest.raises(ConfigError, match=r"does not take its arguments: .*mm_device_do_normalize.*at least 0\.32"):
        process._launch()
