"""What a learner does, resolved once from the config or from the description of an algorithm."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from uirl.algorithms import AdvantageOptions, Algorithm, AlgorithmSpec, LossOptions, PolicyLossOptions, get_algorithm
from uirl.config import AlgorithmConfig, ConfigStore, InferenceConfig, ModelConfig, TrainingConfig, WarmStartConfig
from uirl.config.rates import rate_of
from uirl.errors import AlignmentError, ConfigError
from uirl.inference.models.precision import dtype_of
from uirl.learner.batch import Batch, describe
from uirl.learner.optimizer import OptimizerSettings
from uirl.types import Sample


@dataclass(frozen=True, slots=True)
class LearnerSettings:
    """The choices of one learner: the sections of its config, and what follows from them."""

    training: TrainingConfig
    algorithm: AlgorithmConfig
    spec: AlgorithmSpec
    advantage: AdvantageOptions
    loss: LossOptions
    """`loss_length` None: the longest response of the update."""
    value_clip: float | None
    """How far a value may move in one update, in units of reward; None: unclipped."""
    kl_loss_coef: float
    entropy_coef: float
    """At the beginning of the run."""
    temperature: float
    like_with_like: bool
    """The engine's log-probs are of all tokens, as the learner's are: no top-p, no top-k. Else neither can weigh the
    other."""
    corrects_stale: bool
    """Samples of older weights are corrected as `algorithm.stale_correction` says; false: it says 'off', the loss
    corrects all samples by itself, or it does not read log-probs of the learner's own."""
    engine_is_exact: bool
    """The rollout log-probs are those of the learner to 1e-4: the embedded engine, float32, no filter, no dropout."""
    gap_limits: GapLimits | None
    """What is compared with the gap between engine and learner; None: they are not meant to agree (filters, dropout,
    greedy sampling)."""

    @staticmethod
    def of(config: ConfigStore, algorithm: Algorithm | None = None) -> LearnerSettings:
        """Return the settings of `config`; an `algorithm` (`PPO(...)`, `GRPO(...)`) overrides estimator, credit and
        loss."""
        training, finer = config.training.model_copy(deep=True), config.algorithm.model_copy(deep=True)
        training.learning_rate = rate_of(config, "training")
        training.warm_start.learning_rate = rate_of(config, "warm_start")
        spec = algorithm.spec if algorithm else get_algorithm(training.adv_estimator)
        limits = gap_limits(config.model, config.inference)
        loss = algorithm.loss_options() if algorithm else _loss_options(training, finer, spec)
        corrects_all = loss.get("options", PolicyLossOptions()).corrects_mismatch
        compares = corrects_all or (training.old_log_probs == "rollout" and spec.loss == "policy")
        if compares and config.inference.filtered:
            raise ConfigError(
                f"inference.top_p={config.inference.top_p} and top_k={config.inference.top_k} with a loss that weighs "
                "the learner's log-probs by the engine's (tis_cap, mismatch_range, old_log_probs=rollout): the latter "
                "are those of what it had left to choose from; use top_p=1 and top_k=0, or leave the weight out"
            )
        return LearnerSettings(
            training=training,
            algorithm=finer,
            spec=spec,
            advantage=algorithm.advantage_options() if algorithm else _advantage_options(training, finer),
            loss=loss,
            value_clip=getattr(algorithm, "cliprange_value", None) if algorithm else training.value_clip,
            kl_loss_coef=getattr(algorithm, "kl_coef", 0.0) if algorithm else finer.kl_loss_coef,
            entropy_coef=config.entropy_coef,
            temperature=config.inference.temperature or 1.0,
            like_with_like=not config.inference.filtered,
            corrects_stale=finer.stale_correction != "off"
            and training.old_log_probs != "rollout"
            and spec.loss == "policy"
            and not corrects_all,
            engine_is_exact=limits is FLOAT32,
            gap_limits=limits,
        )

    @property
    def needs_reference(self) -> bool:
        """Whether a reference policy takes part in the reward or the loss."""
        return self.training.use_kl_in_reward or self.kl_loss_coef > 0

    @property
    def reads_old_log_probs(self) -> bool:
        """Whether credit or loss read the log-probs at the start of an update."""
        return self.spec.loss == "policy" or self.training.use_kl_in_reward

    def optimizer(self, phase: str) -> OptimizerSettings:
        """Return how the optimizer of 'update' or 'supervised' steps."""
        rates: TrainingConfig | WarmStartConfig = self.training if phase == "update" else self.training.warm_start
        of_value = self.training.value_learning_rate if phase == "update" else None
        rate = rates.learning_rate
        assert rate is not None, "`of` chose it"
        return OptimizerSettings(
            learning_rate=rate,
            value_learning_rate=rate if of_value is None else of_value,
            betas=rates.betas,
            weight_decay=self.training.weight_decay,
            warmup_steps=rates.warmup_steps,
            max_grad_norm=self.training.max_grad_norm,
            eight_bit=self.training.optimizer == "adamw_8bit",
        )


