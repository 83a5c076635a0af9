"""Credit for the response tokens of an update: advantages on whole trajectories, and which of them carry a signal."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from uirl.algorithms import AdvantageInputs, AlgorithmSpec
from uirl.errors import AlignmentError, ConfigError
from uirl.learner.view import ResponseView

Anchors = Mapping[str, Sequence[Hashable]]
"""For each trajectory id the key of the state in which each turn started; equal keys are equal states."""


@dataclass(frozen=True, slots=True)
class Credit:
    """The outcome of the estimator."""

    advantages: Tensor
    """[N, R]"""
    returns: Tensor
    """[N, R], what the critic learns."""
    live: Tensor
    """Booleans [N]: the trajectory is worth a forward pass."""
    live_groups: float
    """Share of groups that carry a signal; of trajectories, where the estimator has no groups."""

    @property
    def live_fraction(self) -> float:
        """Share of trajectories that carry a signal."""
        return float(self.live.float().mean())


def assign_credit(
    spec: AlgorithmSpec,
    options: Mapping[str, Any],
    view: ResponseView,
    rewards: Tensor,
    values: Tensor | None,
    final_values: Tensor | None,
    anchors: Anchors | None = None,
    *,
    skip_dead_groups: bool = True,
) -> Credit:
    """Advantages and returns of every response token.

    Args:
        spec: The estimator.
        options: Keyword arguments of `AdvantageInputs`.
        view: The trajectories.
        rewards: [N, R], with the KL penalty where there is one.
        values: [N, R] of the critic; None without one.
        final_values: [N], the value after the last token; read where an episode was cut by a limit.
        anchors: State keys per turn, for 'gigpo'.
        skip_dead_groups: Leave out groups whose trajectories all got the same advantage from the rewards of the task,
            before any KL penalty.

    Raises ConfigError where the estimator needs groups or anchors that are not there.
    """
    inputs = AdvantageInputs(
        token_level_rewards=rewards,
        response_mask=view.mask,
        values=values,
        bootstrap_values=None if final_values is None else final_values.masked_fill(view.ends_episode, 0.0),
        index=_groups(spec, view),
        turn_ids=view.turn_ids if spec.needs_turns else None,
        anchor_ids=_anchor_ids(view, anchors) if spec.needs_anchors else None,
        **options,
    )
    advantages, returns = spec.advantage(inputs)
    signal = (advantages != 0) & view.mask
    if spec.needs_critic and values is not None:
        # a critic that is wrong learns even where, after whitening, no action stands out
        signal |= (returns != values) & view.mask
    live = signal.any(1)
    if not spec.needs_group:
        if spec.loss == "policy" and live.any():
            live = torch.ones_like(live)
        return Credit(advantages, returns, live, float(signal.any(1).float().mean()))
    # a KL penalty differs within every group: divided by its own deviation it would look like a signal of the task
    penalised = rewards is not view.rewards
    of_task = spec.advantage(replace(inputs, token_level_rewards=view.rewards))[0] if penalised else advantages
    groups = _live_groups(view.group_ids, of_task, view.mask)
    share = sum(groups.values()) / len(groups)
    alive = torch.tensor([groups[group] for group in view.group_ids])
    advantages = torch.where(alive[:, None], advantages, of_task)
    if not skip_dead_groups:
        alive = alive.any().expand_as(alive)
    return Credit(advantages, returns, alive, share)


def _live_groups(group_ids: Sequence[str], advantages: Tensor, mask: Tensor) -> dict[str, bool]:
    """Whether the advantages of a group differ. Where they do not, none of its episodes did better than another."""
    lowest = advantages.masked_fill(~mask, torch.inf).amin(1).tolist()
    highest = advantages.masked_fill(~mask, -torch.inf).amax(1).tolist()
    bounds: dict[str, tuple[float, float]] = {}
    for group, low, high in zip(group_ids, lowest, highest, strict=True):
        known = bounds.get(group, (low, high))
        bounds[group] = (min(known[0], low), max(known[1], high))
    return {group: low != high for group, (low, high) in bounds.items()}


def _groups(spec: AlgorithmSpec, view: ResponseView) -> list[str] | None:
    if not spec.needs_group:
        return None
    if not all(view.group_ids):
        missing = view.trajectory_ids[view.group_ids.index("")]
        raise ConfigError(
            f"this estimator compares the trajectories of a group, but trajectory {missing or '(unnamed)'} has no "
            "group_id; give all episodes of one task the same, or use training.adv_estimator=gae"
        )
    return list(view.group_ids)


def _anchor_ids(view: ResponseView, anchors: Anchors | None) -> Tensor:
    """int64 [N, R]: the number of the state in which each token's turn started."""
    if anchors is None:
        raise ConfigError(
            "training.adv_estimator=gigpo compares turns that start from the same state and needs to know the states: "
            "got anchors=None, expected a key per turn of each trajectory; or use turn_level"
        )
    numbers: dict[Hashable, int] = {}
    out = torch.full(view.mask.shape, -1)
    for row, trajectory in enumerate(view.trajectory_ids):
        turns = view.turn_ids[row][view.mask[row]]
        keys = anchors.get(trajectory, ())
        if len(keys) <= int(turns.max()):
            raise AlignmentError(
                f"anchors of trajectory {trajectory} name {len(keys)} states, expected one for each of its "
                f"{int(turns.max()) + 1} turns"
            )
        states = torch.tensor([numbers.setdefault(key, len(numbers)) for key in keys])
        out[row][view.mask[row]] = states[turns]
    return out
