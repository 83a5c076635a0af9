"""The optimizer: float32 masters, learning rates, clipping."""

import pytest
import torch

from tests.learner.updates import TEXT, make_learner
from tests.learner.worlds import make_config, sample_trajectories
from uirl.learner import Policy, load_checkpoint, save_checkpoint
from uirl.learner.optimizer import Optimizer, OptimizerSettings
from uirl.learner.steps import share_of_peak


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


class TestLearningRateSchedule:
    @pytest.mark.parametrize(
        ("schedule", "final", "expected"),
        [
            ("constant", 0.1, [1, 1, 1, 1, 1]),
            ("linear", 0.0, [1, 0.75, 0.5, 0.25, 0.25]),
            ("linear", 0.2, [1, 0.8, 0.6, 0.4, 0.4]),
            # (1 + cos(pi / 4)) / 2 = 0.8536, (1 + cos(pi 3 / 4)) / 2 = 0.1464
            ("cosine", 0.0, [1, 0.853553, 0.5, 0.146447, 0.146447]),
            ("cosine", 0.5, [1, 0.926777, 0.75, 0.573223, 0.573223]),
        ],
    )
    def test_it_falls_by_the_updates_of_the_run_and_stays_after_its_end(self, schedule, final, expected):
        shares = [share_of_peak(schedule, final, update, 4) for update in (1, 2, 3, 4, 9)]
        assert shares == pytest.approx(expected, abs=1e-6)

    def test_all_steps_of_an_update_have_its_rate_after_the_warm_up(self, images):
        overrides = ["training.warmup_steps=4", "training.learning_rate=0.001", "training.lr_schedule=linear"]
        run = ["training.num_epochs=2", "training.num_iters_per_epoch=2", "training.update_epochs=1"]
        learner = make_learner(images, TEXT, *overrides, *run, "training.minibatches=2")
        samples = sample_trajectories(learner.policy, images)
        rates = []
        for _ in range(3):
            rates.append(learner.update(samples)["learning_rate"])
        # of the last of two steps: the peak x 2/4 of the warm-up, then x 4/4 x 3/4 of the run, then x 2/4 of the run
        assert rates == pytest.approx([0.0005, 0.00075, 0.0005])

    def test_a_loaded_learner_goes_on_with_the_rate_it_had_come_to(self, images, tmp_path):
        overrides = ["training.warmup_steps=0", "training.lr_schedule=cosine", "training.num_epochs=2"]
        learner, other = (
            make_learner(images, TEXT, *overrides, "training.num_iters_per_epoch=2", "training.learning_rate=0.001")
            for _ in range(2)
        )
        samples = sample_trajectories(learner.policy, images)
        learner.update(samples)
        save_checkpoint(tmp_path / "step_1", learner, {})
        load_checkpoint(tmp_path / "step_1", other)
        assert other.update(samples)["learning_rate"] == pytest.approx(0.000853553)
