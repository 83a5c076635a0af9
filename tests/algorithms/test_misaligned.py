"""Every public function of tensors, generated from its own signature: what does not align is refused, argument by
argument, and so is a discount outside [0, 1]. A tensor of one column would be broadcast without a word."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any, get_type_hints

import pytest
import torch
from torch import Tensor

from uirl import algorithms
from uirl.algorithms import AdvantageInputs, PolicyLossOptions

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
    tensors: dict[str, Any] = {name: torch.zeros(2, 3) for name in _tensors(function)}
    tensors |= {name: torch.ones(2, 3) for name in tensors if name.endswith("mask")}
    tensors |= {name: torch.zeros(2, 3, dtype=torch.long) for name in tensors if name.endswith("_ids")}
    return tensors | {name: value for name, value in OTHERS.items() if name in known}


def _cases() -> Iterator[tuple[str, str]]:
    for name, function in _functions().items():
        yield from ((name, tensor) for tensor in _tensors(function))


def test_the_functions_are_found_and_run_on_what_aligns() -> None:
    functions = _functions()
    assert {"compute_policy_loss", "compute_gae_advantage_return", "kept_mask", "masked_whiten"} <= functions.keys()
    for function in functions.values():
        function(**_arguments(function))


@pytest.mark.parametrize(("name", "tensor"), list(_cases()))
def test_a_tensor_of_another_shape_is_refused(name: str, tensor: str) -> None:
    function = _functions()[name]
    arguments = _arguments(function)
    arguments[tensor] = arguments[tensor][:, :1]
    with pytest.raises(ValueError, match="must align with"):
        function(**arguments)


@pytest.mark.parametrize("number", [-0.1, 1.1])
@pytest.mark.parametrize("discount", ["gamma", "lam"])
def test_a_discount_outside_its_interval_is_refused(discount: str, number: float) -> None:
    discounted = [f for f in _functions().values() if discount in inspect.signature(f).parameters]
    assert discounted
    for function in discounted:
        with pytest.raises(ValueError, match=rf"{discount} must lie in \[0, 1\]: got {number}"):
            function(**(_arguments(function) | {discount: number}))


def test_a_weight_in_place_of_a_mask_is_refused() -> None:
    masked = [f for f in _functions().values() if "response_mask" in inspect.signature(f).parameters]
    assert len(masked) > 8
    for function in masked:
        half: Tensor = torch.full((2, 3), 0.5)
        with pytest.raises(ValueError, match="response_mask must hold only 0 and 1"):
            function(**(_arguments(function) | {"response_mask": half}))
