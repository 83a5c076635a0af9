"""The table of algorithms: the values of `training.adv_estimator`, and what each needs."""

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from torch import Tensor

from uirl.algorithms.advantages import (
    compute_gae_advantage_return,
    compute_grpo_advantage,
    compute_reinforce_plus_plus_advantage,
    compute_reinforce_plus_plus_baseline_advantage,
    compute_rejection_sampling_advantage,
    compute_rloo_advantage,
)
from uirl.algorithms.inputs import AdvantageInputs
from uirl.algorithms.turns import compute_gigpo_advantage, compute_turn_level_advantage

LossName = Literal["policy", "rejection_sampling"]
AdvantageFunction: TypeAlias = Callable[[AdvantageInputs], tuple[Tensor, Tensor]]


@dataclass(frozen=True, kw_only=True)
class AlgorithmSpec:
    """What an estimator needs of collection and learning."""

    advantage: AdvantageFunction
    """From the inputs to `(advantages, returns)`, both `[B, T]`."""
    summary: str
    """One line for `--help` and the docs."""
    needs_critic: bool = False
    """Whether `values` must be given and a critic trained on `returns`."""
    needs_group: bool = False
    """Whether several trajectories of one task are compared: `index`, and a group size above 1."""
    needs_turns: bool = False
    """Whether `turn_ids` must be given."""
    needs_anchors: bool = False
    """Whether `anchor_ids` must be given."""
    loss: LossName = "policy"
    """'policy': `compute_policy_loss`; 'rejection_sampling': `compute_rejection_sampling_loss`."""


def _gae(inputs: AdvantageInputs) -> tuple[Tensor, Tensor]:
    return compute_gae_advantage_return(
        inputs.token_level_rewards,
        inputs.required_values("gae"),
        inputs.response_mask,
        inputs.gamma,
        inputs.lam,
        whiten=inputs.whiten,
        bootstrap_values=inputs.bootstrap_values,
    )


def _grpo(inputs: AdvantageInputs) -> tuple[Tensor, Tensor]:
    index = inputs.required_index("grpo")
    return compute_grpo_advantage(
        inputs.token_level_rewards, inputs.response_mask, index, normalize_by_std=inputs.normalize_by_std
    )


def _grpo_mean(inputs: AdvantageInputs) -> tuple[Tensor, Tensor]:
    index = inputs.required_index("grpo_mean")
    return compute_grpo_advantage(inputs.token_level_rewards, inputs.response_mask, index, normalize_by_std=False)


def _rloo(inputs: AdvantageInputs) -> tuple[Tensor, Tensor]:
    index = inputs.required_index("rloo")
    return compute_rloo_advantage(inputs.token_level_rewards, inputs.response_mask, index)


def _reinforce_plus_plus(inputs: AdvantageInputs) -> tuple[Tensor, Tensor]:
    advantages, returns = compute_reinforce_plus_plus_advantage(
        inputs.token_level_rewards, inputs.response_mask, inputs.gamma
    )
    return advantages if inputs.whiten else returns, returns


def _reinforce_plus_plus_baseline(inputs: AdvantageInputs) -> tuple[Tensor, Tensor]:
    index = inputs.required_index("reinforce_plus_plus_baseline")
    return compute_reinforce_plus_plus_baseline_advantage(inputs.token_level_rewards, inputs.response_mask, index)


def _turn_level(inputs: AdvantageInputs) -> tuple[Tensor, Tensor]:
    return compute_turn_level_advantage(
        inputs.token_level_rewards,
        inputs.response_mask,
        inputs.required_index("turn_level"),
        inputs.required_turn_ids("turn_level"),
        gamma=inputs.gamma,
        normalize_by_std=inputs.normalize_by_std,
    )


def _gigpo(inputs: AdvantageInputs) -> tuple[Tensor, Tensor]:
    return compute_gigpo_advantage(
        inputs.token_level_rewards,
        inputs.response_mask,
        inputs.required_index("gigpo"),
        inputs.required_turn_ids("gigpo"),
        inputs.required_anchor_ids("gigpo"),
        gamma=inputs.gamma,
        step_advantage_weight=inputs.step_advantage_weight,
        normalize_by_std=inputs.normalize_by_std,
    )


def _rejection_sampling(inputs: AdvantageInputs) -> tuple[Tensor, Tensor]:
    return compute_rejection_sampling_advantage(
        inputs.token_level_rewards, inputs.response_mask, inputs.reward_threshold
    )


_GAE = AlgorithmSpec(advantage=_gae, needs_critic=True, summary="PPO: a critic, and generalised advantages per token")
_GRPO_MEAN = AlgorithmSpec(advantage=_grpo_mean, needs_group=True, summary="Dr. GRPO: reward minus the group's mean")

ALGORITHMS: dict[str, AlgorithmSpec] = {
    "gae": _GAE,
    "ppo": _GAE,
    "grpo": AlgorithmSpec(
        advantage=_grpo, needs_group=True, summary="GRPO: reward relative to the group's mean and spread"
    ),
    "grpo_mean": _GRPO_MEAN,
    "dr_grpo": _GRPO_MEAN,
    "rloo": AlgorithmSpec(
        advantage=_rloo, needs_group=True, summary="RLOO: reward minus the mean of the others in the group"
    ),
    "reinforce_plus_plus": AlgorithmSpec(
        advantage=_reinforce_plus_plus,
        summary="REINFORCE++: discounted reward-to-go, whitened over the batch",
    ),
    "reinforce_plus_plus_baseline": AlgorithmSpec(
        advantage=_reinforce_plus_plus_baseline,
        needs_group=True,
        summary="REINFORCE++-baseline: reward minus the group's mean, whitened over the batch",
    ),
    "turn_level": AlgorithmSpec(
        advantage=_turn_level,
        needs_group=True,
        needs_turns=True,
        summary="reward-to-go of each turn relative to the same turn of the group",
    ),
    "gigpo": AlgorithmSpec(
        advantage=_gigpo,
        needs_group=True,
        needs_turns=True,
        needs_anchors=True,
        summary="GiGPO: group advantage of the episode plus that of the turn among equal states",
    ),
    "rejection_sampling": AlgorithmSpec(
        advantage=_rejection_sampling,
        loss="rejection_sampling",
        summary="supervised learning on the trajectories above a reward threshold",
    ),
}


def get_algorithm(adv_estimator: str) -> AlgorithmSpec:
    """Return the entry of `ALGORITHMS` with this name.

    Raises:
        ValueError: No such name; the message names the nearest one and lists all.
    """
    if adv_estimator in ALGORITHMS:
        return ALGORITHMS[adv_estimator]
    near = difflib.get_close_matches(str(adv_estimator).lower(), ALGORITHMS, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ";"
    raise ValueError(
        f"training.adv_estimator must name an algorithm: got {adv_estimator!r}{hint} "
        f"Expected one of {', '.join(ALGORITHMS)}"
    )
