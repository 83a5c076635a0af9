"""Several processes of one node that learn together: each makes the gradient of its part of the samples, and keeps a
slice of what the optimizer keeps.

`torchrun` or `accelerate launch` starts them. Process 0 leads: it is the run, with environments, engine and record.
The others follow (`uirl.learner.follower`): they have the same policy and take every call of the learner with it. A
call is the same code on the same samples in all of them. They differ in the passes alone, each of which sees its part
(`Ranks.share`); what passes found is joined right after.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from uirl.config import ModelConfig, TrainingConfig
from uirl.errors import ConfigError, ProcessLost
from uirl.images import ImageStore, Screenshot
from uirl.types import Sample
from uirl.workers.codec import ToldError, decode, encode, typed

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

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
    from torch.distributed.device_mesh import init_device_mesh

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
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 7):
        raise ConfigError(f"got torch {torch.__version__} and several processes, expected torch 2.7 or later (FSDP2)")
    if training.optimizer == "adamw_8bit":
        raise ConfigError(
            "training.optimizer=adamw_8bit: its moments are in blocks that slices of a weight would cut, got several "
            "processes; expected adamw, whose moments each of them keeps a slice of. Set training.optimizer=adamw"
        )
    if device.startswith("cuda:") or (device == "cpu" and torch.cuda.is_available()):
        raise ConfigError(
            f"model.device={device}: got several processes, each of which takes a GPU of its own; expected auto or cuda"
        )


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
