"""The engine that gives its memory to the learner and comes back: in which order, with which weights."""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from tests.inference.prompts import gap_of
from tests.inference.vllm.sleeping import CACHE_BYTES, SCRATCH_BYTES, WEIGHT_BYTES, SleepingVLLM
from tests.patience import PATIENCE
from uirl.config import ConfigStore, LoraConfig
from uirl.errors import ConfigError, ContractError, EngineFailure
from uirl.inference import GenerationRequest, SamplingParams
from uirl.inference.footprint import CACHE, WEIGHTS, Footprint
from uirl.inference.models.loading import LoadedModel, load_model
from uirl.inference.vllm import arguments
from uirl.inference.vllm.arguments import engine_arguments, sleep_level
from uirl.inference.vllm.engine import VLLMInferenceEngine
from uirl.inference.vllm.process import VLLMProcess
from uirl.inference.vllm.worker import WorkerExtension
from uirl.inference.weight_files import WeightFiles
from uirl.learner import Policy
from uirl.learner.lora import peft_config, peft_weights

REQUEST = GenerationRequest((10, 11), (), SamplingParams(max_tokens=4, seed=1))
VLLM = "inference.backend=vllm"


class World:
    """A policy, its engine, and the vLLM behind that."""

    def __init__(self, tmp_path: Path, level: int, *, lora: bool = False, **options: Any) -> None:
        config = ConfigStore().override(["model.model_name=uirl/tiny-lm"]).model
        self.policy = Policy(load_model(config), lora_config=LoraConfig() if lora else None)
        self.vllm = SleepingVLLM(load_model(config), **options)
        self.engine = VLLMInferenceEngine(
            self.vllm,
            self.policy.loaded,
            files=WeightFiles(tmp_path),
            takes_adapters=lora,
            holds_base=True,
            sleep_level=level,
        )
        self.version = 0

    def learn(self) -> None:
        """Change what is trained."""
        for _, parameter in self.policy.named_trainable():
            parameter.data.add_(0.05 * (parameter.data + 1))

    async def publish(self) -> None:
        self.version += 1
        if self.engine.takes_adapters:
            described = peft_config(self.policy.model, LoraConfig())
            await self.engine.update_weights(peft_weights(self.policy.model), self.version, adapter=described)
        else:
            await self.engine.update_weights(self.policy.weights(), self.version)

    async def gap(self) -> float:
        """How far the engine is from the learner as it is now."""
        return gap_of(self.policy.loaded, REQUEST, await self.engine.generate(REQUEST))


@pytest.mark.parametrize(("level", "lora"), [(1, False), (2, False), (1, True), (2, True)])
async def test_after_every_sleep_it_samples_from_the_learners_weights(level: int, lora: bool, tmp_path: Path) -> None:
    """Level 2 under adapters too: the base is pushed again, since nobody holds it."""
    world = World(tmp_path, level, lora=lora)
    await world.publish()
    assert await world.gap() < 1e-4
    for _ in range(2):
        await world.engine.sleep()
        world.learn()
        await world.publish()
        assert await world.gap() < 1e-4


async def test_weights_wake_before_they_are_loaded_and_the_cache_afterwards(tmp_path: Path) -> None:
    """There is room for weights and cache, and for no third part: what wakes beside a load would not fit."""
    world = World(tmp_path, 2, room=WEIGHT_BYTES + CACHE_BYTES + SCRATCH_BYTES)
    await world.engine.sleep()
    await world.engine.sleep()
    await world.publish()
    assert world.vllm.calls == ["sleep 2", "wake weights", "load", "swap", "wake kv_cache"]
    footprint = world.engine.footprint
    assert footprint is not None
    assert [sum(held.values()) for held in (footprint.before, footprint.asleep, footprint.loaded, footprint.awake)] == [
        3050,
        50,
        1050,
        3050,
    ]
    assert not list(footprint.problems())
    await world.publish()
    assert world.vllm.calls[5:] == ["load", "swap"], "who is awake is not woken"


async def test_adapters_leave_the_base_where_it_is_at_level_1(tmp_path: Path) -> None:
    world = World(tmp_path, 1, lora=True)
    await world.engine.sleep()
    await world.publish()
    assert world.vllm.calls == ["sleep 1", "wake weights", "swap", "wake kv_cache"]


