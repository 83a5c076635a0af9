"""One update: its gradient, its credit, what it measures and what it refuses."""

import math
from dataclasses import replace

import pytest
import torch

from tests.learner.worlds import make_config, sample_trajectories, weights_of, with_version
from uirl.algorithms import GRPO, PPO, RejectionSampling, compute_entropy
from uirl.errors import AlignmentError, ConfigError, NonFiniteError
from uirl.images import ImageStore
from uirl.inference.embedded.attention_proof import proven_spans
from uirl.inference.models import attention
from uirl.learner import Learner, Policy, collate, response_view
from uirl.learner.batch import SampleBatches
from uirl.learner.optimizer import Optimizer, OptimizerSettings
from uirl.learner.scoring import score_samples

TEXT = "model.model_name=uirl/tiny-lm"


def make_learner(images: ImageStore, *overrides: str, algorithm=None) -> Learner:
    config = make_config(*overrides)
    critic = algorithm.spec.needs_critic if algorithm else None
    return Learner(Policy.from_config(config, critic=critic), config, images, algorithm=algorithm)


def log_probs_of(learner: Learner, samples) -> torch.Tensor:
    """Those of the learner's weights now, [N, R]."""
    batches = SampleBatches(
        learner.policy.loaded, samples, learner.images, learner.settings.training.micro_batch_tokens
    )
    scores = score_samples(learner.policy, 1.0, response_view(samples), batches, log_probs=True, values=False)
    assert scores.log_probs is not None
    return scores.log_probs


def gradients_of_first_step(learner: Learner, samples, monkeypatch) -> dict[str, torch.Tensor]:
    """The gradients that reach the optimizer in the first step of an update, which is then not taken."""
    seen: list[dict[str, torch.Tensor]] = []

    def note(optimizer: Optimizer, scale: float = 1.0) -> dict[str, float]:
        named = [(name, p) for group in optimizer._groups for name, p in group]
        seen.append({name: p.grad.clone() for name, p in named if p.grad is not None})
        return {}

    monkeypatch.setattr(Optimizer, "step", note)
    learner.update(samples)
    return seen[0]


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


def test_rollout_log_probs_are_used_where_they_are_exact(images):
    learner = make_learner(images, "training.adv_estimator=reinforce_plus_plus")
    samples = sample_trajectories(learner.policy, images)
    first = learner.update(samples)
    assert first["old_log_probs_recomputed"] == 0
    assert first["staleness"] == 0
    assert 0 < first["log_prob_gap_max"] < 1e-4
    assert 0 < first["log_prob_gap_mean"] <= first["log_prob_gap_max"]
    assert learner.version == 1
    stale = learner.update(samples)  # sampled by version 0, learned at 1
    assert stale["old_log_probs_recomputed"] == 1
    assert stale["staleness"] == 1
    assert "log_prob_gap_max" not in stale
    assert stale["mismatch_weight_max"] != 1


@pytest.mark.parametrize(
    ("override", "recomputed"),
    [
        ("inference.top_p=0.9", 1.0),
        ("inference.top_k=5", 1.0),
        ("model.dtype=bfloat16", 1.0),
        ("inference.temperature=1.0", 0.0),
    ],
)
def test_old_log_probs_are_recomputed_where_the_engine_rounds_or_filters(override, recomputed, images):
    learner = make_learner(images, TEXT, "training.adv_estimator=reinforce_plus_plus", override)
    metrics = learner.update(sample_trajectories(learner.policy, images))
    assert metrics["old_log_probs_recomputed"] == recomputed
    # either way the first minibatch starts from a ratio of 1
    assert metrics["optimizer_steps"] == 2


def test_recomputed_and_exact_old_log_probs_give_the_same_step(images):
    samples = sample_trajectories(Policy.from_config(make_config()), images)
    weights = []
    for exact in (True, False):
        source = f"training.old_log_probs={'rollout' if exact else 'recompute'}"
        learner = make_learner(images, "training.adv_estimator=reinforce_plus_plus", source)
        assert learner.update(samples)["old_log_probs_recomputed"] == float(not exact)
        weights.append(weights_of(learner.policy))
    gaps = [(weights[0][name] - w).abs() for name, w in weights[1].items()]
    # Adam turns the rounding of a gradient near 0 into a step of up to the learning rate, on a few weights
    assert torch.cat([g.flatten() for g in gaps]).median() < 1e-6


