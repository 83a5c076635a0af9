"""What every public function of tensors keeps to, found and called by its own signature: it refuses what does not
align, argument by argument, a weight in place of a mask and a discount outside [0, 1]; defaults, devices, precisions.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any, get_type_hints

import pytest
import torch
from torch import Tensor

from uirl import algorithms
from uirl.algorithms import (
    ALGORITHMS,
    AdvantageInputs,
    PolicyLossOptions,
    compute_gigpo_advantage,
    compute_grpo_advantage,
    compute_turn_level_advantage,
    masked_whiten,
)
from uirl.algorithms.checks import as_bool_mask, check_aligned, check_unit_interval, zero_outside

MASK = torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]])
OTHERS: dict[str, Any] = {
    "index": ["a", "a"],
    "gamma": 0.9,
    "lam": 0.8,
    "clip_ratio": 0.2,
    "cliprange_value": None,
    "kl_coef": 0.1,
    "options": PolicyLossOptions(tis_cap=2.0),
    "eps_low": 0.2,
    "eps_high": 0.3,
    "clip_ratio_c": 3.0,
    "low": 0.5,
    "high": 2.0,
    "cap": 2.0,
    "spared": torch.tensor([1, 0]),
}
"""What the functions need beside tensors of [B, T]."""
NOT_ALIGNED = {"compute_entropy", "group_codes", "score_tokens"}
"""Functions of logits or names alone."""


def _functions() -> dict[str, Callable[..., Any]]:
    found = {name: getattr(algorithms, name) for name in algorithms.__all__}
    takes = {name: f for name, f in found.items() if inspect.isfunction(f) and len(_tensors(f)) > 1}
    return {name: f for name, f in takes.items() if name not in NOT_ALIGNED} | {"AdvantageInputs": AdvantageInputs}


def _tensors(function: Callable[..., Any]) -> list[str]:
    """The parameters that are tensors of [B, T]."""
    said = get_type_hints(function.__init__ if inspect.isclass(function) else inspect.unwrap(function))
    batched = [name for name, kind in said.items() if kind in (Tensor, Tensor | None) and name != "return"]
    return [name for name in batched if name not in ("bootstrap_values", "denominator", "spared")]


def _arguments(function: Callable[..., Any]) -> dict[str, Any]:
    known = inspect.signature(function).parameters
    tensors: dict[str, Any] = {name: torch.linspace(-1, 1, 6).view(2, 3) * MASK for name in _tensors(function)}
    tensors |= {name: MASK for name in tensors if name.endswith("mask")}
    tensors |= {name: torch.zeros(2, 3, dtype=torch.long) for name in tensors if name.endswith("_ids")}
    return tensors | {name: value for name, value in OTHERS.items() if name in known}


def _cases() -> Iterator[tuple[str, str]]:
    for name, function in _functions().items():
        yield from ((name, tensor) for tensor in _tensors(function))


def test_the_functions_run_on_what_aligns_and_make_every_tensor_where_their_arguments_are() -> None:
    functions = _functions()
    assert {"compute_policy_loss", "compute_gae_advantage_return", "kept_mask", "masked_whiten"} <= functions.keys()
    given = {name: _arguments(function) for name, function in functions.items()}
    before = copy.deepcopy(given)
    inputs = AdvantageInputs(**given["AdvantageInputs"], bootstrap_values=torch.ones(2))
    with torch.device("meta"):  # a tensor without a device is made there, and mixes with none of the others
        for name, function in functions.items():
            function(**given[name])
        for spec in ALGORITHMS.values():
            spec.advantage(inputs)
    for name, arguments in given.items():
        for argument, value in arguments.items():
            assert not isinstance(value, Tensor) or torch.equal(value, before[name][argument]), (name, argument)


@pytest.mark.parametrize(("name", "tensor"), list(_cases()))
def test_a_tensor_of_another_shape_is_refused(name: str, tensor: str) -> None:
    function = _functions()[name]
    arguments = _arguments(function)
    arguments[tensor] = arguments[tensor][:, :1]  # it would be broadcast without a word
    with pytest.raises(ValueError, match="must align with"):
        function(**arguments)


def _outcome(function: Callable[..., Any], mask: Tensor, garbage: float) -> list[Any]:
    """What it returns and the gradients of its numbers, where `garbage` lies outside of `mask`."""
    given = _arguments(function)
    floats = [name for name in _tensors(function) if not name.endswith(("mask", "_ids"))]
    given |= {name: mask for name in given if name.endswith("mask")}
    given |= {name: given[name].masked_fill(mask == 0, garbage).requires_grad_() for name in floats}
    result = function(**given)
    results = list(result) if isinstance(result, tuple) else [result]
    for one in results:
        if isinstance(one, Tensor) and one.requires_grad:
            one.sum().backward()
    return [*results, *(given[name].grad for name in floats)]


def _masked() -> dict[str, Callable[..., Any]]:
    """The functions that read nothing outside of a mask; `AdvantageInputs` refuses it, `spare_turns` hands it on."""
    found = {name: f for name, f in _functions().items() if any(part.endswith("mask") for part in _tensors(f))}
    return {name: f for name, f in found.items() if name not in ("AdvantageInputs", "spare_turns")}


@pytest.mark.parametrize("name", _masked())
def test_garbage_outside_the_mask_reaches_neither_result_nor_gradient(name: str) -> None:
    clean, *dirty = (_outcome(_masked()[name], MASK, garbage) for garbage in (0.0, math.nan, math.inf))
    for other in dirty:
        for one, expected in zip(other, clean, strict=True):
            assert torch.equal(one, expected) if isinstance(expected, Tensor) else one == expected


@pytest.mark.parametrize("name", sorted(_masked().keys() - {"masked_weight", "truncated_weight"}))
def test_no_tokens_are_nothing(name: str) -> None:
    for one in _outcome(_masked()[name], torch.zeros(2, 3), math.nan):
        assert one is None or not (torch.tensor(list(one.values())) if isinstance(one, dict) else one).any()


@pytest.mark.parametrize("number", [-0.1, 1.1])
@pytest.mark.parametrize("discount", ["gamma", "lam"])
def test_a_discount_outside_its_interval_is_refused(discount: str, number: float) -> None:
    discounted = [f for f in _functions().values() if discount in inspect.signature(f).parameters]
    assert discounted
    for function in discounted:
        with pytest.raises(ValueError, match=rf"{discount} must lie in \[0, 1\]: got {number}"):
            function(**(_arguments(function) | {discount: number}))
    check_unit_interval(gamma=0.0, lam=1.0)


@pytest.mark.parametrize("mask", ["mask", "response_mask"])
def test_a_weight_in_place_of_a_mask_is_refused(mask: str) -> None:
    masked = [f for f in _functions().values() if mask in inspect.signature(f).parameters]
    assert len(masked) > 8
    for function in masked:
        half: Tensor = torch.full((2, 3), 0.5)
        with pytest.raises(ValueError, match=f"^{mask} must hold only 0 and 1: got values between 0.5 and 0.5"):
            function(**(_arguments(function) | {mask: half}))


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"a": (2, 3), "b": (2, 3), "c": (3, 2)}, r"c must align with a: got shape \(3, 2\), expected \(2, 3\); align"),
        ({"a": (3,)}, r"a must be \[B, T\]: got shape \(3,\)"),
        *(
            ({"a": (2, 3), name: (2, 2)}, rf"{name} must align with a: got shape \(2, 2\), expected \(2, 3\); {remedy}")
            for name, remedy in {
                "response_mask": "build the mask",
                "values": "cut the critic's output to the same columns as the rewards",
                "old_values": "cut the critic's output to the same columns as the returns",
                "vpreds": "cut the critic's output to the same columns as the returns",
                "turn_ids": "give the turn number",
                "anchor_ids": "repeat each turn's",
                "rollout_log_probs": "does the engine",
                "ref_log_probs": "run the reference policy",
            }.items()
        ),
    ],
)
def test_what_does_not_align_is_told_with_a_remedy(tensors: dict[str, tuple[int, ...]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_aligned(**{name: torch.zeros(shape) for name, shape in tensors.items()})


def test_a_list_is_no_tensor() -> None:
    with pytest.raises(TypeError, match=r"b must be a torch.Tensor .*: got list"):
        check_aligned(a=torch.zeros(2, 3), b=[[0.0]])  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32, torch.bfloat16])
def test_masks_of_any_type_are_booleans_and_nothing_reaches_beyond_them(dtype: torch.dtype) -> None:
    mask = as_bool_mask(torch.tensor([[1, 0, 1, 0]]).to(dtype))
    assert (mask.tolist(), mask.dtype) == ([[True, False, True, False]], torch.bool)
    kept = zero_outside(torch.tensor([[1.0, math.nan, 3.0, math.inf]], dtype=torch.float64), mask)
    assert (kept.tolist(), kept.dtype) == ([[1.0, 0.0, 3.0, 0.0]], torch.float64)


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("dtype", [torch.int64, torch.bfloat16, torch.float32, torch.float64])
def test_what_is_narrower_than_float32_comes_back_as_it(name: str, dtype: torch.dtype) -> None:
    rewards = torch.tensor([[1, 0, 2], [0, 3, -1]]).to(dtype)
    values = rewards if dtype.is_floating_point else rewards.float()
    ids = torch.zeros(2, 3, dtype=torch.long)
    shared = {"values": values, "index": ["a", "a"], "turn_ids": ids, "anchor_ids": ids}
    found = ALGORITHMS[name].advantage(AdvantageInputs(token_level_rewards=rewards, response_mask=MASK, **shared))
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    assert [tensor.dtype for tensor in found] == [wide, wide]


@pytest.mark.parametrize("name", ["grpo", "rloo", "reinforce_plus_plus_baseline", "rejection_sampling", "turn_level"])
def test_rewards_are_added_up_in_float64(name: str) -> None:
    rewards, ones = torch.tensor([[2.0**24, 1.0, -(2.0**24)]] * 2), torch.ones(2, 3)
    shared = {"index": ["a", "a"], "turn_ids": torch.zeros(2, 3, dtype=torch.long)}
    inputs = AdvantageInputs(token_level_rewards=rewards, response_mask=ones, **shared)
    assert ALGORITHMS[name].advantage(inputs)[1].tolist() == [[1.0] * 3] * 2


def test_epsilon_is_added_to_what_divides() -> None:
    # scores 1 and 0: +-0.5 / (sqrt(0.5) + 1); 1, 2, 6 about their mean of 3: -2, -1, 3 over sqrt(7 + 2)
    rewards, ones, ids = torch.tensor([[1.0], [0.0]]), torch.ones(2, 1), torch.zeros(2, 1, dtype=torch.long)
    expected = 0.5 / (math.sqrt(0.5) + 1)
    for found, times in (
        (compute_grpo_advantage(rewards, ones, [0, 0], epsilon=1.0), 1),
        (compute_turn_level_advantage(rewards, ones, [0, 0], ids, epsilon=1.0), 1),
        (compute_gigpo_advantage(rewards, ones, [0, 0], ids, ids, epsilon=1.0), 2),
    ):
        assert found[0][:, 0].tolist() == pytest.approx([times * expected, -times * expected])
    whitened = masked_whiten(torch.tensor([[1.0, 2.0, 6.0]]), torch.ones(1, 3), epsilon=2.0)
    assert whitened[0].tolist() == pytest.approx([-2 / 3, -1 / 3, 1.0])
