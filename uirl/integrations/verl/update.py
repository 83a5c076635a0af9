"""An update of verl's: how its rows are divided into mini-batches, and the credit that each of them gets.

verl works on rows. It cuts an update into mini-batches of a fixed number of them (`ppo_mini_batch_size` x `rollout.n`),
and gives each its own credit. Where a window rewrites the history of an episode, it becomes several rows: here they are
joined, so that the number of optimiser steps is what the config says, all rows of an episode are in the same step, and
the episode counts once in its group, by the local trainer's own code.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from uirl.algorithms import (
    AdvantageOptions,
    compute_rejection_sampling_advantage,
    compute_turn_level_advantage,
    get_algorithm,
)
from uirl.errors import AlignmentError
from uirl.integrations.verl.mapping import ESTIMATORS, OUR_ESTIMATORS
from uirl.learner.credit import assign_credit
from uirl.learner.view import response_view
from uirl.types import Sample


@dataclass(frozen=True, slots=True)
class Division:
    """How the rows of an update are divided."""

    blocks: list[list[int]]
    """Indices of the rows of each block, all blocks of one length. A mini-batch is one block or several that follow
    each other. Indices from `rows` on are rows of padding."""
    rows: int
    """Real ones."""

    @property
    def padded(self) -> int:
        """Return the number of rows, with padding."""
        return sum(map(len, self.blocks))

    def sizes(self, minibatches: int) -> dict[str, Any]:
        """Return verl's parameters of an update in so many mini-batches, a divisor of the number of blocks. What
        divides the losses that are means of sequences is the mean number of real rows: padding counts in none."""
        return {"mini_batch_size": self.padded // minibatches, "global_batch_size": self.rows / minibatches}


def divide(episodes: Sequence[Hashable], tokens: Sequence[int], *, blocks: int, multiple: int) -> Division:
    """Divide the rows into `blocks` blocks of equal length, a multiple of `multiple`, that differ as little as may be
    in real rows, then in tokens. `episodes[i]` is that of row i: its rows are in the same block."""
    rows_of: dict[Hashable, list[int]] = {}
    for i, episode in enumerate(episodes):
        rows_of.setdefault(episode, []).append(i)
    largest_first = sorted(rows_of.values(), key=lambda rows: (len(rows), sum(tokens[i] for i in rows)), reverse=True)
    out: list[list[int]] = [[] for _ in range(blocks)]
    weight = [0] * blocks
    for rows in largest_first:
        k = min(range(blocks), key=lambda k: (len(out[k]), weight[k]))
        out[k] += rows
        weight[k] += sum(tokens[i] for i in rows)
    length = multiple * math.ceil(max(map(len, out)) / multiple)
    padding = len(episodes)
    for block in out:
        missing = length - len(block)
        block += range(padding, padding + missing)
        padding += missing
    return Division(out, len(episodes))


def minibatches(config: Any, episodes: int, *, critic: bool) -> dict[str, int]:
    """Return network -> mini-batches of an update: as verl's config says in prompts, but no more than can all have an
    episode. A mini-batch of padding alone has no loss."""
    sections = {"actor": config.actor_rollout_ref.actor} | ({"critic": config.critic} if critic else {})
    prompts = config.data.train_batch_size
    out = {n: min(math.ceil(prompts / part.ppo_mini_batch_size), episodes) for n, part in sections.items()}
    if math.lcm(*out.values()) > episodes:  # no common division: all as the one with fewest
        return dict.fromkeys(out, min(out.values()))
    return out


def rows_at_once(config: Any, *, ranks: int, critic: bool, reference: bool) -> int:
    """Return the number that the rows of a block must be a multiple of: every rank has as many, and where a pass takes
    a fixed number of rows at once (no dynamic batch size) the rows of a rank are a multiple of that."""
    parts = config.actor_rollout_ref
    fixed = [(parts.actor.use_dynamic_bsz, parts.actor.ppo_micro_batch_size_per_gpu)]
    for part in (parts.rollout, parts.ref) if reference else (parts.rollout,):
        fixed.append((part.log_prob_use_dynamic_bsz, part.log_prob_micro_batch_size_per_gpu))
    if critic:
        own = config.critic
        fixed += [(own.use_dynamic_bsz, own.ppo_micro_batch_size_per_gpu)]
        fixed += [(own.use_dynamic_bsz, own.forward_micro_batch_size_per_gpu)]
    return ranks * math.lcm(*(int(rows) for dynamic, rows in fixed if not dynamic and rows))


class Sized:
    """A worker group of verl's whose updates are divided as we say."""

    def __init__(self, group: Any, sizes: Mapping[str, Any]) -> None:
        self._group, self._sizes = group, sizes

    def __getattr__(self, name: str) -> Any:
        own = getattr(self._group, name)
        if name not in ("update_actor", "train_mini_batch"):
            return own

        def sized(batch: Any) -> Any:
            batch.extra_info.update(self._sizes)
            return own(batch)

        return sized


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence of verl's batch."""

    key: str
    """'{group}_{member}_{sequence}', its key in verl's queue."""
    mask: Tensor
    """[R], 1 on what was sampled. A row without any fills up verl's batch, and gets no credit."""
    turn_rewards: Sequence[float]
    """Of all turns of the episode, those of its other sequences too."""
    penalty: Tensor | None = None
    """[R], what the KL penalty adds to the reward of each token; None: nothing."""
    values: Tensor | None = None
    """[R] of the critic; None without one."""


def episode_of(key: str) -> tuple[str, str]:
    """Return (group, member) of a sequence's key in verl's queue."""
    group, member, _ = key.rsplit("_", 2)
    return group, member


