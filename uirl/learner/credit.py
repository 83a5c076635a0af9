"""What an update is made from, before its first step: scores of the policy and its reference, what stale tokens weigh,
the credit of whole trajectories, and which of them carry a signal.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from uirl.algorithms import (
    AdvantageInputs,
    AdvantageOptions,
    AlgorithmSpec,
    KLController,
    apply_kl_penalty,
    effective_sample_size,
    level_log_weight,
    masked_mean,
    masked_weight,
    mismatch_log_weight,
    spare_turns,
    truncated_weight,
)
from uirl.errors import AlignmentError, ConfigError, NonFiniteError
from uirl.learner.batch import SampleBatches
from uirl.learner.policy import Policy
from uirl.learner.settings import LearnerSettings
from uirl.learner.view import ResponseView


@dataclass(frozen=True, slots=True)
class BatchScores:
    """Scores of the response tokens of an update, float32 on the CPU, in rows of trajectories. None: not asked for."""

    log_probs: Tensor | None = None
    """[N, R], in nats."""
    from_engine: bool = False
    """`log_probs` are those that the engine sampled with."""
    values: Tensor | None = None
    """[N, R], in units of reward: the critic before the token is chosen."""
    final_values: Tensor | None = None
    """[N], in units of reward: the critic after the last token of the trajectory."""


def score_old(
    policy: Policy, settings: LearnerSettings, view: ResponseView, batches: SampleBatches, version: int
) -> BatchScores:
    """Return log-probs and values under the weights of `version`, the policy's, as far as credit and loss read them.

    The engine's log-probs stand for the policy's where the settings trust them. Raises NonFiniteError where a score is
    not finite.
    """
    from_engine = trusts_engine(settings, view, version)
    scores = score_samples(
        policy,
        settings.temperature,
        view,
        batches,
        log_probs=settings.reads_old_log_probs and not from_engine,
        values=settings.spec.needs_critic,
    )
    if settings.reads_old_log_probs and from_engine:
        scores = replace(scores, log_probs=view.rollout_log_probs, from_engine=True)
    _require_finite(view, scores)
    return scores


def score_reference(
    policy: Policy, settings: LearnerSettings, view: ResponseView, batches: SampleBatches
) -> BatchScores:
    """Return the log-probs of the reference policy, where a KL is measured; else nothing."""
    if not settings.needs_reference:
        return BatchScores()
    with policy.reference():
        return score_samples(policy, settings.temperature, view, batches, log_probs=True, values=False)


def trusts_engine(settings: LearnerSettings, view: ResponseView, version: int) -> bool:
    """Return whether the engine's log-probs may stand for the learner's at the start of an update of `version`."""
    if settings.training.old_log_probs != "auto":
        return settings.training.old_log_probs == "rollout"
    return settings.engine_is_exact and all(sampled == version for sampled in view.sample_versions)


@torch.no_grad()
def score_samples(
    policy: Policy, temperature: float, view: ResponseView, batches: SampleBatches, *, log_probs: bool, values: bool
) -> BatchScores:
    """Return the scores of all samples under the weights that `policy` has now; `log_probs`, `values`: which of
    them."""
    if not (log_probs or values):
        return BatchScores()
    # 0 where another process makes the pass
    token_log_probs, token_values = ([torch.zeros(count) for count in view.token_counts] for _ in range(2))
    final_values = list(torch.zeros(len(batches)).split(1))

    def score() -> None:
        for batch, members in batches.of(range(len(batches)), scores=log_probs):
            scores = policy.log_probs_and_values(batch, temperature, log_probs=log_probs, values=values)
            counts = batch.response_mask.sum(1).tolist()
            if scores.log_probs is not None:
                _place(token_log_probs, members, batch.flatten(scores.log_probs).cpu().split(counts))
            if scores.values is not None and scores.final_values is not None:
                _place(token_values, members, batch.flatten(scores.values).cpu().split(counts))
                _place(final_values, members, scores.final_values.cpu().split(1))

    batches.results(score, None)

    def joined(parts: list[Tensor]) -> Tensor:
        return torch.cat(batches.joined(parts))

    return BatchScores(
        log_probs=view.spread(joined(token_log_probs)) if log_probs else None,
        values=view.spread(joined(token_values)) if values else None,
        final_values=joined(final_values)[list(view.last_samples)] if values else None,
    )


def _place(parts: list[Tensor], members: Sequence[int], scores: Sequence[Tensor]) -> None:
    for index, part in zip(members, scores, strict=True):
        parts[index] = part


def _require_finite(view: ResponseView, scores: BatchScores) -> None:
    for name, compact in (("old log-probs", scores.log_probs), ("values", scores.values)):
        if compact is not None and not compact.isfinite().all():
            row = int((~compact.isfinite()).any(1).nonzero()[0])
            raise NonFiniteError(
                f"the {name} of trajectory {view.name(row)} are not finite. A demonstration has no rollout log-probs "
                "and belongs to Learner.supervised; otherwise the weights are broken."
            )


def stale_weights(
    settings: LearnerSettings, view: ResponseView, old: BatchScores, version: int
) -> tuple[Tensor | None, dict[str, float]]:
    """Return the weight of every token [N, R] in an update of `version`, and the metrics of what is stale.

    A sample is stale as a whole where older weights sampled any token of it: what follows was sampled from their cache.
    All other tokens weigh exactly 1. None: nothing is stale, or it is not corrected. Raises AlignmentError where a
    stale sample that is to be corrected has no log-probs of the engine, or those of what a filter left.
    """
    stale = torch.tensor([sampled < version for sampled in view.sample_versions])
    if not stale.any():
        return None, {}
    metrics = _ages(view, stale, version)
    if old.log_probs is None or old.from_engine or not (settings.like_with_like or settings.corrects_stale):
        return None, metrics
    mask = _padded(view, view.mask) & stale[:, None]
    mask &= _known(settings, view, mask)
    log_weight = mismatch_log_weight(_padded(view, old.log_probs), _padded(view, view.rollout_log_probs), mask)
    metrics |= _distance(log_weight, mask)
    if not settings.corrects_stale:
        return None, metrics
    weights, corrected = _correction(settings, log_weight, mask)
    counted = torch.arange(weights.shape[1]) < torch.tensor(view.token_counts)[:, None]
    return view.spread(weights[counted]), metrics | corrected


def _correction(settings: LearnerSettings, log_weight: Tensor, mask: Tensor) -> tuple[Tensor, dict[str, float]]:
    """Return the weights [S, T], 1 outside `mask`, and the shares of its tokens that are capped or left out."""
    finer = settings.algorithm
    level = finer.stale_level
    if finer.stale_correction == "masked":
        weights = masked_weight(log_weight, mask, *finer.stale_range, level)
        return weights, {"stale/masked": float(masked_mean((weights == 0).float(), mask))}
    weights = truncated_weight(log_weight, mask, finer.stale_cap, level)
    above = level_log_weight(log_weight, mask, level).exp() > finer.stale_cap
    return weights, {"stale/capped": float(masked_mean(above.float(), mask))}


def _distance(log_weight: Tensor, mask: Tensor) -> dict[str, float]:
    """Return how far the policy that sampled the tokens of `mask` [S, T] is from the learner's at the start."""
    of_sequence = level_log_weight(log_weight, mask, "sequence")[:, :1].exp()
    return {
        "stale/gap": float(masked_mean(log_weight.abs(), mask)),
        "stale/ess": float(effective_sample_size(log_weight.exp(), mask)),
        "stale/ess_sequence": float(effective_sample_size(of_sequence, mask.any(1, keepdim=True))),
    }


