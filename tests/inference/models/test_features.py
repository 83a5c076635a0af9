"""What the vision side makes of pictures is computed once per picture, and is what the plain forward makes of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.conftest import tiny_model
from tests.inference.models.picture_families import saved
from tests.inference.pictures import picture
from tests.learner.worlds import make_config, sample_trajectories
from uirl.config import LoraConfig
from uirl.errors import ContractError
from uirl.images import ImageStore, Screenshot
from uirl.inference import GenerationRequest, LoadedModel, Message, SamplingParams, TransformersInferenceEngine
from uirl.inference.models.chat import ChatRenderer
from uirl.inference.models.copying import copy_of
from uirl.inference.models.loading import hidden_states, pad_sequences
from uirl.learner import Policy, collate

SHOTS = [picture(1), picture(2, (84, 56)), picture(1), picture(3), picture(2, (84, 56))]
"""Two of them twice, of two sizes."""


def prompts(loaded: LoadedModel, shots: list[Screenshot]) -> list[list[int]]:
    chat = ChatRenderer(loaded)
    return [chat.whole([Message("user", f"press {i % 2}", (shot,))]) for i, shot in enumerate(shots)]


def read(loaded: LoadedModel, shots: list[Screenshot]) -> Tensor:
    """Hidden states of prompts with one picture each."""
    ids, positions = pad_sequences(loaded, prompts(loaded, shots), [[shot] for shot in shots])
    return hidden_states(loaded, ids, positions, shots)


def plain(loaded: LoadedModel, shots: list[Screenshot]) -> Tensor:
    """The same by the model's own forward, every picture fed."""
    ids, positions = pad_sequences(loaded, prompts(loaded, shots), [[shot] for shot in shots])
    places = positions if loaded.axes == 3 else positions[0]
    model: Any = loaded.model
    output = model.base_model(input_ids=ids, position_ids=places, **loaded.pixel_inputs(shots), use_cache=False)
    return output.last_hidden_state


@contextmanager
def counted(loaded: LoadedModel) -> Iterator[list[int]]:
    """The pictures of each run of the vision tower."""
    fed: list[int] = []
    tower = next(m for name, m in loaded.model.named_modules() if name.split(".")[-1] in ("visual", "vision_tower"))
    hook = tower.register_forward_pre_hook(
        lambda module, args, kwargs: fed.append(len(kwargs.get("grid_thw", args[-1] if args else ()))), with_kwargs=True
    )
    try:
        yield fed
    finally:
        hook.remove()


def gradients(loaded: LoadedModel, hidden: Tensor) -> dict[str, Tensor]:
    loaded.model.zero_grad()
    (hidden * torch.linspace(-1, 1, hidden.shape[-1])).square().mean().backward()
    made = {name: p.grad.clone() for name, p in loaded.model.named_parameters() if p.grad is not None}
    loaded.model.zero_grad()
    return made


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "llava"])
def test_pictures_that_come_twice_are_computed_once_with_their_whole_gradient(family: str, tmp_path) -> None:
    loaded = saved(family, tmp_path) if family == "llava" else tiny_model(architecture=family)
    read(loaded, SHOTS[:2])  # it is asked once whether it tells pictures apart
    with counted(loaded) as fed:
        hidden = read(loaded, SHOTS)
    assert fed in ([3], [0]), "the tower of LLaVA takes no grid"
    expected = plain(loaded, SHOTS)
    torch.testing.assert_close(hidden, expected, atol=2e-5, rtol=1e-4)
    got, want = gradients(loaded, hidden), gradients(loaded, expected)
    assert got.keys() == want.keys()
    assert any("vis" in name for name in want)
    for name, gradient in want.items():
        torch.testing.assert_close(got[name], gradient, atol=1e-5, rtol=1e-3)


