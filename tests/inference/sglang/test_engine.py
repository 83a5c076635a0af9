"""The SGLang adapter against stand-ins that take and answer what SGLang's source says, by HTTP and in process.

Not against SGLang itself, which has no build for CPUs.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import tiny_model
from tests.inference.embedded.test_engine import prompts_for
from tests.inference.pictures import picture
from tests.inference.sglang.stand_in_sglang import SURFACE, SGLangLogic, StandInSGLang, install
from tests.inference.stand_in_brain import within
from tests.inference.stand_in_http import Answer
from uirl.config import ConfigStore
from uirl.errors import ConfigError, ContractError, EngineFailure
from uirl.inference import (
    ChatRenderer,
    GenerationRequest,
    LoadedModel,
    Message,
    SamplingParams,
    check_engine,
    recompute_with,
)
from uirl.inference.models.loading import hidden_states, pad_sequences, project
from uirl.inference.sglang.arguments import engine_arguments
from uirl.inference.sglang.engine import SGLangInferenceEngine
from uirl.inference.weight_files import WeightFiles
from uirl.learner import Policy
from uirl.training import RayPPOTrainer

ASKED = GenerationRequest((30, 31, 32, 33), (), SamplingParams(max_tokens=6, seed=3))


class World:
    """An engine and what stands behind it."""

    def __init__(self, engine: SGLangInferenceEngine, logic: SGLangLogic, server: StandInSGLang | None) -> None:
        self.engine, self.logic, self.server = engine, logic, server


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A function that makes engines, 'server' or 'process'; what they stand on ends with the test."""
    servers: list[StandInSGLang] = []
    engines: list[SGLangInferenceEngine] = []

    def build(where: str, loaded: LoadedModel, *, lora: bool = False, **options: Any) -> World:
        config = ConfigStore()
        config.inference.backend = "sglang"
        config.inference.request_retries = 0
        config.model.model_name = loaded.name
        config.model.use_lora = lora
        server = None
        if where == "server":
            server = StandInSGLang(SGLangLogic(loaded, lora=lora, **options))
            servers.append(server)
            config.inference.server_url = server.url
            logic = server.logic
            engine = SGLangInferenceEngine.from_config(config, loaded, shared=True)
        else:
            made = install(monkeypatch, **options)
            engine = SGLangInferenceEngine.from_config(config, loaded, shared=True)
            logic = made[0].logic
        engines.append(engine)
        return World(engine, logic, server)

    yield build
    for server in servers:
        server.close()
    for engine in engines:
        engine._files.close()


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


@pytest.mark.parametrize("where", ["server", "process"])
@pytest.mark.parametrize("kind", ["lm", "vlm"])
async def test_the_contract_is_kept(make: Any, where: str, kind: str, request: pytest.FixtureRequest) -> None:
    loaded: LoadedModel = request.getfixturevalue(kind)
    chat, world = ChatRenderer(loaded), make(where, loaded)
    report = await check_engine(
        world.engine,
        prompts_for(loaded, chat),
        recompute_as_sglang(loaded),
        banned_ids=loaded.banned_ids,
        continuation=chat.following([Message("user", "next")], after_end=False),
        max_tokens=6,
    )
    assert report.log_prob_gap < 2e-5
    assert report.cached_tokens > 4
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
    made = await world.engine.generate(asked)
    expected = recompute_with(lm)([*asked.prompt_ids, *made.token_ids], (), len(made.token_ids), asked.sampling)
    assert made.log_probs == pytest.approx(expected, abs=1e-5)


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


@pytest.mark.parametrize("where", ["server", "process"])
async def test_without_a_seed_every_response_is_another(make: Any, lm: LoadedModel, where: str) -> None:
    world = make(where, lm)
    asked = replace(ASKED, sampling=SamplingParams(max_tokens=6))
    made = await asyncio.gather(*[world.engine.generate(asked) for _ in range(4)])
    assert len({m.token_ids for m in made}) > 1


