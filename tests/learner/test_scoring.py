"""Old log-probs: whose they are, at which temperature, and when a gap between engine and learner stops the run."""

import contextlib
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from tests.learner.updates import TEXT, make_learner
from tests.learner.worlds import make_config, sample_trajectories, weights_of
from uirl.algorithms import RejectionSampling
from uirl.errors import AlignmentError, NonFiniteError
from uirl.inference.embedded.runner import proven_spans
from uirl.inference.models import attention
from uirl.learner import Policy
from uirl.learner.settings import FLOAT32, HALF, OTHER_ENGINE, EngineGap, GapLimits, LearnerSettings
from uirl.types import Sample


def test_rollout_log_probs_are_used_where_they_are_exact(images):
    learner = make_learner(images, "training.adv_estimator=reinforce_plus_plus")
    samples = sample_trajectories(learner.policy, images)
    first = learner.update(samples)
    assert first["old_log_probs_recomputed"] == 0
    assert (first["staleness"], first["trajectories"]) == (0, len(samples))
    assert 0 < first["log_prob_gap_max"] < 1e-4
    assert 0 < first["log_prob_gap_mean"] <= first["log_prob_gap_max"]
    assert learner.version == 1
    stale = learner.update(samples)  # sampled by version 0, learned at 1
    assert stale["old_log_probs_recomputed"] == 1
    assert stale["staleness"] == 1
    assert "log_prob_gap_max" not in stale
    assert stale["mismatch_weight_max"] != 1


def test_one_stale_sample_is_enough_to_recompute_all(images):
    """Where old weights sampled some, the engine's log-probs are not those of the weights that learn."""
    learner = make_learner(images, TEXT, "training.adv_estimator=reinforce_plus_plus")
    old = sample_trajectories(learner.policy, images)
    learner.update(old)
    mixed = [*old[:1], *sample_trajectories(learner.policy, images, version=1)[1:]]
    assert learner.update(mixed)["old_log_probs_recomputed"] == 1


@pytest.mark.parametrize("override", ["inference.top_p=0.9", "model.dtype=bfloat16"])
def test_old_log_probs_are_recomputed_where_the_engine_rounds_or_filters(override, images):
    learner = make_learner(images, TEXT, "training.adv_estimator=reinforce_plus_plus", override)
    assert learner.update(sample_trajectories(learner.policy, images))["old_log_probs_recomputed"] == 1


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


BFLOAT = (
    TEXT,
    "training.adv_estimator=reinforce_plus_plus",
    "model.dtype=bfloat16",
    "model.tiny.initializer_range=0.3",
)


def test_rounding_in_bfloat16_stops_nothing(images):
    learner = make_learner(images, *BFLOAT)
    metrics = learner.update(sample_trajectories(learner.policy, images, turns=8))
    assert 1e-4 < metrics["log_prob_gap_max"] < 0.5
    assert metrics["log_prob_gap_mean"] < 0.05


def test_an_engine_that_attends_differently_stops_bfloat16_too(images, monkeypatch):
    learner = make_learner(images, *BFLOAT)
    proven_spans(learner.policy.loaded)

    def short_sighted(kind, size, seen, key, query):
        return seen & (key > query - 2)

    monkeypatch.setattr(attention, "_within", short_sighted)
    samples = sample_trajectories(learner.policy, images, turns=8)
    with pytest.raises(AlignmentError, match=r"far more than torch.bfloat16 rounds.*attends differently"):
        learner.update(samples)
    assert learner.version == 0


def test_demonstrations_never_reach_a_policy_gradient(images):
    learner = make_learner(images, TEXT, "training.adv_estimator=reinforce_plus_plus")
    samples = sample_trajectories(learner.policy, images)
    nan = tuple(math.nan for _ in samples[1].token_ids)
    samples[1] = replace(samples[1], rollout_log_probs=nan)
    with pytest.raises(NonFiniteError, match=r"old log-probs of trajectory trajectory-1.*demonstration"):
        learner.update(samples)


@pytest.mark.parametrize(
    ("overrides", "limits"),
    [
        ([], FLOAT32),
        (["model.use_lora=true"], FLOAT32),
        (["model.dtype=bfloat16"], HALF),
        (["inference.backend=vllm"], OTHER_ENGINE),
        (["inference.backend=openai", "inference.server_url=http://127.0.0.1:9"], None),
        (["inference.temperature=0"], None),
        (["inference.top_p=0.9"], None),
        (["inference.top_k=3"], None),
        (["model.use_lora=true", "model.lora.lora_dropout=0.1"], None),
    ],
)
def test_which_gap_an_engine_may_leave(overrides, limits):
    found = LearnerSettings.of(make_config(TEXT, *overrides))
    assert found.gap_limits is limits
    assert found.engine_is_exact == (limits is FLOAT32)


@pytest.mark.parametrize(
    ("overrides", "corrects_stale", "needs_reference", "reads_old_log_probs"),
    [
        ([], True, False, True),
        (["algorithm.stale_correction=off"], False, False, True),
        (["training.old_log_probs=rollout"], False, False, True),
        (["algorithm.tis_cap=2"], False, False, True),
        (["algorithm.mismatch_range=[0.5, 2]"], False, False, True),
        (["training.use_kl_in_reward=true"], True, True, True),
        (["algorithm.kl_loss_coef=0.1"], True, True, True),
        (["training.adv_estimator=rejection_sampling"], False, False, False),
    ],
)
def test_what_an_update_needs(overrides, corrects_stale, needs_reference, reads_old_log_probs):
    found = LearnerSettings.of(make_config(TEXT, *overrides))
    assert found.corrects_stale == corrects_stale
    assert found.needs_reference == needs_reference
    assert found.reads_old_log_probs == reads_old_log_probs
    # a penalty reads them whatever the loss
    assert LearnerSettings.of(make_config(TEXT, *overrides), RejectionSampling()).reads_old_log_probs == (
        "training.use_kl_in_reward=true" in overrides
    )


@pytest.mark.parametrize(
    ("tokens", "gaps", "current", "told"),
    [
        (16, dict.fromkeys(range(16), 0.25), True, None),  # at the limit of a mean
        (16, dict.fromkeys(range(16), 0.375), True, r"0.375 nats as a mean over 16 tokens .* expected at most 0.25,"),
        (15, dict.fromkeys(range(15), 0.375), True, None),  # too few for a mean
        (16, {3: -1.0}, True, None),  # at the limit of a token
        (16, {3: -1.5}, True, r"1.5 nats on token 3 of the sample of trajectory b, .* expected at most 1,"),
        (16, {3: -1.5}, False, None),  # older weights sampled it
        (16, {3: math.nan}, True, None),  # a demonstration
        (16, {17: 9.0}, True, None),  # no response token
    ],
)
def test_a_gap_is_told_beyond_its_limits(tokens, gaps, current, told):
    log_probs, engine = torch.full((2, 18), -2.0), torch.full((2, 18), -2.0)
    for column, gap in gaps.items():
        engine[1, column] -= gap
    batch = SimpleNamespace(response_mask=torch.arange(18).expand(2, 18) < tokens, rollout_log_probs=engine)
    found = EngineGap.of(log_probs, batch, [True, current])
    assert found.tokens == tokens * (1 + current) - sum(map(math.isnan, gaps.values()))
    samples = [Sample((1,), (True,), (0,), (0,), (0,), trajectory_id=id) for id in "ab"]
    with pytest.raises(AlignmentError, match=told) if told else contextlib.nullcontext():
        found.require(GapLimits(largest=1.0, mean=0.25), samples, torch.float32)
