"""No weight compares the learner's log-probs with those of an engine that filters what it samples from."""

import pytest
import torch

from tests.learner.updates import TEXT, log_probs_of, make_learner
from tests.learner.worlds import make_config, sample_trajectories, with_version
from uirl.algorithms import PPO
from uirl.config import ConfigStore
from uirl.errors import AlignmentError, ConfigError
from uirl.images import ImageStore
from uirl.integrations.verl.mapping import verl_values
from uirl.learner import response_view
from uirl.learner.credit import BatchScores, stale_weights
from uirl.learner.settings import LearnerSettings

FILTERS = ["inference.top_p=0.9", "inference.top_k=3"]
ENGINES = [
    ["inference.backend=transformers"],
    ["inference.backend=vllm"],
    ["inference.backend=vllm", "inference.server_url=http://127.0.0.1:9"],
    ["inference.backend=sglang"],
]
"""All of them tell log-probs of what the filters left."""
WEIGHTS = {
    "the engine's stand for the learner's": ["training.old_log_probs=rollout"],
    "truncated importance sampling": ["algorithm.tis_cap=2"],
    "truncated by sequences": ["algorithm.tis_cap=2", "algorithm.tis_level=sequence"],
    "masked importance sampling": ["algorithm.mismatch_range=[0.5, 2]"],
    "masked stale samples": ["actors.staleness=1"],
    "truncated stale samples": ["actors.staleness=3", "algorithm.stale_correction=truncated"],
    "a bound that follows the gap": ["actors.staleness=auto"],
    "a bound that follows the gap of what is not weighed": ["actors.staleness=auto", "algorithm.stale_correction=off"],
}
WITHOUT_WEIGHTS = {
    "nothing is stale": [],
    "stale samples count as they are": ["actors.staleness=1", "algorithm.stale_correction=off"],
    "successes are imitated": ["actors.staleness=1", "training.adv_estimator=rejection_sampling"],
}


@pytest.mark.parametrize("engine", ENGINES, ids=" ".join)
@pytest.mark.parametrize("filter", FILTERS)
@pytest.mark.parametrize("weight", WEIGHTS)
def test_no_weight_goes_with_a_filter(weight: str, filter: str, engine: list[str]) -> None:
    config = ConfigStore().override([*engine, *WEIGHTS[weight]])
    config.check(training=True)
    config = config.override([filter])
    with pytest.raises(ConfigError, match="every ratio of the two would be too small"):
        config.check(training=True)
    config.check()  # what was trained without the filter may be evaluated with it


@pytest.mark.parametrize("filter", FILTERS)
@pytest.mark.parametrize("case", WITHOUT_WEIGHTS)
def test_what_compares_nothing_takes_filters(case: str, filter: str) -> None:
    ConfigStore().override([*WITHOUT_WEIGHTS[case], filter]).check(training=True)


@pytest.mark.parametrize("filter", FILTERS)
def test_verl_weighs_nothing_beside_a_filter_either(filter: str) -> None:
    config = ConfigStore().override(["algorithm.tis_cap=2"])
    assert verl_values(config, ["algorithm.tis_cap"])
    with pytest.raises(ConfigError, match="left to choose from"):
        verl_values(config.override([filter]), ["algorithm.tis_cap"])


@pytest.mark.parametrize("filter", FILTERS)
def test_an_algorithm_of_ones_own_goes_with_no_filter_either(filter: str) -> None:
    LearnerSettings.of(make_config(TEXT), PPO(tis_cap=2.0))
    with pytest.raises(ConfigError, match="left to choose from"):
        LearnerSettings.of(make_config(TEXT, filter), PPO(tis_cap=2.0))


@pytest.mark.parametrize("correction", ["off", "masked", "truncated"])
def test_a_filter_is_not_taken_for_staleness(correction: str) -> None:
    """The same weights sampled: all that engine and learner differ by is the filter."""
    images, chosen = ImageStore(), [TEXT, "training.adv_estimator=reinforce_plus_plus"]
    learner = make_learner(images, *chosen, f"algorithm.stale_correction={correction}")
    plain = with_version(sample_trajectories(learner.policy, images), -1)
    filtered = with_version(sample_trajectories(learner.policy, images, top_k=3), -1)

    def weighed(samples: list, *more: str) -> tuple[torch.Tensor | None, dict[str, float]]:
        old = BatchScores(log_probs=log_probs_of(learner, samples))
        settings = LearnerSettings.of(make_config(*chosen, f"algorithm.stale_correction={correction}", *more))
        return stale_weights(settings, response_view(samples), old, 0)

    assert weighed(plain)[1]["stale/gap"] < 1e-4
    # compared all the same, the filter looks like weights that are nats away
    assert weighed(filtered)[1]["stale/gap"] > 1
    if correction == "off":
        weights, metrics = weighed(filtered, "inference.top_k=3")
        assert weights is None
        assert metrics.keys() == {"stale/share", "stale/age_mean", "stale/age_max", "stale/mixed"}
    else:
        with pytest.raises(AlignmentError, match=r"inference\.top_p=1 and top_k=0"):
            weighed(filtered, "inference.top_k=3")