def credit_episodes(rows: Sequence[Row], algorithm: Mapping[str, Any]) -> tuple[list[Tensor], list[Tensor]]:
    """Return (advantages, returns), one [R] for each of `rows`, which hold all sequences of each of their episodes.

    `algorithm`: verl's section of that name. Raises AlignmentError where a sequence is missing, or turns and rewards
    do not meet.
    """
    sampled = [row.mask > 0 for row in rows]
    at = [i for i, mask in enumerate(sampled) if mask.any()]
    view = response_view(_samples([rows[i] for i in at], [sampled[i] for i in at]))

    def spread(parts: Sequence[Tensor | None]) -> Tensor | None:
        kept = [part[sampled[i]].float() for i, part in enumerate(parts) if part is not None and sampled[i].any()]
        return view.spread(torch.cat(kept)) if kept else None

    penalty, values = spread([row.penalty for row in rows]), spread([row.values for row in rows])
    options: AdvantageOptions = {
        "gamma": float(algorithm["gamma"]),
        "lam": float(algorithm["lam"]),
        "normalize_by_std": bool(algorithm["norm_adv_by_std_in_grpo"]),
        "reward_threshold": float(algorithm.get(THRESHOLD, 0.0)),
    }
    spec = get_algorithm(OUR_ESTIMATORS[str(algorithm["adv_estimator"])])
    rewards = view.rewards if penalty is None else view.rewards + penalty
    credit = assign_credit(spec, options, view, rewards, values, None)

    def by_row(compact: Tensor) -> list[Tensor]:
        out = [torch.zeros(mask.shape) for mask in sampled]
        for i, part in zip(at, view.split(view.flatten(compact)), strict=True):
            out[i][sampled[i]] = part.float()
        return out

    return by_row(credit.advantages), by_row(credit.returns)


def _samples(rows: Sequence[Row], sampled: Sequence[Tensor]) -> list[Sample]:
    """Return the sampled tokens of each row as the learner knows them, turns numbered through the episode."""
    sequence = [int(row.key.rsplit("_", 1)[1]) for row in rows]
    episodes: dict[tuple[str, str], list[int]] = {}
    for i in sorted(range(len(rows)), key=lambda i: sequence[i]):
        episodes.setdefault(episode_of(rows[i].key), []).append(i)
    out: dict[int, Sample] = {}
    for (group, member), parts in episodes.items():
        first, rewards = 0, torch.tensor(rows[parts[0]].turn_rewards, dtype=torch.float64)
        for i in parts:
            turns = turns_of(sampled[i][None])[0][sampled[i]] + first
            first = int(turns[-1]) + 1
            last = torch.cat([turns[1:] != turns[:-1], torch.ones(1, dtype=torch.bool)])
            if first <= len(rewards):
                out[i] = Sample(
                    token_ids=(0,) * len(turns),  # credit looks at none
                    response_mask=(True,) * len(turns),
                    rollout_log_probs=(0.0,) * len(turns),
                    rewards=tuple(torch.where(last, rewards[turns], 0.0).tolist()),
                    turn_ids=tuple(turns.tolist()),
                    trajectory_id=f"{group}_{member}",
                    group_id=group,
                    segment=sequence[i],
                )
        if first != len(rewards):
            raise AlignmentError(
                f"the sequences of episode {group}_{member} hold {first} replies, but {len(rewards)} turns were "
                "rewarded; all sequences of an episode must be in the same update"
            )
    return [out[i] for i in range(len(rows))]


THRESHOLD = "uirl_reward_threshold"
"""Key that our trainers put into verl's section `algorithm`: our `algorithm.reward_threshold`."""


def register_estimators() -> None:
    """Register `turn_level` and `rejection_sampling` with verl, in the process where it computes advantages. It shows
    an estimator rewards, mask and group of each row."""
    from verl.trainer.ppo.core_algos import register_adv_est

    register_adv_est(ESTIMATORS["rejection_sampling"])(_rejection_sampling)
    register_adv_est(ESTIMATORS["turn_level"])(_turn_level)


def _rejection_sampling(
    token_level_rewards: Tensor, response_mask: Tensor, config: Any = None, **_: Any
) -> tuple[Tensor, Tensor]:
    # verl's loss is then the mean over all tokens of a batch, ours over the kept ones
    threshold = 0.0 if config is None else float(config.get(THRESHOLD, 0.0))
    return compute_rejection_sampling_advantage(token_level_rewards, response_mask, threshold)


def _turn_level(
    token_level_rewards: Tensor, response_mask: Tensor, index: Any, config: Any = None, **_: Any
) -> tuple[Tensor, Tensor]:
    # gamma is the discount per turn. verl's legacy trainer puts the whole score on the last token, and is refused
    normalize = True if config is None else bool(config.get("norm_adv_by_std_in_grpo", True))
    gamma = 1.0 if config is None else float(config.get("gamma", 1.0))
    return compute_turn_level_advantage(
        token_level_rewards, response_mask, index, turns_of(response_mask), gamma=gamma, normalize_by_std=normalize
    )


def tell_threshold(config: Any, threshold: float) -> None:
    """Put our `algorithm.reward_threshold` where verl hands it to estimators; `config` is verl's whole config."""
    from omegaconf import open_dict

    with open_dict(config):
        config.algorithm[THRESHOLD] = threshold


def turns_of(response_mask: Tensor) -> Tensor:
    """Return int64 [B, T]: the number of the turn, from 0, of each sampled token; -1 elsewhere. Between two replies
    there is always a token that was not sampled."""
    sampled = response_mask > 0
    before = torch.nn.functional.pad(sampled, (1, 0))[:, :-1]
    return torch.where(sampled, (sampled & ~before).cumsum(-1) - 1, -1)