def test_a_temperature_belongs_to_the_log_probs(images):
    learner = make_learner(images, "training.adv_estimator=reinforce_plus_plus", "inference.temperature=0.6")
    metrics = learner.update(sample_trajectories(learner.policy, images, temperature=0.6))
    assert metrics["log_prob_gap_max"] < 1e-4


@pytest.mark.parametrize("adapters", ["model.use_lora=false", "model.use_lora=true"])
def test_recomputed_old_and_reference_log_probs_have_the_temperature_too(images, adapters):
    options = ["training.adv_estimator=reinforce_plus_plus", "training.old_log_probs=recompute", adapters, TEXT]
    options += ["inference.temperature=0.5", "algorithm.kl_loss_coef=0.1", "training.minibatches=1"]
    learner = make_learner(images, *options)
    metrics = learner.update(sample_trajectories(learner.policy, images, temperature=0.5))
    assert metrics["old_log_probs_recomputed"] == 1
    # nothing has moved: learner now = learner before = reference = engine
    assert metrics["ratio_max"] == pytest.approx(1, abs=1e-4)
    assert metrics["mismatch_weight_max"] == pytest.approx(1, abs=1e-3)
    assert metrics["mismatch_kl"] == pytest.approx(0, abs=1e-6)
    assert metrics["kl_reference"] == pytest.approx(0, abs=1e-6)


def test_engine_and_learner_with_other_tokens_stop_the_run(images):
    learner = make_learner(images, "training.adv_estimator=reinforce_plus_plus", "training.minibatches=1")
    samples = sample_trajectories(learner.policy, images)
    before = weights_of(learner.policy)
    at = samples[2].response_mask.index(True)
    shifted = list(samples[2].rollout_log_probs)
    shifted[at] -= 1.0
    samples[2] = replace(samples[2], rollout_log_probs=tuple(shifted))
    with pytest.raises(AlignmentError, match=rf"disagree by .* on token {at} of the sample of trajectory trajectory-2"):
        learner.update(samples)
    assert learner.version == 0
    assert all(torch.equal(w, before[name]) for name, w in weights_of(learner.policy).items())


HALF = (TEXT, "training.adv_estimator=reinforce_plus_plus", "model.dtype=bfloat16", "model.tiny.initializer_range=0.3")


def test_rounding_in_bfloat16_stops_nothing(images):
    learner = make_learner(images, *HALF)
    metrics = learner.update(sample_trajectories(learner.policy, images, turns=8))
    assert 1e-4 < metrics["log_prob_gap_max"] < 0.5
    assert metrics["log_prob_gap_mean"] < 0.05


def test_an_engine_that_attends_differently_stops_bfloat16_too(images, monkeypatch):
    learner = make_learner(images, *HALF)
    proven_spans(learner.policy.loaded)

    def short_sighted(kind, size, at, span):
        places = torch.arange(span)[None, None]
        return (places <= at[:, :, None]) & (places > at[:, :, None] - 2)

    monkeypatch.setattr(attention, "_visible", short_sighted)
    samples = sample_trajectories(learner.policy, images, turns=8)
    with pytest.raises(AlignmentError, match=r"far more than torch.bfloat16 rounds.*attends differently"):
        learner.update(samples)
    assert learner.version == 0


def test_many_small_gaps_stop_a_run_that_no_single_token_would(images):
    learner = make_learner(images, *HALF, "training.minibatches=1")
    samples = sample_trajectories(learner.policy, images, turns=8)
    # at prompt tokens they are never read
    samples[1] = replace(samples[1], rollout_log_probs=tuple(x - 0.5 for x in samples[1].rollout_log_probs))
    with pytest.raises(AlignmentError, match=r"disagree by 0\.\d+ nats as a mean over \d+ tokens .* trajectory-1"):
        learner.update(samples)


def test_samples_of_a_future_version_are_refused(images):
    learner = make_learner(images, TEXT, "training.adv_estimator=reinforce_plus_plus")
    samples = with_version(sample_trajectories(learner.policy, images), 3)
    with pytest.raises(AlignmentError, match="sampled by version 3, but the learner is at 0"):
        learner.update(samples)


