"""Several processes of one node that learn together: each makes the gradient of its part of the samples, and keeps a
slice of what the optimizer keeps.

`torchrun` or `accelerate launch` starts them. Process 0 leads: it is the run, with environments, engine and record.
The others follow (`uirl.learner.follower`): they have the same policy and take every call of the learner with it. A
call is the same code on the same samples in all of them. They differ in the passes alone, each of which sees its part
(`Ranks.share`); what passes found is joined right after.

FSDP2 (`torch.distributed.fsdp.fully_shard`) keeps the slices: float32 weights, from which Adam steps, with moments and
gradients of the same form. The weights that passes read are whole in every process, in their own precision, and are
gathered after each step: what ZeRO (1910.02054) calls stage 2. So passes do not wait for each other. Their number, the
pictures in them and memory that runs out may differ between processes, and none hangs where another one fails.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Shard, distribute_tensor

from uirl.config import ModelConfig, TrainingConfig
from uirl.errors import ConfigError, ContractError, ProcessLost
from uirl.images import ImageStore, Screenshot
from uirl.types import Sample
from uirl.workers.codec import ToldError, decode, encode, typed

T = TypeVar("T")
LAUNCHED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Variables of the environment that `torchrun` and `accelerate launch` set."""
PATIENCE = timedelta(days=30)
"""How long a process waits for the others, which play episodes meanwhile. One that is gone is heard of at once."""
_ENDING = 3.0
"""Seconds within which a process that closed its connections is gone."""


# -- what is said ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Begin:
    """Make the policy and the learner of a config."""

    config: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Learn:
    """Take an update, or a step on demonstrations, as the arguments of `Learner.update` say."""

    samples: list[Sample]
    pictures: dict[str, bytes]
    """Those of the samples, encoded, by their hashes."""
    supervised: bool
    run_length: int
    anchors: dict[str, list[int]] | None = None
    spared: dict[str, int] | None = None
    noted: bool = False
    """Somebody asks what became of each token."""

    @staticmethod
    def of(samples: Sequence[Sample], images: ImageStore, run_length: int, **more: Any) -> Learn:
        """Return the call with the pictures that its samples show; those that are gone are missed by who needs them."""
        shown = {hash for sample in samples for hash in sample.images}
        pictures: dict[str, bytes] = {}
        for hash in sorted(shown):
            with contextlib.suppress(KeyError):
                pictures[hash] = images.get(hash).data
        return Learn(list(samples), pictures, run_length=run_length, **more)


@dataclass(frozen=True, slots=True)
class GatherState:
    """Join the slices of the optimizer's state."""


@dataclass(frozen=True, slots=True)
class Restore:
    """Become what a checkpoint holds."""

    folder: str


@dataclass(frozen=True, slots=True)
class End:
    """Leave."""


Call = Begin | Learn | GatherState | Restore | End
_CALLS = {kind.__name__: kind for kind in (Begin, Learn, GatherState, Restore, End)}


@dataclass(frozen=True, slots=True)
class _Told:
    """What a process tells the others where all of them meet."""

    place: str
    value: Any = None
    error: ToldError | None = None


# -- the processes ---------------------------------------------------------------------------------------------


