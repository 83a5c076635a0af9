"""The KL of an update: its steps end at one, and what went beyond one is taken back."""

import pytest
import torch

from tests.learner.updates import TEXT, log_probs_of, make_learner
from tests.learner.worlds import sample_trajectories

STEEP = (
    *("training.adv_estimator=reinforce_plus_plus", "training.learning_rate=0.02", "training.warmup_steps=0"),
    *("training.minibatches=2", "training.update_epochs=3"),
)


def weights_of(learner):
    return [p.detach().clone() for _, p in learner.policy.named_trainable()]


def kl_of(learner, samples, before):
    """k3 of KL(before || now) per token, from what is sampled: exp(d) - 1 - d with d = now - before."""
    d = log_probs_of(learner, samples) - before
    counted = before != 0
    return float((torch.expm1(d) - d)[counted].mean())


class TestTargetKL:
    @pytest.mark.parametrize(("target", "steps", "stopped"), [(1e-9, 1, 1.0), (1e6, 6, 0.0)])
    def test_an_update_ends_before_the_step_that_its_kl_forbids(self, target, steps, stopped, images):
        learner = make_learner(images, TEXT, *STEEP, f"algorithm.target_kl={target}")
        metrics = learner.update(sample_trajectories(learner.policy, images))
        assert (metrics["optimizer_steps"], metrics["kl_stop"]) == (steps, stopped)

    def test_the_first_step_is_that_of_an_update_without_it(self, images):
        stopped = make_learner(images, TEXT, *STEEP, "algorithm.target_kl=1e-9")
        samples = sample_trajectories(stopped.policy, images)
        stopped.update(samples)
        free = make_learner(images, TEXT, *STEEP)
        start = weights_of(free)
        assert "kl_stop" not in free.update(samples)
        alone = make_learner(images, TEXT, *STEEP[:-1], "training.update_epochs=1", "algorithm.target_kl=1e-9")
        alone.update(samples)
        for before, a, b, c in zip(start, weights_of(stopped), weights_of(alone), weights_of(free), strict=True):
            assert torch.equal(a, b)
            assert not before.any() or not torch.equal(a, c)

    @pytest.mark.parametrize("micro_batch_tokens", [100_000, 1])
    def test_it_is_the_mean_over_the_tokens_of_all_micro_batches(self, micro_batch_tokens, images):
        two = [*STEEP[:-2], "training.minibatches=1", "training.update_epochs=2"]
        free = make_learner(images, TEXT, *two)
        samples = sample_trajectories(free.policy, images, n=6)
        second = 2 * free.update(samples)["approx_kl"]  # the mean of two passes, the first of which has none
        assert second > 0
        for target, steps in ((0.99 * second, 1), (1.01 * second, 2)):
            cut = f"training.micro_batch_tokens={micro_batch_tokens}"
            learner = make_learner(images, TEXT, *two, cut, f"algorithm.target_kl={target}")
            assert learner.update(samples)["optimizer_steps"] == steps


class TestLongestUpdate:
    def test_the_change_is_halved_until_its_kl_is_allowed(self, images):
        free = make_learner(images, TEXT, *STEEP)
        samples = sample_trajectories(free.policy, images)
        start, before = weights_of(free), log_probs_of(free, samples)
        free.update(samples)
        assert kl_of(free, samples, before) > 0.05
        held = make_learner(images, TEXT, *STEEP, "algorithm.max_update_kl=0.05")
        metrics = held.update(samples)
        assert metrics["update_halvings"] >= 1
        assert metrics["update_undone"] == 0
        assert 0 < metrics["update_kl"] <= 0.05
        assert metrics["update_kl"] == pytest.approx(kl_of(held, samples, before), rel=1e-4)
        share = 0.5 ** metrics["update_halvings"]
        for was, far, near in zip(start, weights_of(free), weights_of(held), strict=True):
            torch.testing.assert_close(near, was + share * (far - was), rtol=1e-4, atol=1e-6)

    def test_an_update_within_the_limit_is_untouched(self, images):
        free, held = (make_learner(images, TEXT, *STEEP, *more) for more in ([], ["algorithm.max_update_kl=1e6"]))
        samples = sample_trajectories(free.policy, images)
        free.update(samples)
        assert held.update(samples)["update_halvings"] == 0
        assert all(torch.equal(a, b) for a, b in zip(weights_of(free), weights_of(held), strict=True))

    def test_what_cannot_be_shortened_enough_is_undone(self, images, monkeypatch):
        monkeypatch.setattr("uirl.learner.steps.HALVINGS", 1)
        learner = make_learner(images, TEXT, *STEEP, "algorithm.max_update_kl=1e-9", "model.dtype=bfloat16")
        samples = sample_trajectories(learner.policy, images)
        start = weights_of(learner)
        metrics = learner.update(samples)
        assert (metrics["update_halvings"], metrics["update_undone"]) == (1, 1)
        assert all(torch.equal(a, b) for a, b in zip(start, weights_of(learner), strict=True))
