"""Copies of a model's large matrices in the order in which a CPU multiplies them with few rows.

A decoding step multiplies every matrix with one row per sequence. For 8 to 64 rows the general product of a CPU reads
the weights at a half to a quarter of what memory gives; oneDNN, which PyTorch brings along, does better with weights
that are laid out for it. The sums are taken in another order, so logits agree up to rounding.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from functools import cache
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from uirl.runtime.memory import free_memory

_LOG = logging.getLogger(__name__)
LARGE = 2**18
"""Weights from which a matrix is packed: smaller ones stay in the cache of a core, where the general product is as
quick."""
FEW_ROWS, MANY_ROWS = 2, 256
"""Rows between which packed weights are used: one is a product with a vector, more are limited by arithmetic."""
SOON = 8
"""Steps of so many rows with the same weights before they are packed, which takes as long as a few steps."""
DTYPES = (torch.float32,)
"""Precisions in which it was measured to pay."""


class PackedWeights:
    """The packed matrices of one model, which are made when they pay and dropped by `forget`.

    They take as much memory again as the matrices, and are made only where twice that is free.
    """

    def __init__(self, model: nn.Module) -> None:
        self._linears = [linear for linear in packable(model) if linear.weight.device.type == "cpu"]
        self._packed: dict[nn.Linear, Tensor] = {}
        self._of: tuple[Any, ...] = ()
        """What tells the weights that are packed, or would be, from others."""
        self._steps = 0

    @property
    def bytes(self) -> int:
        """Bytes of the copies."""
        return sum(linear.weight.nbytes for linear in self._packed)

    def forget(self) -> None:
        """Drop the copies: the weights change, or the memory is for others."""
        self._packed, self._of, self._steps = {}, (), 0

    @contextlib.contextmanager
    def at_work(self, rows: int) -> Iterator[None]:
        """Return a context, within `torch.inference_mode`, in which the model multiplies `rows` rows with the copies,
        where they are for so many."""
        if not FEW_ROWS <= rows <= MANY_ROWS or not self._ready():
            yield
            return
        # what somebody else has put in the place of a forward stays
        mine = [linear for linear in self._packed if "forward" not in linear.__dict__]
        try:
            for linear in mine:
                linear.__dict__["forward"] = MethodType(_forward_with(self._packed[linear], linear), linear)
            yield
        finally:
            for linear in mine:
                linear.__dict__.pop("forward", None)

    def _ready(self) -> bool:
        """Return whether the copies are there, and make them where it is time."""
        if not self._linears or not _supported():
            return False
        try:
            now = tuple(_mark(linear.weight) for linear in self._linears)
        except RuntimeError as error:
            self._give_up(error)
            return False
        if now != self._of:
            self.forget()
            self._of = now
        self._steps += 1
        if not self._packed and self._steps == SOON:
            free = free_memory()
            if free is None or free > 2 * sum(linear.weight.nbytes for linear in self._linears):
                try:
                    self._packed = {linear: _pack(linear.weight) for linear in self._linears}
                except RuntimeError as error:
                    self._give_up(error)
        return bool(self._packed)

    def _give_up(self, error: RuntimeError) -> None:
        """Do without copies from now on: the weights are where, or what, no copy can be made of."""
        _LOG.warning("decoding goes on without packed weights: %s", str(error).partition("\n")[0])
        self._linears, self._packed = [], {}


def _mark(weight: Tensor) -> tuple[int, int, float]:
    """Return what tells weights from what they were. Not every step of an optimiser raises the version of a tensor
    (AdamW's fused one does not), and what changes weights through `.data` never does: hence a number from their
    middle. It is a net: who changes weights announces it."""
    row, column = weight.shape[0] // 2, weight.shape[1] // 2
    return weight.data_ptr(), weight._version, float(weight.detach()[row, column])


def packable(model: nn.Module) -> list[nn.Linear]:
    """Return the products with large matrices that would be packed on a CPU, where they are multiplied as they come."""
    plain = (module for module in model.modules() if type(module) is nn.Linear and "forward" not in module.__dict__)
    large = (linear for linear in plain if linear.weight.dtype in DTYPES and linear.weight.numel() >= LARGE)
    return [linear for linear in large if not linear.weight.is_inference()]  # which do not say when they change


def _forward_with(packed: Tensor, of: nn.Linear) -> Any:
    def forward(self: nn.Linear, input: Tensor) -> Tensor:
        rows = input.numel() // input.shape[-1]
        mine = self is of and torch.is_inference_mode_enabled()  # a copy of the model has weights of its own
        if mine and FEW_ROWS <= rows <= MANY_ROWS and input.dtype == self.weight.dtype:
            return _multiply(input, packed, self.bias)
        return nn.functional.linear(input, self.weight, self.bias)

    return forward


def _pack(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), 16)
    return packed


def _multiply(rows: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(rows, packed, bias, "none", [], "")
    return product


@cache
def _supported() -> bool:
    """Return whether this build of PyTorch has the two operations, which its compiler uses, and they are right here."""
    draw = torch.Generator().manual_seed(0)
    shapes = ((5, 96), (64, 96), (64,))
    rows, weight, bias = (torch.randn(shape, generator=draw, device="cpu", dtype=torch.float32) for shape in shapes)
    try:
        with torch.inference_mode(), torch.autocast("cpu", enabled=False):
            return torch.allclose(
                _multiply(rows, _pack(weight), bias), nn.functional.linear(rows, weight, bias), atol=1e-4
            )
    except (AttributeError, RuntimeError):
        return False