@pytest.mark.parametrize("where", ["server", "process"])
@pytest.mark.parametrize("kind", ["lm", "vlm"])
async def test_an_update_replaces_the_weights_and_drops_the_cache(make: Any, where: str, kind: str) -> None:
    name = f"uirl/tiny-{kind}"
    world, trained = make(where, tiny_model(name)), tiny_model(name, init_seed=5)
    before = await world.engine.generate(ASKED)
    assert before.policy_version == 0
    await world.engine.update_weights(trained.model.named_parameters(), version=3)
    assert world.engine.policy_version == 3
    longer = replace(ASKED, prompt_ids=(*ASKED.prompt_ids, *before.token_ids, 14))
    after = await world.engine.generate(longer)
    assert after.policy_version == 3
    assert after.cached_tokens == 0
    ids = [*longer.prompt_ids, *after.token_ids]
    expected = recompute_with(trained)(ids, (), len(after.token_ids), longer.sampling)
    assert after.log_probs == pytest.approx(expected, abs=1e-5)
    assert not list(world.engine._files.path.glob("0*"))  # nothing of it stays behind
    with pytest.raises(ContractError, match="send weights"):
        await world.engine.update_weights(None, version=4)
    with pytest.raises(ContractError, match="does not have"):
        await world.engine.update_weights([("nonsense.weight", torch.zeros(1))], version=4)
    with pytest.raises(ContractError, match="takes no adapters"):
        await world.engine.update_weights([], version=4, adapter={})
    assert (await world.engine.generate(longer)).policy_version == 3


@pytest.mark.parametrize("where", ["server", "process"])
async def test_adapters_are_swapped(make: Any, where: str) -> None:
    config = ConfigStore()
    config.model.model_name, config.model.use_lora = "uirl/tiny-lm", True
    config.model.lora.r, config.model.lora.lora_alpha = 4, 16
    world = make(where, tiny_model("uirl/tiny-lm"), lora=True)
    assert world.engine.takes_adapters
    policy = Policy.from_config(config)
    asked = replace(ASKED, session_id="s")
    for version in range(4):
        with torch.no_grad():
            for tensor_name, tensor in policy.adapter_weights():
                tensor.copy_(torch.randn(tensor.shape, generator=torch.Generator().manual_seed(version)))
                assert ".lora_" in tensor_name
        weights, adapter = policy.update_for(world.engine)
        assert adapter is not None
        await world.engine.update_weights(weights, version, adapter=adapter)
        made = await world.engine.generate(asked)
        assert made.policy_version == version
        assert made.cached_tokens == 0  # what the adapter before has cached is not taken
        expected = recompute_with(policy.loaded)([*asked.prompt_ids, *made.token_ids], (), 6, asked.sampling)
        assert made.log_probs == pytest.approx(expected[-len(made.token_ids) :], abs=1e-5)
        assert len(world.logic.brain.adapters) == min(version + 1, 2)
        assert len(list(world.engine._files.path.glob("0*"))) == min(version + 1, 2)
    await world.engine.update_weights(policy.weights(), 9)
    assert not world.logic.brain.adapters
    assert (await world.engine.generate(asked)).policy_version == 9


@pytest.mark.parametrize("lora", [False, True])
def test_a_run_trains_through_it(make: Any, lora: bool, tmp_path: Any) -> None:
    config = ConfigStore()
    config.model.model_name, config.model.device, config.model.use_lora = "uirl/tiny-lm", "cpu", lora
    config.environment.name, config.training.warm_start.enabled = "guess_number", False
    config.training.batch_size, config.training.group_size, config.training.eval_episodes = 8, 4, 2
    config.inference.backend, config.inference.max_tokens, config.inference.max_turns = "sglang", 4, 1
    config.logging.runs_dir = str(tmp_path)
    server = make("server", tiny_model("uirl/tiny-lm"), lora=lora).server
    config.inference.server_url = server.url
    # what an untrained model gets different rewards for
    trainer = RayPPOTrainer(config, reward_fn=lambda record: float(record.turns[0].response_ids[0] % 7))
    try:
        trainer.fit(1, 2)
        assert trainer.learner.version == 2
        engine, loaded = trainer._parts.engine, trainer.learner.policy.loaded
        made = trainer._loop.run(engine.generate(ASKED))
    finally:
        trainer.cleanup()
    assert made.policy_version == 2
    expected = recompute_with(loaded)([*ASKED.prompt_ids, *made.token_ids], (), len(made.token_ids), ASKED.sampling)
    assert made.log_probs == pytest.approx(expected, abs=1e-5)
    untouched = recompute_with(tiny_model("uirl/tiny-lm"))
    before = untouched([*ASKED.prompt_ids, *made.token_ids], (), len(made.token_ids), ASKED.sampling)
    assert made.log_probs != pytest.approx(before, abs=1e-3)
    assert not server.broken


async def test_an_adapter_does_not_count_twice(make: Any, lm: LoadedModel) -> None:
    world = make("server", lm, lora=True)
    await world.engine.update_weights(lm.model.named_parameters(), version=1)
    with pytest.raises(ContractError, match="would count twice"):
        await world.engine.update_weights([("w", torch.zeros(1))], 2, adapter={"r": 4})