class Ranks:
    """The processes that learn together, as one of them sees them."""

    def __init__(self, rank: int, count: int, mesh: DeviceMesh, store: dist.Store) -> None:
        self.rank, self.count, self.mesh = rank, count, mesh
        self._store = store
        self._pids: list[int] = []
        self.lost = False
        """They are not at the same place any more, so nothing can be said."""
        self._pids = [told.value for told in self._meet(_Told("join", os.getpid()))]

    @property
    def leads(self) -> bool:
        """Whether this process is the run."""
        return self.rank == 0

    def call(self, message: Call, work: Callable[[], T]) -> T:
        """Return what `work` returns, which all processes do for `message`: this one says so first, if it leads. Raises
        what it raised here or, where it ended well here alone, elsewhere."""
        if not self.leads:
            return work()
        self._broadcast(encode({type(message).__name__: message})[0])
        return self.agreed(work)

    def hear(self) -> Call:
        """Return what the leader says next. Raises ProcessLost where it is gone."""
        plain, _ = decode(self._broadcast(b""), _no_pictures)
        (name, message), *_ = plain.items()
        return typed(message, _CALLS[name])

    def agreed(self, work: Callable[[], T]) -> T:
        """Return what `work` returns here, once all processes have come to its end."""
        try:
            result = work()
        except Exception as error:
            if not self.lost:
                with contextlib.suppress(ProcessLost):
                    self._meet(_Told("end", error=ToldError.of(error, self._name)))
            raise
        for one in self._meet(_Told("end")):
            if one.error is not None:
                self.lost = True
                raise one.error.made()
        return result

    def together(self, attempt: Callable[[], T], kind: Any) -> list[T]:
        """Return what `attempt` returned in each process, of the annotation `kind`. Where it failed in some, all raise
        what the first of these did."""
        told, failure = None, None
        try:
            told = _Told("pass", attempt())
        except Exception as error:
            told, failure = _Told("pass", error=ToldError.of(error, self._name)), error
        others = self._meet(told)
        for rank, one in enumerate(others):
            if one.error is not None:
                raise one.error.made() if failure is None or rank != self.rank else failure
        return [typed(one.value, kind) for one in others]

    def share(self, costs: Sequence[int]) -> slice:
        """Return which of neighbours that cost `costs` this process takes: about as much as each of the others."""
        total, done, mine = sum(costs), 0, []
        for index, cost in enumerate(costs):
            # by its middle, so that no process has more than half an element too much
            if min(self.count - 1, int((done + cost / 2) * self.count / max(total, 1))) == self.rank:
                mine.append(index)
            done += cost
        return slice(mine[0], mine[-1] + 1) if mine else slice(0, 0)

    def summed(self, tensor: Tensor) -> Tensor:
        """Return the sum of `tensor` [...] over the processes, on the CPU; it is changed where it lies there."""
        whole = tensor.cpu()
        with self.talking():
            dist.all_reduce(whole)
        return whole

    @contextlib.contextmanager
    def talking(self) -> Iterator[None]:
        """Return a context for what all processes must do alike. What fails in it cannot be made good any more. Raises
        ProcessLost that names the process which is gone."""
        try:
            yield
        except BaseException as error:
            self.lost = True
            if isinstance(error, RuntimeError):
                raise ProcessLost(self._who(str(error).partition("\n")[0])) from error
            raise

    def mourn(self, error: BaseException) -> None:
        """Leave word why this process ends."""
        with contextlib.suppress(RuntimeError):
            self._store.set(f"uirl/{self.rank}", f"{type(error).__name__}: {error}"[:1000])

    def close(self) -> None:
        """Let all processes leave. Calling it twice is fine."""
        if self.leads and not self.lost:
            with contextlib.suppress(ProcessLost):
                self._broadcast(encode({End.__name__: End()})[0])
        self.lost = True
        if dist.is_initialized():
            dist.destroy_process_group()

    @property
    def _name(self) -> str:
        return f"process {self.rank} of {self.count}"

    def _broadcast(self, data: bytes) -> bytes:
        """Return the bytes that the leader has."""
        with self.talking():
            size = torch.tensor([len(data)])
            dist.broadcast(size, 0)
            content = torch.frombuffer(bytearray(data), dtype=torch.uint8) if self.leads else _bytes(int(size))
            dist.broadcast(content, 0)
        return content.numpy().tobytes()

    def _meet(self, told: _Told) -> list[_Told]:
        """Return what each process tells. Raises ProcessLost where they meet at different places."""
        data = encode(told)[0]
        with self.talking():
            sizes = list(torch.zeros(self.count, dtype=torch.long).split(1))
            dist.all_gather(sizes, torch.tensor([len(data)]))
            longest = max(map(int, sizes))
            parts = [_bytes(longest) for _ in sizes]
            dist.all_gather(parts, torch.frombuffer(bytearray(data.ljust(longest)), dtype=torch.uint8))
        said = [part[: int(size)].numpy().tobytes() for part, size in zip(parts, sizes, strict=True)]
        told_by = [typed(decode(one, _no_pictures)[0], _Told) for one in said]
        if len({one.place for one in told_by}) > 1:
            self.lost = True
            away = next((one.error for one in told_by if one.error is not None and one.place == "end"), None)
            told_error = ToldError((), "no reason was told") if away is None else away
            raise ProcessLost(f"a process left the others behind: {told_error.words}") from told_error.made()
        return told_by

    def _who(self, seen: str) -> str:
        """Return which process is gone, in words; `seen` is what this one saw of it."""
        deadline = time.monotonic() + _ENDING
        while not (gone := [rank for rank, pid in enumerate(self._pids) if not _lives(pid)]):
            if time.monotonic() > deadline:
                return f"the {self.count} processes that learn together cannot go on: {seen}"
            time.sleep(0.05)
        key, reason = f"uirl/{gone[0]}", "it was killed, or ran out of memory"
        with contextlib.suppress(RuntimeError):
            if self._store.check([key]):
                reason = self._store.get(key).decode()
        return f"process {gone[0]} of {self.count} that learn together (pid {self._pids[gone[0]]}) is gone: {reason}"