def _advantage_options(training: TrainingConfig, finer: AlgorithmConfig) -> AdvantageOptions:
    return {
        "gamma": training.gamma,
        "lam": training.lam,
        "normalize_by_std": finer.normalize_by_std,
        "whiten": finer.whiten_advantages,
        "reward_threshold": finer.reward_threshold,
        "step_advantage_weight": finer.step_weight,
    }


def _loss_options(training: TrainingConfig, finer: AlgorithmConfig, spec: AlgorithmSpec) -> LossOptions:
    shared: LossOptions = {"aggregation": finer.loss_aggregation, "loss_length": finer.loss_length}
    if spec.loss == "rejection_sampling":
        return shared
    low, high = training.clip_range
    options = PolicyLossOptions(
        eps_low=low,
        eps_high=high,
        clip_ratio_c=finer.dual_clip,
        ratio_level=finer.ratio,
        tis_cap=finer.tis_cap,
        tis_level=finer.tis_level,
        mismatch_range=finer.mismatch_range,
        mismatch_level=finer.mismatch_level,
    )
    return {**shared, "options": options}


@dataclass(frozen=True, slots=True)
class GapLimits:
    """|engine - learner| in nats beyond which it is no rounding: other tokens, other pictures, other weights, or
    attention that the engine does not know."""

    largest: float
    """Of one token."""
    mean: float
    """Over the tokens of one sample, where it has `MEAN_OF` or more."""


MEAN_OF = 16
FLOAT32 = GapLimits(largest=0.1, mean=0.01)
"""Engine and learner agree to 1e-4, on a GPU to 1e-3."""
HALF = GapLimits(largest=2.0, mean=0.2)
"""bfloat16 and float16. Measured with the embedded engine over tiny models of seven families with flat and with peaked
distributions: at most 0.2 for one token and 0.022 as a mean over a sample. An engine that ignores a window made 4 to 11
and 0.8 to 3.5 where the distributions were peaked."""
OTHER_ENGINE = GapLimits(largest=math.inf, mean=0.5)
"""Other kernels, possibly of other precision: single tokens may differ widely, a whole sample may not."""


def gap_limits(model: ModelConfig, inference: InferenceConfig) -> GapLimits | None:
    """Return the limits for the engine of a config; None: engine and learner are not meant to agree."""
    dropping = model.use_lora and model.lora.lora_dropout > 0
    if inference.filtered or dropping or inference.temperature == 0 or inference.backend == "openai":
        return None
    if inference.backend != "transformers":
        return OTHER_ENGINE
    return FLOAT32 if dtype_of(model) == "float32" else HALF


@dataclass(frozen=True, slots=True)
class EngineGap:
    """|learner - engine| on the tokens that the learner's own weights sampled."""

    nats: Tensor
    """[B, T], 0 where nothing is compared."""
    counts: Tensor
    """int64 [B]: compared tokens of each row."""

    @staticmethod
    def of(log_probs: Tensor, batch: Batch, current: Sequence[bool]) -> EngineGap:
        """Return the gap between `log_probs` [B, T] and those of the engine, in rows that are `current` [B]."""
        rows = torch.tensor(current, device=log_probs.device)
        comparable = batch.response_mask & rows[:, None] & batch.rollout_log_probs.isfinite()
        nats = torch.where(comparable, log_probs - batch.rollout_log_probs, 0.0).abs()
        return EngineGap(nats, comparable.sum(1))

    @property
    def tokens(self) -> int:
        """Compared tokens of all rows."""
        return int(self.counts.sum())

    def require(self, limits: GapLimits, samples: Sequence[Sample], dtype: torch.dtype) -> None:
        """Raise AlignmentError where the gap is more than rounding in `dtype` explains; `samples` are the rows."""
        means = torch.where(self.counts >= MEAN_OF, self.nats.sum(1) / self.counts.clamp(min=1), 0.0)
        row, column = divmod(int(self.nats.argmax()), self.nats.shape[1])
        if float(self.nats.max()) > limits.largest:
            gap, limit = f"{float(self.nats.max()):.3g} nats on token {column}", limits.largest
        elif float(means.max()) > limits.mean:
            row, limit = int(means.argmax()), limits.mean
            gap = f"{float(means[row]):.3g} nats as a mean over {int(self.counts[row])} tokens"
        else:
            return
        raise AlignmentError(
            f"engine and learner disagree by {gap} of {describe(samples[row])} expected at most {limit:g}, far more "
            f"than {dtype} rounds: the engine saw other tokens, other pictures or other weights, or attends "
            "differently from the model. Did update_weights run after the last step? `uirl check` finds the turn."
        )
