"""What vLLM is asked, and what is believed of its answer. No vLLM is needed here."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from tests.conftest import tiny_model
from tests.inference.pictures import picture
from uirl.config import ConfigStore
from uirl.errors import AlignmentError, ConfigError, ContractError, EngineFailure
from uirl.images import screenshot
from uirl.inference import ChatRenderer, GenerationRequest, LoadedModel, Message, SamplingParams
from uirl.inference.vllm.arguments import engine_arguments, vllm_server_command
from uirl.inference.vllm.requests import VLLMResponse, resized_as_learner, to_generation, to_vllm_request

REQUEST = GenerationRequest((10, 11, 12), (), SamplingParams(max_tokens=8, seed=3, stop_token_ids=(40,)))
ANSWER = VLLMResponse((10, 11, 12), (20, 21), (-1.0, -2.0), "length", 0)


def test_everything_about_the_sampling_is_said(lm: LoadedModel) -> None:
    call = to_vllm_request(REQUEST, lm, 100)
    assert call.prompt_ids == [10, 11, 12]
    assert call.pictures == []
    fields = call.sampling
    assert (fields["max_tokens"], fields["seed"], fields["logprobs"]) == (8, 3, 0)
    assert fields["stop_token_ids"] == sorted({*lm.end_ids, 40})
    assert fields["ignore_eos"] is True
    assert set(fields["logit_bias"]) == set(lm.banned_ids)
    assert max(fields["logit_bias"].values()) / 2.0 < -1e8  # at the hottest temperature still no chance
    assert json.loads(json.dumps(fields, allow_nan=False)) is not None


def test_a_greedy_request_filters_nothing(lm: LoadedModel) -> None:
    greedy = replace(REQUEST, sampling=SamplingParams(temperature=0.0, top_p=0.5, top_k=3))
    fields = to_vllm_request(greedy, lm, 100).sampling
    assert (fields["temperature"], fields["top_p"], fields["top_k"]) == (0.0, 1.0, 0)
    drawn = replace(REQUEST, sampling=SamplingParams(temperature=0.5, top_p=0.5, top_k=3))
    fields = to_vllm_request(drawn, lm, 100).sampling
    assert (fields["temperature"], fields["top_p"], fields["top_k"]) == (0.5, 0.5, 3)


@pytest.mark.parametrize("temperature", [0.001, 2.5])
def test_temperatures_that_vllm_would_change_are_refused(lm: LoadedModel, temperature: float) -> None:
    request = replace(REQUEST, sampling=SamplingParams(temperature=temperature))
    with pytest.raises(EngineFailure, match="temperature 0 or"):
        to_vllm_request(request, lm, 100)


def test_a_response_ends_where_the_context_ends(lm: LoadedModel) -> None:
    assert to_vllm_request(REQUEST, lm, 4).sampling["max_tokens"] == 1
    with pytest.raises(EngineFailure, match="max_context"):
        to_vllm_request(REQUEST, lm, 3)
    with pytest.raises(EngineFailure, match="0 tokens"):
        to_vllm_request(replace(REQUEST, prompt_ids=()), lm, 100)


def test_each_picture_keeps_one_placeholder(vlm: LoadedModel, vlm_chat: ChatRenderer) -> None:
    shots = (picture(1), picture(2, (84, 28)))
    ids = vlm_chat.whole([Message("user", "press", shots)])
    token = vlm.vision.image_token_id
    sizes = [image.tokens for image in vlm.vision.encode(shots)]
    assert ids.count(token) == sum(sizes)
    call = to_vllm_request(GenerationRequest(tuple(ids), shots), vlm, 1000)
    assert call.prompt_ids.count(token) == 2
    assert [picture.key for picture in call.pictures] == [shot.hash for shot in shots]
    # what vLLM does to them gives the ids back
    expanded, k = [], iter(sizes)
    for i in call.prompt_ids:
        expanded += [token] * next(k) if i == token else [i]
    assert expanded == ids


@pytest.mark.parametrize("architecture", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
@pytest.mark.parametrize("size", [(56, 56), (100, 37), (300, 200), (20, 20)])
def test_vllm_gets_the_pixels_of_the_learner(architecture: str, size: tuple[int, int]) -> None:
    vision = tiny_model(architecture=architecture).vision
    shot = picture(5, size)
    seen = screenshot(resized_as_learner(shot, vision))
    ours, theirs = vision.encode([shot])[0], vision.encode([seen])[0]
    assert theirs.grid == ours.grid
    assert torch.equal(theirs.pixels, ours.pixels)
    assert resized_as_learner(seen, vision).size == resized_as_learner(shot, vision).size


def test_a_text_model_takes_no_pictures(lm: LoadedModel) -> None:
    with pytest.raises(ContractError, match="text model"):
        to_vllm_request(replace(REQUEST, images=(picture(1),)), lm, 100)


def test_an_answer_is_believed_only_where_it_fits(lm: LoadedModel, vlm: LoadedModel) -> None:
    made = to_generation(replace(ANSWER, cached_tokens=2), REQUEST, lm, 7)
    assert (made.token_ids, made.log_probs, made.policy_version, made.cached_tokens) == ((20, 21), (-1.0, -2.0), 7, 2)
    with pytest.raises(AlignmentError, match="other prompt tokens"):
        to_generation(replace(ANSWER, prompt_ids=(10, 11)), REQUEST, lm, 0)
    with pytest.raises(AlignmentError, match="2 tokens"):
        to_generation(replace(ANSWER, log_probs=(-1.0,)), REQUEST, lm, 0)
    for reason in ("abort", "error", None):
        with pytest.raises(EngineFailure, match=str(reason)):
            to_generation(replace(ANSWER, finish_reason=reason), REQUEST, lm, 0)
    asked = GenerationRequest((9, 5, 5, 5, 5, 9), (picture(1),))
    with pytest.raises(AlignmentError, match=r"16 placeholder tokens, expected 4.*mm_processor_kwargs"):
        to_generation(replace(ANSWER, prompt_ids=(9, *[5] * 16, 9)), asked, vlm, 0)


def test_arguments_follow_the_config() -> None:
    config = ConfigStore().override(
        [
            "inference.backend=vllm",
            "model.dtype=bfloat16",
            "model.tensor_parallel_size=2",
            "inference.max_context=9999",
            "inference.kv_cache=false",
            "inference.max_batch_size=17",
            "inference.engine_options={seed: 5, enforce_eager: true}",
        ]
    )
    arguments = engine_arguments(config.model, config.inference, positions=4096)
    expected = {
        "dtype": "bfloat16",
        "tensor_parallel_size": 2,
        "max_model_len": 4096,
        "enable_prefix_caching": False,
        "max_num_seqs": 17,
        "seed": 5,
        "enforce_eager": True,
        "logprobs_mode": "processed_logprobs",
    }
    assert expected.items() <= arguments.items()
    assert "enable_lora" not in arguments


@pytest.mark.parametrize(("rank", "most"), [(1, 1), (4, 8), (16, 16), (500, 512)])
def test_the_adapter_rank_is_one_that_vllm_has(rank: int, most: int) -> None:
    config = ConfigStore().override(["model.use_lora=true", f"model.lora.r={rank}"])
    assert engine_arguments(config.model, config.inference)["max_lora_rank"] == most


def test_settings_that_would_break_training_are_refused() -> None:
    for options in ("{logprobs_mode: raw_logprobs}", "{worker_extension_cls: other.Extension}", "{model: other}"):
        config = ConfigStore().override([f"inference.engine_options={options}"])
        with pytest.raises(ConfigError, match="must not set"):
            engine_arguments(config.model, config.inference)
    config = ConfigStore().override(["model.use_lora=true", "model.lora.r=1024"])
    with pytest.raises(ConfigError, match="at most 512"):
        engine_arguments(config.model, config.inference)


def test_the_command_of_a_server() -> None:
    config = ConfigStore().override(["model.model_name=some/model", "model.use_lora=true"])
    command = vllm_server_command(config, port=8123)
    assert command[:3] == ["env", "VLLM_SERVER_DEV_MODE=1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"]
    for flag, value in (
        ("--model", "some/model"),
        ("--port", "8123"),
        ("--logprobs-mode", "processed_logprobs"),
        ("--worker-extension-cls", "uirl.inference.vllm.worker.WorkerExtension"),
        ("--limit-mm-per-prompt", '{"video": 0}'),
        ("--max-lora-rank", "16"),
    ):
        assert command[command.index(flag) + 1] == value
    assert {"--enable-scale-out", "--enable-lora", "--no-trust-remote-code", "--enable-prefix-caching"} <= set(command)
    with pytest.raises(ConfigError, match="write it"):
        vllm_server_command(ConfigStore())
