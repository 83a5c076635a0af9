"""What an update tells of its tokens: the numbers it computed, None where it computed none. To tell changes nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.learner.updates import TEXT, log_probs_of, make_learner
from tests.learner.worlds import sample_trajectories, weights_of
from uirl.learner import response_view
from uirl.storage import LearnedTokens

GRPO = [TEXT, "training.adv_estimator=grpo", "training.group_size=2", "algorithm.normalize_by_std=false"]
RECOMPUTE = "training.old_log_probs=recompute"


def learned_by(learner, samples) -> tuple[dict[str, LearnedTokens], int]:
    told: list[tuple[list[LearnedTokens], int]] = []
    learner.update(samples, on_learned=lambda learned, version: told.append((learned, version)))
    ((learned, version),) = told
    return {one.trajectory_id: one for one in learned}, version


@pytest.mark.parametrize("micro_batch_tokens", [100_000, 1])
def test_every_token_has_its_numbers(images, micro_batch_tokens) -> None:
    once = ["training.minibatches=1", "training.update_epochs=1", f"training.micro_batch_tokens={micro_batch_tokens}"]
    learner = make_learner(images, *GRPO, RECOMPUTE, *once)
    samples = sample_trajectories(learner.policy, images, n=4)
    view, before = response_view(samples), log_probs_of(learner, samples)
    learned, version = learned_by(learner, samples)
    assert version == 0
    assert learner.version == 1
    assert list(learned) == [sample.trajectory_id for sample in samples]
    for row, sample in enumerate(samples):
        one = learned[sample.trajectory_id]
        assert len(one.advantages) == sum(sample.response_mask)
        # two turns with the reward 0 or 1 each: returns 0 and 2 in a group, so -1 and +1
        assert set(one.advantages.tolist()) == {(-1.0, 1.0)[row % 2]}
        ours = before[row][view.mask[row]].numpy()
        assert one.old_log_probs == pytest.approx(ours, abs=1e-6)
        assert one.log_probs == pytest.approx(ours, abs=1e-5)  # one pass, before the only step
        assert one.entropies is not None
        assert (one.entropies > 0).all()
        assert one.weights is None


@pytest.mark.parametrize("estimator", ["grpo", "rejection_sampling"])
def test_old_log_probs_that_the_policy_did_not_compute_are_not_told(images, estimator) -> None:
    learner = make_learner(images, *GRPO, f"training.adv_estimator={estimator}")
    learned, _ = learned_by(learner, sample_trajectories(learner.policy, images))
    for one in learned.values():
        assert one.old_log_probs is None
        assert (one.log_probs is not None) is bool(one.advantages.any())


def test_the_newest_pass_counts(images) -> None:
    learner = make_learner(images, *GRPO, RECOMPUTE, "training.update_epochs=3", "training.learning_rate=0.01")
    learned, _ = learned_by(learner, sample_trajectories(learner.policy, images))
    moved = [np.abs(one.log_probs - one.old_log_probs).max() for one in learned.values()]
    assert min(moved) > 1e-3


def test_a_group_without_a_signal_has_advantages_and_no_pass(images) -> None:
    learner = make_learner(images, *GRPO)
    # the first group is solved by both, the second by one
    samples = sample_trajectories(learner.policy, images, reward=lambda i, turn: float(i != 3))
    learned, _ = learned_by(learner, samples)
    for i in (0, 1):
        one = learned[f"trajectory-{i}"]
        assert one.advantages.tolist() == [0.0] * len(one.advantages)
        assert (one.log_probs, one.entropies) == (None, None)
    for i in (2, 3):
        assert learned[f"trajectory-{i}"].log_probs is not None


def test_an_update_that_is_skipped_tells_the_credit_alone(images) -> None:
    learner = make_learner(images, *GRPO)
    learned, version = learned_by(learner, sample_trajectories(learner.policy, images, reward=lambda i, turn: 1.0))
    assert (version, learner.version) == (0, 0)
    assert {one.log_probs for one in learned.values()} == {None}
    assert len(learned) == 4


def test_a_trajectory_of_several_samples_is_told_as_one_in_the_order_of_its_turns(images) -> None:
    learner = make_learner(images, *GRPO, RECOMPUTE, "training.minibatches=1", "training.update_epochs=1")
    samples = sample_trajectories(learner.policy, images, n=4)
    # the first two samples become the segments of one trajectory, the later one first in the batch
    first, second = samples[0], replace(samples[1], trajectory_id="trajectory-0", segment=1)
    later = replace(second, turn_ids=tuple(turn + 2 if turn >= 0 else -1 for turn in second.turn_ids))
    batch = [later, replace(first, ends_episode=False), *samples[2:]]
    single = log_probs_of(learner, [first, *samples[2:]])[0], log_probs_of(learner, [samples[1], *samples[2:]])[0]
    learned, _ = learned_by(learner, [replace(one, group_id="g") for one in batch])
    counts = [sum(one.response_mask) for one in (first, samples[1])]
    expected = torch.cat([row[:count] for row, count in zip(single, counts, strict=True)]).numpy()
    assert learned["trajectory-0"].old_log_probs == pytest.approx(expected, abs=1e-5)


def test_stale_tokens_tell_their_weights(images) -> None:
    learner = make_learner(images, *GRPO, RECOMPUTE, "training.learning_rate=0.05")
    samples = sample_trajectories(learner.policy, images)
    learner.update(samples)
    fresh = sample_trajectories(learner.policy, images, version=1)
    learned, version = learned_by(learner, [*samples[:2], *fresh[2:]])
    assert version == 1
    assert learned["trajectory-0"].weights is not None
    assert learned["trajectory-0"].weights.min() < 1
    assert learned["trajectory-2"].weights.tolist() == [1.0] * len(learned["trajectory-2"].weights)


def test_to_be_asked_changes_nothing(images) -> None:
    learners = [make_learner(images, *GRPO, "training.update_epochs=2") for _ in range(2)]
    samples = sample_trajectories(learners[0].policy, images)
    metrics = [learners[0].update(samples), learners[1].update(samples, on_learned=lambda learned, version: None)]
    assert metrics[0] == metrics[1]
    ours, theirs = (weights_of(learner.policy) for learner in learners)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
