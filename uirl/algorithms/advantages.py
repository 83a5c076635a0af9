"""Credit: from rewards to one advantage per response token; pure functions, no gradient.

Every function takes one whole trajectory per row `[B, T]`: compute advantages first, cut rows into training
samples afterwards, or a trajectory of three samples votes three times in its group. Rewards under mask 0 do
not count. Estimators that look at turns live in `turns.py`.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from uirl.algorithms.aggregation import masked_whiten
from uirl.algorithms.checks import (
    as_bool_mask,
    check_aligned,
    check_unit_interval,
    float_dtype,
    precise_dtype,
    zero_outside,
)
from uirl.algorithms.groups import GroupIndex, at_most, centred_in_group, group_codes, group_sizes, relative_to_group

# Once decay**stride is below this, everything further right is below the rounding of float32.
_NEGLIGIBLE = 1e-12


def discounted_suffix_sum(x: Tensor, decay: float) -> Tensor:
    """Return `out[:, t] = sum over j >= t of decay**(j - t) * x[:, j]`, shape `[B, T]`.

    Pass k adds to each position the partial sum that starts 2**k to its right, so ceil(log2(T)) passes over
    the tensor replace T dependent steps; with decay < 1 the passes end early, as soon as `decay**stride`
    vanishes (Hillis and Steele, 1986). `benchmarks/gae.py` compares it with loops, blocked and matrix-product
    forms.

    Args:
        x: Floats, `[B, T]`; must be finite everywhere, so put 0 where there is nothing.
        decay: In [0, 1].

    Returns:
        A new tensor, `[B, T]`.

    It works in place between two buffers and records no gradient worth having: advantages are constants.
    """
    done, spare = x.clone(), torch.empty_like(x)
    stride, weight = 1, decay
    while stride < x.shape[1] and weight > _NEGLIGIBLE:
        torch.add(done[:, :-stride], done[:, stride:], alpha=weight, out=spare[:, :-stride])
        spare[:, -stride:] = done[:, -stride:]
        done, spare = spare, done
        stride, weight = 2 * stride, weight * weight
    return done


def without_holes(compute: Callable[..., Tensor], mask: Tensor, *tensors: Tensor) -> Tensor:
    """Return `compute(packed_mask, *packed)` with the masked-out columns squeezed out first and put back, as 0,
    afterwards.

    In a multi-turn sequence observation tokens (mask 0) stand between response tokens, and no recursion over
    time may see them. Packing moves the response tokens of each row together, order kept.

    Args:
        compute: From the packed mask and the packed tensors `[B, N]` to one tensor `[B, N]`.
        mask: Booleans, `[B, T]`.
        *tensors: `[B, T]` each; entries under mask False are dropped unread.

    Returns:
        `[B, T]`, 0 where mask is False.
    """
    if not _has_holes(mask):
        result = compute(mask, *(zero_outside(tensor, mask) for tensor in tensors))
        return zero_outside(result, mask)
    lengths = mask.sum(dim=1)
    width = int(lengths.max())
    packed_mask = torch.arange(width, device=mask.device) < lengths.unsqueeze(1)
    source = mask.flatten().nonzero().squeeze(1)
    row_offset = torch.arange(len(mask), device=mask.device) * width - (lengths.cumsum(0) - lengths)
    target = torch.arange(len(source), device=mask.device) + row_offset.repeat_interleave(lengths)
    packed = (_move(tensor, source, target, packed_mask.shape) for tensor in tensors)
    return _move(compute(packed_mask, *packed), target, source, mask.shape)


def _move(tensor: Tensor, source: Tensor, target: Tensor, shape: torch.Size) -> Tensor:
    """Return zeros of `shape` with the entries at flat positions `source` of `tensor` at flat positions `target`."""
    moved = tensor.new_zeros(shape.numel())
    return moved.index_copy_(0, target, tensor.flatten().index_select(0, source)).view(shape)


def _has_holes(mask: Tensor) -> bool:
    """Return whether some row has more than one run of True."""
    starts = (mask[:, 1:] & ~mask[:, :-1]).sum(dim=1, dtype=torch.int32) + mask[:, :1].sum(dim=1)
    return bool((starts > 1).any())


@torch.no_grad()
def compute_gae_advantage_return(
    token_level_rewards: Tensor,
    values: Tensor,
    response_mask: Tensor,
    gamma: float,
    lam: float,
    *,
    whiten: bool = True,
    bootstrap_values: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return generalised advantages and the returns the critic learns.

    Over the response tokens t = 1..n of a row, observation tokens between them skipped:
    `delta[t] = token_level_rewards[t] + gamma * values[t + 1] - values[t]`,
    `advantages[t] = delta[t] + gamma * lam * advantages[t + 1]`, `returns = advantages + values`,
    then `advantages = whiten(advantages)` over all response tokens of the batch.

    Args:
        token_level_rewards: `[B, T]`; the reward of a turn stands on its last response token.
        values: `[B, T]`, the critic's value before each token is chosen.
        response_mask: 0 and 1, `[B, T]`; may have holes (multi-turn), leading zeros (prompt) and padding.
        gamma: Discount per response token.
        lam: Trace decay: 0 is the one-step TD error, 1 the discounted return minus the value.
        whiten: Whether to whiten the advantages over the batch, as PPO implementations do; False returns them
            raw.
        bootstrap_values: `[B]`, the value after the last response token, for episodes cut short by a limit;
            None means every episode ended and nothing follows.

    Returns:
        `(advantages, returns)`, both `[B, T]`, 0 where the mask is 0. `returns` are never whitened.

    Raises:
        ValueError: Shapes that differ, a mask that is not 0/1, a discount outside [0, 1].

    Papers: Schulman et al. 2015 (1506.02438); token-level masks as in verl.

    The discount counts response tokens, not columns: a screenshot of 1000 tokens between two turns discounts
    nothing. Without `bootstrap_values` a truncated episode is treated as if the world had ended there.
    """
    check_aligned(token_level_rewards=token_level_rewards, values=values, response_mask=response_mask)
    check_unit_interval(gamma=gamma, lam=lam)
    mask = as_bool_mask(response_mask)
    rewards, values = token_level_rewards.to(float_dtype(token_level_rewards)), values.to(float_dtype(values))
    after_last = _bootstrap_column(bootstrap_values, values)

    def advantages_of(packed: Tensor, rewards: Tensor, values: Tensor) -> Tensor:
        next_values = torch.cat([values[:, 1:], values.new_zeros(len(values), 1)], dim=1)
        if after_last is not None:
            next_values += after_last * _is_last(packed)
        # In place: this runs over [B, T] of a whole batch, and memory traffic is all it costs.
        delta = next_values.mul_(gamma).add_(rewards).sub_(values)
        return discounted_suffix_sum(delta, gamma * lam)

    advantages = without_holes(advantages_of, mask, rewards, values)
    returns = zero_outside(advantages + values, mask)
    return (masked_whiten(advantages, mask) if whiten else advantages), returns


