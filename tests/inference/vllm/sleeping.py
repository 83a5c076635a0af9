"""A stand-in for a vLLM with sleep mode: a real tiny model, and the book of what lies on its GPU.

What vLLM 0.32 does (`vllm/device_allocator/cumem.py`, `vllm/v1/worker/gpu_worker.py`): `sleep` unmaps weights and
cache, level 1 after a copy to the host; `wake_up(tags)` maps the parts named, `wake_up()` all of them, and what was
dropped comes back without content; `reload_weights` writes into the tensors that are there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.inference.stand_in_brain import Brain
from uirl.config import ModelConfig
from uirl.errors import EngineFailure
from uirl.inference.footprint import CACHE, WEIGHTS
from uirl.inference.models.loading import LoadedModel, load_model
from uirl.inference.vllm.requests import Adapter, VLLMBackend, VLLMRequest, VLLMResponse

WEIGHT_BYTES, CACHE_BYTES, SCRATCH_BYTES = 1000, 2000, 50


class SleepingVLLM(VLLMBackend):
    """`room`: bytes of the GPU that are left to it; what does not fit ends a call with "out of memory".

    `faults` does a thing wrong: 'old weights' (a load after a sleep is lost), 'half' (it brings half of the tensors),
    'no tags' (a wake-up wakes everything), 'beside' (new weights lie beside the old ones), 'awake' (a sleep frees
    nothing), 'forgets' (level 1 drops the weights too).
    """

    def __init__(self, loaded: LoadedModel, *, faults: Collection[str] = (), room: int = 10**9) -> None:
        self.brain, self.faults, self.room = Brain(loaded), set(faults), room
        self.held_now = {WEIGHTS: WEIGHT_BYTES, CACHE: CACHE_BYTES, "other": SCRATCH_BYTES}
        self.calls: list[str] = []
        """What was asked of it, in order."""
        self.refuses: set[str] = set()
        """Calls that fail."""
        self.kept: dict[str, torch.Tensor] | None = None
        self.slept = False

    async def start(self) -> int:
        return 4096

    async def generate(self, call: VLLMRequest, adapter: Adapter | None) -> VLLMResponse:
        if "awake" not in self.faults:
            assert all(self.held_now.get(part) for part in (WEIGHTS, CACHE)), "vLLM asleep answers nothing"
        asked: dict[str, Any] = call.sampling
        made = self.brain.sample(
            call.prompt_ids,
            limit=asked["max_tokens"],
            temperature=asked["temperature"],
            top_p=asked["top_p"],
            top_k=asked["top_k"],
            bias=asked["logit_bias"],
            stop=asked["stop_token_ids"],
            seed=asked["seed"],
            adapter=adapter.name if adapter else None,
        )
        reason = "stop" if made.stopped else "length"
        return VLLMResponse(call.prompt_ids, tuple(made.ids), tuple(made.kept), reason, 0)

    async def load(self, folder: Path) -> None:
        self._note("load")
        assert self.held_now[WEIGHTS], "the weights have no memory to be written to"
        if "old weights" in self.faults and self.slept:
            return
        if "beside" in self.faults:
            self._take("other", WEIGHT_BYTES)
        dropped = {name: tensor.clone() for name, tensor in self.brain.model.state_dict().items()}
        self.brain.load(str(folder))
        if "half" in self.faults and self.slept:
            state = self.brain.model.state_dict()
            names = sorted(state)
            self.brain.model.load_state_dict(state | {name: dropped[name] for name in names[: len(names) // 2]})

    async def swap(self, old: Adapter | None, new: Adapter | None) -> None:
        self._note("swap")
        if new is not None:
            assert json.loads((new.folder / "adapter_config.json").read_text())
            self.brain.load_adapter(new.name, str(new.folder))
        if old is not None:
            self.brain.adapters.pop(old.name, None)

    async def sleep(self, level: int) -> None:
        self._note(f"sleep {level}")
        assert self.held_now[WEIGHTS], "asleep already"
        self.slept = True
        if "awake" in self.faults:
            return
        weights = self.brain.model.state_dict()
        keeps = level == 1 and "forgets" not in self.faults
        self.kept = {name: tensor.clone() for name, tensor in weights.items()} if keeps else None
        with torch.no_grad():
            for number, tensor in enumerate(weights.values()):  # whatever lay there before
                tensor.copy_(torch.randn(tensor.shape, generator=torch.Generator().manual_seed(number)))
        self.held_now |= {WEIGHTS: 0, CACHE: 0}

    async def wake(self, part: str) -> None:
        self._note(f"wake {part}")
        parts = (WEIGHTS, CACHE) if "no tags" in self.faults else (part,)
        for one in parts:
            if not self.held_now[one]:
                self._take(one, WEIGHT_BYTES if one == WEIGHTS else CACHE_BYTES)
        if WEIGHTS in parts and self.kept is not None:
            self.brain.model.load_state_dict(self.kept)
            self.kept = None

    async def held(self) -> dict[str, int]:
        return dict(self.held_now)

    async def close(self, adapter: Adapter | None) -> None:
        pass

    def _note(self, call: str) -> None:
        self.calls.append(call)
        if call in self.refuses:
            raise EngineFailure(f"vLLM did not take {call}")

    def _take(self, part: str, size: int) -> None:
        if sum(self.held_now.values()) + size > self.room:
            raise EngineFailure(f"CUDA out of memory: {part} needs {size}, {self.held_now} lie in {self.room}")
        self.held_now[part] += size


def stand_in(
    monkeypatch: pytest.MonkeyPatch,
    model: Callable[[str], LoadedModel] | None = None,
    *,
    sleeps: bool = True,
    **options: Any,
) -> list[SleepingVLLM]:
    """Let `inference.backend=vllm` start stand-ins, which are returned as they are made. `model`: what is in a folder;
    None: what `load_model` finds there. `sleeps`: vLLM must be started so that it can. `options`: those of a
    stand-in."""
    made: list[SleepingVLLM] = []

    def start(arguments: dict[str, Any]) -> SleepingVLLM:
        assert arguments.get("enable_sleep_mode", False) == sleeps, "vLLM sleeps where it was started for that alone"
        made.append(SleepingVLLM((model or _loaded)(arguments["model"]), **options))
        return made[-1]

    monkeypatch.setattr("uirl.inference.vllm.engine.VLLMProcess", start)
    return made


def _loaded(folder: str) -> LoadedModel:
    return load_model(ModelConfig(local_path=folder, device="cpu"))
