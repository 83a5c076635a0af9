"""A copy has the weights and nothing else in common with its original."""

from __future__ import annotations

import pytest
import torch

from tests.conftest import tiny_model
from tests.inference.prompts import contract, prompts_for
from uirl.config import LoraConfig
from uirl.inference import ChatRenderer, GenerationRequest, SamplingParams, TransformersInferenceEngine
from uirl.inference.models.copying import copy_of
from uirl.learner import Policy


@pytest.mark.parametrize("name", ["uirl/tiny-lm", "uirl/tiny-vlm"])
async def test_an_engine_on_a_copy_follows_the_learner_by_updates_alone(name: str) -> None:
    loaded = tiny_model(name)
    policy = Policy(loaded, lora_config=LoraConfig(r=4), gradient_checkpointing=True)
    engine = TransformersInferenceEngine(copy_of(loaded))
    assert not any(p.requires_grad for p in engine.loaded.model.parameters())
    assert not any(".lora_" in n or ".base_layer" in n for n, _ in engine.loaded.model.named_parameters())
    ids, images = prompts_for(loaded, ChatRenderer(loaded))[0]
    request = GenerationRequest(tuple(ids), tuple(images), SamplingParams(max_tokens=6, seed=1))
    before = await engine.generate(request)
    with torch.no_grad():
        for parameter_name, parameter in policy.adapter_weights():
            parameter.add_(0.05 if ".lora_B." in parameter_name else 0.0)
    assert await engine.generate(request) == before
    weights, adapter = policy.update_for(engine)
    await engine.update_weights(weights, 1, adapter=adapter)
    assert (await engine.generate(request)).log_probs != before.log_probs
    assert (await contract(engine, loaded)).log_prob_gap < 1e-4


def test_tied_weights_stay_tied() -> None:
    loaded = tiny_model("uirl/tiny-lm")
    copied = copy_of(loaded).model
    ours, theirs = copied.get_input_embeddings().weight, loaded.model.get_input_embeddings().weight
    assert ours.data_ptr() != theirs.data_ptr()
    assert torch.equal(ours, theirs)
    for model in (copied, loaded.model):
        tied = model.get_input_embeddings().weight.data_ptr() == model.get_output_embeddings().weight.data_ptr()
        assert tied == loaded.config.tie_word_embeddings