@torch.no_grad()
def compute_grpo_advantage(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: GroupIndex,
    *,
    normalize_by_std: bool = True,
    epsilon: float = 1e-6,
) -> tuple[Tensor, Tensor]:
    """Return each trajectory's reward relative to its group, on every response token.

    `score = sum(token_level_rewards)`,
    `advantages = (score - mean(group)) / (std(group) + epsilon)`, the division only if `normalize_by_std`.

    Args:
        token_level_rewards: `[B, T]`.
        response_mask: 0 and 1, `[B, T]`.
        index: One group id per row: tensor, array or list, integers or strings.
        normalize_by_std: False is Dr. GRPO, which does not favour groups of nearly equal rewards.
        epsilon: Added to the standard deviation (unbiased: n - 1).

    Returns:
        `(advantages, returns)`, both `[B, T]`, 0 where the mask is 0; `returns` hold the score.

    Papers: GRPO (2402.03300); Dr. GRPO (2503.20783).

    A group of one has nothing to be compared with: its advantage is 0, not its raw reward (verl returns the
    raw reward). A group of equal rewards has advantage exactly 0.
    """
    scores, sizes, mask, codes = _scores_and_groups(token_level_rewards, response_mask, index)
    advantages = relative_to_group(scores, codes, normalize_by_std, epsilon, sizes)
    return _spread(advantages, mask, token_level_rewards), _spread(scores, mask, token_level_rewards)


@torch.no_grad()
def compute_rloo_advantage(
    token_level_rewards: Tensor, response_mask: Tensor, index: GroupIndex
) -> tuple[Tensor, Tensor]:
    """Return each trajectory's reward minus the mean of the others in its group (leave one out).

    `advantages[i] = score[i] - mean(score[j], j != i) = n / (n - 1) * (score[i] - mean(group))`.

    Args:
        token_level_rewards: `[B, T]`.
        response_mask: 0 and 1, `[B, T]`.
        index: One group id per row.

    Returns:
        `(advantages, returns)`, both `[B, T]`, 0 where the mask is 0; `returns` hold the score.

    Paper: Ahmadian et al. 2024 (2402.14740).

    A group of one has no others: advantage 0.
    """
    scores, sizes, mask, codes = _scores_and_groups(token_level_rewards, response_mask, index)
    members = group_sizes(codes)
    advantages = centred_in_group(scores, codes, sizes) * members / (members - 1).clamp(min=1)
    return _spread(advantages, mask, token_level_rewards), _spread(scores, mask, token_level_rewards)


