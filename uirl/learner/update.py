"""The learner: one training step from samples, with a gradient that does not depend on how the batch was cut."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from uirl.algorithms import Algorithm, KLController, apply_kl_penalty
from uirl.config import ConfigStore
from uirl.errors import AlignmentError, ConfigError, NonFiniteError
from uirl.images import ImageStore
from uirl.learner.batch import Batch, SampleBatches, describe
from uirl.learner.credit import Anchors, Credit, assign_credit
from uirl.learner.engine_gap import EngineGap
from uirl.learner.objective import Objective, UpdateTensors
from uirl.learner.optimizer import Optimizer
from uirl.learner.policy import Policy
from uirl.learner.schedule import MinibatchSchedule
from uirl.learner.scoring import BatchScores, score_samples
from uirl.learner.settings import LearnerSettings
from uirl.learner.view import ResponseView, response_view
from uirl.metrics import Metrics
from uirl.types import Sample


class Learner:
    """Turns samples into steps of a policy.

    `version` counts the steps' worth of weights: it rises with every update that changed them and names the policy
    that samples were drawn from. `images` holds the pictures of the samples. An `algorithm` (`PPO(...)`, `GRPO(...)`)
    overrides the estimator, the credit and the loss of the config.
    """

    def __init__(
        self, policy: Policy, config: ConfigStore, images: ImageStore, *, algorithm: Algorithm | None = None
    ) -> None:
        self.policy = policy
        self.config = config
        self.images = images
        self.settings = LearnerSettings.of(config, algorithm)
        if self.settings.spec.needs_critic and policy.value_head is None:
            raise ConfigError("this estimator needs a critic; make the policy with critic=True")
        self.version = 0
        self.updates = 0
        """Calls of `update`, those that took no step included. Seeds the order of the minibatches."""
        self.phase: str | None = None
        """'update' or 'supervised': whose optimizer is at work; None: none yet."""
        self.optimizer: Optimizer | None = None
        self.reference_frozen = False
        target = self.settings.kl_target
        self.kl = KLController(
            self.settings.kl_coef,
            target_kl=target if target is not None else 0.1,
            adaptive=target is not None,
            horizon=self.settings.kl_horizon,
        )

    # -- supervised --------------------------------------------------------------------------------------------

    def supervised(self, samples: Sequence[Sample]) -> dict[str, float]:
        """One step on the mean negative log-likelihood of the response tokens; its metrics (`loss`, `tokens`, ...).

        Used by the warm start and by rejection sampling. Rewards, log-probs and versions of the samples are not read.
        The first call after an update starts a fresh optimizer, with the settings of `training.warm_start`.
        """
        tokens = sum(sum(sample.response_mask) for sample in samples)
        if not tokens:
            raise AlignmentError("no samples: got an empty list, expected at least one demonstration")
        optimizer = self.use_optimizer("supervised")
        total = 0.0
        with self._training(optimizer):
            for batch, members in self._batches(samples).of(range(len(samples))):
                log_probs = self.policy.log_probs_and_values(batch).log_probs
                assert log_probs is not None
                loss = -log_probs.sum() / tokens
                _require_finite("negative log-likelihood", loss, [samples[i] for i in members])
                loss.backward()
                total += loss.item()
            metrics = optimizer.step()
        self.version += 1
        return {"loss": total, "tokens": float(tokens), "sequences": float(len(samples))} | metrics

    # -- one update --------------------------------------------------------------------------------------------

    def update(self, samples: Sequence[Sample], *, anchors: Anchors | None = None) -> dict[str, float]:
        """One training step on `samples` (all segments of each trajectory); its metrics.

        Old log-probs, values and reference; credit on whole trajectories; then `training.update_epochs` passes over
        `training.minibatches` minibatches of trajectories. No step is taken, and `version` stays, where no trajectory
        carries a signal or fewer groups than `algorithm.min_live_groups` do (`skipped` is then 1).

        `anchors`: state keys per turn, for 'gigpo'. Raises AlignmentError where samples do not fit together or not
        this policy, NonFiniteError where a loss or gradient is not finite.
        """
        view = response_view(samples)
        batches = self._batches(samples)
        self._check_versions(view, batches)
        self._freeze_reference()
        self.updates += 1
        metrics = Metrics()
        old, reference = self._score_old(view, batches), self._score_reference(batches)
        credit = self._assign_credit(view, old, reference, anchors, metrics)
        takes_step = self._carries_signal(credit)
        metrics.add("skipped", float(not takes_step))
        if takes_step:
            schedule = MinibatchSchedule.of(self.settings, view, credit)
            tensors = UpdateTensors.of(view, credit, old, reference)
            self._learn(batches, schedule, Objective.of(self.settings, tensors, schedule.shares), metrics)
            self.version += 1
        return {name: value for name, value in metrics.reduce().items() if value is not None}

    def use_optimizer(self, phase: str) -> Optimizer:
        """The optimizer of 'update' or 'supervised'; a fresh one where the other phase was at work before."""
        if self.optimizer is None or self.phase != phase:
            if self.optimizer is not None:
                self.optimizer.detach()
            settings = self.settings.update if phase == "update" else self.settings.supervised
            head = self.policy.value_head if phase == "update" else None
            value = [] if head is None else [(f"value_head.{n}", p) for n, p in head.named_parameters()]
            self.optimizer = Optimizer(self.policy.named_trainable(), value, settings)
            self.phase = phase
        return self.optimizer

    # -- before the first step ---------------------------------------------------------------------------------

    def _check_versions(self, view: ResponseView, batches: SampleBatches) -> None:
        for sample, version in zip(batches.samples, view.sample_versions, strict=True):
            if version > self.version:
                raise AlignmentError(
                    f"{describe(sample)} was sampled by version {version}, but the learner is at {self.version}; after "
                    "a checkpoint is loaded, tell the engine the learner's version"
                )

    def _freeze_reference(self) -> None:
        if self.settings.needs_reference and not self.reference_frozen:
            self.policy.freeze_reference()
            self.reference_frozen = True

    def _trusts_rollout(self, view: ResponseView) -> bool:
        return self.settings.trusts_rollout(view.sample_versions, self.version)

    def _score_old(self, view: ResponseView, batches: SampleBatches) -> BatchScores:
        """Log-probs and values before the first step, as far as credit and loss read them."""
        reads, trusts = self.settings.reads_old_log_probs, self._trusts_rollout(view)
        scores = self._score(batches, log_probs=reads and not trusts, values=self.settings.spec.needs_critic)
        if reads and trusts:
            scores = replace(scores, log_probs=view.flatten(view.rollout_log_probs))
        scores.require_finite(view, batches)
        return scores

    def _score_reference(self, batches: SampleBatches) -> BatchScores:
        """The log-probs of the reference policy, where there is one."""
        if not self.settings.needs_reference:
            return BatchScores()
        with self.policy.reference():
            return self._score(batches, log_probs=True, values=False)

    def _score(self, batches: SampleBatches, *, log_probs: bool, values: bool) -> BatchScores:
        return score_samples(self.policy, batches, self.settings.temperature, log_probs=log_probs, values=values)

    # -- credit ------------------------------------------------------------------------------------------------

    def _assign_credit(
        self,
        view: ResponseView,
        old: BatchScores,
        reference: BatchScores,
        anchors: Anchors | None,
        metrics: Metrics,
    ) -> Credit:
        """Advantages and returns [N, R] of whole trajectories; what the data is like goes into `metrics`."""
        settings = self.settings
        rewards = self._penalised_rewards(view, old, reference, metrics) if settings.kl_in_reward else view.rewards
        values = None if old.values is None else view.spread(old.values)
        credit = assign_credit(
            settings.spec,
            settings.advantage,
            view,
            rewards,
            values,
            None if old.final_values is None else old.final_values[list(view.last_samples)],
            anchors,
            skip_dead_groups=settings.skip_dead_groups,
        )
        metrics.add_all(self._describe(view, credit))
        if values is not None:
            metrics.add_all(_describe_values(values[view.mask], credit.returns[view.mask]))
        return credit

    def _penalised_rewards(
        self, view: ResponseView, old: BatchScores, reference: BatchScores, metrics: Metrics
    ) -> Tensor:
        """The rewards [N, R] less the KL penalty."""
        assert old.log_probs is not None
        assert reference.log_probs is not None
        # k1: its gradient through the return is that of the KL, whatever estimator the loss term uses
        rewards, distance = apply_kl_penalty(
            view.rewards,
            view.spread(old.log_probs),
            view.spread(reference.log_probs),
            view.mask,
            self.kl.value,
            estimator="k1",
        )
        metrics.add("kl_reference", distance)
        metrics.add("kl_coef", self.kl.value)
        self.kl.update(float(distance), len(view))
        return rewards

    def _describe(self, view: ResponseView, credit: Credit) -> dict[str, float]:
        staleness = [self.version - version for version in view.sample_versions]
        rows = {
            "tokens": float(view.tokens),
            "sequences": float(len(staleness)),
            "trajectories": float(len(view)),
            "staleness": sum(staleness) / len(staleness),
            "live_fraction": credit.live_fraction,
            "live_groups": credit.live_groups,
        }
        if self.settings.spec.loss == "policy":
            rows["old_log_probs_recomputed"] = float(not self._trusts_rollout(view))
        return rows

    def _carries_signal(self, credit: Credit) -> bool:
        """Whether an update on this credit takes a step."""
        floor = self.settings.min_live_groups if self.settings.spec.needs_group else 0.0
        return bool(credit.live.any()) and credit.live_groups >= floor

    # -- the steps ---------------------------------------------------------------------------------------------

    def _learn(
        self, batches: SampleBatches, schedule: MinibatchSchedule, objective: Objective, metrics: Metrics
    ) -> None:
        steps = 0
        for epoch in range(self.settings.update_epochs):
            for chosen in schedule.epoch(f"{self.settings.seed}/{self.updates}/{epoch}"):
                # after the first step the learner's weights are no longer those that the engine sampled with
                self._step(batches, chosen, objective, metrics, scale=schedule.scale, compare=not steps)
                steps += 1
        metrics.add("optimizer_steps", steps)

    def _step(
        self,
        batches: SampleBatches,
        chosen: Sequence[int],
        objective: Objective,
        metrics: Metrics,
        *,
        scale: float,
        compare: bool,
    ) -> None:
        """One optimizer step on the chosen samples. `compare`: measure the gap between engine and learner."""
        sums: dict[str, float] = {}
        optimizer = self.use_optimizer("update")
        with self._training(optimizer):
            for batch, members in batches.of(chosen):
                scores = self.policy.log_probs_and_values(
                    batch,
                    self.settings.temperature,
                    entropy=True,
                    values=objective.tensors.values is not None,
                    entropy_gradient=self.settings.entropy_coef > 0,
                )
                assert scores.log_probs is not None
                samples = [batches.samples[i] for i in members]
                if compare:
                    self._compare_with_engine(scores.log_probs.detach(), batch, samples, metrics)
                terms = objective.terms(scores, batch, members, metrics)
                for name, (_, loss) in terms.items():
                    _require_finite(name, loss, samples)
                    sums[name] = sums.get(name, 0.0) + loss.item()
                torch.stack([weight * loss for weight, loss in terms.values()]).sum().backward()
            metrics.add_all(optimizer.step(scale))
        # the entropy itself is already a metric, as a mean per token
        metrics.add_all({name: value for name, value in sums.items() if name != "entropy_loss"})

    def _compare_with_engine(
        self, log_probs: Tensor, batch: Batch, samples: Sequence[Sample], metrics: Metrics
    ) -> None:
        """Measures |learner - engine| on tokens of the learner's own version. Raises AlignmentError where they cannot
        be the same tokens under the same weights."""
        gap = EngineGap.of(log_probs, batch, [sample.policy_version == self.version for sample in samples])
        if not gap.tokens:
            return
        metrics.add("log_prob_gap_max", float(gap.nats.max()))
        metrics.add("log_prob_gap_mean", float(gap.nats.sum()) / gap.tokens, gap.tokens)
        if self.settings.gap_limits is not None:
            gap.require(self.settings.gap_limits, samples, self.policy.loaded.dtype)

    @contextlib.contextmanager
    def _training(self, optimizer: Optimizer) -> Iterator[None]:
        """A context for forward and backward passes; whatever happens, no gradient is left behind."""
        optimizer.zero_grad()
        self.policy.train(True)
        try:
            yield
        finally:
            self.policy.train(False)
            optimizer.zero_grad()

    def _batches(self, samples: Sequence[Sample]) -> SampleBatches:
        return SampleBatches(self.policy.loaded, samples, self.images, self.settings.micro_batch_tokens)


def _describe_values(values: Tensor, returns: Tensor) -> dict[str, Tensor | float]:
    """How well the critic's `values` [tokens] predict the `returns` [tokens]."""
    variance = returns.var(correction=0)
    unexplained = (returns - values).var(correction=0)
    return {
        "value_mean": values.mean(),
        "return_mean": returns.mean(),
        "explained_variance": 1 - unexplained / variance if variance > 0 else 0.0,
    }


def _require_finite(name: str, loss: Tensor, samples: Sequence[Sample]) -> None:
    if not torch.isfinite(loss):
        ids = sorted({sample.trajectory_id for sample in samples})
        raise NonFiniteError(
            f"the {name} is {loss.item()} on {len(samples)} samples of the trajectories {', '.join(ids[:4])}"
            f"{', ...' if len(ids) > 4 else ''}; the step was refused. Were the weights still finite? A lower learning "
            "rate or training.max_grad_norm may have prevented it."
        )
