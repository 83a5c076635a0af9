"""Credit per turn: which model call of a long episode deserves the reward."""

import torch
from torch import Tensor

from uirl.algorithms.checks import (
    as_bool_mask,
    check_aligned,
    check_unit_interval,
    float_dtype,
    precise_dtype,
    zero_outside,
)
from uirl.algorithms.groups import GroupIndex, group_codes, relative_to_group


@torch.no_grad()
def compute_turn_level_advantage(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: GroupIndex,
    turn_ids: Tensor,
    *,
    gamma: float = 1.0,
    normalize_by_std: bool = True,
    epsilon: float = 1e-6,
) -> tuple[Tensor, Tensor]:
    """Return each turn's reward-to-go relative to the same turn of the other trajectories of its group.

    `turn_return[k] = turn_reward[k] + gamma * turn_return[k + 1]`,
    `advantages = (turn_return - mean) / (std + epsilon)`, mean and std over turn k of the group.

    Args:
        token_level_rewards: `[B, T]`, one whole trajectory per row.
        response_mask: 0 and 1, `[B, T]`.
        index: One group id per row.
        turn_ids: int64 `[B, T]`: the turn number, from 0, of each response token; ignored (put -1) elsewhere.
        gamma: Discount per TURN.
        normalize_by_std: Whether to divide by the standard deviation (unbiased: n - 1).
        epsilon: Added to the standard deviation.

    Returns:
        `(advantages, returns)`, both `[B, T]`, 0 where the mask is 0; `returns` hold the turn return.

    Raises:
        ValueError: Shapes that differ, a response token without a turn number, turn numbers beyond T.

    Only trajectories that reach turn k are compared there. The last turn of the longest trajectory is
    therefore alone and gets advantage 0, whatever its reward: with episodes of very unequal length use GiGPO
    or GRPO.
    """
    turns = _Turns(token_level_rewards, response_mask, turn_ids)
    turn_returns = turns.returns(gamma)
    codes = group_codes(index, len(turn_returns), turn_returns.device)
    turn_numbers = torch.arange(turns.count, device=codes.device)
    sizes = turns.returns(gamma, turns.rewards.abs())
    advantages = turns.relative(turn_returns, sizes, codes.unsqueeze(1), turn_numbers, normalize_by_std, epsilon)
    return turns.spread(advantages), turns.spread(turn_returns)


@torch.no_grad()
def compute_gigpo_advantage(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: GroupIndex,
    turn_ids: Tensor,
    anchor_ids: Tensor,
    *,
    gamma: float = 0.95,
    step_advantage_weight: float = 1.0,
    normalize_by_std: bool = True,
    epsilon: float = 1e-6,
) -> tuple[Tensor, Tensor]:
    """Return the episode's advantage in its group plus the turn's advantage among equal states (group in group).

    `episode = relative(sum(token_level_rewards))` over the trajectories of the group,
    `step = relative(turn_return)` over all turns of the group that start in the same anchor state,
    `advantages = episode + step_advantage_weight * step`,
    with `relative(x) = (x - mean) / (std + epsilon)`, the division only if `normalize_by_std`.

    Args:
        token_level_rewards: `[B, T]`, one whole trajectory per row.
        response_mask: 0 and 1, `[B, T]`.
        index: One group id per row.
        turn_ids: int64 `[B, T]`: the turn number, from 0, of each response token; ignored (put -1) elsewhere.
        anchor_ids: int64 `[B, T]`: the id of the state in which the token's turn started, equal ids for equal
            states, -1 for "matches nothing"; ignored outside the mask.
        gamma: Discount per TURN of the turn returns; the episode's reward is not discounted.
        step_advantage_weight: Weight of the step term.
        normalize_by_std: Whether to divide both terms by their group's standard deviation.
        epsilon: Added to the standard deviations.

    Returns:
        `(advantages, returns)`, both `[B, T]`, 0 where the mask is 0; `returns` hold the discounted turn
        return.

    Raises:
        ValueError: As `compute_turn_level_advantage`, or two anchor ids within one turn.

    Paper: Feng et al. 2025 (2505.10978), equations 3 to 8.

    A state seen once has step advantage 0, and a trajectory that returns to a state is compared with itself
    too: the later, more hopeful visit is favoured over the earlier one. Equal ids in different groups are
    different states.
    """
    check_aligned(token_level_rewards=token_level_rewards, anchor_ids=anchor_ids)
    turns = _Turns(token_level_rewards, response_mask, turn_ids)
    turn_returns = turns.returns(gamma)
    codes = group_codes(index, len(turn_returns), turn_returns.device)
    rewards, amounts = turns.rewards, turns.rewards.abs()
    episode = relative_to_group(rewards.sum(dim=1), codes, normalize_by_std, epsilon, amounts.sum(dim=1))
    anchors, sizes = turns.anchors(anchor_ids), turns.returns(gamma, amounts)
    step = turns.relative(turn_returns, sizes, codes.unsqueeze(1), anchors, normalize_by_std, epsilon)
    return turns.spread(episode.unsqueeze(1) + step_advantage_weight * step), turns.spread(turn_returns)