@torch.no_grad()
def compute_reinforce_plus_plus_advantage(
    token_level_rewards: Tensor, response_mask: Tensor, gamma: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Return discounted reward-to-go of each token, whitened over the batch.

    `returns[t] = token_level_rewards[t] + gamma * returns[t + 1]` over response tokens,
    `advantages = whiten(returns)`.

    Args:
        token_level_rewards: `[B, T]`.
        response_mask: 0 and 1, `[B, T]`; holes are skipped as in GAE.
        gamma: Discount per response token.

    Returns:
        `(advantages, returns)`, both `[B, T]`, 0 where the mask is 0; `returns` are not whitened.

    Paper: Hu 2025 (2501.03262).

    The baseline is the batch mean: adding a constant to the reward of every token does change the advantages,
    since long rows then collect more of it.
    """
    check_aligned(token_level_rewards=token_level_rewards, response_mask=response_mask)
    check_unit_interval(gamma=gamma)
    mask = as_bool_mask(response_mask)

    def reward_to_go(_: Tensor, rewards: Tensor) -> Tensor:
        return discounted_suffix_sum(rewards, gamma)

    returns = without_holes(reward_to_go, mask, token_level_rewards.to(float_dtype(token_level_rewards)))
    return masked_whiten(returns, mask), returns


@torch.no_grad()
def compute_reinforce_plus_plus_baseline_advantage(
    token_level_rewards: Tensor, response_mask: Tensor, index: GroupIndex
) -> tuple[Tensor, Tensor]:
    """Return each trajectory's reward minus its group mean, whitened over all response tokens of the batch.

    `advantages = whiten(score - mean(group))`.

    Args:
        token_level_rewards: `[B, T]`.
        response_mask: 0 and 1, `[B, T]`.
        index: One group id per row.

    Returns:
        `(advantages, returns)`, both `[B, T]`, 0 where the mask is 0; `returns` hold the score.

    Paper: Hu 2025 (2501.03262).

    Whitening weighs rows by their length, so the advantages of a group need not sum to 0; and a group of one,
    centred to 0, gets minus the batch mean, which is small but not 0.
    """
    scores, sizes, mask, codes = _scores_and_groups(token_level_rewards, response_mask, index)
    centred = _spread(centred_in_group(scores, codes, sizes), mask, token_level_rewards)
    return masked_whiten(centred, mask), _spread(scores, mask, token_level_rewards)


@torch.no_grad()
def compute_rejection_sampling_advantage(
    token_level_rewards: Tensor, response_mask: Tensor, reward_threshold: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Return 1 on the response tokens of kept trajectories, 0 on all others.

    `advantages = 1 if sum(token_level_rewards) > reward_threshold else 0`.

    Args:
        token_level_rewards: `[B, T]`.
        response_mask: 0 and 1, `[B, T]`.
        reward_threshold: Keep trajectories whose reward is larger.

    Returns:
        `(advantages, returns)`, both `[B, T]`, 0 where the mask is 0; `returns` hold the score.

    The comparison is strict, and rounding decides nothing (`at_most`): with the
    default 0, a reward of exactly 0 (a failure) is dropped.
    """
    scores, sizes, mask = _scores(token_level_rewards, response_mask)
    kept = (~at_most(scores, reward_threshold, sizes.clamp(min=abs(reward_threshold)))).to(scores.dtype)
    return _spread(kept, mask, token_level_rewards), _spread(scores, mask, token_level_rewards)


def _scores(token_level_rewards: Tensor, response_mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the reward of each row and the same without signs, float64 `[B]` (float32 on Apple's GPU), and the boolean
    mask `[B, T]`."""
    check_aligned(token_level_rewards=token_level_rewards, response_mask=response_mask)
    mask = as_bool_mask(response_mask)
    precise = precise_dtype(token_level_rewards)
    kept = zero_outside(token_level_rewards, mask)
    return kept.sum(dim=-1, dtype=precise), kept.abs().sum(dim=-1, dtype=precise), mask


def _scores_and_groups(
    token_level_rewards: Tensor, response_mask: Tensor, index: GroupIndex
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    scores, sizes, mask = _scores(token_level_rewards, response_mask)
    return scores, sizes, mask, group_codes(index, len(scores), scores.device)


def _spread(per_row: Tensor, mask: Tensor, like: Tensor) -> Tensor:
    """Return one number per row on all its response tokens, `[B, T]`, in float32 or the rewards' float64."""
    return per_row.to(float_dtype(like)).unsqueeze(-1) * mask


def _bootstrap_column(bootstrap_values: Tensor | None, values: Tensor) -> Tensor | None:
    """Return the bootstrap values as `[B, 1]`, checked."""
    if bootstrap_values is None:
        return None
    if bootstrap_values.shape != values.shape[:1]:
        raise ValueError(
            f"bootstrap_values must be [B]: got shape {tuple(bootstrap_values.shape)}, expected "
            f"{tuple(values.shape[:1])}; one value per row, 0 where the episode ended by itself"
        )
    return bootstrap_values.to(values).unsqueeze(1)


def _is_last(mask: Tensor) -> Tensor:
    """Return True on the last response token of each row, for a mask without holes."""
    return mask & ~torch.cat([mask[:, 1:], torch.zeros_like(mask[:, :1])], dim=1)
