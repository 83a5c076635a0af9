"""The finer points of the loss and of the credit, beside those of `training`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from uirl.config.section import Count, Fraction, Index, NonNegative, Positive, Section


class AlgorithmConfig(Section):
    """Aggregation, importance ratios, KL, and which groups are learned from."""

    key: ClassVar[str] = "algorithm"

    loss_aggregation: Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"] = (
        "token-mean"
    )
    """How the losses of tokens become one number: every token weighs the same, every sequence weighs the same, sums
    per sequence, or these divided by the constant `loss_length`."""
    loss_length: Count | None = None
    """Tokens by which 'seq-mean-token-sum-norm' divides; None: the width of the batch of each update, which is
    that of its longest sequence and no constant; name a number, such as the most tokens of a reply, for Dr. GRPO."""
    ratio: Literal["token", "sequence"] = "token"
    """Importance ratio per token (PPO) or the geometric mean over a sequence (GSPO)."""
    dual_clip: Annotated[float, Field(gt=1)] | None = None
    """With a negative advantage the loss is at most `dual_clip` x |advantage|; None: unbounded."""
    tis_cap: Positive | None = None
    """Truncated importance sampling: each token weighs min(exp(old_log_probs - rollout_log_probs), tis_cap), for
    stale rollouts and engines that round differently; None: no correction."""
    tis_level: Literal["token", "sequence"] = "token"
    """What `tis_cap` caps: the weight of every token, or for all tokens of a sequence the geometric mean of their
    weights."""
    mismatch_range: Annotated[tuple[NonNegative, Positive], Field(strict=False)] | None = None
    """Masked importance sampling: [low, high], such as [0.5, 2.0]; what has a weight exp(old_log_probs -
    rollout_log_probs) outside it is left out of the loss, whose denominator stays; None: nothing is. With `tis_cap` the
    rest is weighed too."""
    mismatch_level: Literal["token", "sequence"] = "token"
    """What `mismatch_range` judges: every token, or every sequence by the geometric mean of its weights."""
    stale_correction: Literal["off", "truncated", "masked"] = "masked"
    """How samples that older weights than the learner's sampled (`actors.staleness`) are corrected, by the weight
    exp(old_log_probs - rollout_log_probs): 'truncated' at `stale_cap`, 'masked' (weighed inside `stale_range`, left out
    outside), or not ('off'). Samples of the learner's own weights are never touched, so a synchronous run is the same
    with any value. `tis_cap` and `mismatch_range`, which correct every sample, replace it."""
    stale_level: Literal["token", "sequence"] = "sequence"
    """Whether stale samples are corrected each as a whole, by the geometric mean of its weights, or token by token,
    which learned less where data were many versions old."""
    stale_cap: Positive = 2.0
    """Largest weight of 'truncated'."""
    stale_range: Annotated[tuple[NonNegative, Positive], Field(strict=False)] = (0.5, 2.0)
    """Smallest and largest weight that 'masked' learns from."""

    normalize_by_std: bool = True
    """'grpo', 'turn_level' and 'gigpo' divide by the standard deviation of the group; false: subtract the mean only."""
    whiten_advantages: bool = True
    """'gae' and 'reinforce_plus_plus' scale the advantages of an update to mean 0 and deviation 1."""
    step_weight: NonNegative = 1.0
    """'gigpo': weight of the credit between turns that start from the same state, beside that between episodes. A state
    is what the agent sees, or what the environment's `state_key()` says."""
    step_credit: Literal["off", "reward", "spare"] = "off"
    """Credit for the right beginning of a failed episode, up to where it left the way of a solved one of its group:
    'reward': its turns share `step_right`, and the first wrong turn gets -`step_wrong`, beside the rewards that there
    are; 'spare': it is not blamed: negative advantages of its turns are 0."""
    step_right: NonNegative = 0.5
    """'reward': what the turns of an episode would get together if all were right; each gets an equal part of it."""
    step_wrong: NonNegative = 0.0
    """'reward': what the first wrong turn loses."""
    step_certify: bool = True
    """A beginning counts only if playing it again shows the same screens and the solved episode's way solves the task
    from there. It costs a reset and the steps of an episode for each; false: equal screens are believed."""
    skip_dead_groups: bool = True
    """Estimators that compare within a group leave out groups whose episodes all have the same reward: they carry no
    signal, yet Adam steps on what is left of the batch in full size."""
    min_live_groups: Fraction = 0.1
    """An update with a smaller share of live groups is skipped; 0: never."""
    scale_step_by_live: bool = False
    """Scale the learning rate of an update by its share of trajectories that carry a signal."""
    max_resamples: Index = 0
    """How often an update may replace its dead groups by fresh ones, so that it keeps its size; 0: never. Episodes that
    were replaced stay on the record and in the metrics."""

    target_kl: Positive | None = None
    """An update ends before the step on a minibatch whose tokens show KL(policy before the update, policy now) above
    this, in nats per token, by the estimator k3; its first step is always taken. None: never. Usual: 0.01 to 0.05."""
    max_update_kl: Positive | None = None
    """After its steps, the change that an update made to the weights is halved until that KL over all of its tokens is
    at most this, as in TRPO's line search; after 10 halvings it is undone. A guard against the one update that ruins a
    policy: it costs a forward pass and a copy of the trained weights. None: no guard."""

    kl_loss_coef: NonNegative = 0.0
    """Weight of KL(policy, reference) in the loss; above 0 a reference model is loaded."""
    kl_loss_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How that weight falls over the run: 'linear' or 'cosine' to `kl_loss_final_ratio` of it, by the updates done. A
    policy that begins at chance keeps all of its choices for as long as it is held near there."""
    kl_loss_final_ratio: Fraction = 0.0
    """Share of `kl_loss_coef` that is left when the run ends."""
    kl_type: Literal["k1", "k2", "k3"] = "k3"
    """Estimator of the KL in the loss: k1 = log ratio, k2 = half its square, k3 = ratio - 1 - log ratio. The penalty
    in the reward is always k1, whose sum over an episode is unbiased."""
    kl_target: Positive | None = None
    """Adapt `training.kl_coef` so that the KL per token approaches this; None: the coefficient stays."""
    kl_horizon: Count = 10_000
    """Samples over which the adaptive coefficient reacts."""

    reward_threshold: float = 0.0
    """'rejection_sampling' imitates episodes whose total reward is above this."""
