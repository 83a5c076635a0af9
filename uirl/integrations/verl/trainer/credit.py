"""Credit for a batch of verl's in which an episode is several sequences: the local trainer's rule, by its own code.

verl gives credit to rows. Where a window rewrote the history of an episode its rows are joined here, so that the
episode votes once in its group and what later turns earn reaches earlier ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from uirl.algorithms import AdvantageOptions, get_algorithm
from uirl.errors import AlignmentError
from uirl.integrations.verl.config.mapping import OUR_ESTIMATORS
from uirl.integrations.verl.trainer.estimators import THRESHOLD, turns_of
from uirl.learner.credit import assign_credit
from uirl.learner.view import response_view
from uirl.types import Sample


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


def any_rewritten(keys: Sequence[str]) -> bool:
    """Return whether an episode among `keys` is more than one sequence."""
    return len({episode_of(key) for key in keys}) < len(keys)


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
    episodes: dict[tuple[str, str], list[int]] = {}
    for i in sorted(range(len(rows)), key=lambda i: _sequence(rows[i].key)):
        episodes.setdefault(episode_of(rows[i].key), []).append(i)
    out: dict[int, Sample] = {}
    for (group, member), parts in episodes.items():
        turns, rewards, first = [], rows[parts[0]].turn_rewards, 0
        for i in parts:
            turns.append(turns_of(sampled[i][None])[0][sampled[i]] + first)
            first = int(turns[-1][-1]) + 1
        if first != len(rewards):
            raise AlignmentError(
                f"the sequences of episode {group}_{member} hold {first} replies, but {len(rewards)} turns were "
                "rewarded; all sequences of an episode must be in the same update"
            )
        for i, numbers in zip(parts, turns, strict=True):
            out[i] = _sample(numbers, rewards, group, member, _sequence(rows[i].key))
    return [out[i] for i in range(len(rows))]


def _sample(turns: Tensor, rewards: Sequence[float], group: str, member: str, segment: int) -> Sample:
    """Return one sequence; `rewards` are those of all turns of its episode."""
    n = len(turns)
    paid = torch.zeros(n, dtype=torch.float64)
    last = torch.cat([turns[1:] != turns[:-1], torch.ones(1, dtype=torch.bool)])
    paid[last] = torch.tensor([rewards[turn] for turn in turns[last].tolist()], dtype=torch.float64)
    return Sample(
        token_ids=(0,) * n,  # credit looks at none
        response_mask=(True,) * n,
        rollout_log_probs=(0.0,) * n,
        rewards=tuple(paid.tolist()),
        turn_ids=tuple(turns.tolist()),
        trajectory_id=f"{group}_{member}",
        group_id=group,
        segment=segment,
    )


def _sequence(key: str) -> int:
    return int(key.rsplit("_", 1)[1])
