"""The table of algorithms: the values of `training.adv_estimator`, and what each needs."""

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypedDict

from torch import Tensor

from uirl.algorithms.advantages import (
    compute_gae_advantage_return,
    compute_grpo_advantage,
    compute_reinforce_plus_plus_advantage,
    compute_reinforce_plus_plus_baseline_advantage,
    compute_rejection_sampling_advantage,
    compute_rloo_advantage,
)
from uirl.algorithms.checks import as_bool_mask, check_aligned, check_unit_interval
from uirl.algorithms.groups import GroupIndex
from uirl.algorithms.turns import compute_gigpo_advantage, compute_turn_level_advantage


class AdvantageOptions(TypedDict, total=False):
    """The hyper-parameters of `AdvantageInputs`, as keyword arguments."""

    gamma: float
    lam: float
    normalize_by_std: bool
    whiten: bool
    reward_threshold: float
    step_advantage_weight: float


@dataclass(frozen=True, eq=False, kw_only=True)
class AdvantageInputs:
    """A batch of whole trajectories, one per row, with the hyper-parameters of credit assignment.

    Stricter than the functions it feeds: a reward under mask 0, or one that is not finite, is an error here,
    because it would vanish or spread without a trace.
    """

    token_level_rewards: Tensor
    """`[B, T]`; the reward of a turn stands on the turn's last response token."""
    response_mask: Tensor
    """0 and 1, `[B, T]`: the policy sampled this token."""
    values: Tensor | None = None
    """`[B, T]` from the critic; None where the estimator has no critic."""
    bootstrap_values: Tensor | None = None
    """`[B]`, the value after the last token of truncated episodes; None: every episode ended by itself."""
    index: GroupIndex | None = None
    """One group id per row; None where the estimator has no groups."""
    turn_ids: Tensor | None = None
    """int64 `[B, T]`, the turn number of each response token from 0, -1 elsewhere; None where turns do not
    matter."""
    anchor_ids: Tensor | None = None
    """int64 `[B, T]`, the id of the state in which the token's turn started, -1 for none; None except for
    gigpo."""
    gamma: float = 1.0
    """Discount per response token (gae, reinforce_plus_plus) or per turn (turn_level, gigpo)."""
    lam: float = 0.95
    """Trace decay of gae."""
    normalize_by_std: bool = True
    """Whether group estimators divide by the group's standard deviation."""
    whiten: bool = True
    """Whether gae and reinforce_plus_plus whiten their advantages over the batch."""
    reward_threshold: float = 0.0
    """rejection_sampling keeps trajectories with a larger reward."""
    step_advantage_weight: float = 1.0
    """Weight of the step term of gigpo."""

    def __post_init__(self) -> None:
        named = {
            "response_mask": self.response_mask,
            "values": self.values,
            "turn_ids": self.turn_ids,
            "anchor_ids": self.anchor_ids,
        }
        check_aligned(
            token_level_rewards=self.token_level_rewards,
            **{name: tensor for name, tensor in named.items() if tensor is not None},
        )
        check_unit_interval(gamma=self.gamma, lam=self.lam)
        self._check_rewards()

    def _check_rewards(self) -> None:
        rewards = self.token_level_rewards
        stray = (rewards != 0) & ~as_bool_mask(self.response_mask)
        if stray.any():
            raise ValueError(
                f"token_level_rewards must be 0 where response_mask is 0: got {_first(rewards, stray)}; put the reward "
                "of a turn on its last response token, or it would be lost"
            )
        if not rewards.isfinite().all():
            raise ValueError(
                f"token_level_rewards must be finite: got {_first(rewards, ~rewards.isfinite())}; a failed verdict is "
                "a missing episode, never a number"
            )


def _first(values: Tensor, wrong: Tensor) -> str:
    """Return the first of `values` `[B, T]` that is `wrong`, and where it stands."""
    row, column = wrong.nonzero()[0].tolist()
    return f"{values[row, column].item()} in row {row}, column {column}"


_EXPECTED = {
    "values": "the critic's values [B, T]",
    "index": "one group id per row",
    "turn_ids": "the turn number of each response token [B, T]",
    "anchor_ids": "the id of each turn's first state [B, T], or turn_level",
}


def _needed(estimator: str, inputs: AdvantageInputs, name: str) -> Any:
    """Return the input `name`, for an estimator that cannot do without."""
    given = getattr(inputs, name)
    if given is None:
        raise ValueError(f"{estimator} needs {name}: got None, expected {_EXPECTED[name]}")
    return given


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
        _needed("gae", inputs, "values"),
        inputs.response_mask,
        inputs.gamma,
        inputs.lam,
        whiten=inputs.whiten,
        bootstrap_values=inputs.bootstrap_values,
    )


def _grpo(inputs: AdvantageInputs) -> tuple[Tensor, Tensor]:
    index = _needed("grpo", inputs, "index")
    return compute_grpo_advantage(
        inputs.token_level_rewards, inputs.response_mask, index, normalize_by_std=inputs.normalize_by_std
    )


def _grpo_mean(inputs: AdvantageInputs) -> tuple[Tensor, Tensor]:
    index = _needed("grpo_mean", inputs, "index")
    return compute_grpo_advantage(inputs.token_level_rewards, inputs.response_mask, index, normalize_by_std=False)


def _rloo(inputs: AdvantageInputs) -> tuple[Tensor, Tensor]:
    index = _needed("rloo", inputs, "index")
    return compute_rloo_advantage(inputs.token_level_rewards, inputs.response_mask, index)


def _reinforce_plus_plus(inputs: AdvantageInputs) -> tuple[Tensor, Tensor]:
    advantages, returns = compute_reinforce_plus_plus_advantage(
        inputs.token_level_rewards, inputs.response_mask, inputs.gamma
    )
    return advantages if inputs.whiten else returns, returns


def _reinforce_plus_plus_baseline(inputs: AdvantageInputs) -> tuple[Tensor, Tensor]:
    index = _needed("reinforce_plus_plus_baseline", inputs, "index")
    return compute_reinforce_plus_plus_baseline_advantage(inputs.token_level_rewards, inputs.response_mask, index)


def _turn_level(inputs: AdvantageInputs) -> tuple[Tensor, Tensor]:
    return compute_turn_level_advantage(
        inputs.token_level_rewards,
        inputs.response_mask,
        _needed("turn_level", inputs, "index"),
        _needed("turn_level", inputs, "turn_ids"),
        gamma=inputs.gamma,
        normalize_by_std=inputs.normalize_by_std,
    )


def _gigpo(inputs: AdvantageInputs) -> tuple[Tensor, Tensor]:
    return compute_gigpo_advantage(
        inputs.token_level_rewards,
        inputs.response_mask,
        _needed("gigpo", inputs, "index"),
        _needed("gigpo", inputs, "turn_ids"),
        _needed("gigpo", inputs, "anchor_ids"),
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
        advantage=_reinforce_plus_plus, summary="REINFORCE++: discounted reward-to-go, whitened over the batch"
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
