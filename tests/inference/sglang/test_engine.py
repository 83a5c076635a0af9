"""The SGLang adapter against stand-ins that take and answer what SGLang's source says, by HTTP and in process.

Not against SGLang itself, which has no build for CPUs.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.inference.prompts import contract, gap_of
from tests.inference.sglang.stand_in_sglang import ASKED, SURFACE, install
from tests.inference.stand_in_brain import within
from tests.inference.stand_in_http import Answer
from tests.patience import PATIENCE
from uirl.config import ConfigStore
from uirl.errors import ConfigError, ContractError, EngineFailure
from uirl.inference import LoadedModel, SamplingParams, recompute_with
from uirl.inference.models.loading import hidden_states, pad_sequences, project
from uirl.inference.sglang.backends import engine_arguments
from uirl.inference.sglang.engine import SGLangInferenceEngine
from uirl.inference.weight_files import WeightFiles


def recompute_as_sglang(loaded: LoadedModel):
    """The learner's log-probs; where top-k and top-p filter, of the tokens that each of them keeps by itself."""
    plain = recompute_with(loaded)

    @torch.no_grad()
    def recompute(ids, shots, n, sampling):
        if sampling.top_p == 1 and sampling.top_k == 0:
            return plain(ids, shots, n, sampling)
        input_ids, positions = pad_sequences(loaded, [ids], [shots])
        logits = project(loaded, hidden_states(loaded, input_ids, positions, shots))[0, -n - 1 : -1]
        scaled = (logits.double() / sampling.temperature).log_softmax(-1)
        rows = [within(row, sampling.top_p, sampling.top_k) for row in scaled]
        return [float(row[token]) for row, token in zip(rows, ids[-n:], strict=True)]

    return recompute


@pytest.mark.parametrize(("where", "kind"), [("server", "vlm"), ("process", "lm")])
async def test_the_contract_is_kept(make: Any, where: str, kind: str, request: pytest.FixtureRequest) -> None:
    loaded: LoadedModel = request.getfixturevalue(kind)
    world = make(where, loaded)
    report = await contract(world.engine, loaded, recompute=recompute_as_sglang(loaded), max_tokens=6)
    assert report.log_prob_gap < 2e-5
    assert report.cached_tokens > 4
    # it is looked at once, whoever asks first
    assert world.server is None or [s.path for s in world.server.seen].count("/server_info") == 1
    stats = world.engine.stats()
    assert stats["generated_tokens"] > 20
    assert stats["reused_tokens"] > 4
    await world.engine.close()
    await world.engine.close()
    with pytest.raises(EngineFailure, match="closed"):
        await world.engine.generate(ASKED)


async def test_top_k_alone_is_filtered_as_everywhere(make: Any, lm: LoadedModel) -> None:
    world = make("server", lm)
    asked = replace(ASKED, sampling=SamplingParams(max_tokens=5, seed=1, temperature=1.3, top_k=7))
    assert gap_of(lm, asked, await world.engine.generate(asked)) < 1e-5


async def test_every_end_token_ends_a_response_and_belongs_to_it(make: Any, lm: LoadedModel) -> None:
    second = (await make("server", lm).engine.generate(ASKED)).token_ids[1]
    asked = replace(ASKED, sampling=replace(ASKED.sampling, stop_token_ids=(second,)))
    made = await make("server", lm).engine.generate(asked)
    assert made.token_ids[1:] == (second,)
    assert made.finish_reason == "stop"
    # the template's end token, where the server takes another for the model's
    made = await make("server", replace(lm, end_ids=(*lm.end_ids, second))).engine.generate(ASKED)
    assert made.token_ids[1:] == (second,)
    assert made.finish_reason == "stop"


async def test_top_p_alone_is_unfit_for_training(make: Any, lm: LoadedModel) -> None:
    world = make("server", lm)
    made = await world.engine.generate(replace(ASKED, sampling=SamplingParams(max_tokens=4, seed=1, top_p=0.5)))
    assert made.token_ids
    assert made.log_probs is None
    # a greedy response reports the plain distribution, filtered or not
    greedy = SamplingParams(max_tokens=4, temperature=0.0, top_p=0.5, top_k=3)
    made = await world.engine.generate(replace(ASKED, sampling=greedy))
    plain = recompute_with(lm)([*ASKED.prompt_ids, *made.token_ids], (), 4, SamplingParams())
    assert made.log_probs == pytest.approx(plain, abs=1e-5)


async def test_without_a_seed_every_response_is_another(make: Any, lm: LoadedModel) -> None:
    world = make("server", lm)
    asked = replace(ASKED, sampling=SamplingParams(max_tokens=6))
    made = await asyncio.gather(*[world.engine.generate(asked) for _ in range(4)])
    assert len({m.token_ids for m in made}) > 1


async def test_what_a_server_prefers_does_not_apply(make: Any, lm: LoadedModel) -> None:
    plain = {"repetition_penalty": 1.2, "min_p": 0.1, "top_k": 5, "temperature": 0.3, "top_p": 0.5}
    for preferred in (plain, {"regex": "[0-9]+"}, {"stop": ["a"]}, {"min_new_tokens": 9}, {"ignore_eos": True}):
        world = make("server", lm, preferred=preferred)
        with pytest.raises(AssertionError, match=r"penalties|asked for"):
            world.logic.generate({"input_ids": [1], "sampling_params": {}})
        # the first look at the server, and every request
        made = await world.engine.generate(ASKED)
        assert len(made.token_ids) == 6


async def test_a_server_that_ignores_seeds_is_told_about(
    make: Any, lm: LoadedModel, caplog: pytest.LogCaptureFixture
) -> None:
    world = make("server", lm, deterministic=False)
    with caplog.at_level(logging.WARNING):
        await world.engine.generate(ASKED)
    assert "--enable-deterministic-inference" in caplog.text
    assert "--image-processor-backend" not in caplog.text