def test_demonstrations_never_reach_a_policy_gradient(images):
    learner = make_learner(images, TEXT, "training.adv_estimator=reinforce_plus_plus")
    samples = sample_trajectories(learner.policy, images)
    nan = tuple(math.nan for _ in samples[1].token_ids)
    samples[1] = replace(samples[1], rollout_log_probs=nan)
    with pytest.raises(NonFiniteError, match=r"old log-probs of trajectory trajectory-1.*demonstration"):
        learner.update(samples)


def test_the_bonus_raises_the_entropy(images):
    entropies = []
    for coefficient in (0.0, 10.0):
        overrides = [TEXT, "training.adv_estimator=reinforce_plus_plus", f"training.entropy_coef={coefficient}"]
        learner = make_learner(images, *overrides, "training.learning_rate=0.002")
        samples = sample_trajectories(learner.policy, images)
        entropies.append([learner.update(samples)["entropy"] for _ in range(4)])
    assert entropies[1][-1] > entropies[1][0] + 0.01
    assert entropies[1][-1] > entropies[0][-1] + 0.01


def test_terms_have_the_weights_of_the_config(images, monkeypatch):
    """The gradient of the value head is linear in its coefficient."""
    norms = []
    for weight in (0.5, 1.0):
        learner = make_learner(images, TEXT, "training.adv_estimator=gae", f"training.value_coef={weight}")
        samples = sample_trajectories(learner.policy, images)
        norms.append(gradients_of_first_step(learner, samples, monkeypatch)["value_head.weight"].norm())
    assert float(norms[1]) == pytest.approx(2 * float(norms[0]), rel=1e-4)


@pytest.mark.parametrize("coefficient", [0, 0.02])
def test_the_entropy_costs_a_gradient_only_where_it_weighs_something(coefficient, images, monkeypatch):
    import uirl.learner.policy as module

    carried = []

    def note(logits: torch.Tensor) -> torch.Tensor:
        carried.append(logits.requires_grad)
        return compute_entropy(logits)

    monkeypatch.setattr(module, "compute_entropy", note)
    learner = make_learner(images, TEXT, f"training.entropy_coef={coefficient}")
    metrics = learner.update(sample_trajectories(learner.policy, images))
    assert metrics["entropy"] > 0
    assert set(carried) == {coefficient > 0}


