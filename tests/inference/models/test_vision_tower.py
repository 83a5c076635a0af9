"""What is made of the slow parts of a vision tower says the same as they do."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn

from uirl.config import TinyConfig
from uirl.inference.models.loading import speed_up_vision
from uirl.inference.models.tiny import build_tiny

FAMILIES = ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"]


def tower_of(family: str) -> Any:
    model, _, _ = build_tiny("uirl/tiny-vlm", TinyConfig(architecture=family), seed=0)
    return model.model.visual.eval()


def answer(tower: Any, pixels: torch.Tensor, grids: list[list[int]]) -> torch.Tensor:
    output = tower(pixels, grid_thw=torch.tensor(grids))
    return torch.cat([*output.pooler_output]) if isinstance(output.pooler_output, tuple) else output.pooler_output


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("grids", [[[1, 4, 4]] * 3, [[1, 4, 4], [1, 4, 8]], [[1, 8, 4]]], ids=["alike", "two", "one"])
def test_the_tower_says_the_same_and_learns_the_same(family: str, grids: list[list[int]]) -> None:
    plain = tower_of(family)
    fast = copy.deepcopy(plain)
    speed_up_vision(fast)
    patches = sum(rows * columns for _, rows, columns in grids)
    width = plain.patch_embed.proj.weight[0].numel()
    pixels = torch.randn(patches, width, generator=torch.Generator().manual_seed(1))
    expected, got = answer(plain, pixels, grids), answer(fast, pixels, grids)
    assert torch.allclose(got, expected, atol=1e-5)
    expected.square().sum().backward()
    got.square().sum().backward()
    for (name, one), other in zip(plain.named_parameters(), fast.parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None), name
        if one.grad is not None:
            assert torch.allclose(one.grad, other.grad, atol=1e-4, rtol=1e-3), name


def calls(tower: Any, function: str, monkeypatch: pytest.MonkeyPatch, grids: list[list[int]]) -> int:
    count = 0
    original = getattr(nn.functional, function)

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        return original(*args, **kwargs)

    monkeypatch.setattr(nn.functional, function, counted)
    pixels = torch.zeros(sum(r * c for _, r, c in grids), tower.patch_embed.proj.weight[0].numel())
    answer(tower, pixels, grids)
    return count


@pytest.mark.parametrize("family", FAMILIES)
def test_pictures_of_one_size_are_one_call_in_each_layer(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tower = tower_of(family)
    grids = [[1, 4, 4]] * 5
    pixels_each = calls(tower, "scaled_dot_product_attention", monkeypatch, grids)
    speed_up_vision(tower)
    monkeypatch.undo()
    assert pixels_each == 5 * len(tower.blocks)
    assert calls(tower, "scaled_dot_product_attention", monkeypatch, grids) == len(tower.blocks)


def test_copies_stand_on_their_own_and_a_pickle_is_the_plain_model() -> None:
    tower = tower_of("qwen2_vl")
    speed_up_vision(tower)
    names = list(tower.state_dict())
    other = copy.deepcopy(tower)
    with torch.no_grad():
        other.patch_embed.proj.weight.zero_()
    assert tower.patch_embed.proj.forward.__self__ is tower.patch_embed.proj
    assert other.patch_embed.proj.forward.__self__ is other.patch_embed.proj
    pixels = torch.ones(16, tower.patch_embed.proj.weight[0].numel())
    assert not torch.equal(answer(tower, pixels, [[1, 4, 4]]), answer(other, pixels, [[1, 4, 4]]))
    again = pickle.loads(pickle.dumps(tower))
    assert list(again.state_dict()) == names
    assert torch.allclose(answer(again, pixels, [[1, 4, 4]]), answer(tower, pixels, [[1, 4, 4]]), atol=1e-5)


def test_a_convolution_that_moves_stays_one() -> None:
    moving, padded = nn.Conv3d(1, 2, 2), nn.Conv3d(1, 2, 2, padding=1)
    picture = torch.randn(3, 1, 2, 5, 5)
    expected = moving(picture), padded(picture)
    for module in (moving, padded):
        speed_up_vision(module)
    assert torch.equal(moving(picture), expected[0])
    assert torch.equal(padded(picture), expected[1])
