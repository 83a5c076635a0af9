"""The learner: one training step from samples, with a gradient that does not depend on how the batch was cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from uirl.algorithms import Algorithm, EntropyController, KLController
from uirl.config import ConfigStore
from uirl.errors import AlignmentError, ConfigError
from uirl.images import ImageStore
from uirl.learner.batch import MicroBatchRoom, SampleBatches
from uirl.learner.credit import Anchors, credit_of_update, numbered, score_old, score_reference, stale_weights
from uirl.learner.data_parallel import Begin, GatherState, Learn, Ranks, require_sliceable
from uirl.learner.optimizer import Optimizer
from uirl.learner.policy import Policy
from uirl.learner.settings import LearnerSettings
from uirl.learner.steps import (
    MinibatchSchedule,
    Objective,
    OnLearned,
    TokenPasses,
    UpdateSteps,
    UpdateTensors,
    imitate,
    learned_tokens,
    share_of_peak,
)
from uirl.learner.view import response_view
from uirl.metrics import Metrics
from uirl.types import Sample


class Learner:
    """Turns samples into steps of a policy.

    `version` counts the steps' worth of weights: it rises with every update that changed them and names the policy
    that samples were drawn from. `images` holds the pictures of the samples. An `algorithm` (`PPO(...)`, `GRPO(...)`)
    overrides the estimator, the credit and the loss of the config. `ranks`: the processes that learn together; None:
    this one is alone.
    """

    def __init__(
        self,
        policy: Policy,
        config: ConfigStore,
        images: ImageStore,
        *,
        algorithm: Algorithm | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self.policy = policy
        self.config = config
        self.images = images
        self.settings = LearnerSettings.of(config, algorithm)
        if self.settings.spec.needs_critic and policy.value_head is None:
            raise ConfigError("this estimator needs a critic; make the policy with critic=True")
        self.room = MicroBatchRoom(config.training.micro_batch_limit, recompute=policy.recompute_activations)
        self.version = 0
        self.updates = 0
        """Calls of `update`, those that took no step included. Seeds the order of the minibatches."""
        self.run_length = config.training.num_epochs * config.training.num_iters_per_epoch
        """Updates of the whole run, over which `training.lr_schedule` lowers the learning rates."""
        self.phase: str | None = None
        """'update' or 'supervised': whose optimizer is at work; None: none yet."""
        self.optimizer: Optimizer | None = None
        self.reference_frozen = False
        target = config.algorithm.kl_target
        self.kl = KLController(
            config.training.kl_coef,
            target_kl=target if target is not None else 0.1,
            adaptive=target is not None,
            horizon=config.algorithm.kl_horizon,
        )
        steered = config.training.target_entropy is not None and config.entropy_coef > 0
        self.entropy = EntropyController(config.entropy_coef) if steered else None
        """Steers the weight of the entropy bonus towards `training.target_entropy`; None: nothing does."""
        self.ranks = ranks
        self._slices: Slices | None = None
        if ranks is not None:
            from uirl.learner.slices import Slices  # FSDP2 is loaded where it is used

            require_sliceable(config.model, config.training)
            self._slices = ranks.call(Begin(config.to_dict()), lambda: Slices(ranks, policy.model, policy.value_head))

    # -- supervised --------------------------------------------------------------------------------------------

    def supervised(self, samples: Sequence[Sample]) -> dict[str, float]:
        """Take one step on the mean negative log-likelihood of the response tokens; return its metrics (`loss`,
        `tokens`, ...).

        Used by the warm start and by rejection sampling. Rewards, log-probs and versions of the samples are not read.
        The first call after an update starts a fresh optimizer, with the settings of `training.warm_start`.
        """
        if not samples:
            raise AlignmentError("no samples: got an empty list, expected at least one demonstration")
        if self.ranks is None:
            return self._imitate(samples)
        call = Learn.of(samples, self.images, self.run_length, supervised=True)
        return self.ranks.call(call, lambda: self._imitate(samples))

    def _imitate(self, samples: Sequence[Sample]) -> dict[str, float]:
        metrics = imitate(self.policy, self.use_optimizer("supervised"), self._batches(samples))
        self.version += 1
        return metrics

    # -- one update --------------------------------------------------------------------------------------------

    def update(
        self,
        samples: Sequence[Sample],
        *,
        anchors: Anchors | None = None,
        spared: Mapping[str, int] | None = None,
        on_learned: OnLearned | None = None,
    ) -> dict[str, float]:
        """Take one training step on `samples` (all segments of each trajectory); return its metrics.

        Old log-probs, values and reference; credit on whole trajectories; then `training.update_epochs` passes over
        `training.minibatches` minibatches of trajectories. No step is taken, and `version` stays, where no trajectory
        carries a signal or fewer groups than `algorithm.min_live_groups` do (`skipped` is then 1).

        `anchors`: state keys per turn, for 'gigpo'. `spared`: trajectory id -> how many of its turns, from the first
        on, are not to blame (`spare_turns`). `on_learned` is told what was made of every token, once the steps are
        taken. Raises AlignmentError where samples do not fit together or not this policy, NonFiniteError where a loss
        or gradient is not finite.
        """
        if self.ranks is None:
            return self._update(samples, anchors, spared, on_learned)
        numbers = None if anchors is None else numbered(anchors)
        more = {"anchors": numbers, "spared": dict(spared or {}), "noted": on_learned is not None}
        call = Learn.of(samples, self.images, self.run_length, supervised=False, **more)
        return self.ranks.call(call, lambda: self._update(samples, numbers, spared, on_learned))

    def _update(
        self,
        samples: Sequence[Sample],
        anchors: Anchors | None,
        spared: Mapping[str, int] | None,
        on_learned: OnLearned | None,
    ) -> dict[str, float]:
        view = response_view(samples)
        view.require_versions(self.version)
        self._freeze_reference()
        self.updates += 1
        policy, settings, version = self.policy, self.settings, self.version
        batches = self._batches(samples)
        old = score_old(policy, settings, view, batches, self.version)
        reference = score_reference(policy, settings, view, batches)
        credit, credit_metrics = credit_of_update(settings, view, old, reference, self.kl, anchors)
        credit = credit.sparing(view, spared or {})
        takes_step = credit.is_signal(settings)
        metrics = Metrics()
        weights, stale_metrics = stale_weights(settings, view, old, self.version)
        metrics.add_all(view.describe(self.version) | stale_metrics | credit_metrics)
        metrics.add("skipped", float(not takes_step))
        if settings.spec.loss == "policy":
            metrics.add("old_log_probs_recomputed", float(not old.from_engine))
        passes = None if on_learned is None else TokenPasses(view.token_counts)
        if takes_step:
            schedule = MinibatchSchedule.of(settings, view, credit)
            coefficients = {"entropy_coef": self._entropy_coef(), "kl_loss_coef": self._kl_loss_coef()}
            objective = Objective.of(
                settings,
                UpdateTensors.of(view, credit.weighed(weights), old, reference),
                schedule.shares,
                **coefficients,
            )
            metrics.add_all(coefficients)
            minibatches = schedule.minibatches(
                settings.training.update_epochs, f"{settings.training.seed}/{self.updates}"
            )
            steps = UpdateSteps(policy, self.use_optimizer("update"), settings, version, metrics, passes)
            steps.take(batches, objective, minibatches, schedule.scale * self._learning_rate_share())
            self.version += 1
            self._steer_entropy(metrics)
        if on_learned is not None and passes is not None:
            on_learned(learned_tokens(view, credit, weights, old, passes), version)
        return {name: value for name, value in metrics.reduce().items() if value is not None}

    def use_optimizer(self, phase: str) -> Optimizer:
        """Return the optimizer of 'update' or 'supervised'; a fresh one where the other phase was at work before."""
        if self.optimizer is None or self.phase != phase:
            if self.optimizer is not None:
                self.optimizer.detach()
            head = self.policy.value_head if phase == "update" else None
            value = [] if head is None else [(f"value_head.{n}", p) for n, p in head.named_parameters()]
            how = self.settings.optimizer(phase)
            self.optimizer = Optimizer(self.policy.named_trainable(), value, how, self._slices)
            self.phase = phase
        return self.optimizer

    def optimizer_state(self) -> dict[str, Tensor]:
        """Return the state of the optimizer, which there must be: see `Optimizer.state`."""
        assert self.optimizer is not None
        return self.optimizer.state() if self.ranks is None else self.ranks.call(GatherState(), self.optimizer.state)

    def _batches(self, samples: Sequence[Sample]) -> SampleBatches:
        how = self.config.training
        loaded, images, room = self.policy.loaded, self.images, self.room
        return SampleBatches(loaded, samples, images, room, how.share_prompts, how.padding_free, self.ranks)

    def _learning_rate_share(self) -> float:
        training = self.settings.training
        return share_of_peak(training.lr_schedule, training.lr_final_ratio, self.updates, self.run_length)

    def _entropy_coef(self) -> float:
        return self.settings.entropy_coef * self._entropy_share() if self.entropy is None else self.entropy.value

    def _entropy_share(self) -> float:
        training = self.settings.training
        return share_of_peak(training.entropy_schedule, training.entropy_final_ratio, self.updates, self.run_length)

    def _steer_entropy(self, metrics: Metrics) -> None:
        target = self.settings.training.target_entropy
        if self.entropy is not None and target is not None:
            target *= self._entropy_share()
            metrics.add("target_entropy", target)
            entropy = metrics.reduce()["bonus_entropy"]
            assert entropy is not None
            self.entropy.update(entropy, target)

    def _kl_loss_coef(self) -> float:
        finer = self.settings.algorithm
        share = share_of_peak(finer.kl_loss_schedule, finer.kl_loss_final_ratio, self.updates, self.run_length)
        return self.settings.kl_loss_coef * share

    def _freeze_reference(self) -> None:
        if self.settings.needs_reference and not self.reference_frozen:
            self.policy.freeze_reference()
            self.reference_frozen = True
