"""Real engine processes: the contract, a kill in the middle of a reply, new weights after it, and the learner's end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import torch

from tests.inference.killing import check_a_kill, is_alive
from tests.inference.prompts import contract
from tests.patience import PATIENCE
from uirl import ConfigStore
from uirl.errors import CheckpointError, ContractError
from uirl.inference import GenerationRequest, LoadedModel, Router, SamplingParams
from uirl.inference.weight_files import WeightFiles
from uirl.inference.workers import RemoteEngine, engine_workers, supervisors_of

pytestmark = pytest.mark.actors


def config_of(tmp_path: Path, engines: int = 2) -> ConfigStore:
    config = ConfigStore()
    config.actors.engines, config.inference.weights_dir = engines, str(tmp_path)
    return config


@pytest.fixture
async def router(vlm: LoadedModel, tmp_path: Path) -> AsyncIterator[Router]:
    config = config_of(tmp_path)
    made = engine_workers(config.engine_settings, config.ray, config.training.threads, vlm)
    yield made
    pids = [supervisor.pid for supervisor in supervisors_of(made)]
    await made.close()
    assert not any(pid and is_alive(pid) for pid in pids)
    assert not list(tmp_path.glob("uirl-weights-*"))


async def test_they_keep_the_contract_of_an_engine(router: Router, vlm: LoadedModel) -> None:
    report = await contract(router, vlm)
    assert (report.log_prob_gap < 1e-4, report.cached_tokens > 0) == (True, True)
    assert router.stats()["generated_tokens"] > report.tokens


async def test_a_kill_costs_no_reply_and_the_next_process_has_the_newest_weights(router: Router) -> None:
    await check_a_kill(router)


async def test_a_process_that_stands_still_is_replaced(tmp_path: Path, vlm: LoadedModel) -> None:
    files = WeightFiles(tmp_path)
    plain = ConfigStore().to_dict()
    process = RemoteEngine({"model": plain["model"]}, files=files, silence=5.0)
    router = Router([process], files=files)
    request = GenerationRequest((10, 11), (), SamplingParams(max_tokens=3, seed=1))
    before = await router.generate(request)
    assert process.supervisor.pid is not None
    os.kill(process.supervisor.pid, signal.SIGSTOP)
    assert await router.generate(request) == before
    assert process.supervisor.incarnation == 2
    await router.close()


async def test_what_cannot_be_loaded_is_said_at_once(tmp_path: Path) -> None:
    files = WeightFiles(tmp_path)
    plain = ConfigStore().to_dict()["model"] | {"local_path": str(tmp_path / "nothing")}
    process = RemoteEngine({"model": plain}, files=files)
    with pytest.raises(CheckpointError, match="there is no folder"):
        await process.generate(GenerationRequest((10, 11)))
    assert process.supervisor.incarnation == 1
    await process.close()


async def test_weights_that_do_not_fit_stop_the_run(router: Router) -> None:
    with pytest.raises(ContractError, match="does not have"):
        await router.update_weights([("nonsense.weight", torch.zeros(1))], 1)


LEARNER = """
import asyncio, sys
from uirl import ConfigStore
from uirl.inference import GenerationRequest, SamplingParams
from uirl.inference.models.loading import load_model
from uirl.inference.workers import engine_workers, supervisors_of

async def main():
    config = ConfigStore()
    config.actors.engines = 2
    router = engine_workers(config.engine_settings, config.ray, config.training.threads, load_model(config.model))
    short = SamplingParams(max_tokens=2, seed=1)
    await asyncio.gather(*[router.generate(GenerationRequest((10, 11), (), short, f"e{n}")) for n in range(2)])
    print(*[supervisor.pid for supervisor in supervisors_of(router)], flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def test_they_end_with_a_learner_that_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "learner.py"
    script.write_text(LEARNER)
    learner = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert learner.stdout is not None
    pids = [int(word) for word in learner.stdout.readline().split()]
    assert len(pids) == 2
    assert all(is_alive(pid) for pid in pids)
    learner.kill()
    learner.wait()
    deadline = time.monotonic() + PATIENCE
    while any(is_alive(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.05)
