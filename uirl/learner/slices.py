"""The weights that an optimizer steps, in slices over the processes that learn together.

FSDP2 (`torch.distributed.fsdp.fully_shard`) keeps the slices: float32 weights, from which Adam steps, with moments and
gradients of the same form. The weights that passes read are whole in every process, in their own precision, and are
gathered after each step: what ZeRO (1910.02054) calls stage 2. So passes do not wait for each other. Their number, the
pictures in them and memory that runs out may differ between processes, and none hangs where another one fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Shard, distribute_tensor

from uirl.errors import ContractError
from uirl.learner.data_parallel import Ranks


class Slices:
    """The trained weights of a policy in float32, of which each process keeps a slice along the first axis.

    The weights of the model stay whole, and are those that its modules have; `gather` makes them what the slices are.
    """

    def __init__(self, ranks: Ranks, model: nn.Module, value_head: nn.Module | None) -> None:
        self._ranks = ranks
        self._groups: list[Any] = []
        first = [[name, float(p.detach().flatten()[0])] for name, p in _named(model, value_head) if p.numel()]
        for rank, others in enumerate(ranks.together(lambda: first, list[tuple[str, float]])):
            odd = sorted({name for name, _ in set(map(tuple, first)) ^ set(others)})
            if odd:
                raise ContractError(
                    f"process {rank} has another model than process {ranks.rank}: got other numbers in {odd[0]}, "
                    "expected the same model, adapters and seed in all of them"
                )
        parts = [*_blocks(model), model, *([] if value_head is None else [value_head])]
        modules = [module for part in parts for module in part.modules()]
        hooks = [(module, module._state_dict_pre_hooks.copy()) for module in modules]
        with ranks.talking():
            for part in parts:
                self._groups += _sharded(part, ranks.mesh)
            self._of = {name: p for name, p in _named(model, value_head) if isinstance(p, DTensor)}
            for group in self._groups:
                group.unshard()
        for module, before in hooks:
            # those of FSDP2 would put the slices in place of the weights, for whoever saves the model
            module._state_dict_pre_hooks = before

    def begin(self, name: str, whole: Tensor) -> Tensor:
        """Return the slices of the weight `name` as one tensor [...], made what `whole` [...] is."""
        with torch.no_grad():
            self._of[name].copy_(self.cut(whole.detach().float()))
        return self._of[name]

    def cut(self, whole: Tensor) -> Tensor:
        """Return `whole` [...], which all processes have, as slices; a number [] as it is."""
        if not whole.ndim:
            return whole
        mesh = self._ranks.mesh
        return distribute_tensor(whole.to(mesh.device_type), mesh, [Shard(0)], src_data_rank=None)

    def whole(self, tensor: Tensor) -> Tensor:
        """Return a tensor in slices as a whole one [...]; one that is whole as it is."""
        with self._ranks.talking():
            return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

    def to_save(self, tensor: Tensor) -> Tensor:
        """Return the whole tensor [...] on the CPU of the process that leads; empty in the others."""
        whole = self.whole(tensor)
        return whole.cpu() if self._ranks.leads else whole.new_empty(0)

    def reduce(self, gradients: Mapping[str, Tensor | None]) -> dict[str, Tensor | None]:
        """Return the sums over the processes of whole `gradients` [...] by the names of weights, in slices; None: no
        process has one."""
        there = self._ranks.summed(torch.tensor([float(gradient is not None) for gradient in gradients.values()]))
        mesh, sums = self._ranks.mesh, dict[str, Tensor | None]()
        with self._ranks.talking():
            for (name, gradient), holders in zip(gradients.items(), there.tolist(), strict=True):
                if holders:
                    weight = self._of[name]
                    mine = torch.zeros(weight.shape, device=weight.device) if gradient is None else gradient.float()
                    sums[name] = DTensor.from_local(mine, mesh, [Partial()]).redistribute(placements=[Shard(0)])
        return {name: sums.get(name) for name in gradients}

    def together(self, step: Callable[[], object]) -> None:
        """Take a step of the slices; where it fails in one process, it fails in all."""
        self._ranks.together(step, None)

    def gather(self) -> None:
        """Make the weights of the model, in their own precision, what the slices are."""
        with self._ranks.talking():
            for group in self._groups:
                group.reshard()
                group.unshard()


class _Group(nn.Module):
    """Weights that are gathered at once. Its forward never runs, so that no hook of FSDP2 does: passes are not cut up
    by what processes say to each other."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part


def _sharded(part: nn.Module, mesh: DeviceMesh) -> Iterator[nn.Module]:
    """Yield a group for each precision of the weights of `part` that are trained and in no group yet."""
    trained = [p for p in part.parameters() if p.requires_grad and not isinstance(p, DTensor)]
    for dtype in sorted({p.dtype for p in trained}, key=str):
        of_group = [p for p in trained if p.dtype == dtype]
        for parameter in of_group:
            parameter.data = parameter.data.float()
        group = _Group(part)
        precision = MixedPrecisionPolicy(param_dtype=None if dtype == torch.float32 else dtype)
        fully_shard(group, mesh=mesh, mp_policy=precision, ignored_params=set(part.parameters()) - set(of_group))
        yield group


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the layers of a model: what lies in its outermost lists of modules."""
    for child in module.children():
        if isinstance(child, nn.ModuleList):
            yield from child
        else:
            yield from _blocks(child)


def _named(model: nn.Module, value_head: nn.Module | None) -> Iterator[tuple[str, Tensor]]:
    """Yield (name, weight) as the optimizer calls them."""
    yield from model.named_parameters()
    if value_head is not None:
        yield from value_head.named_parameters("value_head")
