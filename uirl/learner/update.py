"""The learner: one training step from samples, with a gradient that does not depend on how the batch was cut."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from uirl.algorithms import Algorithm, KLController, apply_kl_penalty
from uirl.config import ConfigStore
from uirl.errors import AlignmentError, ConfigError, NonFiniteError
from uirl.images import ImageStore
from uirl.learner.batch import Batch, collate, describe, micro_batches
from uirl.learner.credit import Anchors, Credit, assign_credit
from uirl.learner.objective import Known, Objective
from uirl.learner.optimizer import Optimizer
from uirl.learner.policy import Policy
from uirl.learner.settings import MEAN_OF, LearnerSettings
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
            for batch, chosen in self._batches(samples, range(len(samples))):
                log_probs = self.policy.log_probs_and_values(batch).log_probs
                assert log_probs is not None
                loss = -log_probs.sum() / tokens
                _require_finite("negative log-likelihood", loss, [samples[i] for i in chosen])
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
        self._check_versions(samples)
        self._freeze_reference()
        self.updates += 1
        metrics = Metrics()
        trusts = self.settings.trusts_rollout(samples, self.version)
        old, values, finals = self._before(samples, view, trusts)
        reference = self._of_reference(samples)
        rewards = self._rewards(view, old, reference, metrics)
        spread = None if values is None else view.spread(values)
        ends = None if finals is None else finals[list(view.last_samples)]
        credit = assign_credit(
            self.settings.spec,
            self.settings.advantage,
            view,
            rewards,
            spread,
            ends,
            anchors,
            skip_dead_groups=self.settings.skip_dead_groups,
        )
        self._describe(samples, view, credit, spread, trusts, metrics)
        floor = self.settings.min_live_groups if self.settings.spec.needs_group else 0.0
        takes_step = bool(credit.live.any()) and credit.live_groups >= floor
        metrics.add("skipped", float(not takes_step))
        if takes_step:
            parts = (old, reference, values)
            self._learn(samples, view, credit, [None if p is None else view.split(p) for p in parts], metrics)
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

    def _check_versions(self, samples: Sequence[Sample]) -> None:
        for sample in samples:
            if sample.policy_version > self.version:
                raise AlignmentError(
                    f"{describe(sample)} was sampled by version {sample.policy_version}, but the learner is at "
                    f"{self.version}; after a checkpoint is loaded, tell the engine the learner's version"
                )

    def _freeze_reference(self) -> None:
        if self.settings.needs_reference and not self.reference_frozen:
            self.policy.freeze_reference()
            self.reference_frozen = True

    def _before(
        self, samples: Sequence[Sample], view: ResponseView, trusts: bool
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """(old log-probs [tokens], values [tokens], values after the last token [samples]); None what nobody reads."""
        spec = self.settings.spec
        reads_old = spec.loss == "policy" or self.settings.kl_in_reward
        old, values, finals = self._scores(samples, log_probs=reads_old and not trusts, values=spec.needs_critic)
        if reads_old and trusts:
            old = view.flatten(view.rollout_log_probs)
        for name, flat in (("old log-probs", old), ("values", values)):
            if flat is not None and not flat.isfinite().all():
                which = next(i for i, part in enumerate(view.split(flat)) if not part.isfinite().all())
                raise NonFiniteError(
                    f"the {name} of {describe(samples[which])} are not finite. A demonstration has no rollout "
                    "log-probs and belongs to Learner.supervised; otherwise the weights are broken."
                )
        return old, values, finals

    def _of_reference(self, samples: Sequence[Sample]) -> Tensor | None:
        """The log-probs [tokens] of the reference; None without one."""
        if not self.settings.needs_reference:
            return None
        with self.policy.reference():
            return self._scores(samples, log_probs=True, values=False)[0]

    @torch.no_grad()
    def _scores(
        self, samples: Sequence[Sample], *, log_probs: bool, values: bool
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """(log-probs [tokens], values [tokens], final values [samples]) on the CPU, in the order of the samples."""
        if not (log_probs or values):
            return None, None, None
        columns: list[list[Tensor]] = [[torch.empty(0)] * len(samples) for _ in range(3)]
        for batch, chosen in self._batches(samples, range(len(samples))):
            said = self.policy.log_probs_and_values(
                batch, self.settings.temperature, log_probs=log_probs, values=values
            )
            counts = batch.response_mask.sum(1).tolist()
            for column, aligned in zip(columns, (said.log_probs, said.values), strict=False):
                if aligned is not None:
                    for i, part in zip(chosen, batch.flatten(aligned).cpu().split(counts), strict=True):
                        column[i] = part
            if said.final_values is not None:
                for i, part in zip(chosen, said.final_values.cpu().split(1), strict=True):
                    columns[2][i] = part
        asked = (log_probs, values, values)
        first, second, third = (torch.cat(column) if ask else None for column, ask in zip(columns, asked, strict=True))
        return first, second, third

    def _rewards(self, view: ResponseView, old: Tensor | None, reference: Tensor | None, metrics: Metrics) -> Tensor:
        """The token-level rewards [N, R], less the KL penalty where the config asks for one."""
        if not self.settings.kl_in_reward:
            return view.rewards
        assert old is not None
        assert reference is not None
        # k1: its gradient through the return is that of the KL, whatever estimator the loss term uses
        rewards, distance = apply_kl_penalty(
            view.rewards, view.spread(old), view.spread(reference), view.mask, self.kl.value, estimator="k1"
        )
        metrics.add("kl_reference", distance)
        metrics.add("kl_coef", self.kl.value)
        self.kl.update(float(distance), len(view))
        return rewards

    def _describe(
        self,
        samples: Sequence[Sample],
        view: ResponseView,
        credit: Credit,
        values: Tensor | None,
        trusts: bool,
        metrics: Metrics,
    ) -> None:
        """What is to be said about the data, before anything is learned from it."""
        staleness = [self.version - sample.policy_version for sample in samples]
        metrics.add("tokens", view.tokens)
        metrics.add("sequences", len(samples))
        metrics.add("trajectories", len(view))
        metrics.add("staleness", sum(staleness) / len(staleness))
        metrics.add("live_fraction", float(credit.live.float().mean()))
        metrics.add("live_groups", credit.live_groups)
        if self.settings.spec.loss == "policy":
            metrics.add("old_log_probs_recomputed", float(not trusts))
        if values is not None:
            said, learned = values[view.mask], credit.returns[view.mask]
            spread = learned.var(correction=0)
            metrics.add("value_mean", said.mean())
            metrics.add("return_mean", learned.mean())
            metrics.add("explained_variance", 1 - (learned - said).var(correction=0) / spread if spread > 0 else 0.0)

    # -- the steps ---------------------------------------------------------------------------------------------

    def _learn(
        self,
        samples: Sequence[Sample],
        view: ResponseView,
        credit: Credit,
        parts: list[list[Tensor] | None],
        metrics: Metrics,
    ) -> None:
        optimizer, settings = self.use_optimizer("update"), self.settings
        old, reference, values = parts
        known = Known(
            advantages=view.split(view.flatten(credit.advantages)),
            returns=view.split(view.flatten(credit.returns)),
            rollout_log_probs=view.split(view.flatten(view.rollout_log_probs)),
            old_log_probs=old,
            ref_log_probs=reference,
            values=values,
        )
        live = [row for row, alive in enumerate(credit.live.tolist()) if alive]
        full = min(settings.minibatches, len(view))
        # fewer live trajectories make fewer minibatches, not smaller ones: Adam steps by the same length on a few
        count = max(1, round(full * len(live) / len(view)))
        clones = settings.spec.loss == "rejection_sampling"
        objective = Objective.of(settings, known, count if clones else full)
        scale = len(live) / len(view) if settings.scale_step else 1.0
        pristine = True
        for epoch in range(settings.update_epochs):
            order = list(live)
            random.Random(f"{settings.seed}/{self.updates}/{epoch}").shuffle(order)
            for k in range(count):
                rows = set(order[len(order) * k // count : len(order) * (k + 1) // count])
                chosen = [i for i, row in enumerate(view.sample_rows) if row in rows]
                self._step(samples, chosen, objective, optimizer, scale, pristine, metrics)
                pristine = False
        metrics.add("optimizer_steps", settings.update_epochs * count)

    def _step(
        self,
        samples: Sequence[Sample],
        chosen: Sequence[int],
        objective: Objective,
        optimizer: Optimizer,
        scale: float,
        pristine: bool,
        metrics: Metrics,
    ) -> None:
        """One optimizer step on the chosen samples. `pristine`: the weights have not changed since the update began."""
        sums: dict[str, float] = {}
        with self._training(optimizer):
            for batch, members in self._batches(samples, chosen):
                scores = self.policy.log_probs_and_values(
                    batch,
                    self.settings.temperature,
                    entropy=True,
                    values=objective.known.values is not None,
                    entropy_gradient=self.settings.entropy_coef > 0,
                )
                assert scores.log_probs is not None
                own = [samples[i] for i in members]
                if pristine:
                    self._compare(scores.log_probs.detach(), batch, own, metrics)
                terms = objective.terms(scores, batch, members, metrics)
                for name, (_, loss) in terms.items():
                    _require_finite(name, loss, own)
                    sums[name] = sums.get(name, 0.0) + loss.item()
                torch.stack([weight * loss for weight, loss in terms.values()]).sum().backward()
            metrics.add_all(optimizer.step(scale))
        # the entropy itself is already a metric, as a mean per token
        metrics.add_all({name: value for name, value in sums.items() if name != "entropy_loss"})

    def _compare(self, log_probs: Tensor, batch: Batch, samples: Sequence[Sample], metrics: Metrics) -> None:
        """Measures |learner - engine| on tokens of the learner's own version. Raises AlignmentError where they cannot
        be the same tokens under the same weights."""
        current = torch.tensor([s.policy_version == self.version for s in samples], device=log_probs.device)
        comparable = batch.response_mask & current[:, None] & batch.rollout_log_probs.isfinite()
        tokens = int(comparable.sum())
        if not tokens:
            return
        gap = torch.where(comparable, log_probs - batch.rollout_log_probs, 0.0).abs()
        largest = float(gap.max())
        metrics.add("log_prob_gap_max", largest)
        metrics.add("log_prob_gap_mean", float(gap.sum()) / tokens, tokens)
        self._judge_gap(gap, comparable, samples)

    def _judge_gap(self, gap: Tensor, comparable: Tensor, samples: Sequence[Sample]) -> None:
        """Raises AlignmentError where `gap` [B, T] is more than rounding of the model's dtype explains."""
        limits = self.settings.gap_limits
        if limits is None:
            return
        counts = comparable.sum(1)
        means = torch.where(counts >= MEAN_OF, gap.sum(1) / counts.clamp(min=1), 0.0)
        row, column = divmod(int(gap.argmax()), gap.shape[1])
        if float(gap.max()) > limits.largest:
            found, most = f"{float(gap.max()):.3g} nats on token {column}", limits.largest
        elif float(means.max()) > limits.mean:
            row, most = int(means.argmax()), limits.mean
            found = f"{float(means[row]):.3g} nats as a mean over {int(counts[row])} tokens"
        else:
            return
        raise AlignmentError(
            f"engine and learner disagree by {found} of {describe(samples[row])} expected at most {most:g}, far more "
            f"than {self.policy.loaded.dtype} rounds: the engine saw other tokens, other pictures or other weights, or "
            "attends differently from the model. Did update_weights run after the last step? `uirl check` finds the "
            "turn."
        )

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

    def _batches(self, samples: Sequence[Sample], chosen: Sequence[int]) -> Iterator[tuple[Batch, list[int]]]:
        """(batch, which samples) for every micro-batch of the chosen samples."""
        subset = [samples[i] for i in chosen]
        for group in micro_batches(subset, self.settings.micro_batch_tokens):
            yield collate(self.policy.loaded, [subset[i] for i in group], self.images), [chosen[i] for i in group]


def _require_finite(name: str, loss: Tensor, samples: Sequence[Sample]) -> None:
    if not torch.isfinite(loss):
        ids = sorted({sample.trajectory_id for sample in samples})
        raise NonFiniteError(
            f"the {name} is {loss.item()} on {len(samples)} samples of the trajectories {', '.join(ids[:4])}"
            f"{', ...' if len(ids) > 4 else ''}; the step was refused. Were the weights still finite? A lower learning "
            "rate or training.max_grad_norm may have prevented it."
        )
