"""The meter: what the machine of a run can do, measured once, and what share of that each part of the run reaches.

Operations are those of the products of matrices alone, a multiplication and an addition being two: per token 2 for each
weight that it goes through, and as many again on the way back for what it passes and once more for what is learned
(6 in all where everything is trained, 8 with gradient checkpointing); per pair of a token and one that it sees, 4 for
each number of the queries, and twice that on the way back. Norms, softmax, the optimizer and padding are no work here.
Decoding reads all weights in every step, and the keys and values that a token sees: it cannot be faster than memory.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from uirl.environments import BaseEnvironment
from uirl.environments.adapters.mixture import MixtureEnvironment
from uirl.environments.tool_use.environment import ToolEnvironment
from uirl.inference.models.loading import LoadedModel
from uirl.training.memory import attention_heads
from uirl.types import Trajectory

SECONDS = 0.1
"""That each of the two measurements goes on, after a first attempt that does not count."""
SIDE = {"cpu": 512}
"""Of the matrices that are multiplied; 4096 on an accelerator."""
LEAST, LARGEST = 2**22, 2**27
"""Bytes of the block that is read: as many as the weights take, within these bounds. Small ones stay in caches."""
EVALUATION = "evaluation"


@dataclass(frozen=True, slots=True)
class Machine:
    """What a device does at most."""

    device: str
    precision: str
    operations: float
    """Per second, of a product of two matrices."""
    bytes: float
    """Per second, read from where weights lie."""

    def seconds(self, operations: float, bytes: float = 0.0) -> float:
        """Return the least seconds for so many operations and bytes, which go on at once."""
        return max(operations / self.operations, bytes / self.bytes)

    def __str__(self) -> str:
        return (
            f"{self.operations / 1e9:.3g} GFLOP/s in {self.precision}, {self.bytes / 1e9:.3g} GB/s read ({self.device})"
        )


def measure(device: torch.device, dtype: torch.dtype, weights: float, seconds: float = SECONDS) -> Machine:
    """Return what a device does, with the threads that torch has here: products of matrices in `dtype`, and reading a
    block as large as `weights` bytes. It takes 2 to 4 times `seconds`, once in a process,
    and draws no random numbers."""
    return _measured(device, dtype, int(min(max(weights, LEAST), LARGEST)) // 4, seconds, torch.get_num_threads())


@functools.cache
def _measured(device: torch.device, dtype: torch.dtype, numbers: int, seconds: float, threads: int) -> Machine:
    side = SIDE.get(device.type, 4096)
    factor = torch.linspace(-1, 1, side * side, device=device).view(side, side).to(dtype)
    product = torch.empty_like(factor)
    block = torch.ones(numbers, device=device)
    multiplying = _least(lambda: torch.mm(factor, factor, out=product), device, seconds)
    reading = _least(block.sum, device, seconds)
    name = f"cpu, {threads} threads" if device.type == "cpu" else device.type
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else name
    return Machine(name, str(dtype).removeprefix("torch."), 2 * side**3 / multiplying, block.nbytes / reading)


@torch.inference_mode()
def _least(call: Callable[[], Any], device: torch.device, seconds: float) -> float:
    """Return the least seconds that a call took."""

    def once() -> float:
        started = time.perf_counter()
        call()
        if device.type != "cpu":
            getattr(torch, device.type).synchronize()
        return time.perf_counter() - started

    once()
    until, least = time.perf_counter() + seconds, once()
    while time.perf_counter() < until:
        least = min(least, once())
    return least


# what a model has to do


@dataclass(frozen=True, slots=True)
class Weights:
    """What of a model its work depends on."""

    text: float
    """Weights of the layers that one token goes through; of experts, those that are chosen."""
    head: float
    eyes: float
    """Weights that a patch of a picture goes through."""
    back: Mapping[str, float]
    """Of each of these, what it goes through on the way back: nothing, once, or twice where all of it is trained."""
    pair: float
    """Operations for a token and one that it sees, in all layers."""
    cache: float
    """Bytes of the keys and values of a token."""
    held: float
    """Bytes that a step of decoding reads at least."""
    patch: float
    """Numbers of a patch."""

    @staticmethod
    def of(model: Any, itemsize: int) -> Weights:
        """Return the numbers of a HuggingFace model whose weights take `itemsize` bytes each; what has `requires_grad`
        is trained."""
        text, (heads, kv_heads) = model.config.get_text_config(), attention_heads(model.config)
        size = getattr(text, "head_dim", None) or text.hidden_size // heads
        layers, head = text.num_hidden_layers, model.get_output_embeddings().weight
        inside = {id(module) for module in model.get_decoder().modules()}
        counts = {"text": 0.0, "head": float(head.numel()), "eyes": 0.0}
        learned = {"text": 0.0, "head": counts["head"] * head.requires_grad, "eyes": 0.0}
        patch, held = 1.0, float(head.numel())
        for module in model.modules():
            if isinstance(module, nn.Embedding) or module is model.get_output_embeddings():
                continue
            part = "text" if id(module) in inside else "eyes"
            for weight in (each for each in module.parameters(recurse=False) if each.ndim > 1):
                share = _chosen(text) / len(weight) if part == "text" and weight.ndim == 3 else 1.0
                counts[part] += share * weight.numel()
                learned[part] += share * weight.numel() * weight.requires_grad
                held += weight.numel() if part == "text" else 0
                if part == "eyes" and weight.ndim > 3:  # the convolution that reads patches
                    patch = float(weight[0].numel())
        # a vision part in which nothing learns has no way back
        passed = counts | ({} if learned["eyes"] else {"eyes": 0.0})
        return Weights(
            **counts,
            back={part: passed[part] + learned[part] for part in counts},
            pair=4.0 * layers * heads * size,
            cache=2.0 * layers * kv_heads * size * itemsize,
            held=held * itemsize,
            patch=patch,
        )

    def forward(self, read: Mapping[str, float], kind: str, *, layers_alone: bool = False) -> float:
        """Return the operations of passes over what was `read`: of `kind`, see `MicroBatchRoom.read`."""
        head = 0.0 if layers_alone else self.head * read.get(f"{kind}_replies", 0.0)
        patches = read.get(f"{kind}_pixels", 0.0) / self.patch
        through = self.text * read.get(f"{kind}_tokens", 0.0) + self.eyes * patches + head
        return 2 * through + self.pair * read.get(f"{kind}_pairs", 0.0)

    def update(self, read: Mapping[str, float], *, recompute: bool) -> float:
        """Return the operations of an update that `read` this. `recompute`: with gradient checkpointing."""
        back = self.back["text"] * read.get("learned_tokens", 0.0) + self.back["head"] * read.get(
            "learned_replies", 0.0
        )
        back += self.back["eyes"] * read.get("learned_pixels", 0.0) / self.patch
        again = self.forward(read, "learned", layers_alone=True) if recompute else 0.0
        forward = self.forward(read, "scored") + self.forward(read, "learned") + again
        return forward + 2 * back + 2 * self.pair * read.get("learned_pairs", 0.0)

    def playing(self, machine: Machine, read: Mapping[str, float], kind: str) -> float:
        """Return the least seconds of the steps of 'prefill' or 'decode' that `read` this."""
        moved = read.get(f"{kind}_steps", 0.0) * self.held
        if kind == "decode":  # elsewhere many tokens share what is read of the cache
            moved += read.get("decode_pairs", 0.0) * self.cache
        return machine.seconds(self.forward(read, kind), moved)


def weights_of(model: Any, itemsize: int) -> Weights | None:
    """Return `Weights.of` a model; None: it has no weights to count, since it is packed into 4 bits or describes itself
    as no other family does."""
    if getattr(model, "hf_quantizer", None) is None:
        with contextlib.suppress(AttributeError):
            return Weights.of(model, itemsize)
    return None


def _chosen(text: Any) -> int:
    return getattr(text, "num_experts_per_tok", None) or getattr(text, "moe_topk", None) or 1


# what a run reaches


class Meter:
    """The meter of one run. Made where nothing else goes on: it measures the machine."""

    def __init__(self, loaded: LoadedModel, environment: BaseEnvironment, *, here: bool, ahead: bool) -> None:
        """Measure the machine. `here`: episodes are played in this process, its engine included; `ahead`: while the
        learner learns."""
        self._here, self._ahead = here and not ahead, ahead
        # while such an environment works nothing else goes on: it is called on the event loop and never awaited
        awaited = isinstance(environment, (ToolEnvironment, MixtureEnvironment))
        awaited = awaited or inspect.iscoroutinefunction(environment.step)
        self._alone = environment.runs_inline and not awaited
        self._weights = weights_of(loaded.model, loaded.dtype.itemsize)
        self.machine = measure(loaded.device, loaded.dtype, self._weights.held if self._weights else LARGEST)

    def row(
        self, played: Sequence[Trajectory], row: Mapping[str, Any], read: Mapping[str, float], *, recompute: bool
    ) -> dict[str, float]:
        """Return the shares of the machine's limit in one update, whose times stand in `row`, and how many pictures an
        environment makes in a second; nothing of what was not measured. `read`: what engine and learner counted."""
        weights, machine, out = self._weights, self.machine, {}
        if weights is not None:
            least = {"update": (machine.seconds(weights.update(read, recompute=recompute)), row["time/update"])}
            if self._here:
                for kind in ("prefill", "decode"):
                    least[kind] = weights.playing(machine, read, kind), row[f"time/engine_{kind}"]
            out = {f"limit/{name}": limit / took for name, (limit, took) in least.items() if limit and took}
        seconds = sum(each.metrics.get("environment_seconds", 0.0) for each in played)
        pictures = sum(len(turn.observation.images) for each in played for turn in each.turns)
        return out | ({"screenshots_per_second": pictures / seconds} if pictures and seconds else {})

    def summary(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return what a summary says of updates with these rows: seconds of an update, part by part, and their shares
        of the time and of the machine's limit."""
        parts = self._seconds(rows)
        whole = sum(parts.values())
        said: dict[str, dict[str, float]] = {}
        for name, seconds in parts.items():
            if seconds > 0:
                said[name] = {"seconds_per_step": seconds / len(rows), "share_of_time": seconds / whole}
                key = f"time/{name}" if name == "update" else f"time/engine_{name}"
                pairs = [(row[f"limit/{name}"], row[key]) for row in rows if row.get(f"limit/{name}") is not None]
                if pairs:
                    took = sum(seconds for _, seconds in pairs)
                    said[name]["share_of_limit"] = sum(share * seconds for share, seconds in pairs) / took
        rates = [row["screenshots_per_second"] for row in rows if row.get("screenshots_per_second") is not None]
        machine = {name: getattr(self.machine, name) for name in ("device", "precision", "operations", "bytes")}
        out: dict[str, Any] = {"machine": machine, "steps": len(rows), "parts": said}
        # the same number of pictures a second, over the time of all
        return out | ({"screenshots_per_second": len(rates) / sum(1 / rate for rate in rates)} if rates else {})

    def _seconds(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        def total(name: str) -> float:
            return sum(row.get(f"time/{name}") or 0.0 for row in rows)

        collect, parts = total("collect"), {"update": total("update")}
        if self._here:
            parts |= {"prefill": total("engine_prefill"), "decode": total("engine_decode")}
            rest = max(0.0, collect - parts["prefill"] - parts["decode"])
            worked = min(total("environment"), rest) if self._alone else 0.0
            waiting = "prompts and waiting" if self._alone else "environment, prompts and waiting"
            parts |= {"environment": worked, waiting: rest - worked}
        else:
            parts["waiting for episodes" if self._ahead else "playing"] = collect
        return parts | {"record": total("record"), EVALUATION: total("evaluate")}


def meter_words(meter: Mapping[str, Any]) -> str:
    """Return 'update 41 % of the time, at 61 % of what the machine gave at the start; decode 30 %, at 5 %'."""
    out, of_time, of_limit = [], " of the time", " of what the machine gave at the start"
    for name, part in sorted(meter["parts"].items(), key=lambda each: -each[1]["share_of_time"]):
        text, of_time = f"{name} {100 * part['share_of_time']:.2g} %{of_time}", ""
        if "share_of_limit" in part:
            text, of_limit = f"{text}, at {100 * part['share_of_limit']:.2g} %{of_limit}", ""
        out.append(text)
    return "; ".join(out)


# what a step will take


def seconds_like(meter: Mapping[str, Any], machine: Machine, episodes: float) -> dict[str, float]:
    """Return the seconds of each part of a step on `machine`, with `episodes` times as many episodes as in the run of
    `meter`: products go as fast as the machines multiply, decoding as fast as they read, the rest as it went there."""
    there = meter["machine"]
    faster = {"decode": machine.bytes / there["bytes"]}
    faster |= dict.fromkeys(("update", "prefill"), machine.operations / there["operations"])
    parts = {name: part["seconds_per_step"] for name, part in meter["parts"].items() if name != EVALUATION}
    return {name: episodes * seconds / faster.get(name, 1.0) for name, seconds in parts.items()}


def longest_step(read: Mapping[str, float], weights: Weights, machine: Machine, *, recompute: bool) -> dict[str, float]:
    """Return the least seconds of the parts of a step that will have `read` this (`Plan.reads`)."""
    update = {"update": machine.seconds(weights.update(read, recompute=recompute))}
    return update | {kind: weights.playing(machine, read, kind) for kind in ("prefill", "decode")}
