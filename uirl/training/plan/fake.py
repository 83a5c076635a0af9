"""A policy and its forward and backward passes without memory: every number that is not whole is a shape alone.

Tokens, masks, positions and grids are real, since the code asks what is in them; they are small. Weights, activations
and gradients are PyTorch's fake tensors on a CPU, so what is counted is what the same code makes of real ones.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._pytree import tree_leaves

from uirl.algorithms import token_scores
from uirl.images import Screenshot
from uirl.inference.models.processors import joined
from uirl.inference.models.vision import VisionInputs
from uirl.training.plan.ledger import Ledger

T = TypeVar("T")
_SPLIT = torch.ops.aten.split_with_sizes.default
_NONZERO = torch.ops.aten.nonzero.default
_SCALAR = torch.ops.aten._local_scalar_dense.default
_DEVICE = torch.ops.prim.device.default
_INDEXED = (torch.ops.aten.index.Tensor, torch.ops.aten.index_put_.default, torch.ops.aten.index_put.default)


class FakeLedger(Ledger):
    """A ledger over fake tensors. Enter `running()`; a number that somebody asks of a fake tensor is 1 or True,
    and masks of such numbers are true everywhere."""

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Return a context in which tensors that are not of whole numbers are fake."""
        with FakeTensorMode(allow_non_fake_inputs=True), self, _few_blocks():
            yield

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _DEVICE:  # more than half of all that is asked, and nothing is made
            return func(*args, **(kwargs or {}))
        return super().__torch_dispatch__(func, types, args, kwargs)

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if not any(isinstance(tensor, FakeTensor) for tensor in given):
            if given:
                with unset_fake_temporarily():
                    return func(*args, **kwargs)
            made = func(*args, **kwargs)
            if isinstance(made, Tensor) and not made.is_floating_point():
                with unset_fake_temporarily():
                    return func(*args, **kwargs)
            return made
        if func is _SCALAR:
            return {torch.bool: True}.get(given[0].dtype, 1.0 if given[0].is_floating_point() else 1)
        if func is _NONZERO:
            with unset_fake_temporarily():
                return _all_true(given[0]).nonzero()
        if func in _INDEXED:
            args = (args[0], _places(args[1], fake=isinstance(args[0], FakeTensor)), *args[2:])
        if func is _SPLIT:
            args = (args[0], _sizes(args[1], args[0].shape[args[2] if len(args) > 2 else 0]), *args[2:])
        return func(*args, **kwargs)


def _sizes(sizes: list[int], whole: int) -> list[int]:
    """Return the sizes of parts of `whole`: equal ones where they were asked of a fake tensor, and are not right."""
    if sum(sizes) == whole:
        return sizes
    each = whole // len(sizes)
    return [each] * (len(sizes) - 1) + [whole - each * (len(sizes) - 1)]


@contextlib.contextmanager
def _few_blocks() -> Iterator[None]:
    """Return a context in which fake logits are scored in the first two blocks and the last. Those between take what
    the second takes, and of a large vocabulary there are thousands; their scores, some bytes a row, are not kept."""
    token = token_scores.VISITOR.set(_first_two_and_last)
    try:
        yield
    finally:
        token_scores.VISITOR.reset(token)


def _first_two_and_last(rows: Tensor, act: Callable[[slice], T]) -> list[T]:
    blocks = token_scores.blocks(rows)
    if not isinstance(rows, FakeTensor) or len(blocks) < 4:
        return token_scores.every_block(rows, act)
    first, second, last = (act(block) for block in (blocks[0], blocks[1], blocks[-1]))
    return [first, *[second] * (len(blocks) - 2), last]


def shape_of_picture(number: int) -> Screenshot:
    """Return a picture that is different from those of other numbers and has no content: see `show_shapes`."""
    return Screenshot(b"", f"picture-{number}")


def without_memory(module: nn.Module) -> nn.Module:
    """Return `module` with fake weights of the same shapes and types; call it within `FakeLedger.running()`. Buffers of
    whole numbers become 0: the values of a module on the meta device are not known."""
    made: dict[int, Tensor] = {}

    def fake(tensor: Tensor) -> Tensor:
        if id(tensor) not in made:
            made[id(tensor)] = torch.zeros(tensor.shape, dtype=tensor.dtype)
        return made[id(tensor)]

    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None:
                if id(parameter) not in made:
                    made[id(parameter)] = nn.Parameter(fake(parameter), requires_grad=parameter.requires_grad)
                part._parameters[name] = made[id(parameter)]  # type: ignore[assignment]
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = fake(buffer)
    return module


def _places(indices: Any, *, fake: bool) -> Any:
    """Return `indices` with masks replaced by the places where they are true; of a tensor that is `fake`, by as many
    places, whichever."""
    out: list[Any] = []
    for index in indices:
        if isinstance(index, Tensor) and index.dtype == torch.bool:
            with unset_fake_temporarily():
                if fake:
                    count = index.numel() if isinstance(index, FakeTensor) else int(index.count_nonzero())
                    out += [torch.zeros(1, dtype=torch.long).expand(count)] * index.ndim
                    continue
                mask = _all_true(index) if isinstance(index, FakeTensor) else index
                out += mask.nonzero(as_tuple=True)
        else:
            out.append(index)
    return out


def _all_true(mask: Tensor) -> Tensor:
    """Return a real mask of the shape of a fake one: what is asked of numbers that nobody knows holds."""
    with unset_fake_temporarily():
        return torch.ones(mask.shape, dtype=torch.bool)


def show_shapes(vision: VisionInputs, picture: Screenshot, ledger: FakeLedger) -> None:
    """Let `vision` answer about every picture what it would about `picture`, in shapes alone."""
    (one,) = vision.encode([picture])

    def like(tensor: Tensor) -> Tensor:
        return torch.empty(tensor.shape, dtype=tensor.dtype) if tensor.is_floating_point() else tensor

    def forward_inputs(images: Sequence[Screenshot], device: Any, dtype: torch.dtype) -> dict[str, Tensor]:
        if not images:
            return {}
        with ledger.part("pictures"):
            parts = [{name: like(tensor) for name, tensor in one.tensors.items()} for _ in images]
            inputs = {name: joined([part[name] for part in parts]) for name in parts[0]}
            return {name: t.to(dtype) if t.is_floating_point() else t for name, t in inputs.items()}

    vision.encode = vision.describe = lambda images: [one] * len(images)  # type: ignore[method-assign]
    vision.forward_inputs = forward_inputs  # type: ignore[method-assign]
