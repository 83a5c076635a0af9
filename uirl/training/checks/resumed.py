"""Whether a learner that was loaded from a checkpoint takes the same next step as the one that was saved."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from uirl.learner import Learner
from uirl.types import Sample


def rounding_of(terms: int, dtype: torch.dtype) -> float:
    """Return how far, relative to its size, a sum of `terms` numbers may depend on the order of adding: threads and
    vector units add in pairs, and each of the log2(terms) levels of pairs rounds once."""
    return math.log2(max(terms, 2)) * torch.finfo(dtype).eps


def same_metrics(ours: Mapping[str, float], theirs: Mapping[str, float], rounding: float) -> bool:
    """Return whether two steps report the same numbers but for a relative `rounding`."""
    return ours.keys() == theirs.keys() and all(
        math.isclose(value, theirs[name], rel_tol=rounding) for name, value in ours.items()
    )


def same_next_step(saved: Learner, loaded: Learner, samples: Sequence[Sample]) -> tuple[bool, str]:
    """Take one step on `samples` with each and return (whether both are the same but for rounding; in words).

    Weights are compared by their distance, relative to the length of the step. Adam divides a gradient by its size:
    where a weight's gradient is rounding alone, so is the direction of its step, up to its whole length. That is a
    share of about `rounding` of the weights, and thus sqrt(rounding) of the distance.
    """
    weights = [weight for _, weight in saved.policy.named_trainable()]
    rounding = rounding_of(sum(weight.numel() for weight in weights), weights[0].dtype)
    ours = saved.supervised(samples)
    step = _distance(saved, loaded)
    theirs = loaded.supervised(samples)
    gap = _distance(saved, loaded)
    stored = torch.finfo(weights[0].dtype).eps * math.hypot(*(float(weight.detach().norm()) for weight in weights))
    if not same_metrics(ours, theirs, rounding):
        return False, f"{ours} became {theirs}, tolerated {rounding:.1e} of each"
    if not gap <= math.sqrt(rounding) * step + stored:
        return False, f"a step of length {step:.3g} became one that ends {gap:.3g} away, though both report {ours}"
    if gap == 0 and ours == theirs:
        return True, "a loaded checkpoint takes the same next step, to the last digit"
    return True, f"a loaded checkpoint takes the same next step but for rounding, tolerated {rounding:.1e}"


def _distance(one: Learner, other: Learner) -> float:
    """Return the Euclidean distance between the weights that two learners train."""
    pairs = zip(one.policy.named_trainable(), other.policy.named_trainable(), strict=True)
    return math.hypot(*(float(torch.dist(a.detach(), b.detach())) for (_, a), (_, b) in pairs))
