"""What stands behind the stand-in servers: a tiny real model, sampled one token at a time by a plain HF forward pass.

No cache, no batching and none of the engine's code: what it reports is what the model said.
"""

from __future__ import annotations

import copy
import json
import random
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from uirl.images import Screenshot
from uirl.inference.models.loading import LoadedModel


@dataclass
class Sampled:
    """One response, the stop token included."""

    ids: list[int] = field(default_factory=list)
    scaled: list[float] = field(default_factory=list)
    """Log-probs after bias and temperature."""
    kept: list[float] = field(default_factory=list)
    """Log-probs after the filters as well."""
    raw: list[float] = field(default_factory=list)
    """Log-probs of the model, before bias, temperature and filters."""
    tops: list[tuple[float, float, int]] = field(default_factory=list)
    """(raw, scaled, token) of the likeliest token at each step."""
    stopped: bool = False


class Brain:
    """A model that changes when it is told to. Its own copy: the learner's stays as it is."""

    def __init__(self, loaded: LoadedModel, *, joint: bool = False) -> None:
        """`joint`: top-k and top-p each look at all tokens (SGLang); else top-p at what top-k left (vLLM)."""
        self.loaded, self.joint = loaded, joint
        self.model = copy.deepcopy(loaded.model).eval()
        self.adapters: dict[str, torch.nn.Module] = {}
        self._lock = threading.Lock()

    def load(self, folder: str) -> None:
        """Takes the weights in all safetensors files of a folder, by the names that checkpoints have."""
        state: dict[str, Tensor] = {}
        for path in sorted(Path(folder).glob("*.safetensors")):
            state |= load_file(path)
        model, report = type(self.model).from_pretrained(
            None, config=self.model.config, state_dict=state, output_loading_info=True
        )
        assert not report["missing_keys"], report
        assert not report["unexpected_keys"], report
        self.model = model.eval()

    def load_adapter(self, name: str, folder: str) -> None:
        """Adds B A alpha / r to a copy of the model."""
        config = json.loads((Path(folder) / "adapter_config.json").read_text())
        tensors = load_file(Path(folder) / "adapter_model.safetensors")
        model = copy.deepcopy(self.model)
        own = dict(model.named_parameters())
        with torch.no_grad():
            for key, a in tensors.items():
                if ".lora_A." in key:
                    path = key.removeprefix("base_model.model.").replace(".lora_A.", ".")
                    own[path] += tensors[key.replace(".lora_A.", ".lora_B.")] @ a * config["lora_alpha"] / config["r"]
        self.adapters[name] = model

    @torch.no_grad()
    def sample(
        self,
        ids: Sequence[int],
        shots: Sequence[Screenshot] = (),
        *,
        limit: int,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 0,
        bias: Mapping[int, float] | None = None,
        stop: Sequence[int] = (),
        seed: int | None = None,
        adapter: str | None = None,
    ) -> Sampled:
        """A response of at most `limit` tokens. Every draw depends on `seed` and the position alone."""
        out, sequence = Sampled(), list(ids)
        while len(out.ids) < limit and not out.stopped:
            with self._lock:
                raw = self._logits(sequence, shots, adapter).double()
            logits = raw.clone()
            for token, value in (bias or {}).items():
                logits[token] += value
            scaled = (logits / (temperature or 1.0)).log_softmax(-1)
            kept = within(scaled, top_p, top_k) if self.joint else one_after_another(scaled, top_p, top_k)
            draw = random.Random(f"{seed}/{len(sequence)}" if seed is not None else None).random()
            token = int(kept.argmax()) if temperature == 0 else _draw(kept, draw)
            likeliest = int(scaled.argmax())
            raw = raw.log_softmax(-1)
            out.tops.append((float(raw[likeliest]), float(scaled[likeliest]), likeliest))
            out.ids.append(token)
            out.raw.append(float(raw[token]))
            out.scaled.append(float(scaled[token]))
            out.kept.append(float(kept[token]))
            sequence.append(token)
            out.stopped = token in stop
        return out

    def _logits(self, ids: Sequence[int], shots: Sequence[Screenshot], adapter: str | None) -> Tensor:
        where, _ = self.loaded.positions(ids, shots)
        positions = torch.from_numpy(where.copy())[:, None]
        model = self.model if adapter is None else self.adapters[adapter]
        output = model(
            input_ids=torch.tensor([list(ids)]),
            position_ids=positions if self.loaded.axes == 3 else positions[0],
            use_cache=False,
            **self.loaded.pixel_inputs(shots),
        )
        return output.logits[0, -1].float()


def within(log_probs: Tensor, top_p: float, top_k: int) -> Tensor:
    """Renormalised log-probs [V] of the tokens that top-k and top-p both keep, each by itself; -inf for the others."""
    ordered, order = log_probs.sort(descending=True)
    probs = ordered.exp()
    keep = (probs.cumsum(0) - probs) <= top_p
    if top_k > 0:
        keep &= torch.arange(len(ordered)) < top_k
    filtered = torch.full_like(log_probs, float("-inf"))
    filtered[order[keep]] = ordered[keep]
    return filtered.log_softmax(-1)


def one_after_another(log_probs: Tensor, top_p: float, top_k: int) -> Tensor:
    """Renormalised log-probs [V] of the tokens that top-p keeps of those that top-k keeps; -inf for the others."""
    return within(within(log_probs, 1.0, top_k), top_p, 0)


def _draw(log_probs: Tensor, uniform: float) -> int:
    cumulative = log_probs.exp().cumsum(0)
    token = int(torch.searchsorted(cumulative, uniform * float(cumulative[-1]), right=True))
    return token if token < len(log_probs) and log_probs[token] > float("-inf") else int(log_probs.argmax())