def test_frozen_features_are_computed_once_for_engine_learner_and_reference() -> None:
    images = ImageStore()
    config = make_config("model.use_lora=true", "model.lora.r=4")
    policy = Policy.from_config(config, critic=False)
    assert policy.loaded.features.kept
    samples = sample_trajectories(policy, images, n=4)
    batch = collate(policy.loaded, samples, images)
    first = policy.log_probs_and_values(batch)
    with counted(policy.loaded) as fed:
        again = policy.log_probs_and_values(batch)
        with policy.reference():
            policy.log_probs_and_values(batch)
        copied = copy_of(policy.loaded)
        hidden_states(copied, batch.input_ids, batch.position_ids, batch.images)
        with torch.inference_mode():
            policy.log_probs_and_values(batch)
    assert fed == []
    assert torch.equal(first.log_probs, again.log_probs)
    again.log_probs.sum().backward()
    want = plain_gradients(policy, batch)
    for name, p in policy.named_trainable():
        torch.testing.assert_close(p.grad, want[name], atol=1e-5, rtol=1e-3)


def plain_gradients(policy: Policy, batch) -> dict[str, Tensor]:
    """The gradients with the vision side in the pass."""
    before = {name: p.grad.clone() for name, p in policy.named_trainable()}
    policy.loaded.features.kept = False
    policy.model.zero_grad()
    policy.log_probs_and_values(batch).log_probs.sum().backward()
    made = {name: p.grad.clone() for name, p in policy.named_trainable()}
    for name, p in policy.named_trainable():
        p.grad = before[name]
    return made


async def test_what_the_engine_computed_serves_the_learner() -> None:
    policy = Policy(tiny_model(), lora_config=LoraConfig(r=4))
    loaded = policy.loaded
    read(loaded, [picture(8), picture(9)])
    shots = [picture(4), picture(5)]
    engine = TransformersInferenceEngine(loaded, shared=True)
    with counted(loaded) as fed:
        for shot, ids in zip(shots, prompts(loaded, shots), strict=True):
            await engine.generate(GenerationRequest(tuple(ids), (shot,), SamplingParams(max_tokens=2, seed=1)))
        assert sum(fed) == 2
        hidden = read(loaded, shots)
        hidden.sum().backward()
    assert sum(fed) == 2
    assert all(p.grad is None for name, p in loaded.model.named_parameters() if "visual" in name)


@pytest.mark.parametrize("options", [{}, {"lora_config": LoraConfig(r=4, vision=True)}])
def test_features_of_weights_that_learn_are_never_kept(options: dict[str, Any]) -> None:
    policy = Policy(tiny_model(), **options)
    assert not policy.loaded.features.kept
    before = read(policy.loaded, SHOTS).detach()
    with torch.no_grad():
        for name, p in policy.named_trainable():
            if "visual" in name:
                p.add_(0.05)
    after = read(policy.loaded, SHOTS).detach()
    assert not torch.allclose(before, after)
    torch.testing.assert_close(after, plain(policy.loaded, SHOTS), atol=2e-5, rtol=1e-4)


async def test_new_weights_forget_the_features_of_the_old() -> None:
    policy = Policy(tiny_model(), lora_config=LoraConfig(r=4))
    other = tiny_model(init_seed=5)
    copied = copy_of(policy.loaded)
    engine = TransformersInferenceEngine(copied)
    read(copied, SHOTS)
    await engine.update_weights(other.model.named_parameters(), version=1)
    torch.testing.assert_close(read(copied, SHOTS), plain(other, SHOTS), atol=2e-5, rtol=1e-4)


def test_a_model_that_tells_no_pictures_apart_is_fed_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = tiny_model()
    backbone = type(loaded.model.base_model)
    ask = backbone.get_image_features

    def in_one(self, *args, **kwargs):
        output = ask(self, *args, **kwargs)
        output.pooler_output = (torch.cat(output.pooler_output),)
        return output

    monkeypatch.setattr(backbone, "get_image_features", in_one)
    for _ in range(2):
        with counted(loaded) as fed:
            hidden = read(loaded, SHOTS)
        assert fed == [len(SHOTS)]
        torch.testing.assert_close(hidden, plain(loaded, SHOTS))
    loaded.features._apart = True
    with pytest.raises(ContractError, match="another form"):
        read(loaded, SHOTS)