def _ages(view: ResponseView, stale: Tensor, version: int) -> dict[str, float]:
    """Return how much is stale, and by how many versions. `stale`: booleans [S]."""
    versions = [
        part for part, old in zip(view.split(view.flatten(view.policy_version)), stale.tolist(), strict=True) if old
    ]
    ages = version - torch.cat(versions)
    return {
        "stale/share": len(ages) / view.tokens,
        "stale/age_mean": float(ages.double().mean()),
        "stale/age_max": float(ages.max()),
        "stale/mixed": sum(bool(part.min() != part.max()) for part in versions) / len(versions),
    }


def _known(settings: LearnerSettings, view: ResponseView, mask: Tensor) -> Tensor:
    """Find the tokens of which the engine said how likely they were among all: booleans [S, T]."""
    known = _padded(view, view.rollout_log_probs).isfinite() & settings.like_with_like
    unknown = (mask & ~known).any(1)
    if settings.corrects_stale and unknown.any():
        row = view.sample_rows[int(unknown.nonzero()[0])]
        raise AlignmentError(
            f"trajectory {view.name(row)} was sampled by older weights and cannot be corrected for that: got no "
            "log-probs of the engine that compare with the learner's, expected one per token; use an engine that "
            "returns them, inference.top_p=1 and top_k=0, actors.staleness=0, or algorithm.stale_correction=off"
        )
    return known


def _padded(view: ResponseView, compact: Tensor) -> Tensor:
    """Return numbers of rows of trajectories [N, R] in rows of samples [S, T], 0 beyond their end."""
    return pad_sequence(view.split(view.flatten(compact)), batch_first=True)


Anchors = Mapping[str, Sequence[Hashable]]
"""For each trajectory id the key of the state in which each turn started; equal keys are equal states."""


def numbered(anchors: Anchors) -> dict[str, list[int]]:
    """Return the same with a number for each state, which another process can be told."""
    numbers: dict[Hashable, int] = {}
    return {id: [numbers.setdefault(key, len(numbers)) for key in keys] for id, keys in anchors.items()}


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
