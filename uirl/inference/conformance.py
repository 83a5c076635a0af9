"""`check_engine`: the public contract suite of inference engines. Its messages teach."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from uirl.errors import ContractError
from uirl.images import Screenshot
from uirl.inference.base import Generation, GenerationRequest, InferenceEngine, SamplingParams
from uirl.inference.embedded.sampling import BatchSampling, sampling_log_probs
from uirl.inference.models.loading import LoadedModel, hidden_states, pad_sequences, project

Recompute = Callable[[Sequence[int], Sequence[Screenshot], int, SamplingParams], Sequence[float]]
"""(all ids, images, length of the response at their end, sampling) -> the learner's log-probs of the response."""


def recompute_with(loaded: LoadedModel) -> Recompute:
    """Score a response as the learner does: with one full forward pass of `loaded`, without any cache."""

    @torch.no_grad()
    def recompute(
        ids: Sequence[int], images: Sequence[Screenshot], length: int, sampling: SamplingParams
    ) -> list[float]:
        input_ids, positions = pad_sequences(loaded, [ids], [images])
        logits = project(loaded, hidden_states(loaded, input_ids, positions, images))[0, -length - 1 : -1]
        batch = BatchSampling([sampling] * length, loaded.device)
        log_probs = sampling_log_probs(logits, batch.temperature, batch.top_p, batch.top_k)
        chosen = torch.tensor(ids[-length:], device=loaded.device)
        reply: list[float] = log_probs.gather(-1, chosen[:, None])[:, 0].tolist()
        return reply

    return recompute


@dataclass(frozen=True, slots=True)
class EngineReport:
    """What `check_engine` measured."""

    log_prob_gap: float
    """Largest |engine - learner| over all sampled tokens."""
    tokens: int
    cached_tokens: int


async def check_engine(
    engine: InferenceEngine,
    prompts: Sequence[tuple[Sequence[int], Sequence[Screenshot]]],
    recompute: Recompute,
    *,
    banned_ids: Sequence[int] = (),
    continuation: Sequence[int] = (),
    tolerance: float = 1e-4,
    max_tokens: int = 12,
) -> EngineReport:
    """Report on an engine that keeps the contract; raises ContractError that names the first breach.

    Checked on `prompts` (ids, images), of which at least two should differ in length: log-probs equal the learner's;
    the same seed gives the same response alone and among others; a second turn from the kept cache equals one
    without; limits, stop reasons and versions are told truly; banned tokens never appear.
    """
    sampling = SamplingParams(max_tokens=max_tokens)
    requests = [
        GenerationRequest(tuple(ids), tuple(images), replace(sampling, seed=100 + i))
        for i, (ids, images) in enumerate(prompts)
    ]
    together = list(await asyncio.gather(*[engine.generate(r) for r in requests]))
    gap, tokens = 0.0, 0
    for request, generation in zip(requests, together, strict=True):
        _check_shape(engine, request, generation, banned_ids)
        gap = max(gap, _gap(request, generation, recompute))
        tokens += len(generation.token_ids)
    _expect(gap <= tolerance, f"log-probs differ from the learner's by up to {gap:.2e}, expected at most {tolerance:g}")
    await _check_independence(engine, requests, together, tolerance)
    filtered = replace(sampling, temperature=0.7, top_p=0.8, top_k=20)
    for request in requests:
        generation = await engine.generate(replace(request, sampling=replace(filtered, seed=request.sampling.seed)))
        same = replace(request, sampling=filtered)
        gap = max(gap, _gap(same, generation, recompute))
    _expect(gap <= tolerance, f"with temperature, top-p and top-k the log-probs differ by up to {gap:.2e}")
    cached = await _check_cache(engine, requests[0], continuation, recompute, tolerance)
    return EngineReport(gap, tokens, cached)


def _check_shape(
    engine: InferenceEngine, request: GenerationRequest, generation: Generation, banned: Sequence[int]
) -> None:
    n, limit = len(generation.token_ids), request.sampling.max_tokens
    _expect(1 <= n <= limit, f"got {n} tokens, expected 1 to {limit} (max_tokens)")
    _expect(generation.finish_reason in ("stop", "length"), f"got finish_reason {generation.finish_reason!r}")
    _expect(generation.finish_reason == "stop" or n == limit, f"finish_reason 'length' after {n} of {limit} tokens")
    _expect(generation.policy_version == engine.policy_version, f"got policy_version {generation.policy_version}")
    seen = sorted(set(generation.token_ids) & set(banned))
    _expect(not seen, f"sampled tokens that the policy may not emit: {seen}")


def _gap(request: GenerationRequest, generation: Generation, recompute: Recompute) -> float:
    n = len(generation.token_ids)
    if generation.log_probs is None:
        raise ContractError("the engine returned no log-probs; it can serve evaluation, not training")
    learned = recompute([*request.prompt_ids, *generation.token_ids], request.images, n, request.sampling)
    return max(abs(a - b) for a, b in zip(generation.log_probs, learned, strict=True))


async def _check_independence(
    engine: InferenceEngine, requests: list[GenerationRequest], together: list[Generation], tolerance: float
) -> None:
    for request, expected in zip(requests, together, strict=True):
        alone = await engine.generate(request)
        _expect(
            alone.token_ids == expected.token_ids,
            "the same seed gave another response alone than in a batch; a response must depend on its own seed only",
        )
        gap = max(abs(a - b) for a, b in zip(alone.log_probs or (), expected.log_probs or (), strict=True))
        _expect(gap <= tolerance, f"log-probs change by {gap:.2e} with what else is in the batch")


async def _check_cache(
    engine: InferenceEngine,
    first: GenerationRequest,
    continuation: Sequence[int],
    recompute: Recompute,
    tolerance: float,
) -> int:
    """Tokens the second turn took from the cache."""
    kept = replace(first, session_id="check")
    opening = await engine.generate(kept)
    ids = first.prompt_ids + opening.token_ids + tuple(continuation or first.prompt_ids[-4:])
    second = replace(kept, prompt_ids=ids, sampling=replace(first.sampling, seed=7))
    warm = await engine.generate(second)
    engine.release("check")
    cold = await engine.generate(replace(second, session_id=None))
    _expect(warm.token_ids == cold.token_ids, "a second turn from the kept cache differs from one without")
    gap = _gap(second, warm, recompute)
    _expect(gap <= tolerance, f"log-probs of a turn from the kept cache differ from the learner's by {gap:.2e}")
    return warm.cached_tokens


def _expect(holds: bool, message: str) -> None:
    if not holds:
        raise ContractError(f"inference engine: {message}")