class TestDeadGroups:
    GRPO = (TEXT, "training.adv_estimator=grpo", "training.group_size=2")

    @staticmethod
    def live_only_in_group(live: set[int]):
        return lambda i, turn: float(i % 2) if i // 2 in live else 1.0

    def test_without_any_signal_no_step_is_taken(self, images):
        learner = make_learner(images, *self.GRPO)
        before = weights_of(learner.policy)
        metrics = learner.update(sample_trajectories(learner.policy, images, reward=lambda i, turn: 1.0))
        assert metrics["skipped"] == 1
        assert metrics["live_groups"] == metrics["live_fraction"] == 0
        assert (learner.version, learner.updates, learner.optimizer) == (0, 1, None)
        assert all(torch.equal(w, before[name]) for name, w in weights_of(learner.policy).items())

    def test_too_few_live_groups_are_not_enough(self, images):
        samples_of = self.live_only_in_group({0})
        for floor, skipped in ((0.26, 1.0), (0.25, 0.0)):
            learner = make_learner(images, *self.GRPO, f"algorithm.min_live_groups={floor}")
            metrics = learner.update(sample_trajectories(learner.policy, images, n=8, reward=samples_of))
            assert metrics["live_groups"] == 0.25
            assert metrics["skipped"] == skipped

    def test_dead_groups_are_left_out_and_live_ones_keep_their_weight(self, images, monkeypatch):
        samples = sample_trajectories(
            Policy.from_config(make_config(TEXT)), images, n=8, reward=self.live_only_in_group({1, 3})
        )
        gradients = []
        for skip in ("true", "false"):
            options = [f"algorithm.skip_dead_groups={skip}", "training.entropy_coef=0", "training.minibatches=1"]
            learner = make_learner(images, *self.GRPO, *options)
            gradients.append(gradients_of_first_step(learner, samples, monkeypatch))
        for name, grad in gradients[0].items():
            assert torch.allclose(grad, gradients[1][name], atol=1e-5), name

    def test_dead_groups_can_be_kept_for_their_entropy(self, images):
        learner = make_learner(images, *self.GRPO, "algorithm.skip_dead_groups=false")
        samples = sample_trajectories(learner.policy, images, n=8, reward=self.live_only_in_group({0, 1}))
        metrics = learner.update(samples)
        assert (metrics["live_groups"], metrics["live_fraction"]) == (0.5, 1.0)

    def test_fewer_live_trajectories_make_fewer_minibatches(self, images):
        learner = make_learner(images, *self.GRPO, "training.minibatches=4")
        reward = self.live_only_in_group({0, 1})
        metrics = learner.update(sample_trajectories(learner.policy, images, n=8, reward=reward))
        assert metrics["live_fraction"] == 0.5
        assert metrics["optimizer_steps"] == 2

    def test_the_step_can_be_scaled_by_what_lives(self, images):
        rates = []
        for scale in ("false", "true"):
            learner = make_learner(images, *self.GRPO, f"algorithm.scale_step_by_live={scale}")
            samples = sample_trajectories(learner.policy, images, n=8, reward=self.live_only_in_group({0, 2}))
            rates.append(learner.update(samples)["learning_rate"])
        assert rates[1] == pytest.approx(rates[0] / 2)

    @pytest.mark.parametrize(
        ("option", "share"), [("training.warmup_steps=4", 4), ("algorithm.scale_step_by_live=true", 2)]
    )
    def test_a_smaller_rate_makes_a_smaller_step(self, images, option, share):
        far = []
        for options in ([], [option]):
            learner = make_learner(images, *self.GRPO, "training.minibatches=1", "training.weight_decay=0", *options)
            before = weights_of(learner.policy)
            learner.update(sample_trajectories(learner.policy, images, n=8, reward=self.live_only_in_group({0, 2})))
            after = weights_of(learner.policy)
            far.append(max(float((after[name] - before[name]).abs().max()) for name in before))
        # the first step of Adam is the rate in each direction
        assert far[1] == pytest.approx(far[0] / share, rel=0.02)

    def test_whitening_gives_a_dead_group_no_life(self, images):
        learner = make_learner(images, TEXT, "training.adv_estimator=reinforce_plus_plus_baseline")
        reward = self.live_only_in_group({0, 2})
        metrics = learner.update(sample_trajectories(learner.policy, images, n=8, reward=reward))
        assert metrics["live_groups"] == metrics["live_fraction"] == 0.5


