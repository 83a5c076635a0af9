"""Credit for the response tokens of an update: advantages on whole trajectories, and which of them carry a signal."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from uirl.algorithms import (
    AdvantageInputs,
    AdvantageOptions,
    AlgorithmSpec,
    KLController,
    apply_kl_penalty,
    spare_turns,
)
from uirl.errors import AlignmentError, ConfigError
from uirl.learner.scoring import BatchScores
from uirl.learner.settings import LearnerSettings
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

    def weighed(self, weights: Tensor | None) -> Credit:
        """Return the credit whose advantages count `weights` [N, R] times, none of them below 0; None: once.

        So weighs the policy loss, which is proportional to the advantage; returns and denominators stay.
        """
        return self if weights is None else replace(self, advantages=self.advantages * weights)

    def sparing(self, view: ResponseView, spared: Mapping[str, int]) -> Credit:
        """Return the credit without blame for the first `spared` turns of some trajectories (`spare_turns`)."""
        if not spared:
            return self
        turns = torch.tensor([spared.get(id, 0) for id in view.trajectory_ids])
        return replace(self, advantages=spare_turns(self.advantages, view.mask, view.turn_ids, turns))

    def is_signal(self, settings: LearnerSettings) -> bool:
        """Return whether there is enough to learn from for a step."""
        floor = settings.algorithm.min_live_groups if settings.spec.needs_group else 0.0
        return bool(self.live.any()) and self.live_groups >= floor


def credit_of_update(
    settings: LearnerSettings,
    view: ResponseView,
    old: BatchScores,
    reference: BatchScores,
    kl: KLController,
    anchors: Anchors | None = None,
) -> tuple[Credit, dict[str, float]]:
    """Return the credit of an update, and the metrics of what it was made from.

    Where the config asks for it, the reward of every token is lowered by `kl.value` x KL(old policy, reference), and
    the coefficient adapts.
    """
    rewards, metrics = view.rewards, dict[str, float]()
    if settings.training.use_kl_in_reward:
        assert old.log_probs is not None
        assert reference.log_probs is not None
        # k1: its gradient through the return is that of the KL, whatever estimator the loss term uses
        rewards, distance = apply_kl_penalty(
            rewards, old.log_probs, reference.log_probs, view.mask, kl.value, estimator="k1"
        )
        metrics = {"kl_reference": float(distance), "kl_coef": kl.value}
        kl.update(float(distance), len(view))
    credit = assign_credit(
        settings.spec,
        settings.advantage,
        view,
        rewards,
        old.values,
        old.final_values,
        anchors,
        skip_dead_groups=settings.algorithm.skip_dead_groups,
    )
    metrics |= {"live_fraction": credit.live_fraction, "live_groups": credit.live_groups}
    if old.values is not None:
        metrics |= _describe_values(old.values[view.mask], credit.returns[view.mask])
    return credit, metrics


def _describe_values(values: Tensor, returns: Tensor) -> dict[str, float]:
    """Return how well the critic's `values` [tokens] predict the `returns` [tokens]."""
    variance = returns.var(correction=0)
    unexplained = (returns - values).var(correction=0)
    return {
        "value_mean": float(values.mean()),
        "return_mean": float(returns.mean()),
        "explained_variance": float(1 - unexplained / variance) if variance > 0 else 0.0,
    }


def assign_credit(
    spec: AlgorithmSpec,
    options: AdvantageOptions,
    view: ResponseView,
    rewards: Tensor,
    values: Tensor | None,
    final_values: Tensor | None,
    anchors: Anchors | None = None,
    *,
    skip_dead_groups: bool = True,
) -> Credit:
    """Return advantages and returns of every response token.

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
    """Return whether the advantages of a group differ. Where they do not, none of its episodes did better than
    another."""
    lowest = advantages.masked_fill(~mask, torch.inf).amin(1).tolist()
    highest = advantages.masked_fill(~mask, -torch.inf).amax(1).tolist()
    bounds: dict[str, tuple[float, float]] = {}
    for group, low, high in zip(group_ids, lowest, highest, strict=True):
        lowest_so_far, highest_so_far = bounds.get(group, (low, high))
        bounds[group] = (min(lowest_so_far, low), max(highest_so_far, high))
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
    """Return int64 [N, R]: the number of the state in which each token's turn started."""
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
