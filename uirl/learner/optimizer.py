"""AdamW over the policy and the value head: warm-up, clipping, float32 masters for narrower weights, and moments of 8
bits by the package bitsandbytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from uirl.errors import CheckpointError, ConfigError, NonFiniteError

if TYPE_CHECKING:
    from uirl.learner.slices import Slices

Named = Sequence[tuple[str, nn.Parameter]]


@dataclass(frozen=True, slots=True)
class OptimizerSettings:
    """How one phase of a run steps."""

    learning_rate: float
    value_learning_rate: float
    betas: tuple[float, float]
    weight_decay: float
    warmup_steps: int
    """Steps over which the learning rate rises linearly; a fresh AdamW knows nothing of the scale of gradients."""
    max_grad_norm: float | None
    """Gradients of a larger norm are scaled to it, policy and value head each by its own norm; None: never."""
    eight_bit: bool = False
    """Moments of 8 bits (`adamw_8bit`)."""


class Optimizer:
    """AdamW with two groups: the policy, and the value head with a learning rate of its own.

    Weights narrower than float32 get a float32 master: gradients of micro-batches are summed there, the step is taken
    there, and the weight is its rounding. A step of 1e-5 on a bfloat16 weight of 1 would otherwise be lost.

    With `slices` several processes step together, each its slice of every weight. What they add up are sums over the
    whole batch, so the gradient is the sum of theirs.
    """

    def __init__(self, policy: Named, value: Named, settings: OptimizerSettings, slices: Slices | None = None) -> None:
        self.settings = settings
        self._slices = slices
        self._sums: dict[str, Tensor] = {}
        """Gradients of narrower weights, whole and in float32, before `slices` sums them up."""
        self.steps = 0
        self._groups = (tuple(policy), tuple(value))
        self._masters: dict[str, tuple[nn.Parameter, Tensor]] = {}
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []
        self._stepped = {name: self._tensor_to_step(name, p) for group in self._groups for name, p in group}
        rates = (settings.learning_rate, settings.value_learning_rate)
        stepped = [
            {"params": [self._stepped[name] for name, _ in group], "lr": rate, "peak": rate}
            for group, rate in zip(self._groups, rates, strict=True)
            if group
        ]
        how: dict[str, Any] = {"betas": settings.betas, "weight_decay": settings.weight_decay}
        self._adam = adamw_8bit(stepped, **how) if settings.eight_bit else torch.optim.AdamW(stepped, **how, fused=True)

    def zero_grad(self) -> None:
        """Forget the gradients."""
        self._adam.zero_grad(set_to_none=True)
        self._sums.clear()
        for group in self._groups:
            for _, parameter in group:
                parameter.grad = None

    def step(self, scale: float = 1.0) -> dict[str, float]:
        """Take one step with the learning rate times `scale`; return `grad_norm`, `value_grad_norm`, `learning_rate`.

        Raises NonFiniteError that names the first weight whose gradient is not finite; no weight has changed then.
        """
        if self._slices is not None:
            self._reduce(self._slices)
        norms = [self._norm(group) for group in self._groups]
        for norm, group in zip(norms, self._groups, strict=True):
            if not torch.isfinite(norm):
                raise NonFiniteError(self._blame(group))
        for norm, group in zip(norms, self._groups, strict=True):
            self._clip(norm, group)
        self.steps += 1
        risen = min(1.0, self.steps / max(1, self.settings.warmup_steps))
        for group_settings in self._adam.param_groups:
            group_settings["lr"] = group_settings["peak"] * risen * scale
        if self._slices is None:
            self._adam.step()
        else:
            self._slices.together(self._adam.step)
        self._publish()
        self.zero_grad()
        metrics = {"grad_norm": float(norms[0]), "learning_rate": self.settings.learning_rate * risen * scale}
        return metrics | ({"value_grad_norm": float(norms[1])} if self._groups[1] else {})

    def gradient(self, name: str) -> Tensor | None:
        """Return what was added up for the weight `name` [...] since the last step; None: nothing."""
        return self._stepped[name].grad

    def weights(self) -> list[Tensor]:
        """Return copies of all weights [...] that it steps, masters where there are some, in an order that stays."""
        return [tensor.detach().clone() for tensor in self._stepped.values()]

    @torch.no_grad()
    def go_back(self, start: Sequence[Tensor], share: float) -> None:
        """Put every weight where `share` of the way from `start` (see `weights`, [...] each) to where it is now ends.
        The moments stay."""
        for tensor, before in zip(self._stepped.values(), start, strict=True):
            tensor.copy_(torch.lerp(before, tensor, share) if share else before)
        self._publish()

    def state(self) -> dict[str, Tensor]:
        """Return everything but the number of steps, as named tensors."""
        tensors = {f"master.{name}": master for name, (_, master) in self._masters.items()}
        for name, weight in self._stepped.items():
            kept = moments_of(self._adam, weight) if self.settings.eight_bit else self._adam.state.get(weight, {})
            tensors |= {f"{kind}.{name}": value for kind, value in kept.items()}
        return tensors if self._slices is None else {key: self._slices.to_save(one) for key, one in tensors.items()}

    def load_state(self, tensors: Mapping[str, Tensor], steps: int) -> None:
        """Continue from what `state` gave. Raises CheckpointError where the weights have other names or shapes, and for
        the moments of another optimizer."""
        self.steps = steps
        states: dict[str, dict[str, Tensor]] = {}
        for key, tensor in tensors.items():
            kind, _, name = key.partition(".")
            if kind not in self._kinds:
                raise CheckpointError(
                    f"the optimizer state holds {kind!r} of {name!r}; expected {', '.join(self._kinds)}: was the "
                    "checkpoint made with another training.optimizer? Keep the one it was made with"
                )
            fits = kind.startswith(("step", "absmax")) or tensor.shape == getattr(
                self._stepped.get(name), "shape", None
            )
            if name not in self._stepped or not fits:
                raise CheckpointError(
                    f"the optimizer state of {name!r} ({kind}, {tuple(tensor.shape)}) fits no weight of this policy; "
                    "was the checkpoint made with another model, other adapters or another estimator?"
                )
            states.setdefault(name, {})[kind] = tensor if self._slices is None else self._slices.cut(tensor)
        with torch.no_grad():
            for name, state in states.items():
                stepped = self._stepped[name]
                if "master" in state:
                    stepped.copy_(state.pop("master"))
                if state and self.settings.eight_bit:
                    restore_moments(self._adam, stepped, state)
                elif state:
                    self._adam.state[stepped] = {k: t.to(stepped.device, copy=True) for k, t in state.items()}

    @property
    def _kinds(self) -> tuple[str, ...]:
        """What a state may hold of a weight."""
        return ("master", *(KINDS if self.settings.eight_bit else ("step", "exp_avg", "exp_avg_sq")))

    def detach(self) -> None:
        """Let go of the model's gradients; call it before another optimizer takes over."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _tensor_to_step(self, name: str, parameter: nn.Parameter) -> Tensor:
        """Return the tensor that AdamW steps: the parameter, or its master."""
        slices, narrow = self._slices, parameter.dtype not in (torch.float32, torch.float64)
        if slices is None and not narrow:
            return parameter
        master = parameter.detach().float().clone() if slices is None else slices.begin(name, parameter)
        if not narrow:
            return master
        self._masters[name] = (parameter, master)

        def move(p: Tensor) -> None:
            assert p.grad is not None
            grad, before = p.grad.float(), master.grad if slices is None else self._sums.get(name)
            total = grad if before is None else before.add_(grad)
            if slices is None:
                master.grad = total
            else:
                self._sums[name] = total
            p.grad = None

        self._hooks.append(parameter.register_post_accumulate_grad_hook(move))
        return master

    def _reduce(self, slices: Slices) -> None:
        """Give the weights that are stepped the sums of the gradients of all processes."""
        gradients = {name: self._sums.get(name, p.grad) for group in self._groups for name, p in group}
        for name, gradient in slices.reduce(gradients).items():
            self._stepped[name].grad = gradient

    def _gradients(self, group: Named) -> dict[str, Tensor]:
        found = {name: self._stepped[name].grad for name, _ in group}
        return {name: grad for name, grad in found.items() if grad is not None}

    def _norm(self, group: Named) -> Tensor:
        gradients = self._gradients(group)
        if not gradients:
            return torch.zeros(())
        norm = torch.nn.utils.get_total_norm(list(gradients.values()))
        return norm if self._slices is None else self._slices.whole(norm)

    def _clip(self, norm: Tensor, group: Named) -> None:
        limit = self.settings.max_grad_norm
        if limit is not None and norm > limit:
            for gradient in self._gradients(group).values():
                gradient.mul_(limit / float(norm))

    def _publish(self) -> None:
        if self._slices is not None:
            self._slices.gather()
            return
        with torch.no_grad():
            for parameter, master in self._masters.values():
                parameter.copy_(master)

    def _blame(self, group: Named) -> str:
        for name, grad in self._gradients(group).items():
            grad = grad if self._slices is None else self._slices.whole(grad)
            if not grad.isfinite().all():
                bad = int((~grad.isfinite()).sum())
                return (
                    f"the gradient of {name} is not finite in {bad} of {grad.numel()} numbers; the step was refused "
                    "and no weight changed. Lower the learning rate, or look at the log-probs of this batch."
                )
        return "the norm of the gradients is not finite although each is: it overflows; lower the learning rate"


