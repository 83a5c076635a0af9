"""The one thing the trainer hands to an advantage estimator, checked when it is made."""

from dataclasses import dataclass
from typing import TypedDict

from torch import Tensor

from uirl.algorithms.checks import as_bool_mask, check_aligned, check_unit_interval
from uirl.algorithms.groups import GroupIndex


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

    def required_values(self, estimator: str) -> Tensor:
        """Return `values` `[B, T]`, for an estimator that cannot do without."""
        if self.values is None:
            raise _missing(estimator, "values", "the critic's values [B, T]")
        return self.values

    def required_index(self, estimator: str) -> GroupIndex:
        """Return `index`, for an estimator that cannot do without."""
        if self.index is None:
            raise _missing(estimator, "index", "one group id per row")
        return self.index

    def required_turn_ids(self, estimator: str) -> Tensor:
        """Return `turn_ids` `[B, T]`, for an estimator that cannot do without."""
        if self.turn_ids is None:
            raise _missing(estimator, "turn_ids", "the turn number of each response token [B, T]")
        return self.turn_ids

    def required_anchor_ids(self, estimator: str) -> Tensor:
        """Return `anchor_ids` `[B, T]`, for an estimator that cannot do without."""
        if self.anchor_ids is None:
            raise _missing(estimator, "anchor_ids", "the id of each turn's first state [B, T], or turn_level")
        return self.anchor_ids


def _first(values: Tensor, wrong: Tensor) -> str:
    """Return the first of `values` `[B, T]` that is `wrong`, and where it stands."""
    row, column = wrong.nonzero()[0].tolist()
    return f"{values[row, column].item()} in row {row}, column {column}"


def _missing(estimator: str, name: str, expected: str) -> ValueError:
    return ValueError(f"{estimator} needs {name}: got None, expected {expected}")