async def test_a_server_with_other_pixels_is_told_about(
    make: Any, vlm: LoadedModel, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        await make("server", vlm, image_processor="torchvision").engine.generate(ASKED)
        assert "--image-processor-backend pil" in caplog.text
        caplog.clear()
        await make("server", vlm, image_processor="pil").engine.generate(ASKED)
        await make("process", vlm).engine.generate(ASKED)
    assert "--image-processor-backend" not in caplog.text


async def test_the_engine_in_process_gets_what_the_config_says(
    monkeypatch: pytest.MonkeyPatch, lm: LoadedModel
) -> None:
    made = install(monkeypatch)
    config = ConfigStore()
    config.model.model_name, config.model.use_lora, config.model.lora.r = "uirl/tiny-lm", True, 8
    config.inference.max_context, config.inference.max_batch_size, config.inference.kv_cache = 96, 17, False
    config.inference.engine_options = {"mem_fraction_static": 0.4, "dtype": "auto"}
    config.model.tensor_parallel_size = 2
    loaded = copy.copy(lm)
    engine = SGLangInferenceEngine.from_config(config.engine_settings, loaded, shared=True)
    given = dict(made[0].kwargs)
    assert given.pop("model_path").startswith(str(engine._files.path))
    assert given == {
        "dtype": "auto",
        "trust_remote_code": False,
        "tp_size": 2,
        "max_running_requests": 17,
        "disable_radix_cache": True,
        "enable_deterministic_inference": True,
        "random_seed": config.training.seed,
        "context_length": 96,
        "enable_lora": True,
        "max_lora_rank": 8,
        "lora_target_modules": ["all"],
        "mem_fraction_static": 0.4,
    }
    await engine.close()
    assert made[0].ended == 1
    assert not engine._files.path.exists()
    config.inference.engine_options = {"enable_lora": False, "attention_backnd": "triton"}
    with pytest.raises(ConfigError, match=r"attention_backnd.*inference\.engine_options"):
        SGLangInferenceEngine.from_config(config.engine_settings, loaded, shared=True)


def test_without_the_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, lm: LoadedModel) -> None:
    monkeypatch.setitem(sys.modules, "sglang", None)
    config = ConfigStore()
    config.model.model_name = "uirl/tiny-lm"
    with pytest.raises(ConfigError, match=r"pip install 'uirl\[sglang\]'"):
        SGLangInferenceEngine.from_config(config.engine_settings, lm, shared=True)


@pytest.mark.parametrize("where", ["server", "process"])
def test_any_loop_may_call_it(make: Any, lm: LoadedModel, where: str) -> None:
    world = make(where, lm)
    first, second = [asyncio.run(world.engine.generate(ASKED)) for _ in range(2)]
    assert first.token_ids == second.token_ids


async def test_a_call_in_process_that_is_given_up_ends_its_sampling(make: Any, lm: LoadedModel) -> None:
    world = make("process", lm)
    await world.engine.generate(ASKED)
    manager = world.engine._backend._manager
    quick, manager.seconds = manager.seconds, 60.0
    call = asyncio.ensure_future(world.engine.generate(ASKED))
    while not manager.sampling:
        await asyncio.sleep(0.001)
    manager.seconds = quick
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    assert call.cancelled()
    while manager.sampling:
        await asyncio.sleep(0.001)
    monkey = {"input_ids": [1], "sampling_params": {"max_new_tokens": 9999}}
    with pytest.raises(EngineFailure, match="could not generate: Refused: Requested token count"):
        await world.engine._backend.generate(monkey)


@pytest.mark.parametrize("where", ["server", "process"])
async def test_requests_under_way_end_when_the_engine_is_closed(make: Any, lm: LoadedModel, where: str) -> None:
    world = make(where, lm)
    await world.engine.generate(ASKED)
    if where == "server":
        world.server.faults += [Answer({}, seconds=5.0)] * 3
    else:
        world.engine._backend._manager.seconds = 60.0
    before = len(world.server.seen) if where == "server" else 0
    calls = [asyncio.ensure_future(world.engine.generate(ASKED)) for _ in range(3)]
    while (len(world.server.seen) if where == "server" else world.engine._backend._manager.sampling) < before + 3:
        await asyncio.sleep(0.01)
    await world.engine.close()
    # none waits for ever, and none is taken for one that the caller gave up
    ended = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), PATIENCE)
    assert all(isinstance(end, EngineFailure) for end in ended), ended


def test_a_checkpoint_is_found_where_it_is(lm: LoadedModel, tmp_path: Path) -> None:
    config, files = ConfigStore(), WeightFiles(tmp_path)
    config.model.model_name, config.model.local_path = "some/7b", "/models/7b"
    named = replace(lm, name="/models/7b")
    given = engine_arguments(config.engine_settings, named, files, False)
    assert (given["model_path"], given["dtype"]) == ("/models/7b", "float32")
    # another policy than the one at that path: its own weights are written
    written = engine_arguments(config.engine_settings, lm, files, False)["model_path"]
    assert Path(written, "model.safetensors").is_file()
    hollow = replace(lm, model=copy.deepcopy(lm.model).to("meta"))
    with pytest.raises(ContractError, match="without weights"):
        engine_arguments(config.engine_settings, hollow, files, False)
    files.close()


def test_the_surface_was_read_from_the_release_that_the_docs_name() -> None:
    import uirl.inference.sglang.engine as module

    assert f"SGLang {SURFACE['version']}" in (module.__doc__ or "")
    assert {"POST"} <= set(SURFACE["routes"]["/generate"])