BLOCK = 256
"""Numbers that share a scale."""
SMALLEST = 4096
"""Numbers of a weight below which its moments stay in float32."""
KINDS = ("step", "state1", "state2", "absmax1", "absmax2")
"""What is kept of a weight: steps, codes of the two moments, the scales of their blocks. The tables that codes are read
by are the same for all."""


def bytes_of_moments(numbers: int) -> int:
    """Return the bytes that both moments of a weight with so many `numbers` take."""
    if numbers < SMALLEST:
        return 8 * numbers
    return 2 * numbers + 8 * -(-numbers // BLOCK)


def adamw_8bit(
    groups: Sequence[Mapping[str, Any]], *, betas: tuple[float, float], weight_decay: float
) -> torch.optim.Optimizer:
    """Return AdamW with moments of 8 bits over `groups` of parameters, on a GPU or a CPU. Raises ConfigError where
    bitsandbytes is missing.

    The moments of a weight are quantised in blocks, each with a scale: 2 bytes a number and 1/32 more, where two of
    float32 take 8.

    Paper: Dettmers et al. 2022 (2110.02861).
    """
    try:
        from bitsandbytes.optim import AdamW8bit
    except ImportError as error:
        raise ConfigError(
            f"training.optimizer=adamw_8bit: cannot import bitsandbytes ({error}); pip install 'uirl[bitsandbytes]', "
            "or take training.optimizer=adamw"
        ) from error
    return AdamW8bit(groups, betas=betas, weight_decay=weight_decay, min_8bit_size=SMALLEST)


def moments_of(adam: torch.optim.Optimizer, weight: Tensor) -> dict[str, Tensor]:
    """Return what `adam` keeps of `weight` [...], by the names in `KINDS`: codes [...], scales [blocks], steps [];
    nothing before the first step."""
    state = adam.state.get(weight, {})
    kept = {kind: state[kind] for kind in KINDS if kind in state}
    return {kind: value if isinstance(value, Tensor) else torch.tensor(float(value)) for kind, value in kept.items()}


def restore_moments(adam: Any, weight: Tensor, moments: Mapping[str, Tensor]) -> None:
    """Let `adam` go on with what `moments_of` gave of `weight` [...]."""
    group = next(i for i, one in enumerate(adam.param_groups) if any(p is weight for p in one["params"]))
    place = next(i for i, p in enumerate(adam.param_groups[group]["params"]) if p is weight)
    adam.init_state(adam.param_groups[group], weight, group, place)
    for kind, value in moments.items():
        kept = int(value) if kind == "step" else value.to(weight.device, copy=True)
        adam.state[weight][kind] = kept
