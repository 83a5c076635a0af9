"""What older weights sampled: corrected where there is any, and nothing else changed in a digit."""

import math
from dataclasses import replace

import pytest
import torch

from tests.learner.updates import TEXT, gradients_of_first_step, make_learner
from tests.learner.worlds import make_config, sample_trajectories, weights_of, with_version
from uirl.errors import AlignmentError
from uirl.images import ImageStore
from uirl.learner import Policy, response_view
from uirl.learner.credit import BatchScores, stale_weights
from uirl.learner.settings import LearnerSettings
from uirl.types import Sample

PLAIN = (TEXT, "training.adv_estimator=reinforce_plus_plus")


def sample(id: str, log_probs: list[float], versions: list[int], group: str = "", segment: int = 0) -> Sample:
    n = len(log_probs)
    return Sample(
        token_ids=(1, *range(2, 2 + n)),
        response_mask=(False, *[True] * n),
        rollout_log_probs=(0.0, *log_probs),
        rewards=(0.0,) * (n + 1),
        turn_ids=(-1, *([2 * segment] + [2 * segment + 1] * (n - 1))),
        policy_version=min(versions),
        trajectory_id=id,
        group_id=group,
        segment=segment,
        ends_episode=True,
        versions=(-1, *versions),
    )


SAMPLES = [
    sample("stale", [-1.0, -3.0, -2.0], [3, 3, 3]),
    sample("current", [-5.0, -0.1], [5, 5]),
    sample("mixed", [-1.5, -2.0], [4, 5]),
]
OLD = torch.tensor([[-2.0, -2.0, -2.6], [-2.0, -2.0, 0.0], [-2.0, -2.0, 0.0]])
"""At version 5 the learner says so. log weights: -1, 1, -0.6 of the first; -0.5 and 0 of the third."""
SEVERAL = [math.exp(-1), math.e, math.exp(-0.6), math.exp(-0.5), 1.0]


def weights(*overrides: str) -> tuple[torch.Tensor | None, dict[str, float]]:
    settings = LearnerSettings.of(make_config(*PLAIN, *overrides))
    return stale_weights(settings, response_view(SAMPLES), BatchScores(log_probs=OLD), 5)


def test_stale_samples_are_weighed_and_masked_as_a_whole_unless_the_config_says_otherwise():
    got, metrics = weights()
    expected = [[math.exp(-0.2)] * 3, [1.0] * 3, [math.exp(-0.25)] * 3]
    # beyond the end of a row nothing is read
    torch.testing.assert_close(got[response_view(SAMPLES).mask], torch.tensor(expected)[response_view(SAMPLES).mask])
    assert metrics["stale/masked"] == 0
    assert "stale/capped" not in metrics


def test_metrics_of_what_is_stale():
    _, metrics = weights()
    assert metrics["stale/share"] == pytest.approx(5 / 7)
    assert metrics["stale/age_mean"] == pytest.approx((2 + 2 + 2 + 1 + 0) / 5)
    assert metrics["stale/age_max"] == 2
    assert metrics["stale/mixed"] == 1 / 2
    assert metrics["stale/gap"] == pytest.approx((1 + 1 + 0.6 + 0.5 + 0) / 5)
    assert metrics["stale/ess"] == pytest.approx(sum(SEVERAL) ** 2 / (5 * sum(w * w for w in SEVERAL)))
    pair = [math.exp(-0.2), math.exp(-0.25)]
    assert metrics["stale/ess_sequence"] == pytest.approx(sum(pair) ** 2 / (2 * sum(w * w for w in pair)))


@pytest.mark.parametrize(
    ("overrides", "first", "third", "metric"),
    [
        (["stale_correction=truncated"], [math.exp(-0.2)] * 3, [math.exp(-0.25)] * 2, ("stale/capped", 0.0)),
        (
            ["stale_correction=truncated", "stale_level=token"],
            [math.exp(-1), 2.0, math.exp(-0.6)],
            [math.exp(-0.5), 1.0],
            ("stale/capped", 0.2),
        ),
        (["stale_correction=truncated", "stale_cap=0.8"], [0.8] * 3, [math.exp(-0.25)] * 2, ("stale/capped", 0.6)),
        (["stale_level=token"], [0, 0, math.exp(-0.6)], [math.exp(-0.5), 1.0], ("stale/masked", 0.4)),
        (["stale_range=[0.8, 2.0]"], [math.exp(-0.2)] * 3, [0.0, 0.0], ("stale/masked", 0.4)),
    ],
)
def test_the_other_corrections(overrides, first, third, metric):
    got, metrics = weights(*[f"algorithm.{one}" for one in overrides])
    torch.testing.assert_close(got[0], torch.tensor(first, dtype=torch.float32))
    torch.testing.assert_close(got[1, :2], torch.ones(2))
    torch.testing.assert_close(got[2, :2], torch.tensor(third, dtype=torch.float32))
    assert metrics[metric[0]] == pytest.approx(metric[1])


@pytest.mark.parametrize("override", ["stale_correction=off", "tis_cap=2.0", "mismatch_range=[0.5, 2.0]"])
def test_where_it_is_off_or_the_loss_corrects_all_it_is_measured_alone(override):
    got, metrics = weights(f"algorithm.{override}")
    assert got is None
    assert metrics["stale/gap"] > 0
    assert not {"stale/capped", "stale/masked"} & metrics.keys()


