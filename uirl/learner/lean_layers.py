"""Norms and gated feed-forward layers that keep less for the backward pass, with the same outputs to the last digit.

What autograd keeps of `weight * (x * rsqrt(mean(x^2) + eps))` is x three times over, in float32 where x is narrower; of
`act(gate) * up` it is one product too many. Here x, gate and up are kept, which other operations keep anyway, and the
rest is computed again. A layer of HF is known by what its `forward` computes, not by its name, and stays as it is where
that is something else.

Papers: RMSNorm (1910.07467), GLU variants (2002.05202); the same for one kind of GPU: Liger Kernel (2410.10989).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

GATED = ("gate_proj", "up_proj", "down_proj", "act_fn")
"""What HF calls the parts of a gated layer."""
EPSILON = ("variance_epsilon", "eps")
"""What HF calls that of a norm."""


def keep_less(model: nn.Module) -> int:
    """Let the norms and gated layers of `model` keep less; return how many do. State dict, names and outputs stay."""
    known: dict[Any, type[nn.Module] | None] = {}
    changed = 0
    for module in model.modules():
        if hasattr(type(module), "keeps_less"):
            continue
        made = _lean_norm if _is_norm(module) else _lean_gate if _is_gated(module) else None
        if made is None:
            continue
        key = type(module), type(getattr(module, "act_fn", None))
        if key not in known:
            known[key] = made(module)
        if (lean := known[key]) is not None:
            module.__class__ = lean
            changed += 1
    return changed


class _Norm(torch.autograd.Function):
    """`weight * x / sqrt(mean(x^2) + eps)` over the last dimension, x in float32 and rounded before the product."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = x.to(torch.float32)
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, weight, scale)
        return weight * (wide * scale).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight, scale = ctx.saved_tensors
        width = x.shape[-1]
        normal = x * scale  # float32
        along = gradient * normal
        of_weight = of_x = None
        if ctx.needs_input_grad[1]:
            of_weight = along.reshape(-1, width).sum(0).to(weight.dtype)
        if ctx.needs_input_grad[0]:
            share = (along @ weight.to(torch.float32)).unsqueeze(-1) / width
            of_x = (gradient * weight).to(torch.float32).addcmul_(normal, share, value=-1).mul_(scale).to(x.dtype)
        return of_x, of_weight, None


class _Gate(torch.autograd.Function):
    """`act(gate) * up`."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, act: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.save_for_backward(gate, up)
        ctx.act = act
        return act(gate) * up

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        gate, up = ctx.saved_tensors
        with torch.enable_grad():
            gate = gate.detach().requires_grad_()
            opened = ctx.act(gate)
        (of_gate,) = torch.autograd.grad(opened, gate, gradient * up)
        return of_gate, gradient * opened.detach(), None


def _is_norm(module: nn.Module) -> bool:
    weight = module._parameters.get("weight")
    alone = len(module._parameters) == 1 and not module._modules and not module._buffers
    return alone and weight is not None and weight.ndim == 1 and any(hasattr(module, name) for name in EPSILON)


def _is_gated(module: nn.Module) -> bool:
    return all(isinstance(getattr(module, name, None), nn.Module) for name in GATED)


def _lean_norm(module: nn.Module) -> type[nn.Module] | None:
    """Return the class of `module` with a lean forward; None: it computes something else."""
    kind: Any = type(module)
    (epsilon, *_) = (name for name in EPSILON if hasattr(module, name))

    def forward(self: Any, hidden_states: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return kind.forward(self, hidden_states)
        return _Norm.apply(hidden_states, self.weight, getattr(self, epsilon))

    small = copy.copy(module)
    small._parameters = {"weight": nn.Parameter(torch.linspace(0.5, 1.5, 8))}
    return _if_equal(kind, forward, small)


def _lean_gate(module: nn.Module) -> type[nn.Module] | None:
    kind: Any = type(module)

    def forward(self: Any, x: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return kind.forward(self, x)
        return self.down_proj(_Gate.apply(self.gate_proj(x), self.up_proj(x), self.act_fn))

    small = copy.copy(module)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        narrow = {"gate_proj": nn.Linear(8, 16), "up_proj": nn.Linear(8, 16), "down_proj": nn.Linear(16, 8)}
    small._modules = {**module._modules, **narrow}
    return _if_equal(kind, forward, small)


def _if_equal(kind: type[nn.Module], forward: Callable[..., Tensor], small: nn.Module) -> type[nn.Module] | None:
    """Return a class like `kind` with another `forward`, where that gives `small` the same outputs and gradients; None:
    it does not."""
    lean = type(kind.__name__, (kind,), {"forward": forward, "keeps_less": True, "__module__": kind.__module__})
    for dtype in (torch.float32, torch.bfloat16):
        small = small.to(dtype)
        numbers = torch.sin(torch.arange(48.0)).view(2, 3, 8).to(dtype)
        theirs, ours = (_outcome(small, forward, numbers) for forward in (kind.forward, forward))
        if theirs is None or ours is None or not torch.equal(theirs[0], ours[0]):
            return None
        allowed = {torch.float32: 1e-5, torch.bfloat16: 3e-2}[dtype]
        if any(
            (a is None) != (b is None)
            or (a is not None and b is not None and (a - b).abs().max() > allowed * a.abs().max())
            for a, b in zip(theirs[1:], ours[1:], strict=True)
        ):
            return None
    return lean


def _outcome(small: nn.Module, forward: Callable[..., Tensor], numbers: Tensor) -> list[Tensor] | None:
    """Return the output of a layer, and the gradients of `numbers` and its weights; None: it takes other inputs."""
    numbers = numbers.clone().requires_grad_()
    try:
        with torch.enable_grad():
            output = forward(small, numbers)
            inputs = [numbers, *small.parameters()]
            gradients = torch.autograd.grad(output, inputs, torch.cos(output.detach()), allow_unused=True)
    except (RuntimeError, TypeError, ValueError, AttributeError, IndexError):
        return None
    return [output.detach(), *gradients]