@pytest.mark.parametrize("where", ["server", "process"])
async def test_after_a_failed_update_nothing_is_sampled(
    make: Any, lm: LoadedModel, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make(where, lm)
    await world.engine.generate(ASKED)
    with monkeypatch.context() as broken:
        broken.setattr(world.logic, "update_weights_from_disk", lambda body: (False, "Rolling back to original", 0))
        with pytest.raises(EngineFailure, match="Rolling back"):
            await world.engine.update_weights(lm.model.named_parameters(), version=1)
    assert not list(world.engine._files.path.glob("0*"))
    with pytest.raises(EngineFailure, match=r"the last weight update failed .*Rolling back.*push the weights again"):
        await world.engine.generate(ASKED)
    await world.engine.update_weights(lm.model.named_parameters(), version=2)
    assert (await world.engine.generate(ASKED)).policy_version == 2


async def test_the_key_of_another_company_is_not_sent(make: Any, lm: LoadedModel, monkeypatch: Any) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-openai")
    world = make("server", lm)
    await world.engine.generate(ASKED)
    assert not [seen for seen in world.server.seen if "authorization" in seen.headers]
    monkeypatch.setenv("SGLANG_API_KEY", "ours")
    await world.engine.generate(ASKED)
    assert world.server.seen[-1].headers["authorization"] == "Bearer ours"


async def test_a_server_without_adapters_says_how_to_get_them(make: Any, lm: LoadedModel) -> None:
    world = make("server", lm, lora=True)
    world.logic.lora = False
    with pytest.raises(EngineFailure, match=r"load_lora_adapter failed after 1 try: 400 .*set `--enable-lora`"):
        await world.engine.update_weights([("w", torch.zeros(1))], 1, adapter={"r": 4})
    assert world.engine.policy_version == 0
    assert not list(world.engine._files.path.glob("0*"))


@pytest.mark.parametrize("where", ["server", "process"])
async def test_log_probs_of_another_distribution_are_refused(make: Any, lm: LoadedModel, where: str) -> None:
    world = make(where, lm, original=True)
    with pytest.raises(ContractError, match="without SGLANG_RETURN_ORIGINAL_LOGPROB"):
        await world.engine.generate(ASKED)


def test_the_environment_variable_is_seen_before_the_start(
    make: Any, lm: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGLANG_RETURN_ORIGINAL_LOGPROB", "true")
    with pytest.raises(ContractError, match="unset it"):
        make("process", lm)


async def test_what_a_server_prefers_does_not_apply(make: Any, lm: LoadedModel) -> None:
    plain = {"repetition_penalty": 1.2, "min_p": 0.1, "top_k": 5, "temperature": 0.3, "top_p": 0.5}
    for preferred in (plain, {"regex": "[0-9]+"}, {"stop": ["a"]}, {"min_new_tokens": 9}, {"ignore_eos": True}):
        world = make("server", lm, preferred=preferred)
        with pytest.raises(AssertionError, match=r"penalties|asked for"):
            world.logic.generate({"input_ids": [1], "sampling_params": {}})
        # the first look at the server, and every request
        made = await world.engine.generate(ASKED)
        assert len(made.token_ids) == 6


@pytest.mark.parametrize("where", ["server", "process"])
async def test_another_prompt_than_was_sent_is_a_failure(make: Any, vlm: LoadedModel, where: str) -> None:
    chat = ChatRenderer(vlm)
    shot = picture(4)
    ids = tuple(chat.whole([Message("user", "press", (shot,))]))
    asked = GenerationRequest(ids, (shot,), SamplingParams(max_tokens=2, seed=1))
    world = make(where, vlm, retokenizes=True)
    with pytest.raises(EngineFailure, match="SGLANG_MM_AVOID_RETOKENIZE=1"):
        await world.engine.generate(asked)
    world.logic.retokenizes = False
    assert len((await world.engine.generate(asked)).token_ids) == 2
    world.logic.spoil = {"prompt_tokens": len(ids) - 1}
    with pytest.raises(EngineFailure, match=f"got {len(ids) - 1} tokens, expected {len(ids)}"):
        await world.engine.generate(asked)


async def test_pictures_for_a_text_model_are_refused(make: Any, lm: LoadedModel) -> None:
    world = make("server", lm)
    with pytest.raises(ContractError, match="is a text model"):
        await world.engine.generate(replace(ASKED, images=(picture(1),)))


@pytest.mark.parametrize(
    ("spoiled", "message"),
    [
        ({"finish_reason": {"type": "abort", "message": "Abort in waiting queue", "status_code": 503}}, "gave the req"),
        ({"finish_reason": {"type": "stop", "matched": "NaN happened"}}, "are the weights finite"),
        ({"finish_reason": None}, "lacks meta_info.finish_reason"),
        ({"finish_reason": "stop"}, "lacks meta_info.finish_reason"),
        ({"finish_reason": {"type": "tired"}}, "lacks meta_info.finish_reason"),
        ({"output_token_logprobs": None}, "lacks meta_info.output_token_logprobs"),
        ({"output_token_logprobs": [[None, 3, None]], "completion_tokens": 1}, "finite and not positive"),
        ({"output_token_logprobs": [7]}, "lacks meta_info.output_token_logprobs"),
        ({"output_token_logprobs": []}, "lacks 1 to 6 tokens"),
        ({"output_token_logprobs": [[-1.0, 3, None]] * 7, "completion_tokens": 7}, "lacks 1 to 6 tokens"),
        ({"completion_tokens": 5}, "lacks 1 to 6 tokens"),
        ({"output_token_logprobs": [[-1.0, float("inf"), None]], "completion_tokens": 1}, "expected ints"),
        ({"output_token_logprobs": [[-1.0, 3.5, None]], "completion_tokens": 1}, "expected ints"),
        ({"output_token_logprobs": [[float("nan"), 3, None]], "completion_tokens": 1}, "finite and not positive"),
        ({"output_token_logprobs": [[10**400, 3, None]], "completion_tokens": 1}, "finite and not positive"),
        ({"output_token_logprobs": [["-1.0", 3, None]], "completion_tokens": 1}, "finite and not positive"),
        ({"cached_tokens": "many"}, "tokens from its cache"),
        ({"weight_version": "another run's"}, "does another run update"),
        ({"weight_versions": [{"version": "default"}, {"version": "other"}]}, "does another run update"),
    ],
)
async def test_misshapen_answers_are_failures(make: Any, lm: LoadedModel, spoiled: dict, message: str) -> None:
    world = make("server", lm)
    await world.engine.generate(ASKED)
    world.logic.spoil = spoiled
    with pytest.raises(EngineFailure, match=message):
        await world.engine.generate(ASKED)
    world.logic.spoil = {}
    assert (await world.engine.generate(ASKED)).token_ids


@pytest.mark.parametrize("filtered", [7, True, [float("nan")] * 6, [[]] * 6, ["x"] * 6, [None] * 6])
async def test_misshapen_log_probs_of_what_was_filtered_are_failures(make: Any, lm: LoadedModel, filtered: Any) -> None:
    world = make("server", lm)
    asked = replace(ASKED, sampling=SamplingParams(max_tokens=6, seed=3, top_k=5))
    made = await world.engine.generate(asked)
    assert made.log_probs is not None
    given = filtered[: len(made.token_ids)] if isinstance(filtered, list) else filtered
    world.logic.spoil = {"output_token_sampling_logprobs": given}
    with pytest.raises(EngineFailure, match=r"finite and not positive|output_token_sampling_logprobs"):
        await world.engine.generate(asked)


async def test_a_token_that_the_model_does_not_have_is_a_failure(make: Any, lm: LoadedModel) -> None:
    world = make("server", lm)
    await world.engine.generate(ASKED)
    world.logic.spoil = {"output_token_logprobs": [[-1.0, 10**6, None]], "completion_tokens": 1}
    made = await world.engine.generate(ASKED)
    with pytest.raises(EngineFailure, match="does it serve the same model"):
        lm.check_sampled(made.token_ids)


async def test_the_oldest_weights_of_an_answer_count(make: Any, lm: LoadedModel) -> None:
    world = make("server", lm)
    await world.engine.generate(ASKED)
    await world.engine.update_weights(lm.model.named_parameters(), version=1)
    new = world.logic.weight_version
    world.logic.spoil = {"weight_versions": [{"version": "default", "start": 0}, {"version": new, "start": 2}]}
    assert (await world.engine.generate(ASKED)).policy_version == 0
    # a mask without its log-probs tells nothing about a filtered draw
    world.logic.spoil = {"output_token_sampling_logprobs": None}
    filtered = replace(ASKED, sampling=replace(ASKED.sampling, top_k=5))
    assert (await world.engine.generate(filtered)).log_probs is None
    world.logic.spoil = {"output_token_sampling_logprobs": [0.0]}
    with pytest.raises(EngineFailure, match=r"6 entries in meta_info\.output_token_sampling_logprobs"):
        await world.engine.generate(filtered)


async def test_what_the_server_refuses_is_told(make: Any, lm: LoadedModel) -> None:
    world = make("server", lm, context=20)
    with pytest.raises(EngineFailure, match=r"400 .*maximum context length of 20 tokens"):
        await world.engine.generate(replace(ASKED, prompt_ids=(30,) * 18))
    limit = world.engine._max_context
    with pytest.raises(EngineFailure, match=r"inference\.max_context"):
        await world.engine.generate(replace(ASKED, prompt_ids=(30,) * limit))
    with pytest.raises(EngineFailure, match="a prompt of 0 tokens"):
        await world.engine.generate(replace(ASKED, prompt_ids=()))
    world.server.faults += [Answer([1, 2])]
    with pytest.raises(EngineFailure, match="should be a JSON object"):
        await world.engine.generate(ASKED)
    # the room that is left cuts a response short, and it says so
    short = SGLangInferenceEngine(lm, world.engine._backend, world.engine._files, max_context=8)
    made = await short.generate(replace(ASKED, sampling=SamplingParams(max_tokens=50, seed=3)))
    assert len(made.token_ids) == 4
    assert made.finish_reason == "length"


async def test_a_dead_server_is_a_typed_failure(make: Any, lm: LoadedModel) -> None:
    world = make("server", lm)
    await world.engine.generate(ASKED)
    world.server.close()
    failed = await asyncio.gather(*[world.engine.generate(ASKED) for _ in range(8)], return_exceptions=True)
    assert {type(e).__mro__[1] for e in failed} == {EngineFailure}
    with pytest.raises(EngineFailure, match="update_weights_from_disk"):
        await world.engine.update_weights(lm.model.named_parameters(), version=1)
    assert world.engine.policy_version == 0
    assert not list(world.engine._files.path.glob("0*"))
    await world.engine.close()


@pytest.mark.parametrize("where", ["server", "process"])
async def test_many_requests_at_once_get_their_own_answers(make: Any, lm: LoadedModel, where: str) -> None:
    world = make(where, lm)
    asked = [replace(ASKED, prompt_ids=(30, n), sampling=SamplingParams(max_tokens=2, seed=n)) for n in range(64)]
    together = await asyncio.gather(*[world.engine.generate(a) for a in asked])
    for n in (0, 31, 63):
        assert (await world.engine.generate(asked[n])).token_ids == together[n].token_ids
    if where == "server":
        # the server was looked at once, not 64 times
        assert [s.path for s in world.server.seen].count("/server_info") == 1
        assert world.server.seen[-1].body["logit_bias" and "sampling_params"]["logit_bias"]["0"] == -1e9


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
    engine = SGLangInferenceEngine.from_config(config, loaded, shared=True)
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
        SGLangInferenceEngine.from_config(config, loaded, shared=True)


def test_without_the_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, lm: LoadedModel) -> None:
    monkeypatch.setitem(sys.modules, "sglang", None)
    config = ConfigStore()
    config.model.model_name = "uirl/tiny-lm"
    with pytest.raises(ConfigError, match=r"pip install 'uirl\[sglang\]'"):
        SGLangInferenceEngine.from_config(config, lm, shared=True)


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
    ended = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 30)
    assert all(isinstance(end, EngineFailure) for end in ended), ended


def test_a_checkpoint_is_found_where_it_is(lm: LoadedModel, tmp_path: Path) -> None:
    config, files = ConfigStore(), WeightFiles(tmp_path)
    config.model.model_name, config.model.local_path = "some/7b", "/models/7b"
    named = replace(lm, name="/models/7b")
    given = engine_arguments(config, named, files, False)
    assert (given["model_path"], given["dtype"]) == ("/models/7b", "float32")
    # another policy than the one at that path: its own weights are written
    written = engine_arguments(config, lm, files, False)["model_path"]
    assert Path(written, "model.safetensors").is_file()
    hollow = replace(lm, model=copy.deepcopy(lm.model).to("meta"))
    with pytest.raises(ContractError, match="without weights"):
        engine_arguments(config, hollow, files, False)
    files.close()


def test_the_surface_was_read_from_the_release_that_the_docs_name() -> None:
    import uirl.inference.sglang.engine as module

    assert f"SGLang {SURFACE['version']}" in (module.__doc__ or "")
    assert {"POST"} <= set(SURFACE["routes"]["/generate"])
