"""Whether the engine says what the learner says: of the same tokens, and after new weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from uirl.errors import EngineFailure
from uirl.images import ImageStore, Screenshot
from uirl.inference.base import GenerationRequest, SamplingParams
from uirl.inference.models.precision import dtype_of
from uirl.learner import Policy, collate
from uirl.rollout.samples import samples_of_all
from uirl.training.assembly import Assembly, sampling_of
from uirl.types import Sample, Trajectory

TOLERANCE = {"float32": 1e-4, "bfloat16": 5e-2, "float16": 5e-2}
"""Largest |engine - learner| log-prob that rounding explains."""
STEPS = 3
"""Steps of the learner that change its weights."""


def gap_of(policy: Policy, images: ImageStore, samples: Sequence[Sample], temperature: float) -> tuple[float, int]:
    """Return (largest |engine - learner| log-prob, the turn it stands in)."""
    worst, turn = 0.0, 0
    for sample in samples:
        batch = collate(policy.loaded, [sample], images)
        with torch.no_grad():
            scores = policy.log_probs_and_values(batch, temperature)
        assert scores.log_probs is not None
        for i, sampled in enumerate(sample.response_mask):
            if sampled:
                difference = abs(float(scores.log_probs[0, i]) - sample.rollout_log_probs[i])
                if difference > worst:
                    worst, turn = difference, sample.turn_ids[i]
    return worst, turn


async def update_reaches_engine(
    parts: Assembly, played: Sequence[Trajectory], *, asleep: bool = False
) -> tuple[bool, str]:
    """Change the weights and return (whether the engine says something else, and the same as the learner; in words).
    `asleep`: it sleeps meanwhile, as in a run, and answers nothing."""
    first = played[0].turns[0]
    images: tuple[Screenshot, ...] = tuple(parts.images.get(hash) for hash in first.context_images)
    sampling = SamplingParams(max_tokens=8, temperature=sampling_of(parts.config.inference).temperature, seed=1)
    request = GenerationRequest(first.context_ids, images, sampling)
    before = await parts.engine.generate(request)
    if asleep:
        await parts.engine.sleep()
        if await _answers(parts, request):
            return False, "the engine answered while it slept, with weights that nobody knows; it should refuse"
    for _ in range(STEPS):
        parts.learner.supervised(samples_of_all(played))
    await parts.publish()
    after = await parts.engine.generate(request)
    if after.log_probs == before.log_probs:
        return False, "the engine samples exactly as before the update: it uses other weights"
    n, m = len(first.context_ids), len(after.token_ids)
    sample = Sample(
        token_ids=first.context_ids + after.token_ids,
        response_mask=(False,) * n + (True,) * m,
        rollout_log_probs=(0.0,) * n + (after.log_probs or ()),
        rewards=(0.0,) * (n + m),
        turn_ids=(-1,) * n + (0,) * m,
        images=first.context_images,
    )
    gap, _ = gap_of(parts.learner.policy, parts.images, [sample], parts.config.inference.temperature)
    return gap <= TOLERANCE[dtype_of(parts.config.model)], f"after an update engine and learner differ by {gap:.1e}"


async def _answers(parts: Assembly, request: GenerationRequest) -> bool:
    try:
        await parts.engine.generate(request)
    except EngineFailure:
        return False
    return True
