"""Whether the engine says what the learner says, of the same tokens and after new weights; and whether an update learns
from what was played: the tokens, rewards and pictures of its episodes, and no others."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from PIL import ImageOps

from uirl.errors import EngineFailure
from uirl.images import ImageStore, Screenshot, screenshot
from uirl.inference.base import GenerationRequest, SamplingParams
from uirl.inference.models.precision import dtype_of
from uirl.learner import Policy, collate, response_view
from uirl.learner.steps import Objective, UpdateTensors
from uirl.rollout.samples import samples_of_all
from uirl.training.assembly import Assembly, sampling_of
from uirl.training.checks import Finding
from uirl.types import Sample, Trajectory

TOLERANCE = {"float32": 1e-4, "bfloat16": 5e-2, "float16": 5e-2}
"""Largest |engine - learner| log-prob that rounding explains."""
STEPS = 3
"""Steps of the learner that change its weights."""
SAME = 1e-5
"""A smaller difference of rewards is rounding."""


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


def check_learned(parts: Assembly, played: Sequence[Trajectory]) -> list[Finding]:
    """Return what each check found."""
    problem = _tokens(parts, played) or _rewards(played) or _beginning(parts, played) or _mean(parts, played)
    told = "every sampled token, its end token too, and the rewards of each episode; padding counts in no mean"
    found = [Finding("what is learned from", not problem, problem or told)]
    shown = [hash for one in played for turn in one.turns for hash in turn.context_images]
    if shown and parts.learner.policy.loaded.vision is not None:
        found.append(_pictures(parts, played, shown))
    return found


def _tokens(parts: Assembly, played: Sequence[Trajectory]) -> str:
    """Return which tokens of an episode are not those that are learned from; empty: all are."""
    for one in played:
        samples = samples_of_all([one])
        batch = collate(parts.learner.policy.loaded, samples, parts.images)
        learned = batch.input_ids[batch.response_mask].tolist()
        sampled = [id for turn in one.turns for id in turn.response_ids]
        if learned != sampled:
            return (
                f"of episode {one.id} {len(learned)} tokens are learned from that begin {learned[:4]} and end "
                f"{learned[-2:]}; {len(sampled)} were sampled, from {sampled[:4]} to {sampled[-2:]}: the mask, or the "
                "history, is another"
            )
    return ""


def _rewards(played: Sequence[Trajectory]) -> str:
    view = response_view(samples_of_all(played))
    paid = {one.id: one.total_reward() for one in played}
    for row, id in enumerate(view.trajectory_ids):
        learned = float(view.rewards[row].sum())
        if abs(learned - paid[id]) > SAME * max(1.0, abs(paid[id])):
            return f"episode {id} was paid {paid[id]:g} and is learned from with {learned:g}"
    return ""


def _beginning(parts: Assembly, played: Sequence[Trajectory]) -> str:
    first = parts.learner.policy.loaded.tokenizer.bos_token_id
    if first is not None and any(one.turns[0].context_ids[:2] == (first, first) for one in played):
        return "prompts begin with two tokens for their beginning: the chat template writes one, the tokenizer another"
    return ""


def _mean(parts: Assembly, played: Sequence[Trajectory]) -> str:
    """Return what is wrong with the mean of the loss, over a short and a long reply: where each token's advantage is 1
    and nothing was learned yet, it is -1, whatever stands beside them."""
    settings, policy = parts.learner.settings, parts.learner.policy
    if settings.spec.loss != "policy" or not settings.loss["aggregation"].endswith("mean"):
        return ""
    by_length = sorted(samples_of_all(played), key=lambda one: sum(one.response_mask))
    samples = [by_length[0], by_length[-1]]
    batch = collate(policy.loaded, samples, parts.images)
    with torch.no_grad():
        scores = policy.log_probs_and_values(batch, parts.config.inference.temperature, entropy=True)
    assert scores.log_probs is not None
    told = [row[mask] for row, mask in zip(scores.log_probs, batch.response_mask, strict=True)]
    ones = [torch.ones_like(one) for one in told]
    tensors = UpdateTensors(ones, ones, told, told)
    objective = Objective.of(settings, tensors, 1, entropy_coef=0.0, kl_loss_coef=0.0)
    (term,) = objective.terms(scores, objective.rows(batch, range(len(samples))), batch.response_mask)
    if abs(float(term.loss) + 1) <= SAME * 100:
        return ""
    places, tokens = batch.response_mask.numel(), sum(map(len, told))
    return (
        f"the mean of a loss of -1 over {tokens} tokens is {float(term.loss):.3f}: others count in it, of the {places} "
        "with prompts and padding"
    )


def _pictures(parts: Assembly, played: Sequence[Trajectory], shown: Sequence[str]) -> Finding:
    """Return whether pictures show something, and whether what the learner says of a reply depends on them."""
    different = dict.fromkeys(shown)
    blank = [hash for hash in different if len(parts.images.get(hash).open().getcolors(2) or ()) == 1]
    if len(blank) == len(different):
        told = f"each of the {len(different)} pictures that were shown has one colour: they show nothing"
        return Finding("pictures", False, told)
    policy, temperature = parts.learner.policy, parts.config.inference.temperature
    (sample, *_) = samples_of_all([next(one for one in played if one.turns[0].context_images)])
    said = []
    for images in (parts.images, _Inverted(parts)):
        batch = collate(policy.loaded, [sample], images)  # type: ignore[arg-type]
        with torch.no_grad():
            scores = policy.log_probs_and_values(batch, temperature).log_probs
        assert scores is not None
        said.append(scores[batch.response_mask])
    if torch.equal(*said):
        told = "the learner says the same of a reply whatever its picture shows: pictures do not reach it"
        return Finding("pictures", False, told)
    told = f"{len(different) - len(blank)} of {len(different)} show something, and replies depend on them"
    return Finding("pictures", True, told)


class _Inverted:
    """The pictures of a run, dark for bright."""

    def __init__(self, parts: Assembly) -> None:
        self._images = parts.images

    def get(self, hash: str) -> Screenshot:
        """Return the picture with this hash, its colours turned around."""
        return screenshot(ImageOps.invert(self._images.get(hash).open()))
