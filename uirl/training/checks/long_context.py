"""Whether the engine still says what the model says when sequences are long: windows, chunks and positions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from uirl.config import ConfigStore
from uirl.errors import ContractError
from uirl.inference.base import GenerationRequest, InferenceEngine, SamplingParams
from uirl.inference.models.loading import LoadedModel

REPLY = 16
UNKNOWN = 512
"""Tokens that are tried where the config names no window."""
WORK = {"cpu": 2e12, "cuda": 4e14}
"""Floating point operations that a check may cost: some ten seconds."""


@dataclass(frozen=True, slots=True)
class LongGap:
    """What was found."""

    gap: float
    """Largest |engine - the model's own forward| log-prob."""
    tokens: int
    window: int
    """Largest window or chunk of a layer; 0: every layer sees all."""

    def __str__(self) -> str:
        text = f"largest difference {self.gap:.1e} over {self.tokens} tokens"
        if not self.window:
            return text
        if self.tokens > self.window:
            return f"{text}, more than the window of {self.window}"
        return f"{text}; a sequence beyond the window of {self.window} would take too long here"


async def long_gap(engine: InferenceEngine, loaded: LoadedModel, config: ConfigStore) -> LongGap | None:
    """Return the engine, in two turns, against the model's own forward under its own masks, on one sequence longer than
    its windows or as long as the context allows cheaply. None: the engine tells no log-probs."""
    try:
        window = loaded.attention_spans().largest
    except ContractError:
        window = 0  # an engine with masks of its own knows better
    ids = _tokens(loaded, _length(loaded, config, window))
    sampling = SamplingParams(REPLY, config.inference.temperature or 1.0, seed=1)
    half = await engine.generate(GenerationRequest(ids[: len(ids) // 2], (), sampling, "long"))
    whole = await engine.generate(GenerationRequest(ids, (), sampling, "long"))
    engine.release("long")
    if half.log_probs is None or whole.log_probs is None:
        return None
    gaps = []
    for prompt, reply in ((ids[: len(ids) // 2], half), (ids, whole)):
        expected = _own_log_probs(loaded, (*prompt, *reply.token_ids), len(reply.token_ids), sampling.temperature)
        gaps.append(float((expected - torch.tensor(reply.log_probs or ())).abs().max()))
    return LongGap(max(gaps), len(ids), window)


def _length(loaded: LoadedModel, config: ConfigStore, window: int) -> int:
    positions = loaded.max_positions
    context = min(positions, config.inference.max_context or positions) - REPLY
    weights = sum(parameter.numel() for parameter in loaded.model.parameters())
    cheap = int(WORK.get(loaded.device.type, 2e12) / (8 * weights))
    return max(2, min(context, 3 * window or UNKNOWN, cheap))


def _tokens(loaded: LoadedModel, length: int) -> tuple[int, ...]:
    """Return the ids that differ from their neighbours, so that it matters which of them a layer sees."""
    never = {*loaded.banned_ids, *loaded.end_ids}
    plain = [i for i in range(len(loaded.tokenizer)) if i not in never]
    return tuple(plain[(7919 * i + i * i) % len(plain)] for i in range(length))


@torch.no_grad()
def _own_log_probs(loaded: LoadedModel, ids: tuple[int, ...], length: int, temperature: float) -> Tensor:
    """Return what the model's own forward says of the last `length` tokens, [length]."""
    tokens = torch.tensor([ids], device=loaded.device)
    logits = loaded.model(input_ids=tokens, use_cache=False).logits[0, -length - 1 : -1].float()
    banned = torch.tensor(loaded.banned_ids, device=loaded.device, dtype=torch.long)
    log_probs = (logits.index_fill(-1, banned, float("-inf")) / temperature).log_softmax(-1)
    return log_probs.gather(-1, tokens[0, -length:, None])[:, 0].cpu()
