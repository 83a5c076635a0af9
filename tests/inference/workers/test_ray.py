"""Engines in Ray: the contract, a kill in the middle of a reply, new weights, refusals. On Ray itself."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import torch

from tests.conftest import tiny_model
from tests.inference.killing import check_a_kill, is_alive
from tests.inference.prompts import contract
from tests.patience import until
from uirl import ConfigStore
from uirl.errors import ConfigError, ContractError, StorageError
from uirl.inference import GenerationRequest, LoadedModel, Router
from uirl.inference.workers import engine_workers, supervisors_of

pytestmark = pytest.mark.actors
STORE = 80 * 2**20
"""Bytes of Ray's store of objects."""


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    import ray

    ray.init(address="local", num_cpus=2, object_store_memory=STORE, include_dashboard=False, log_to_driver=False)
    yield ray
    ray.shutdown()


def config_of(**changes: Any) -> ConfigStore:
    config = ConfigStore()
    config.ray.use_ray, config.actors.engines, config.ray.engine_cpus = True, 2, 0.5
    for key, value in changes.items():
        setattr(config.ray, key, value)
    return config


@pytest.fixture
async def router(ray: Any, vlm: LoadedModel) -> AsyncIterator[Router]:
    config = config_of()
    made = engine_workers(config.engine_settings, config.ray, config.training.threads, vlm)
    yield made
    pids = [supervisor.pid for supervisor in supervisors_of(made)]
    await made.close()
    await until(lambda: not any(pid and is_alive(pid) for pid in pids))


async def test_they_keep_the_contract_of_an_engine(router: Router, vlm: LoadedModel) -> None:
    report = await contract(router, vlm)
    assert (report.log_prob_gap < 1e-4, report.cached_tokens > 0) == (True, True)


async def test_a_kill_costs_no_reply_and_the_next_process_has_the_newest_weights(router: Router) -> None:
    await check_a_kill(router)


async def test_the_store_holds_one_version_however_many_there_were(ray: Any, router: Router) -> None:
    from ray._private.internal_api import memory_summary

    trained = tiny_model(init_seed=5)
    for version in range(1, 11):
        await router.update_weights(trained.model.named_parameters(), version)
    size = sum(parameter.nbytes for parameter in trained.model.parameters())
    summary = await asyncio.to_thread(memory_summary, ray.get_runtime_context().gcs_address, stats_only=True)
    needed = re.search(r"([\d.]+)% needed", summary)  # what it may not drop when room is wanted
    assert needed is not None, summary
    assert 0.8 * size < float(needed[1]) / 100 * STORE < 2.2 * size, summary  # the newest, and one still being read
    with pytest.raises(ContractError, match="does not have"):  # stops the run
        await router.update_weights([("nonsense.weight", torch.zeros(1))], 11)


async def test_weights_come_back_from_the_store_as_they_were(router: Router) -> None:
    home: Any = router._files
    sent = {
        "a": torch.randn(3, 2),
        "b": torch.tensor(4.5),
        "c": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3).T,
        "d": torch.zeros(0, 4),
    }
    kept = home.write_snapshot(list(sent.items()), 3, {"r": 4})
    for _ in range(2):
        back = dict(kept)
        assert back.keys() == sent.keys()
        for name, tensor in sent.items():
            assert back[name].dtype == tensor.dtype
            assert torch.equal(back[name], tensor)
    kept.remove()
    kept.remove()
    with pytest.raises(StorageError, match="version 3 are gone"):
        dict(kept)


async def test_a_store_without_room_is_an_error_that_says_so(router: Router, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray as module

    def full(value: Any) -> Any:
        raise module.exceptions.ObjectStoreFullError("full")

    monkeypatch.setattr(module, "put", full)
    with pytest.raises(StorageError, match="object-store-memory"):
        router._files.write_snapshot([("a", torch.zeros(2))], 1, None)  # type: ignore[union-attr]


async def test_engines_without_a_place_stop_the_run_with_what_they_need(ray: Any, vlm: LoadedModel) -> None:
    config = config_of(engine_cpus=64.0, start_seconds=1.0)
    made = engine_workers(config.engine_settings, config.ray, config.training.threads, vlm)
    with pytest.raises(ConfigError, match=r"engine-0 has had no place .* needs 64 CPU .*ray\.engine_cpus"):
        await made.generate(GenerationRequest((10, 11), session_id="e"))
    await made.close()


def test_only_our_own_engine_runs_in_ray() -> None:
    config = config_of()
    assert config.engines_in_ray == 2
    config.ray.use_ray = False
    assert config.engines_in_ray == 0
    config.ray.use_ray, config.inference.backend = True, "vllm"
    assert config.engines_in_ray == 0
