"""The table of algorithms: the values of `training.adv_estimator`, and what each needs."""

import difflib
from collections.abc import Callable
from dataclasses import dataclass, fields
from inspect import signature
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
        names = ("token_level_rewards", "response_mask", "values", "turn_ids", "anchor_ids")
        given = {name: getattr(self, name) for name in names}
        check_aligned(**{name: tensor for name, tensor in given.items() if tensor is not None})
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


_NEEDS = {
    "values": ("needs_critic", "the critic's values [B, T]"),
    "index": ("needs_group", "one group id per row"),
    "turn_ids": ("needs_turns", "the turn number of each response token [B, T]"),
    "anchor_ids": ("needs_anchors", "the id of each turn's first state [B, T], or turn_level"),
}
"""What not every estimator reads -> the field of `AlgorithmSpec` that says so, and what it is."""


def _spec(
    name: str, function: Callable[..., tuple[Tensor, Tensor]], summary: str, loss: LossName = "policy", **fixed: Any
) -> AlgorithmSpec:
    """Return the entry of `function`, which is given those inputs that it has parameters for; `fixed` are set."""
    read = [one.name for one in fields(AdvantageInputs) if one.name in signature(function).parameters]

    def advantage(inputs: AdvantageInputs) -> tuple[Tensor, Tensor]:
        given = {one: getattr(inputs, one) for one in read}
        for one, (_, expected) in _NEEDS.items():
            if one in read and given[one] is None:
                raise ValueError(f"{name} needs {one}: got None, expected {expected}")
        return function(**given | fixed)

    needs = {flag: one in read for one, (flag, _) in _NEEDS.items()}
    return AlgorithmSpec(advantage=advantage, summary=summary, loss=loss, **needs)


def _reinforce_plus_plus(
    token_level_rewards: Tensor, response_mask: Tensor, gamma: float, whiten: bool
) -> tuple[Tensor, Tensor]:
    advantages, returns = compute_reinforce_plus_plus_advantage(token_level_rewards, response_mask, gamma)
    return advantages if whiten else returns, returns


_GAE = _spec("gae", compute_gae_advantage_return, "PPO: a critic, and generalised advantages per token")
_GRPO_MEAN = _spec(
    "grpo_mean", compute_grpo_advantage, "Dr. GRPO: reward minus the group's mean", normalize_by_std=False
)

ALGORITHMS: dict[str, AlgorithmSpec] = {
    "gae": _GAE,
    "ppo": _GAE,
    "grpo": _spec("grpo", compute_grpo_advantage, "GRPO: reward relative to the group's mean and spread"),
    "grpo_mean": _GRPO_MEAN,
    "dr_grpo": _GRPO_MEAN,
    "rloo": _spec("rloo", compute_rloo_advantage, "RLOO: reward minus the mean of the others in the group"),
    "reinforce_plus_plus": _spec(
        "reinforce_plus_plus", _reinforce_plus_plus, "REINFORCE++: discounted reward-to-go, whitened over the batch"
    ),
    "reinforce_plus_plus_baseline": _spec(
        "reinforce_plus_plus_baseline",
        compute_reinforce_plus_plus_baseline_advantage,
        "REINFORCE++-baseline: reward minus the group's mean, whitened over the batch",
    ),
    "turn_level": _spec(
        "turn_level", compute_turn_level_advantage, "reward-to-go of each turn relative to the same turn of the group"
    ),
    "gigpo": _spec(
        "gigpo",
        compute_gigpo_advantage,
        "GiGPO: group advantage of the episode plus that of the turn among equal states",
    ),
    "rejection_sampling": _spec(
        "rejection_sampling",
        compute_rejection_sampling_advantage,
        "supervised learning on the trajectories above a reward threshold",
        "rejection_sampling",
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