class TestKL:
    ON_LOSS = ("algorithm.kl_loss_coef=0.1", "training.adv_estimator=reinforce_plus_plus")

    def test_the_reference_is_the_policy_at_the_first_update(self, images):
        learner = make_learner(images, *self.ON_LOSS, "training.minibatches=1", "training.learning_rate=0.01")
        samples = sample_trajectories(learner.policy, images)
        learner.supervised(samples)  # a warm start comes before the reference
        samples = with_version(sample_trajectories(learner.policy, images), learner.version)
        assert learner.update(samples)["kl_reference"] == 0
        assert learner.update(with_version(samples, 1))["kl_reference"] > 1e-4

    def test_the_loss_holds_the_policy_near_its_reference(self, images):
        distances = []
        for coefficient in (1e-6, 30.0):
            overrides = [*self.ON_LOSS, TEXT, f"algorithm.kl_loss_coef={coefficient}", "training.learning_rate=0.003"]
            learner = make_learner(images, *overrides)
            samples = sample_trajectories(learner.policy, images)
            distances.append([learner.update(samples)["kl_reference"] for _ in range(8)][-1])
        assert distances[0] > 0.005
        assert distances[1] < 0.3 * distances[0]

    def test_with_adapters_too(self, images):
        learner = make_learner(images, *self.ON_LOSS, "model.use_lora=true", "training.learning_rate=0.01")
        samples = sample_trajectories(learner.policy, images)
        assert learner.policy.reference_weights is None
        first = learner.update(samples)["kl_reference"]
        assert first < learner.update(samples)["kl_reference"]

    def test_the_penalty_lowers_the_reward(self, images, monkeypatch):
        import uirl.learner.credit as module

        overrides = ["training.use_kl_in_reward=true", "training.kl_coef=0.5", "training.adv_estimator=gae"]
        overrides += ["training.learning_rate=0.05"]
        learner = make_learner(images, *overrides)
        samples = sample_trajectories(learner.policy, images)
        assert learner.update(samples)["kl_reference"] == pytest.approx(0, abs=1e-5)
        seen = []
        real = module.assign_credit
        monkeypatch.setattr(module, "assign_credit", lambda *a, **k: seen.append((a[2], a[3])) or real(*a, **k))
        old = log_probs_of(learner, samples)
        metrics = learner.update(samples)
        view, rewards = seen[0]
        assert metrics["kl_coef"] == 0.5
        # the reference is the policy that sampled: what was taken away is 0.5 (old - rollout) on every token
        taken = (view.rewards - rewards)[view.mask]
        expected = 0.5 * (old - view.rollout_log_probs)[view.mask]
        assert (taken - expected).abs().max() < 1e-4 < expected.abs().max()
        assert metrics["kl_reference"] == pytest.approx(2 * float(expected.mean()), abs=1e-4)

    def test_the_coefficient_adapts_to_the_target(self, images):
        overrides = ["training.use_kl_in_reward=true", "algorithm.kl_target=10", "algorithm.kl_horizon=100"]
        learner = make_learner(images, TEXT, *overrides, "training.kl_coef=1.0")
        learner.update(sample_trajectories(learner.policy, images))
        # KL 0 is far below the target: error -0.2, 4 trajectories of a horizon of 100
        assert learner.kl.value == pytest.approx(1 - 0.2 * 4 / 100)

    def test_without_coefficients_no_reference_is_kept(self, images):
        learner = make_learner(images, TEXT)
        learner.update(sample_trajectories(learner.policy, images))
        assert learner.policy.reference_weights is None


class TestCritic:
    def test_it_learns_a_constant_return(self, images):
        overrides = ["training.adv_estimator=gae", "training.value_learning_rate=0.03", "training.value_clip=null"]
        learner = make_learner(images, TEXT, *overrides, "training.learning_rate=0.0001", "training.lam=1.0")
        samples = sample_trajectories(learner.policy, images, turns=1, reward=lambda i, turn: 1.0)
        first = learner.update(samples)
        assert first["value_mean"] == 0
        assert first["return_mean"] == pytest.approx(1)
        for _ in range(60):
            last = learner.update(samples)
        assert last["value_mean"] == pytest.approx(1, abs=0.1)
        assert last["value_loss"] < 0.02 * first["value_loss"]

    def test_an_algorithm_with_critic_needs_a_value_head(self, images):
        config = make_config(TEXT, "training.adv_estimator=gae")
        with pytest.raises(ConfigError, match="critic=True"):
            Learner(Policy.from_config(config, critic=False), config, images)

    def test_the_value_head_has_a_learning_rate_of_its_own(self, images):
        overrides = [TEXT, "training.adv_estimator=gae", "training.learning_rate=0.001", "training.minibatches=1"]
        learner = make_learner(images, *overrides, "training.value_learning_rate=0.02", "training.weight_decay=0")
        before = weights_of(learner.policy)
        learner.update(sample_trajectories(learner.policy, images))
        moved = {name: float((w - before[name]).abs().max()) for name, w in weights_of(learner.policy).items()}
        # Adam's first step is the learning rate on every weight with a gradient
        assert moved["value_head.bias"] == pytest.approx(0.02, rel=1e-3)
        assert moved["model.norm.weight"] == pytest.approx(0.001, rel=1e-2)


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
        learner = make_learner(images, "training.warm_start.learning_rate=0.003", "training.warm_start.warmup_steps=0")
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