@torch.no_grad()
def spare_turns(advantages: Tensor, response_mask: Tensor, turn_ids: Tensor, spared: Tensor) -> Tensor:
    """Return the advantages without blame for turns that were right: `max(advantage, 0)` before turn `spared`.

    Args:
        advantages: `[B, T]`, one whole trajectory per row.
        response_mask: 0 and 1, `[B, T]`.
        turn_ids: int64 `[B, T]`: the turn number, from 0, of each response token; ignored elsewhere.
        spared: int64 `[B]`: how many turns of the row, from the first on, are known to be right; 0 changes nothing.

    Returns:
        `[B, T]`; advantages above 0, and those from turn `spared` on, are what they were.

    Raises:
        ValueError: Shapes that differ.

    An advantage of the whole episode blames every turn of one that failed. Here those stay out of it that are known to
    lead to a solved end (UI-Voyager 2603.24533 finds them by forks); what came after them carries all of the blame.
    """
    check_aligned(advantages=advantages, response_mask=response_mask, turn_ids=turn_ids)
    if spared.shape != advantages.shape[:1]:
        raise ValueError(f"spared must name one number per row: got {tuple(spared.shape)}, expected {len(advantages)}")
    right = as_bool_mask(response_mask) & (turn_ids < spared.unsqueeze(1))
    return torch.where(right, advantages.clamp(min=0.0), advantages)


class _Turns:
    """A batch seen by turns `[B, K]`: rewards per turn, which turns exist, the way back to tokens."""

    def __init__(self, token_level_rewards: Tensor, response_mask: Tensor, turn_ids: Tensor) -> None:
        check_aligned(token_level_rewards=token_level_rewards, response_mask=response_mask, turn_ids=turn_ids)
        self.mask = as_bool_mask(response_mask)
        self.column = zero_outside(turn_ids, self.mask).to(torch.int64)
        _check_turn_ids(turn_ids, self.mask)
        self.count = int(self.column.max()) + 1 if self.column.numel() else 1
        self.dtype, precise = float_dtype(token_level_rewards), precise_dtype(token_level_rewards)
        empty = torch.zeros(len(self.mask), self.count, dtype=precise, device=self.mask.device)
        kept = zero_outside(token_level_rewards, self.mask).to(precise)
        self.rewards = empty.scatter_add(1, self.column, kept)
        self.exists = empty.scatter_add(1, self.column, self.mask.to(precise)) > 0

    def returns(self, gamma: float, rewards: Tensor | None = None) -> Tensor:
        """Return the discounted sum of the turn's and all later `rewards` `[B, K]`, `[B, K]`; None: those that there
        are."""
        check_unit_interval(gamma=gamma)
        turn_returns = (self.rewards if rewards is None else rewards).clone()
        for k in range(self.count - 2, -1, -1):
            turn_returns[:, k] += gamma * turn_returns[:, k + 1]
        return turn_returns

    def anchors(self, anchor_ids: Tensor) -> Tensor:
        """Return the anchor id of each turn, int64 `[B, K]`; a fresh negative id where a turn matches nothing."""
        anchor_ids = anchor_ids.to(torch.int64)
        shape = (len(self.mask), self.count)
        # Masked positions write a neutral value into column 0, so that only response tokens decide.
        limits = torch.iinfo(torch.int64)
        lowest = anchor_ids.new_full(shape, limits.max).scatter_reduce(
            1, self.column, torch.where(self.mask, anchor_ids, limits.max), "amin"
        )
        highest = anchor_ids.new_full(shape, limits.min).scatter_reduce(
            1, self.column, torch.where(self.mask, anchor_ids, limits.min), "amax"
        )
        torn = self.exists & (lowest != highest)
        if torn.any():
            row, turn = torn.nonzero()[0].tolist()
            raise ValueError(
                "anchor_ids must be constant within a turn: got "
                f"{lowest[row, turn]} and {highest[row, turn]} in row {row}, turn {turn}; "
                "repeat the id of the turn's first observation on all its tokens"
            )
        fresh = -1 - torch.arange(highest.numel(), device=highest.device).view(shape)
        return torch.where(self.exists & (highest >= 0), highest, fresh)

    def relative(
        self, values: Tensor, sizes: Tensor, rows: Tensor, columns: Tensor, normalize_by_std: bool, epsilon: float
    ) -> Tensor:
        """Return `values` `[B, K]` relative to all existing turns with the same two keys; 0 elsewhere. `sizes`: what
        they would be without signs."""
        shape = self.exists.shape
        keys = torch.stack([rows.expand(shape), columns.expand(shape)], dim=-1)[self.exists]
        result = torch.zeros_like(values)
        if len(keys):
            codes = torch.unique(keys, dim=0, return_inverse=True)[1]
            result[self.exists] = relative_to_group(
                values[self.exists], codes, normalize_by_std, epsilon, sizes[self.exists]
            )
        return result

    def spread(self, per_turn: Tensor) -> Tensor:
        """Return one number per turn on all its response tokens, `[B, T]`, 0 where the mask is 0."""
        return per_turn.gather(1, self.column).to(self.dtype) * self.mask


def _check_turn_ids(turn_ids: Tensor, mask: Tensor) -> None:
    chosen = turn_ids[mask]
    if not chosen.numel():
        return
    lowest, highest = int(chosen.min()), int(chosen.max())
    if lowest < 0 or highest >= mask.shape[1]:
        raise ValueError(
            f"turn_ids must number the turns 0, 1, 2, ... on every response token: got {lowest} to {highest} "
            f"in {mask.shape[1]} columns; -1 is for positions where response_mask is 0"
        )
