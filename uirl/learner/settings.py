"""What a learner does, resolved once from the config or from the description of an algorithm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from uirl.algorithms import Algorithm, AlgorithmSpec, KLEstimator, PolicyLossOptions, get_algorithm
from uirl.config import ConfigStore
from uirl.learner.engine_gap import FLOAT32, GapLimits, gap_limits
from uirl.learner.optimizer import OptimizerSettings

OldLogProbs = Literal["auto", "rollout", "recompute"]


@dataclass(frozen=True, slots=True)
class LearnerSettings:
    """The numbers and choices of one learner."""

    spec: AlgorithmSpec
    advantage: dict[str, Any]
    """Keyword arguments of `AdvantageInputs`, beside the tensors."""
    policy_loss: dict[str, Any]
    """Keyword arguments of the loss that `spec.loss` names. `loss_length` None: the longest response of the update."""
    value_clip: float | None
    """How far a value may move in one update, in units of reward; None: unclipped."""
    update: OptimizerSettings
    supervised: OptimizerSettings
    temperature: float
    old_log_probs: OldLogProbs
    engine_is_exact: bool
    """The rollout log-probs are those of the learner to 1e-4: the embedded engine, float32, no filter, no dropout."""
    gap_limits: GapLimits | None
    """What is compared with the gap between engine and learner; None: they are not meant to agree (filters, dropout,
    greedy sampling)."""
    update_epochs: int
    minibatches: int
    micro_batch_tokens: int
    entropy_coef: float
    value_coef: float
    kl_in_reward: bool
    kl_coef: float
    kl_target: float | None
    kl_horizon: int
    kl_loss_coef: float
    kl_type: KLEstimator
    skip_dead_groups: bool
    min_live_groups: float
    scale_step: bool
    """The learning rate of a step is scaled by the share of trajectories that carry a signal."""
    seed: int

    @property
    def needs_reference(self) -> bool:
        return self.kl_in_reward or self.kl_loss_coef > 0

    @staticmethod
    def of(config: ConfigStore, algorithm: Algorithm | None = None) -> LearnerSettings:
        """The settings of `config`; an `algorithm` (`PPO(...)`, `GRPO(...)`) overrides estimator, credit and loss."""
        training, finer = config.training, config.algorithm
        spec = algorithm.spec if algorithm else get_algorithm(training.adv_estimator)
        limits = gap_limits(config)
        return LearnerSettings(
            spec=spec,
            advantage=algorithm.advantage_options() if algorithm else _advantage_options(config),
            policy_loss=algorithm.loss_options() if algorithm else _loss_options(config, spec),
            value_clip=algorithm.value_loss_options().get("cliprange_value") if algorithm else training.value_clip,
            update=_update_settings(config),
            supervised=_supervised_settings(config),
            temperature=config.inference.temperature or 1.0,
            old_log_probs=training.old_log_probs,
            engine_is_exact=limits is FLOAT32,
            gap_limits=limits,
            update_epochs=training.update_epochs,
            minibatches=training.minibatches,
            micro_batch_tokens=training.micro_batch_tokens,
            entropy_coef=training.entropy_coef,
            value_coef=training.value_coef,
            kl_in_reward=training.use_kl_in_reward,
            kl_coef=training.kl_coef,
            kl_target=finer.kl_target,
            kl_horizon=finer.kl_horizon,
            kl_loss_coef=getattr(algorithm, "kl_coef", 0.0) if algorithm else finer.kl_loss_coef,
            kl_type=finer.kl_type,
            skip_dead_groups=finer.skip_dead_groups,
            min_live_groups=finer.min_live_groups,
            scale_step=finer.scale_step_by_live,
            seed=training.seed,
        )

    @property
    def reads_old_log_probs(self) -> bool:
        return self.spec.loss == "policy" or self.kl_in_reward


def _advantage_options(config: ConfigStore) -> dict[str, Any]:
    return {
        "gamma": config.training.gamma,
        "lam": config.training.lam,
        "normalize_by_std": config.algorithm.normalize_by_std,
        "whiten": config.algorithm.whiten_advantages,
        "reward_threshold": config.algorithm.reward_threshold,
        "step_advantage_weight": config.algorithm.step_weight,
    }


def _loss_options(config: ConfigStore, spec: AlgorithmSpec) -> dict[str, Any]:
    finer = config.algorithm
    shared = {"aggregation": finer.loss_aggregation, "loss_length": finer.loss_length}
    if spec.loss == "rejection_sampling":
        return shared
    low, high = config.training.clip_range
    options = PolicyLossOptions(
        eps_low=low, eps_high=high, clip_ratio_c=finer.dual_clip, ratio_level=finer.ratio, tis_cap=finer.tis_cap
    )
    return shared | {"options": options}


def _update_settings(config: ConfigStore) -> OptimizerSettings:
    training = config.training
    value_rate = training.value_learning_rate
    return OptimizerSettings(
        learning_rate=training.learning_rate,
        value_learning_rate=training.learning_rate if value_rate is None else value_rate,
        betas=training.betas,
        weight_decay=training.weight_decay,
        warmup_steps=training.warmup_steps,
        max_grad_norm=training.max_grad_norm,
    )


def _supervised_settings(config: ConfigStore) -> OptimizerSettings:
    training, warm = config.training, config.training.warm_start
    return OptimizerSettings(
        learning_rate=warm.learning_rate,
        value_learning_rate=warm.learning_rate,
        betas=warm.betas,
        weight_decay=training.weight_decay,
        warmup_steps=warm.warmup_steps,
        max_grad_norm=training.max_grad_norm,
    )
