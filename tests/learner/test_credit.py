"""Credit of an update: groups without a signal, the KL to the reference, the critic."""

from types import SimpleNamespace

import pytest
import torch

from tests.learner.updates import TEXT, gradients_of_first_step, log_probs_of, make_learner
from tests.learner.worlds import make_config, sample_trajectories, weights_of, with_version
from uirl.errors import ConfigError
from uirl.learner import Learner, Policy
from uirl.learner.credit import Credit, _describe_values


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


class TestSpared:
    GRPO = (TEXT, "training.adv_estimator=grpo", "training.group_size=2", "training.minibatches=1")

    def test_only_the_named_turns_of_the_named_trajectory_lose_their_blame(self, images, monkeypatch):
        learner = make_learner(images, *self.GRPO, "algorithm.normalize_by_std=false")
        seen = []
        monkeypatch.setattr(Credit, "weighed", lambda credit, weights: seen.append(credit.advantages) or credit)
        # of each pair the first fails
        learner.update(sample_trajectories(learner.policy, images), spared={"trajectory-2": 1, "trajectory-3": 1})
        blamed = [sorted(set(row.tolist()) - {0.0}) for row in seen[0]]
        assert blamed == [[-1.0], [1.0], [-1.0], [1.0]]  # reward 1 per turn of two: totals 0 and 2
        assert (seen[0][2] == 0).sum() > (seen[0][0] == 0).sum()


class TestKL:
    ON_LOSS = ("algorithm.kl_loss_coef=0.1", "training.adv_estimator=reinforce_plus_plus")

    def test_the_reference_is_the_policy_at_the_first_update(self, images):
        learner = make_learner(images, *self.ON_LOSS, "training.minibatches=1", "training.learning_rate=0.01")
        samples = sample_trajectories(learner.policy, images)
        learner.supervised(samples)  # a warm start comes before the reference
        samples = with_version(sample_trajectories(learner.policy, images), learner.version)
        assert learner.update(samples)["kl_reference"] == 0
        assert learner.update(with_version(samples, 1))["kl_reference"] > 1e-4

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
        assert learner.kl.target_kl == 10
        # KL 0 is far below the target: error -0.2, 4 trajectories of a horizon of 100
        assert learner.kl.value == pytest.approx(1 - 0.2 * 4 / 100)


class TestCritic:
    def test_an_algorithm_with_critic_needs_a_value_head(self, images):
        config = make_config(TEXT, "training.adv_estimator=gae")
        with pytest.raises(ConfigError, match="critic=True"):
            Learner(Policy.from_config(config, critic=False), config, images)

    def test_the_value_head_has_a_learning_rate_of_its_own(self, images):
        overrides = [TEXT, "training.adv_estimator=gae", "training.learning_rate=0.001", "training.minibatches=1"]
        overrides += ["training.update_epochs=1", "training.gamma=1.0", "training.lam=1.0"]
        learner = make_learner(images, *overrides, "training.value_learning_rate=0.02", "training.weight_decay=0")
        before = weights_of(learner.policy)
        metrics = learner.update(sample_trajectories(learner.policy, images, turns=1, reward=lambda i, turn: 1.0))
        assert (metrics["value_mean"], metrics["return_mean"]) == (0, pytest.approx(1))
        moved = {name: w - before[name] for name, w in weights_of(learner.policy).items()}
        # Adam's first step is the learning rate on every weight with a gradient, here towards a return of 1
        assert float(moved["value_head.bias"]) == pytest.approx(0.02, rel=1e-3)
        assert float(moved["model.norm.weight"].abs().max()) == pytest.approx(0.001, rel=1e-2)


@pytest.mark.parametrize(
    ("live", "share", "groups", "enough"),
    [([1, 0], 0.5, True, True), ([1, 0], 0.49, True, False), ([1, 0], 0.1, False, True), ([0, 0], 1.0, False, False)],
)
def test_what_is_enough_for_a_step(live, share, groups, enough):
    algorithm, spec = SimpleNamespace(min_live_groups=0.5), SimpleNamespace(needs_group=groups)
    credit = Credit(torch.zeros(2, 1), torch.zeros(2, 1), torch.tensor(live).bool(), share)
    assert credit.is_signal(SimpleNamespace(algorithm=algorithm, spec=spec)) is enough
    assert credit.live_fraction == sum(live) / 2


@pytest.mark.parametrize(
    ("values", "returns", "explained"),
    [([0, 1], [0, 2], 0.75), ([1, 1], [0, 2], 0.0), ([0, 2], [0, 2], 1.0), ([0, 5], [1, 1], 0.0)],
)
def test_how_well_the_critic_predicts(values, returns, explained):
    # variances: of the returns 1, of what is left 1/4, 1, 0; returns that do not vary are not explained
    found = _describe_values(torch.tensor(values).float(), torch.tensor(returns).float())
    expected = {"value_mean": sum(values) / 2, "return_mean": sum(returns) / 2, "explained_variance": explained}
    assert found == pytest.approx(expected)
