"""The convenience front: texts in, texts out."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from tests.inference.pictures import picture
from uirl import BatchInferenceManager, create_inference_engine
from uirl.errors import ConfigError, ContractError, EngineFailure
from uirl.inference import GenerationRequest, Message, SamplingParams, ScriptedInferenceEngine


def test_generate_as_the_documents_do() -> None:
    engine = create_inference_engine(
        model_path="uirl/tiny-lm",
        backend="transformers",
        config={"dtype": "float32", "tensor_parallel_size": 1, "max_model_len": 64},
    )
    output = engine.generate(prompts=["Hello, how are you?", "x"], max_tokens=9, temperature=0.7, top_p=0.9, seed=1)
    assert len(output.sequences) == 2
    assert output.tokens.shape == (2, max(len(g.token_ids) for g in output.generations))
    again = engine.generate(prompts=["Hello, how are you?", "x"], max_tokens=9, temperature=0.7, top_p=0.9, seed=1)
    assert np.array_equal(output.tokens, again.tokens)
    manager = BatchInferenceManager(engine, batch_size=1)
    batched = manager.generate_batch(["Hello, how are you?", "x"], max_tokens=9, temperature=0.7, top_p=0.9, seed=1)
    assert batched.sequences == output.sequences
    padding = np.isnan(output.log_probs)
    assert [len(g.token_ids) for g in output.generations] == (~padding).sum(1).tolist()
    engine.close()


def test_pictures_and_conversations() -> None:
    engine = create_inference_engine("uirl/tiny-vlm")
    shot = picture(1)
    by_image = engine.generate(["press red"], max_tokens=5, images=[shot.open()], seed=3)
    by_message = engine.generate([[Message("user", "press red", (shot,))]], max_tokens=5, seed=3)
    assert by_image.tokens.tolist() == by_message.tokens.tolist()


def test_it_works_where_a_loop_is_running() -> None:
    engine = create_inference_engine("uirl/tiny-lm")

    async def notebook() -> int:
        return len(engine.generate(["x"], max_tokens=3).sequences)

    assert asyncio.run(notebook()) == 1


def test_unknown_options_and_backends_are_named() -> None:
    with pytest.raises(ConfigError, match="max_modle_len"):
        create_inference_engine("uirl/tiny-lm", config={"max_modle_len": 3})
    with pytest.raises(ConfigError, match="uirl/tiny-vlm"):
        create_inference_engine("uirl/tiny-elephant")


async def test_the_scripted_engine_says_what_it_is_told() -> None:
    engine = ScriptedInferenceEngine([(1, 2, 9), (3, 4, 5)], end_ids=(9,))
    first = await engine.generate(GenerationRequest((7,)))
    assert (first.token_ids, first.finish_reason, first.log_probs) == ((1, 2, 9), "stop", (0.0, 0.0, 0.0))
    second = await engine.generate(GenerationRequest((7,), (), SamplingParams(max_tokens=2)))
    assert (second.token_ids, second.finish_reason) == ((3, 4), "length")
    with pytest.raises(EngineFailure, match="request 3"):
        await engine.generate(GenerationRequest((7,)))


async def test_check_engine_finds_wrong_log_probs(lm) -> None:
    from uirl.inference import check_engine

    engine = ScriptedInferenceEngine(lambda request: [20, 21, 2], end_ids=(2,))
    with pytest.raises(ContractError, match="log-probs differ"):
        await check_engine(engine, [((10, 11), ()), ((12,), ())], lambda ids, shots, n, sampling: [-1.0] * n)
