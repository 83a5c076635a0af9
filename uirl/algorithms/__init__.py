"""Reinforcement-learning algorithms as pure functions on tensors, and the table that names them.

advantages.py, turns.py   rewards -> one advantage per response token, and the recurrence beneath
token_scores.py           logits -> log-probs and entropies of sampled tokens
losses.py                 what the optimiser minimises, and the importance weights of it
kl.py                     distance to a reference: estimators, penalty, controller
aggregation.py            token numbers -> batch numbers
registry.py               the inputs of an estimator, and the names of all
descriptions.py           `PPO(...)`, `GRPO(...)`, ... for `Trainer(model, algorithm)`
groups.py, checks.py      the group arithmetic, the shape checks
"""

from uirl.algorithms.advantages import (
    compute_gae_advantage_return,
    compute_grpo_advantage,
    compute_reinforce_plus_plus_advantage,
    compute_reinforce_plus_plus_baseline_advantage,
    compute_rejection_sampling_advantage,
    compute_rloo_advantage,
    discounted_suffix_sum,
)
from uirl.algorithms.aggregation import Aggregation, aggregate_loss, aggregation_denominator, masked_mean, masked_whiten
from uirl.algorithms.descriptions import (
    GRPO,
    PPO,
    RLOO,
    Algorithm,
    GiGPO,
    ReinforcePlusPlus,
    RejectionSampling,
    TurnLevel,
)
from uirl.algorithms.groups import GroupIndex, at_most, differ
from uirl.algorithms.kl import KLController, KLEstimator, apply_kl_penalty, compute_kl, compute_kl_loss
from uirl.algorithms.losses import (
    LossOptions,
    PolicyLossOptions,
    RatioLevel,
    clipped_surrogate,
    compute_policy_loss,
    compute_rejection_sampling_loss,
    compute_value_loss,
    dual_clip,
    effective_sample_size,
    kept_mask,
    level_log_weight,
    masked_weight,
    mismatch_log_weight,
    mismatch_mask,
    sequence_log_ratio,
    token_log_ratio,
    truncated_weight,
)
from uirl.algorithms.registry import ALGORITHMS, AdvantageInputs, AdvantageOptions, AlgorithmSpec, get_algorithm
from uirl.algorithms.token_scores import EntropyController, compute_entropy, drop_unlikely, score_tokens
from uirl.algorithms.turns import compute_gigpo_advantage, compute_turn_level_advantage, spare_turns

__all__ = [
    "ALGORITHMS",
    "GRPO",
    "PPO",
    "RLOO",
    "AdvantageInputs",
    "AdvantageOptions",
    "Aggregation",
    "Algorithm",
    "AlgorithmSpec",
    "EntropyController",
    "GiGPO",
    "GroupIndex",
    "KLController",
    "KLEstimator",
    "LossOptions",
    "PolicyLossOptions",
    "RatioLevel",
    "ReinforcePlusPlus",
    "RejectionSampling",
    "TurnLevel",
    "aggregate_loss",
    "aggregation_denominator",
    "apply_kl_penalty",
    "at_most",
    "clipped_surrogate",
    "compute_entropy",
    "compute_gae_advantage_return",
    "compute_gigpo_advantage",
    "compute_grpo_advantage",
    "compute_kl",
    "compute_kl_loss",
    "compute_policy_loss",
    "compute_reinforce_plus_plus_advantage",
    "compute_reinforce_plus_plus_baseline_advantage",
    "compute_rejection_sampling_advantage",
    "compute_rejection_sampling_loss",
    "compute_rloo_advantage",
    "compute_turn_level_advantage",
    "compute_value_loss",
    "differ",
    "discounted_suffix_sum",
    "drop_unlikely",
    "dual_clip",
    "effective_sample_size",
    "get_algorithm",
    "kept_mask",
    "level_log_weight",
    "masked_mean",
    "masked_weight",
    "masked_whiten",
    "mismatch_log_weight",
    "mismatch_mask",
    "score_tokens",
    "sequence_log_ratio",
    "spare_turns",
    "token_log_ratio",
    "truncated_weight",
]