class TestOptimizer:
    def test_bfloat16_weights_have_float32_masters(self, images):
        overrides = ["model.dtype=bfloat16", "training.learning_rate=0.00001", "training.weight_decay=0"]
        learner = make_learner(images, TEXT, *overrides, "training.adv_estimator=reinforce_plus_plus")
        norm = learner.policy.model.model.norm.weight  # all ones: the next bfloat16 is 0.0039 below
        samples = sample_trajectories(learner.policy, images)
        learner.update(samples)
        assert (norm == 1).all()
        master = learner.optimizer.state()["master.model.norm.weight"]
        assert master.dtype == torch.float32
        assert (master - 1).abs().max() == pytest.approx(2e-5, rel=0.3)  # two steps of the learning rate

    def test_what_the_masters_learn_reaches_the_policy(self, images):
        learner = make_learner(images, TEXT, "model.dtype=bfloat16", "training.warm_start.warmup_steps=0")
        samples = sample_trajectories(learner.policy, images)
        losses = [learner.supervised(samples)["loss"] for _ in range(6)]
        assert losses[-1] < losses[0] - 0.2
        for name, p in learner.policy.named_trainable():
            assert torch.equal(p, learner.optimizer.state()[f"master.{name}"].bfloat16())

    def test_masters_sum_the_gradients_of_micro_batches(self, images, monkeypatch):
        samples = sample_trajectories(Policy.from_config(make_config(TEXT)), images, n=6)
        norms = []
        for tokens in (100_000, 1):
            overrides = ["model.dtype=bfloat16", f"training.micro_batch_tokens={tokens}", "training.minibatches=1"]
            norms.append(make_learner(images, TEXT, *overrides).update(samples)["grad_norm"])
        assert norms[0] == pytest.approx(norms[1], rel=0.03)

    def test_the_learning_rate_rises_and_scales(self):
        # Adam's first step is the learning rate itself: 0.1 x 1/4 of the warm-up x a scale of 0.5
        weight = torch.nn.Parameter(torch.zeros(1))
        optimizer = Optimizer([("w", weight)], [], OptimizerSettings(0.1, 0.1, (0.9, 0.99), 0.0, 4, None))
        weight.grad = torch.ones(1)
        assert optimizer.step(0.5)["learning_rate"] == pytest.approx(0.0125)
        assert weight.item() == pytest.approx(-0.0125, rel=1e-4)

    def test_clipping_scales_policy_and_value_head_by_their_own_norms(self):
        weight, head = (torch.nn.Parameter(torch.zeros(2)) for _ in range(2))
        settings = OptimizerSettings(0.1, 0.1, (0.0, 0.0), 0.0, 0, max_grad_norm=1.0)
        optimizer = Optimizer([("w", weight)], [("h", head)], settings)
        weight.grad, head.grad = torch.tensor([3.0, 4.0]), torch.tensor([0.3, 0.4])
        seen = {}
        real = optimizer._adam.step
        optimizer._adam.step = lambda: (seen.update(w=weight.grad.clone(), h=head.grad.clone()), real())
        metrics = optimizer.step()
        assert metrics["grad_norm"] == pytest.approx(5)
        assert metrics["value_grad_norm"] == pytest.approx(0.5)
        assert seen["w"].tolist() == pytest.approx([0.6, 0.8])
        assert seen["h"].tolist() == pytest.approx([0.3, 0.4])

    def test_a_step_is_that_of_adamw_with_these_settings(self):
        made = [torch.nn.Parameter(torch.linspace(-1, 1, 6)) for _ in range(2)]
        ours = Optimizer([("w", made[0])], [], OptimizerSettings(0.05, 0.05, (0.5, 0.6), 0.3, 0, None))
        theirs = torch.optim.AdamW([made[1]], lr=0.05, betas=(0.5, 0.6), weight_decay=0.3)
        draw = torch.Generator().manual_seed(0)
        for _ in range(5):
            gradient = torch.randn(6, generator=draw)
            for weight in made:
                weight.grad = gradient.clone()
            ours.step()
            theirs.step()
        torch.testing.assert_close(made[0], made[1])
        other = torch.nn.Parameter(torch.linspace(-1, 1, 6))
        defaults = torch.optim.AdamW([other], lr=0.05, weight_decay=0.3)
        other.grad = torch.randn(6, generator=draw.manual_seed(0))
        defaults.step()
        assert (other - made[0]).abs().max() > 1e-3