async def test_asleep_it_answers_nothing(tmp_path: Path) -> None:
    world = World(tmp_path, 1)
    await world.engine.sleep()
    with pytest.raises(EngineFailure, match=r"while the engine sleeps.*inference\.sleep=off"):
        await world.engine.generate(REQUEST)
    await world.publish()
    assert (await world.engine.generate(REQUEST)).policy_version == 1


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("call", ["wake weights", "load", "wake kv_cache"])
async def test_a_failure_on_the_way_back_is_told_and_the_next_update_goes_on(
    call: str, level: int, tmp_path: Path
) -> None:
    world = World(tmp_path, level)
    await world.engine.sleep()
    world.vllm.refuses = {call}
    with pytest.raises(EngineFailure, match=f"did not take {call}"):
        await world.publish()
    with pytest.raises(EngineFailure, match="sleeps"):
        await world.engine.generate(REQUEST)
    world.vllm.refuses = set()
    world.learn()
    await world.publish()
    assert await world.gap() < 1e-4
    assert world.vllm.held_now == {WEIGHTS: WEIGHT_BYTES, CACHE: CACHE_BYTES, "other": SCRATCH_BYTES}


async def test_one_that_cannot_fall_asleep_says_so(tmp_path: Path) -> None:
    world = World(tmp_path, 2)
    world.vllm.refuses = {"sleep 2"}
    with pytest.raises(EngineFailure, match="did not take sleep 2"):
        await world.engine.sleep()
    with pytest.raises(EngineFailure, match="while the engine sleeps"):
        await world.engine.generate(REQUEST)
    await world.publish()
    assert await world.gap() < 1e-4


async def test_it_falls_asleep_once_nothing_is_under_way(tmp_path: Path) -> None:
    world = World(tmp_path, 2)
    go, began, generate = threading.Event(), threading.Event(), world.vllm.generate

    async def slow(*call: Any) -> Any:
        began.set()
        await asyncio.to_thread(go.wait)
        world.vllm.calls.append("answered")
        return await generate(*call)

    world.vllm.generate = slow  # type: ignore[method-assign]
    early = asyncio.ensure_future(world.engine.generate(REQUEST))
    await asyncio.to_thread(began.wait)
    falling = asyncio.ensure_future(world.engine.sleep())
    async with asyncio.timeout(PATIENCE):
        while world.engine._gate._open.is_set():  # it is at the door, and waits
            await asyncio.sleep(0.005)
    late = asyncio.ensure_future(world.engine.generate(REQUEST))
    go.set()
    assert (await early).token_ids
    await falling
    assert world.vllm.calls == ["answered", "sleep 2"]
    with pytest.raises(EngineFailure, match="while the engine sleeps"):
        await late


async def test_what_the_learner_freed_is_given_back_before_the_engine_takes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, 2)
    await world.engine.sleep()
    monkeypatch.setattr(LoadedModel, "device", property(lambda self: torch.device("cuda")))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: world.vllm.calls.append("empty_cache"))
    await world.publish()
    assert world.vllm.calls == ["sleep 2", "empty_cache", "wake weights", "load", "swap", "wake kv_cache"]


async def test_level_0_never_sleeps(tmp_path: Path) -> None:
    world = World(tmp_path, 0)
    await world.engine.sleep()
    assert not world.engine.sleeps
    assert (await world.engine.generate(REQUEST)).token_ids
    assert not world.vllm.calls
    with pytest.raises(ContractError, match=r"no inference\.server_url"):
        await super(SleepingVLLM, world.vllm).sleep(1)


AWAKE = {WEIGHTS: 100, CACHE: 200, "other": 10}
ASLEEP, LOADED = {WEIGHTS: 0, CACHE: 0, "other": 10}, {WEIGHTS: 100, CACHE: 0, "other": 10}


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({}, ""),
        ({"asleep": ASLEEP | {WEIGHTS: 2**20}}, "asleep it holds 1 MiB of weights"),
        ({"asleep": ASLEEP | {CACHE: 2**20}}, "asleep it holds 1 MiB of kv_cache"),
        ({"loaded": LOADED | {CACHE: 2**20}}, "held 1 MiB of kv_cache while weights were loaded"),
        ({"awake": AWAKE | {"other": 60}}, ""),
        ({"awake": AWAKE | {"other": 61}}, "the weights are there twice"),
        ({"asleep": ASLEEP | {"other": 61}}, "the weights are there twice"),
        ({"awake": AWAKE | {WEIGHTS: 0}}, "awake it holds 0 MiB of weights"),
        ({"awake": AWAKE | {CACHE: 100}}, "awake it holds 0 MiB of kv_cache"),
    ],
)
def test_a_footprint_says_what_went_wrong(changed: dict[str, Any], problem: str) -> None:
    told = "; ".join(
        Footprint(**({"before": AWAKE, "asleep": ASLEEP, "loaded": LOADED, "awake": AWAKE} | changed)).problems()
    )
    assert problem in told
    assert bool(problem) == bool(told)


