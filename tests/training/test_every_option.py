"""No option of an update is accepted and then dies or does nothing.

Every key that the learner reads is given every other value that its type allows (of numbers: one), with every
estimator, alone and beside what reads it. `ConfigStore.check(training=True)` refuses it, or two updates run and
something that can be seen of them is different.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, get_args

import pytest
import torch

from tests.learner.worlds import sample_trajectories, with_version
from tests.training.options import TINY, alternatives, assignment, build, digest, value_of
from uirl import ConfigStore
from uirl.config import AlgorithmConfig
from uirl.config.sections.training import GROUP_ESTIMATORS, Estimator
from uirl.images import ImageStore
from uirl.learner import Learner, Policy
from uirl.types import Sample

pytestmark = pytest.mark.slow

ESTIMATORS = get_args(Estimator)
_OF_OPTIMIZER = (
    *("learning_rate", "betas", "weight_decay", "warmup_steps", "max_grad_norm"),
    *("lr_schedule", "lr_final_ratio"),
    *("minibatches", "update_epochs", "micro_batch_tokens"),
)
_OF_CREDIT = (
    *("gamma", "lam", "clip_ratio", "clip_ratio_low", "clip_ratio_high", "old_log_probs", "entropy_coef"),
    *("entropy_min_p", "target_entropy", "entropy_schedule", "entropy_final_ratio"),
    *("value_coef", "value_clip", "value_learning_rate", "use_kl_in_reward", "kl_coef"),
)
OF_OPTIMIZER = [f"training.{name}" for name in _OF_OPTIMIZER]
OF_CREDIT = [f"training.{name}" for name in _OF_CREDIT]
OF_TRAINER = ("max_resamples", "step_credit", "step_right", "step_wrong", "step_certify")
OF_CREDIT += [f"algorithm.{name}" for name in AlgorithmConfig.model_fields if name not in OF_TRAINER]
READERS: dict[str, list[str]] = {
    "training.entropy_final_ratio": ["training.entropy_schedule=linear", "training.entropy_coef=0.5"],
    "training.lr_final_ratio": ["training.lr_schedule=linear"],
    "training.kl_coef": ["training.use_kl_in_reward=true"],
    "algorithm.kl_target": ["training.use_kl_in_reward=true"],
    "algorithm.kl_horizon": ["training.use_kl_in_reward=true", "algorithm.kl_target=0.001", "algorithm.kl_horizon=100"],
    "algorithm.kl_loss_schedule": ["algorithm.kl_loss_coef=0.5"],
    "algorithm.kl_loss_final_ratio": ["algorithm.kl_loss_coef=0.5", "algorithm.kl_loss_schedule=linear"],
    "algorithm.kl_type": ["algorithm.kl_loss_coef=0.5"],
    "algorithm.mismatch_level": ["algorithm.mismatch_range=[0.9, 1.1]"],
    "algorithm.stale_cap": ["algorithm.stale_correction=truncated"],
    "algorithm.tis_level": ["algorithm.tis_cap=1.001"],
    "algorithm.loss_length": ["algorithm.loss_aggregation=seq-mean-token-sum-norm"],
}
"""Key -> what must be set for it to be read, whatever the estimator."""
UPDATE = [
    *("training.batch_size=12", "training.minibatches=1", "training.update_epochs=2"),
    *("training.learning_rate=0.03", "training.max_grad_norm=0.1"),
]


class Updates:
    """Two updates on the same twelve trajectories: one of three groups is dead, turns earn different rewards."""

    def __init__(self) -> None:
        config, _ = build()
        assert config is not None
        self.policy = Policy.from_config(config, critic=True)
        self.images = ImageStore()
        rewards = [[0.2, 0.1], [0.0, 0.9], [0.7, 0.0], [0.0, 0.0], [0.3, 0.3], [0.0, 0.2], [0.5, 0.0], [1.0, 0.3]]
        self.samples = [
            replace(sample, ends_episode=i % 3 > 0)
            for i, sample in enumerate(
                sample_trajectories(
                    self.policy,
                    self.images,
                    n=12,
                    group_size=4,
                    reward=lambda i, turn: rewards[i][turn] if i < 8 else 0.5,
                )
            )
        ]
        self.anchors = {sample.trajectory_id: ["s", f"t{i % 2}"] for i, sample in enumerate(self.samples)}
        self.start = {name: weight.clone() for name, weight in self.policy.model.state_dict().items()}
        self.seen: dict[tuple[str, ...], Any] = {}

    def outcome(self, *assignments: str) -> Any:
        """What can be seen of the updates; None: refused."""
        if assignments not in self.seen:
            config, _ = build(*assignments)
            self.seen[assignments] = None if config is None else self._run(config)
        return self.seen[assignments]

    def _run(self, config: ConfigStore) -> tuple[list[dict[str, float]], float]:
        self.policy.model.load_state_dict(self.start)
        assert self.policy.value_head is not None
        for parameter in self.policy.value_head.parameters():
            torch.nn.init.zeros_(parameter)
        learner = Learner(self.policy, config, self.images)
        anchors = self.anchors if learner.settings.spec.needs_anchors else None
        metrics = [learner.update(self._samples(learner, k), anchors=anchors) for k in range(2)]
        if learner.optimizer is not None:
            learner.optimizer.detach()
        return metrics, digest(self.policy)

    def _samples(self, learner: Learner, update: int) -> list[Sample]:
        # the second update learns from what an older version sampled
        return with_version(self.samples, 0)


@pytest.fixture(scope="module")
def updates() -> Updates:
    return Updates()


def tries(keys: list[str], base: ConfigStore) -> Iterator[tuple[str, Any, list[str]]]:
    """(key, value, what is set beside it)."""
    for key in keys:
        contexts = [[]] + ([READERS[key]] if READERS.get(key) else [])
        for context in contexts:
            current = value_of(ConfigStore().override([*TINY, *UPDATE, *context]) if context else base, key)
            for value in alternatives(key, current):
                yield key, value, context


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_what_an_update_reads_changes_it_or_is_refused(updates: Updates, estimator: str) -> None:
    keys = OF_CREDIT + (OF_OPTIMIZER if estimator == "gae" else [])
    size = ["training.group_size=4"] if estimator in GROUP_ESTIMATORS else []
    base = [*UPDATE, *size, f"training.adv_estimator={estimator}"]
    idle, worked = [], set()
    for key, value, context in tries(keys, ConfigStore().override([*TINY, *base])):
        before = updates.outcome(*base, *context)
        after = updates.outcome(*base, *context, assignment(key, value))
        if before is None or after is None:
            continue  # refused, with its reason
        worked.add(key)
        if after == before:
            idle.append((assignment(key, value), context))
    assert not idle
    assert {"training.entropy_coef", "algorithm.loss_aggregation", "algorithm.kl_loss_coef"} <= worked


def test_every_option_of_an_update_works_with_some_estimator(updates: Updates) -> None:
    for key in OF_CREDIT:
        for estimator in ESTIMATORS:
            size = ["training.group_size=4"] if estimator in GROUP_ESTIMATORS else []
            base = [*UPDATE, *size, f"training.adv_estimator={estimator}", *READERS.get(key, [])]
            config, _ = build(*base)
            if config is None:
                continue
            found = [updates.outcome(*base, assignment(key, v)) for v in alternatives(key, value_of(config, key))]
            if any(one is not None for one in found):
                break
        else:
            raise AssertionError(f"{key} is refused beside every estimator")