def join() -> Ranks:
    """Return the processes that this one was started with, once all are there; on GPUs each takes one. The variables
    that say so leave the environment: what this process starts is none of them. Raises ConfigError for processes on
    several nodes, and for more than there are GPUs."""
    place = {key: os.environ.get(key) for key in LAUNCHED}
    rank, count = int(place["RANK"] or 0), int(place["WORLD_SIZE"] or 1)
    local, here = int(place["LOCAL_RANK"] or rank), int(place["LOCAL_WORLD_SIZE"] or count)
    if here != count:
        raise ConfigError(
            f"got {count} processes, {here} of them on this node; expected all on one node. Start them with torchrun "
            "--nproc-per-node, or learn on several nodes under verl (uirl verl)"
        )
    gpus = torch.cuda.device_count()
    if gpus and count > gpus:
        raise ConfigError(f"got {count} processes, expected at most one for each of the {gpus} GPUs of this node")
    if gpus:
        torch.cuda.set_device(local)
    store, _, _ = next(dist.rendezvous("env://", timeout=timedelta(minutes=10)))
    for key in [key for key in os.environ if key in LAUNCHED or key.startswith(("TORCHELASTIC_", "GROUP_", "ROLE_"))]:
        del os.environ[key]
    backend = "cpu:gloo,cuda:nccl" if gpus else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=count, timeout=PATIENCE)
    return Ranks(rank, count, init_device_mesh("cuda" if gpus else "cpu", (count,)), store)


def require_sliceable(model: ModelConfig, training: TrainingConfig) -> None:
    """Raise ConfigError for what processes that learn together cannot do."""
    device = model.device
    if training.optimizer == "adamw_8bit":
        raise ConfigError(
            "training.optimizer=adamw_8bit: its moments are in blocks that slices of a weight would cut, got several "
            "processes; expected adamw, whose moments each of them keeps a slice of. Set training.optimizer=adamw"
        )
    if device.startswith("cuda:") or (device == "cpu" and torch.cuda.is_available()):
        raise ConfigError(
            f"model.device={device}: got several processes, each of which takes a GPU of its own; expected auto or cuda"
        )


# -- the slices ------------------------------------------------------------------------------------------------


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

        def whole() -> None:
            step()

        self._ranks.together(whole, None)

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


def _bytes(count: int) -> Tensor:
    return torch.empty(count, dtype=torch.uint8)


def _no_pictures(hash: str) -> Screenshot:
    raise KeyError(hash)


def _lives(pid: int) -> bool:
    """Return whether a process runs; one that has ended and that nobody has asked after does not."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except ProcessLookupError:
        return False
    except OSError:  # not Linux, or somebody else's
        return True
