"""What an agent's calls became can be learned from: the learner computes the log-probs that the engine told."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.inference.pictures import picture
from tests.learner.worlds import make_config
from tests.serving.worlds import ADD, ask, client_of, data_url, user
from uirl.images import ImageStore
from uirl.inference import SamplingParams, TransformersInferenceEngine
from uirl.learner import Learner, Policy, collate
from uirl.rollout import samples_of
from uirl.serving import ModelEndpoint
from uirl.types import Sample, Trajectory

TOLERANCE = 1e-4
"""What rounding explains in float32."""


def largest_gap(policy: Policy, samples: list[Sample], images: ImageStore, temperature: float) -> float:
    """Largest |engine - learner| log-prob of a sampled token."""
    gap = 0.0
    for sample in samples:
        with torch.no_grad():
            scores = policy.log_probs_and_values(collate(policy.loaded, [sample], images), temperature)
        for i, own in enumerate(sample.response_mask):
            if own:
                gap = max(gap, abs(float(scores.log_probs[0, i]) - sample.rollout_log_probs[i]))
    return gap


async def wander(client: Any, tag: str, *, sees: bool) -> None:
    """An agent that does what agents do: goes on, branches, rewrites, asks for several replies and shows tools."""
    opening = [data_url(picture(1)), {"type": "text", "text": f"press {tag}"}] if sees else f"press {tag}"
    stem: list[Any] = [{"role": "system", "content": "be brief"}, user(opening)]
    first = await ask(client, stem)
    stem.append(first.message)
    left = await ask(client, [*stem, user([data_url(picture(2))] if sees else "left")])
    await ask(client, [*stem, user("right")], temperature=0.1, top_p=0.5)  # the trainer's sampling rules
    await ask(client, [*stem, user([data_url(picture(2))] if sees else "left"), left.message, user("on")])
    made = await client.chat.completions.create(model="x", messages=[user("sum it up"), *stem[2:], user("so?")], n=2)
    await ask(client, [user("sum it up"), *stem[2:], user("so?"), made.choices[1].message, user("and")], tools=[ADD])


@pytest.mark.parametrize(("model", "temperature"), [("uirl/tiny-lm", 1.0), ("uirl/tiny-vlm", 0.8)])
async def test_every_segment_of_every_branch_can_be_learned_from(model: str, temperature: float) -> None:
    config = make_config(
        f"model.model_name={model}",
        "model.chat_template=hermes",
        "training.adv_estimator=grpo",
        f"inference.temperature={temperature}",
    )
    policy, images = Policy.from_config(config), ImageStore()
    learner = Learner(policy, config, images)
    engine = TransformersInferenceEngine(policy.loaded, shared=True)
    records: list[Trajectory] = []
    async with ModelEndpoint(engine, policy.loaded, images=images) as endpoint:
        for i in range(4):
            sampling = SamplingParams(max_tokens=6, temperature=temperature)
            session = endpoint.session(f"e{i}", group_id="g", sampling_seed=i, sampling=sampling)
            await wander(client_of(session), str(i), sees="vlm" in model)
            records.append(session.finish(float(i % 2)))
    await engine.close()
    samples = [sample for record in records for sample in samples_of(record)]
    assert all(len(record) == 7 for record in records)
    assert len(samples) == 4 * 5  # the trunk with 'left' and 'on'; 'right'; two choices; what goes on with tools
    assert largest_gap(policy, samples, images, temperature) < TOLERANCE
    before = [p.detach().clone() for _, p in policy.named_trainable()]
    learner.update(samples)
    assert any(not torch.equal(a, b) for a, (_, b) in zip(before, policy.named_trainable(), strict=True))
