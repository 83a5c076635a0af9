"""Norms and gated feed-forward layers that keep less for the backward pass, with the same outputs to the last digit.

What autograd keeps of `weight * (x * rsqrt(mean(x^2) + eps))` is x three times over, in float32 where x is narrower; of
`act(gate) * up` it is one product too many. Here x, gate and up are kept, which other operations keep anyway, and the
rest is computed again.

A layer of HF is known by its `forward`: its bytecode must be that of one of the forms below, as it is in most families.
One clamp, cast or argument more, and the layer stays as it is.

Papers: RMSNorm (1910.07467), GLU variants (2002.05202); the same for one kind of GPU: Liger Kernel (2410.10989).
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers.activations import ACT2FN

ACTIVATIONS = (
    nn.SiLU,
    nn.GELU,
    *(type(ACT2FN[n]) for n in ("silu", "gelu", "gelu_new", "gelu_pytorch_tanh", "quick_gelu")),
)
"""Those that keep their input by themselves, have no weights and draw nothing."""


def keep_less(model: nn.Module) -> int:
    """Let the norms and gated layers of `model` keep less; return how many do now that did not. State dict, names and
    outputs stay. Gradients of gradients are refused by PyTorch from then on."""
    changed = 0
    for module in model.modules():
        if (lean := _lean(type(module))) is not None and (lean.__bases__[0] is _LeanNorm or _opens_usually(module)):
            module.__class__ = lean
            changed += 1
    return changed


class _Norm(torch.autograd.Function):
    """`weight * x / sqrt(mean(x^2) + eps)` over the last dimension, in float32 and rounded before the product."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = x.to(torch.float32)
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, weight, scale)
        return weight * (wide * scale).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:  # type: ignore[override]
        x, weight, scale = ctx.saved_tensors
        width = x.shape[-1]
        normal = x.to(torch.float32) * scale
        along = gradient * normal
        of_weight = of_x = None
        if ctx.needs_input_grad[1]:
            of_weight = along.reshape(-1, width).sum(0).to(weight.dtype)
        if ctx.needs_input_grad[0]:
            share = (along @ weight.to(along.dtype)).unsqueeze(-1).to(torch.float32) / width
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
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        gate, up = ctx.saved_tensors
        with torch.enable_grad():
            gate = gate.detach().requires_grad_()
            opened = ctx.act(gate)
        (of_gate,) = torch.autograd.grad(opened, gate, gradient * up)
        return of_gate, gradient * opened.detach(), None


class _Lean:
    """The first base of a class that keeps less; the second is HF's own."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Return how to make a copy, or what is read from a pickle, which keeps less too."""
        state: Any = self.__dict__
        return _made_anew, (type(self).__bases__[1],), state


class _LeanNorm(_Lean):
    weight: Tensor
    variance_epsilon: float

    def forward(self, hidden_states: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return super().forward(hidden_states)  # type: ignore[misc]
        return _Norm.apply(hidden_states, self.weight, self.variance_epsilon)


class _LeanGate(_Lean):
    gate_proj: nn.Module
    up_proj: nn.Module
    down_proj: nn.Module
    act_fn: nn.Module

    def forward(self, x: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return super().forward(x)  # type: ignore[misc]
        return self.down_proj(_Gate.apply(self.gate_proj(x), self.up_proj(x), self.act_fn))


def _norm_form(self: Any, x: Any) -> Any:
    kind = x.dtype
    x = x.to(torch.float32)
    variance = x.pow(2).mean(-1, keepdim=True)
    x = x * torch.rsqrt(variance + self.variance_epsilon)
    return self.weight * x.to(kind)


def _gate_form(self: Any, x: Any) -> Any:
    return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


def _named_gate_form(self: Any, x: Any) -> Any:
    down = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))
    return down


FORMS: dict[Callable[[Any, Any], Any], type[_Lean]] = {
    _norm_form: _LeanNorm,
    _gate_form: _LeanGate,
    _named_gate_form: _LeanGate,
}


_MADE: dict[type[nn.Module], type[nn.Module] | None] = {}


def _lean(kind: type[nn.Module]) -> type[nn.Module] | None:
    """Return the class like `kind` that keeps less; None: its `forward` has none of the forms, or it is one itself."""
    if kind not in _MADE:
        base = _base_of(kind.forward)
        names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
        _MADE[kind] = None if base is None else type(kind.__name__, (base, kind), names)
    return _MADE[kind]


def _base_of(forward: Any) -> type[_Lean] | None:
    code = getattr(forward, "__code__", None)
    if code is None or forward.__defaults__ or forward.__globals__.get("torch") is not torch:
        return None
    return next((base for form, base in FORMS.items() if _says(form.__code__) == _says(code)), None)


def _says(code: CodeType) -> tuple[Any, ...]:
    """Return what a function does, whatever its variables are called. Flags above: how its module is compiled."""
    return code.co_code, code.co_names, code.co_consts, code.co_argcount, code.co_flags & 0xFF


def _opens_usually(module: Any) -> bool:
    return type(module.act_fn) in ACTIVATIONS


def _made_anew(kind: type[nn.Module]) -> Any:
    lean: Any = _lean(kind)
    return lean.__new__(lean)
