"""One update: its gradient, its terms, every estimator, supervised steps, and what it refuses."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.learner.updates import TEXT, gradients_of_first_step, log_probs_of, make_learner
from tests.learner.worlds import make_config, sample_trajectories, weights_of, with_version
from uirl.algorithms import GRPO, PPO, RejectionSampling, score_tokens
from uirl.errors import AlignmentError, NonFiniteError
from uirl.learner import Policy, collate, response_view
from uirl.learner.optimizer import Optimizer


@pytest.mark.parametrize(
    "overrides",
    [
        ["training.adv_estimator=gae"],
        ["training.adv_estimator=grpo", "training.group_size=2"],
        ["training.adv_estimator=gae", "algorithm.loss_aggregation=seq-mean-token-mean"],
        ["training.adv_estimator=gae", "algorithm.loss_aggregation=seq-mean-token-sum-norm"],
        ["training.adv_estimator=gae", "algorithm.ratio=sequence"],
        ["training.adv_estimator=rejection_sampling"],
        ["training.adv_estimator=gae", "algorithm.kl_loss_coef=0.1"],
    ],
)
def test_micro_batching_changes_no_gradient(overrides, images, monkeypatch):
    samples = sample_trajectories(Policy.from_config(make_config()), images, n=6)
    gradients = []
    for tokens in (100_000, 1):  # all together, one by one
        learner = make_learner(images, *overrides, "training.minibatches=1", f"training.micro_batch_tokens={tokens}")
        gradients.append(gradients_of_first_step(learner, samples, monkeypatch))
    assert gradients[0].keys() == gradients[1].keys()
    assert max(float(g.abs().max()) for g in gradients[0].values()) > 1e-3
    for name, grad in gradients[0].items():
        assert (grad - gradients[1][name]).abs().max() < 1e-4 * max(1.0, float(grad.abs().max())), name


def test_minibatches_divide_by_an_even_share_of_the_batch(images, monkeypatch):
    """Two minibatches: their gradients sum to twice the gradient of the whole batch, however tokens fall."""
    samples = sample_trajectories(Policy.from_config(make_config(TEXT)), images, n=6)
    sums = []
    for minibatches in (1, 2):
        learner = make_learner(images, TEXT, "training.adv_estimator=gae", f"training.minibatches={minibatches}")
        total: dict[str, torch.Tensor] = {}

        def note(optimizer: Optimizer, scale: float = 1.0, total=total) -> dict[str, float]:
            for name, p in optimizer._groups[0]:
                total[name] = total.get(name, 0) + p.grad.clone()
            return {}

        monkeypatch.setattr(Optimizer, "step", note)
        learner.update(samples)
        sums.append(total)
    for name, grad in sums[0].items():
        assert torch.allclose(2 * grad, sums[1][name], atol=1e-4), name


def test_the_first_gradient_is_that_of_the_policy_gradient_theorem(images, monkeypatch):
    """At ratio 1 the clipped loss has the gradient of -mean(advantage * log_prob): compared with autograd on that."""
    overrides = [TEXT, "training.adv_estimator=grpo", "training.group_size=2", "algorithm.normalize_by_std=false"]
    overrides += ["training.entropy_coef=0", "training.minibatches=1", "algorithm.skip_dead_groups=false"]
    learner = make_learner(images, *overrides)
    samples = sample_trajectories(learner.policy, images, n=2, turns=1)
    got = gradients_of_first_step(learner, samples, monkeypatch)
    # rewards 0 and 1 in one group: advantages -0.5 and +0.5 on every token, divided by all tokens
    batch = collate(learner.policy.loaded, samples, images)
    advantages = torch.tensor([[-0.5], [0.5]]) * batch.response_mask
    loss = -(advantages * learner.policy.log_probs_and_values(batch).log_probs).sum() / batch.response_mask.sum()
    loss.backward()
    for name, p in learner.policy.named_trainable():
        assert torch.allclose(got[name], p.grad, atol=1e-5), name


def test_terms_have_the_weights_of_the_config(images, monkeypatch):
    """The gradient of the value head is linear in its coefficient."""
    norms = []
    for weight in (0.5, 1.0):
        learner = make_learner(images, TEXT, "training.adv_estimator=gae", f"training.value_coef={weight}")
        samples = sample_trajectories(learner.policy, images)
        norms.append(gradients_of_first_step(learner, samples, monkeypatch)["value_head.weight"].norm())
    assert float(norms[1]) == pytest.approx(2 * float(norms[0]), rel=1e-4)


@pytest.mark.parametrize(("target", "factor"), [(9.0, math.exp(0.2)), (0.001, math.exp(-0.2))])
def test_the_weight_of_the_entropy_is_steered_towards_its_target(target, factor, images):
    # a fresh policy has 4 nats: 9 is above it and 0.001 below, both by more than the largest step of 0.2
    overrides = ["training.entropy_coef=0.1", f"training.target_entropy={target}"]
    learner = make_learner(images, TEXT, *overrides)
    samples = sample_trajectories(learner.policy, images)
    seen = [learner.update(samples) for _ in range(3)]
    assert [row["entropy_coef"] for row in seen] == pytest.approx([0.1, 0.1 * factor, 0.1 * factor**2])
    assert {row["target_entropy"] for row in seen} == {target}


def test_the_target_of_the_entropy_falls_over_the_run_and_its_weight_does_not(images):
    overrides = ["training.entropy_coef=0.1", "training.target_entropy=20", "training.entropy_schedule=linear"]
    overrides += ["training.entropy_final_ratio=0.5", "training.num_epochs=2", "training.num_iters_per_epoch=1"]
    learner = make_learner(images, TEXT, *overrides)
    samples = sample_trajectories(learner.policy, images)
    seen = [learner.update(samples) for _ in range(2)]
    assert [row["target_entropy"] for row in seen] == [20, 15]
    assert [row["entropy_coef"] for row in seen] == pytest.approx([0.1, 0.1 * math.exp(0.2)])


def test_the_bonus_over_likely_tokens_leaves_the_metric_of_the_whole_entropy(images):
    rows = []
    for min_p in (0.0, 0.9):
        learner = make_learner(images, TEXT, "training.entropy_coef=0.1", f"training.entropy_min_p={min_p}")
        rows.append(learner.update(sample_trajectories(learner.policy, images)))
    whole, likely = rows
    assert whole["bonus_entropy"] == pytest.approx(whole["entropy"])
    assert likely["bonus_entropy"] < likely["entropy"]


@pytest.mark.parametrize("coefficient", [0, 0.02])
def test_the_entropy_costs_a_gradient_only_where_it_weighs_something(coefficient, images, monkeypatch):
    import uirl.learner.policy as module

    carried = []

    def note(*args: Any, **options: Any) -> Any:
        log_probs, entropy = score_tokens(*args, **options)
        assert log_probs.requires_grad
        carried.append(entropy.requires_grad)
        return log_probs, entropy

    monkeypatch.setattr(module, "score_tokens", note)
    learner = make_learner(images, TEXT, f"training.entropy_coef={coefficient}")
    metrics = learner.update(sample_trajectories(learner.policy, images))
    assert metrics["entropy"] > 0
    assert set(carried) == {coefficient > 0}


@pytest.mark.parametrize("key", ["training.entropy_coef", "algorithm.kl_loss_coef"])
@pytest.mark.parametrize(("schedule", "weights"), [("constant", [0.4, 0.4, 0.4]), ("linear", [0.4, 0.25, 0.25])])
def test_the_weight_of_a_term_falls_over_the_run(key, schedule, weights, images):
    # to a quarter of 0.4: after one of two updates half of the way, 0.4 x (1/4 + 3/4 x 1/2)
    stem = key.removesuffix("_coef")
    overrides = [f"{key}=0.4", f"{stem}_schedule={schedule}", f"{stem}_final_ratio=0.25"]
    learner = make_learner(images, TEXT, *overrides, "training.num_epochs=2", "training.num_iters_per_epoch=1")
    samples = sample_trajectories(learner.policy, images)
    seen = [learner.update(samples)[key.partition(".")[2]] for _ in range(3)]
    assert seen == pytest.approx(weights)


class TestAlgorithms:
    @pytest.mark.parametrize(
        "estimator",
        ["gae", "grpo", "rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "rejection_sampling"],
    )
    def test_every_estimator_makes_rewarded_tokens_likelier(self, estimator, images):
        overrides = ["training.learning_rate=0.003", "training.entropy_coef=0", "training.minibatches=1"]
        learner = make_learner(images, TEXT, f"training.adv_estimator={estimator}", *overrides)
        samples = sample_trajectories(learner.policy, images, n=8, turns=1)
        for _ in range(5):
            learner.update(samples)
        view = response_view(samples)
        now = view.split(view.flatten(log_probs_of(learner, samples)))
        gains = [
            float(part.mean()) - sum(s.rollout_log_probs) / sum(s.response_mask)
            for part, s in zip(now, samples, strict=True)
        ]
        assert sum(gains[1::2]) > sum(gains[0::2]) + 0.1  # odd trajectories were rewarded

    def test_gigpo_learns_from_anchors(self, images):
        learner = make_learner(images, TEXT, "training.adv_estimator=gigpo", "training.group_size=2")
        samples = sample_trajectories(learner.policy, images, n=4)
        anchors = {s.trajectory_id: ["start", "middle"] for s in samples}
        assert learner.update(samples, anchors=anchors)["skipped"] == 0

    @pytest.mark.parametrize("algorithm", [PPO(clip_epsilon=0.1), GRPO(), RejectionSampling(reward_threshold=0.5)])
    def test_a_description_overrides_the_config(self, algorithm, images):
        learner = make_learner(images, TEXT, algorithm=algorithm)
        metrics = learner.update(sample_trajectories(learner.policy, images))
        assert metrics["skipped"] == 0
        assert ("value_loss" in metrics) == isinstance(algorithm, PPO)
        assert ("nll" in metrics) == isinstance(algorithm, RejectionSampling)
        if isinstance(algorithm, RejectionSampling):
            assert metrics["live_fraction"] == 0.5

    def test_rejection_sampling_of_half_the_batch_is_supervised_learning_on_that_half(self, images, monkeypatch):
        options = [TEXT, "training.adv_estimator=rejection_sampling", "training.entropy_coef=0"]
        learner = make_learner(images, *options, "training.minibatches=1")
        samples = sample_trajectories(learner.policy, images, turns=1)
        got = gradients_of_first_step(learner, samples, monkeypatch)
        seen = {}

        def note(optimizer: Optimizer, scale: float = 1.0) -> dict[str, float]:
            seen.update({name: p.grad.clone() for name, p in optimizer._groups[0]})
            return {}

        monkeypatch.setattr(Optimizer, "step", note)
        learner.supervised(samples[1::2])
        for name, grad in got.items():
            assert torch.allclose(grad, seen[name], atol=1e-5), name


class TestSupervised:
    def test_it_lowers_the_loss_and_counts_versions(self, images):
        learner = make_learner(
            images, TEXT, "training.warm_start.learning_rate=0.003", "training.warm_start.warmup_steps=0"
        )
        samples = [replace(s, rollout_log_probs=(math.nan,) * len(s.token_ids)) for s in
                   sample_trajectories(learner.policy, images)]  # fmt: skip
        losses = [learner.supervised(samples)["loss"] for _ in range(8)]
        assert losses == sorted(losses, reverse=True)
        assert losses[-1] < 0.9 * losses[0]
        assert learner.version == 8

    def test_its_loss_is_the_mean_over_tokens_of_all_samples(self, images):
        learner = make_learner(images, TEXT)
        samples = sample_trajectories(learner.policy, images)
        tokens = sum(sum(s.response_mask) for s in samples)
        expected = -sum(sum(s.rollout_log_probs) for s in samples) / tokens
        metrics = learner.supervised(samples)
        assert metrics["loss"] == pytest.approx(expected, abs=1e-4)
        assert metrics["tokens"] == tokens

    def test_the_phases_have_optimizers_of_their_own(self, images):
        learner = make_learner(images, TEXT, "training.warm_start.warmup_steps=4", "training.warmup_steps=2")
        samples = sample_trajectories(learner.policy, images)
        warm = [learner.supervised(samples)["learning_rate"] for _ in range(5)]
        assert warm == pytest.approx([0.00025, 0.0005, 0.00075, 0.001, 0.001])
        metrics = learner.update(samples)  # two minibatches: the second step has risen fully
        assert learner.optimizer.steps == 2
        assert metrics["learning_rate"] == pytest.approx(4e-4)


class TestRefusals:
    def test_a_broken_weight_is_named_and_nothing_changes(self, images):
        learner = make_learner(images, TEXT, "training.adv_estimator=reinforce_plus_plus")
        samples = sample_trajectories(learner.policy, images)
        with torch.no_grad():
            learner.policy.model.model.norm.weight[0] = math.inf
        with pytest.raises(NonFiniteError, match="policy_loss is nan"):
            learner.update(samples)
        assert learner.version == 0
        assert all(p.grad is None for _, p in learner.policy.named_trainable())

    def test_a_gradient_that_overflows_is_named(self, images):
        learner = make_learner(images, TEXT, "training.adv_estimator=reinforce_plus_plus")
        samples = sample_trajectories(learner.policy, images)
        before = weights_of(learner.policy)
        learner.policy.model.model.layers[0].mlp.up_proj.weight.register_hook(lambda g: g * math.nan)
        with pytest.raises(NonFiniteError, match=r"gradient of model.layers.0.mlp.up_proj.weight is not finite"):
            learner.update(samples)
        assert all(torch.equal(w, before[name]) for name, w in weights_of(learner.policy).items())

    def test_nothing_to_learn_from(self, images):
        learner = make_learner(images, TEXT)
        with pytest.raises(AlignmentError, match="no samples"):
            learner.update([])
        with pytest.raises(AlignmentError, match="no samples"):
            learner.supervised([])


FIGURES = """
tokens sequences trajectories staleness live_fraction live_groups value_mean return_mean explained_variance skipped
old_log_probs_recomputed entropy_coef kl_loss_coef log_prob_gap_max log_prob_gap_mean clip_fraction_high
clip_fraction_low clip_fraction_dual approx_kl ratio_mean ratio_max mismatch_weight_mean mismatch_weight_max
mismatch_kl clip_fraction entropy bonus_entropy value_clip_fraction kl_reference grad_norm learning_rate
value_grad_norm policy_loss value_loss kl_loss optimizer_steps
"""


def test_an_update_has_these_figures_and_its_first_pass_these_numbers(images):
    chosen = ["training.adv_estimator=gae", "algorithm.kl_loss_coef=0.1", "training.entropy_coef=0.01"]
    learner = make_learner(images, TEXT, *chosen, "training.minibatches=1", "training.update_epochs=1")
    samples = sample_trajectories(learner.policy, images)
    metrics = learner.update(samples)
    assert list(metrics) == FIGURES.split()
    counts = {"tokens": sum(sum(sample.response_mask) for sample in samples), "sequences": 4, "trajectories": 4}
    ones = dict.fromkeys(["live_fraction", "live_groups", "ratio_mean", "ratio_max", "optimizer_steps"], 1)
    ones |= dict.fromkeys(["mismatch_weight_mean", "mismatch_weight_max"], 1)
    zeros = dict.fromkeys(["staleness", "value_mean", "explained_variance", "skipped", "old_log_probs_recomputed"], 0)
    zeros |= dict.fromkeys([name for name in metrics if "clip_fraction" in name or "kl" in name], 0)
    expected = counts | ones | zeros | {"entropy_coef": 0.01, "kl_loss_coef": 0.1}
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, abs=1e-5)
    assert metrics["policy_loss"] == pytest.approx(0, abs=1e-5)  # whitened advantages have the mean 0
    assert list(learner.supervised(samples)) == ["loss", "tokens", "sequences", "grad_norm", "learning_rate"]
    learner.version = 5
    stale = learner.update(with_version(samples, 1)).keys() ^ metrics.keys()
    of_age = {"age_max", "age_mean", "ess", "ess_sequence", "gap", "masked", "mixed", "share"}
    assert stale == {f"stale/{name}" for name in of_age} | {"log_prob_gap_max", "log_prob_gap_mean"}
