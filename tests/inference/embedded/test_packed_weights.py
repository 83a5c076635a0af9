"""Packed copies of large matrices: what is sampled stays, and they never outlive the weights they are copies of."""

from __future__ import annotations

import asyncio
import copy

import pytest
import torch

from tests.conftest import tiny_model
from uirl.inference import ChatRenderer, GenerationRequest, LoadedModel, Message, SamplingParams, recompute_with
from uirl.inference.base import Generation
from uirl.inference.embedded import packed_weights
from uirl.inference.embedded.engine import TransformersInferenceEngine
from uirl.inference.embedded.packed_weights import PackedWeights


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pack the matrices of tiny models, too."""
    monkeypatch.setattr(packed_weights, "LARGE", 2**10)


@pytest.fixture
def model() -> LoadedModel:
    return tiny_model("uirl/tiny-lm")


async def replies(engine: TransformersInferenceEngine, chat: ChatRenderer, tokens: int = 24) -> list[Generation]:
    requests = [
        GenerationRequest(
            tuple(chat.whole([Message("user", f"say {number}")])), (), SamplingParams(max_tokens=tokens, seed=number)
        )
        for number in range(4)
    ]
    return list(await asyncio.gather(*map(engine.generate, requests)))


def watch(engine: TransformersInferenceEngine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that grows by the bytes of the copies with every forward."""
    seen: list[int] = []
    forward = engine._runner._forward

    def watched(*args: object) -> torch.Tensor:
        logits = forward(*args)  # type: ignore[arg-type]
        seen.append(engine._runner._packed.bytes)
        return logits

    monkeypatch.setattr(engine._runner, "_forward", watched)
    return seen


async def test_replies_are_those_of_the_plain_product(
    small: None, model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = ChatRenderer(model)
    engine = TransformersInferenceEngine(model)
    seen = watch(engine, monkeypatch)
    packed = await replies(engine, chat)
    assert not any(seen[: packed_weights.SOON - 1])
    assert seen[-1] > 0
    assert engine._runner._packed.bytes == 0, "an idle engine holds no copies"
    assert not any("forward" in module.__dict__ for module in model.model.modules())
    monkeypatch.setattr(packed_weights, "LARGE", 2**40)
    plain = await replies(TransformersInferenceEngine(model), chat)
    for one, other in zip(packed, plain, strict=True):
        assert one.token_ids == other.token_ids
        assert torch.allclose(torch.tensor(one.log_probs), torch.tensor(other.log_probs), atol=1e-5)


@pytest.mark.parametrize("change", ["announced", "in place", "data", "fused AdamW"])
async def test_weights_that_change_are_packed_anew(
    small: None, model: LoadedModel, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    engine = TransformersInferenceEngine(model, shared=True)
    ids = tuple(ChatRenderer(model).whole([Message("user", "say it")]))
    seen = watch(engine, monkeypatch)
    runner = engine._runner
    other = asyncio.create_task(
        engine.generate(GenerationRequest(ids, (), SamplingParams(max_tokens=60, seed=5), "other"))
    )
    await replies(engine, ChatRenderer(model))
    assert seen[-1] > 0, "one reply still goes on, so the copies are there"
    parameters = list(model.model.parameters())
    if change == "fused AdamW":
        optimiser = torch.optim.AdamW(parameters, lr=0.05, fused=True)
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        optimiser.step()
        optimiser.zero_grad()
    with torch.no_grad():
        for parameter in parameters if change != "fused AdamW" else []:
            (parameter.data if change == "data" else parameter).mul_(0.5)
    if change == "announced":
        await engine.update_weights(None, 1)
        assert runner._packed.bytes == 0
    made = (await replies(engine, ChatRenderer(model)))[0]
    assert seen[-1] > 0
    await other
    whole = [*ChatRenderer(model).whole([Message("user", "say 0")]), *made.token_ids]
    learned = recompute_with(model)(whole, (), len(made.token_ids), SamplingParams())
    assert torch.allclose(torch.tensor(learned), torch.tensor(made.log_probs), atol=1e-4)


def steps(packed: PackedWeights, module: torch.nn.Module, rows: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        for _ in range(2 * packed_weights.SOON):
            with packed.at_work(len(rows)):
                made = module(rows)
    return made


@pytest.mark.parametrize("why", ["it is small", "it does not say when it changes", "memory", "one row", "many rows"])
def test_what_packing_is_not_for_is_multiplied_as_it_is(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_weights, "LARGE", 2**20 if why == "it is small" else 2**10)
    with torch.inference_mode(why == "it does not say when it changes"):
        linear = torch.nn.Linear(64, 64)
    if why == "memory":
        monkeypatch.setattr(packed_weights, "free_memory", lambda: 1000)
    rows = torch.randn({"one row": 1, "many rows": packed_weights.MANY_ROWS + 1}.get(why, 4), 64)
    packed = PackedWeights(linear)
    assert torch.equal(steps(packed, linear, rows), linear(rows))
    assert packed.bytes == 0


def test_a_forward_that_somebody_else_put_stays(small: None) -> None:
    linear = torch.nn.Linear(64, 64)
    packed = PackedWeights(linear)
    linear.forward = lambda rows: rows * 0  # type: ignore[method-assign,assignment]
    assert not steps(packed, linear, torch.randn(4, 64)).any()
    assert "forward" in linear.__dict__


def test_weights_that_cannot_be_packed_are_multiplied_as_they_are(
    small: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    linear = torch.nn.Linear(64, 64)
    packed = PackedWeights(linear)

    def refuse(weight: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no such layout")

    assert packed_weights._supported()
    monkeypatch.setattr(packed_weights, "_pack", refuse)
    rows = torch.randn(4, 64)
    assert torch.equal(steps(packed, linear, rows), linear(rows))
    assert packed.bytes == 0
    assert "no such layout" in caplog.text


def test_a_copy_has_weights_of_its_own_also_one_made_during_a_forward(small: None) -> None:
    linear = torch.nn.Linear(64, 64)
    packed = PackedWeights(linear)
    rows = torch.randn(4, 64)
    steps(packed, linear, rows)
    assert packed.bytes > 0
    assert "forward" not in copy.deepcopy(linear).__dict__
    with packed.at_work(4):
        other = copy.deepcopy(linear)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    with torch.inference_mode():
        assert not other(rows).any()