def test_segments_are_sequences_of_their_own():
    # the second segment of a trajectory was sampled by the newest weights from a prompt of its own
    halves = [sample("a", [-1.0, -3.0], [4, 4]), sample("a", [-9.0, -9.0], [5, 5], segment=1)]
    settings = LearnerSettings.of(make_config(*PLAIN))
    old = BatchScores(log_probs=torch.full((1, 4), -1.0))
    got, metrics = stale_weights(settings, response_view(halves), old, 5)
    # log weights 0 and 2: e^1 is above 2
    torch.testing.assert_close(got, torch.tensor([[0.0, 0.0, 1.0, 1.0]]))
    assert metrics["stale/share"] == 0.5
    assert metrics["stale/mixed"] == 0


CORRECTIONS = [
    ["algorithm.stale_correction=off"],
    ["algorithm.stale_correction=masked", "algorithm.stale_range=[1.0, 1.0001]"],
    ["algorithm.stale_correction=truncated", "algorithm.stale_cap=0.1", "algorithm.stale_level=token"],
]


@pytest.mark.parametrize("estimator", ["gae", "grpo"])
def test_a_synchronous_run_keeps_every_digit(images: ImageStore, estimator: str):
    samples = sample_trajectories(Policy.from_config(make_config()), images)
    outcomes = []
    for correction in CORRECTIONS:
        group = ["training.group_size=2"] if estimator == "grpo" else []
        learner = make_learner(images, f"training.adv_estimator={estimator}", *group, *correction)
        metrics = learner.update(samples)
        assert not any(name.startswith("stale/") for name in metrics)
        outcomes.append((metrics, weights_of(learner.policy)))
    for metrics, after in outcomes[1:]:
        assert metrics == outcomes[0][0]
        assert all(torch.equal(after[name], weight) for name, weight in outcomes[0][1].items())


def test_what_is_masked_is_left_out_and_nothing_else(images: ImageStore, monkeypatch):
    """The gradients of either half, the other masked, add up to that of both."""
    samples = sample_trajectories(Policy.from_config(make_config(*PLAIN)), images)
    halves = [with_version(samples[:2], old) + with_version(samples[2:], 1 - old) for old in (0, 1)]
    options = [*PLAIN, "training.entropy_coef=0", "training.minibatches=1", "training.old_log_probs=recompute"]
    masked = ["algorithm.stale_correction=masked", "algorithm.stale_range=[5.0, 6.0]"]
    found = []
    for batch, correction in [*[(half, masked) for half in halves], (samples, [])]:
        learner = make_learner(images, *options, *correction)
        learner.version = 1
        found.append(gradients_of_first_step(learner, batch, monkeypatch))
    one, other, both = found
    assert max(float(gradient.abs().max()) for gradient in both.values()) > 1e-3
    for name, gradient in both.items():
        torch.testing.assert_close(one[name] + other[name], gradient, rtol=1e-3, atol=1e-6)


def test_stale_updates_differ_by_their_correction(images: ImageStore):
    samples = sample_trajectories(Policy.from_config(make_config(*PLAIN)), images)
    moved = [replace(s, rollout_log_probs=tuple(0.5 * x for x in s.rollout_log_probs)) for s in samples]
    ends = []
    for correction in CORRECTIONS:
        learner = make_learner(images, *PLAIN, *correction)
        learner.version = 3
        metrics = learner.update(with_version(moved, 1))
        assert metrics["stale/age_mean"] == metrics["stale/age_max"] == 2
        assert metrics["stale/gap"] > 0.1
        ends.append(weights_of(learner.policy))
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert any(not torch.equal(ends[one][name], ends[other][name]) for name in ends[0])


def test_stale_samples_without_log_probs_are_refused_unless_nothing_is_corrected(images: ImageStore):
    samples = sample_trajectories(Policy.from_config(make_config(*PLAIN)), images)
    samples[1] = replace(samples[1], rollout_log_probs=tuple(math.nan for _ in samples[1].token_ids))
    learner = make_learner(images, *PLAIN, "training.old_log_probs=recompute")
    learner.version = 1
    with pytest.raises(AlignmentError, match=r"trajectory trajectory-1 was sampled by older weights.*no log-probs"):
        learner.update(with_version(samples, 0))
    assert learner.version == 1


def test_a_turn_of_a_future_version_is_refused(images: ImageStore):
    learner = make_learner(images, *PLAIN)
    samples = sample_trajectories(learner.policy, images)
    later = tuple(2 if counted else -1 for counted in samples[1].response_mask)
    samples[1] = replace(samples[1], versions=later)
    with pytest.raises(
        AlignmentError, match="trajectory trajectory-1 was sampled by version 2, but the learner is at 0"
    ):
        learner.update(samples)


def test_imitation_counts_what_is_stale_and_corrects_nothing(images: ImageStore):
    learner = make_learner(images, TEXT, "training.adv_estimator=rejection_sampling")
    samples = sample_trajectories(learner.policy, images)
    learner.version = 1
    metrics = learner.update(with_version(samples, 0))
    assert metrics["stale/share"] == 1
    assert "stale/gap" not in metrics