def level_of(*changes: str, beside: bool = True) -> int:
    return sleep_level(ConfigStore().override([VLLM, *changes]).engine_settings, beside_learner=beside)


def test_the_level_follows_from_the_config(monkeypatch: pytest.MonkeyPatch) -> None:
    assert level_of() == 2
    assert level_of("model.use_lora=true") == 1
    assert level_of("inference.sleep=off") == 0
    assert level_of("inference.sleep=1") == 1
    assert level_of("actors.staleness=1") == 0
    assert level_of("inference.server_url=http://there:8000", "inference.sleep=2") == 0
    assert level_of(beside=False) == 0
    assert level_of("inference.sleep=1", beside=False) == 1
    monkeypatch.setattr(arguments, "on_cpu", lambda: True)
    assert level_of() == 0
    with pytest.raises(ConfigError, match=r"inference\.sleep=2, but vLLM runs on a CPU"):
        level_of("inference.sleep=2")


def test_the_pool_is_asked_for_where_it_sleeps() -> None:
    config = ConfigStore().override([VLLM])
    assert engine_arguments(config.model, config.inference, sleeps=True)["enable_sleep_mode"] is True
    assert "enable_sleep_mode" not in engine_arguments(config.model, config.inference)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["inference.sleep=1", "actors.staleness=1"], r"sleep=1 with actors\.staleness=1.*use actors\.staleness=0"),
        (["inference.sleep=2", "model.use_lora=true"], r"sleep=2 with model\.use_lora=true.*use sleep=1"),
    ],
)
def test_what_cannot_sleep_is_refused(changes: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ConfigStore().override([VLLM, *changes]).check(training=True)


class Asked:
    """vLLM's `AsyncLLM`, as far as a sleep needs it; `told`: what its workers say."""

    def __init__(self, told: list[Any]) -> None:
        self.told, self.calls = told, list[Any]()

    async def sleep(self, level: int = 1, mode: str = "abort") -> None:
        self.calls.append(("sleep", level, mode))

    async def wake_up(self, tags: list[str] | None = None) -> bool:
        self.calls.append(("wake_up", tags))
        if tags == ["lost"]:
            raise RuntimeError("CUDA out of memory")
        return False

    async def collective_rpc(self, method: str) -> list[Any]:
        self.calls.append(method)
        return self.told


def process_of(asked: Asked) -> VLLMProcess:
    process = VLLMProcess.__new__(VLLMProcess)
    process._engine, process._vllm = asked, SimpleNamespace(EngineDeadError=ConnectionError)
    return process


async def test_a_vllm_of_our_own_is_asked_by_level_and_by_tag() -> None:
    asked = Asked([{WEIGHTS: 3, CACHE: 5, "other": 1}, {WEIGHTS: 4, CACHE: 0, "cudagraph": 2}])
    process = process_of(asked)
    await process.sleep(2)
    await process.wake(WEIGHTS)
    await process.wake(CACHE)
    assert asked.calls == [("sleep", 2, "wait"), ("wake_up", ["weights"]), ("wake_up", ["kv_cache"])]
    assert await process.held() == {WEIGHTS: 7, CACHE: 5, "other": 1, "cudagraph": 2}, "the sum over its workers"
    asked.told[1] = None
    assert await process.held() is None
    with pytest.raises(EngineFailure, match=r"order to wake up its lost: RuntimeError: CUDA out of memory"):
        await process.wake("lost")


def test_a_worker_tells_what_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 100 bytes that PyTorch has reserved 70 are in the pool, 30 of these given away."""
    parts = [("weights", 20, True), ("weights", 10, False), ("kv_cache", 10, True), ("cudagraph", 30, False)]
    pool = {
        number: SimpleNamespace(handle=(0, size, 0, 0), tag=tag, is_asleep=asleep)
        for number, (tag, size, asleep) in enumerate(parts)
    }
    allocator: Any = ModuleType("vllm.device_allocator")
    allocator.get_mem_allocator_instance = lambda: SimpleNamespace(pointer_to_data=pool)
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    monkeypatch.setitem(sys.modules, "vllm.device_allocator", allocator)
    worker: Any = WorkerExtension()
    assert worker.uirl_memory() is None, "there is no GPU"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 100)
    worker.vllm_config = SimpleNamespace(model_config=SimpleNamespace(enable_sleep_mode=True))
    assert worker.uirl_memory() == {WEIGHTS: 10, CACHE: 0, "cudagraph": 30, "other": 30}
    worker.vllm_config.model_config.enable_sleep_mode = False
    assert worker.uirl_memory() is None
