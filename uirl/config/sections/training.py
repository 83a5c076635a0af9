"""The training loop: how much data an update sees, the optimiser, advantages, evaluation and the warm start."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from uirl.config.section import Count, Fraction, Index, NonNegative, Pair, Positive, Section

Estimator = Literal[
    "gae",
    "grpo",
    "rloo",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "turn_level",
    "gigpo",
    "rejection_sampling",
]
GROUP_ESTIMATORS = ("grpo", "rloo", "reinforce_plus_plus_baseline", "turn_level", "gigpo")
"""Estimators whose baseline is the mean of a group of episodes of the same task."""
DEFAULT_GROUP_SIZE = 8
MICRO_BATCH_TOKENS = 32_768
"""`training.micro_batch_tokens` where memory is no limit."""


class WarmStartConfig(Section):
    """Supervised training on demonstrations before the first update."""

    key: ClassVar[str] = "training.warm_start"

    enabled: bool | None = None
    """Warm-start; false: begin with reinforcement learning. None: a built-in model, which knows nothing, where the
    environment has a demonstrator; a checkpoint follows instructions as it is."""
    demonstrations: Count = 25_600
    """Maximum number of demonstrated episodes, each with its own seed; fewer where their pictures take a GiB. Then they
    are drawn again."""
    steps: Count = 500
    """Maximum number of optimiser steps."""
    batch_size: Count = 64
    """Demonstrations per step."""
    learning_rate: Positive | None = None
    """Peak learning rate of AdamW. None: 1e-3 for a built-in model; for a checkpoint 1e-5, and 1e-4 for its adapters,
    as is usual in supervised fine-tuning."""
    betas: Pair = (0.9, 0.95)
    """AdamW's decay rates of the first and second moment."""
    warmup_steps: Index = 20
    """Steps over which the learning rate rises linearly from 0."""
    stop_at_success: Fraction | None = 0.45
    """Stop when the policy, sampled at the temperature of training, solves this share of the episodes of an evaluation.
    Every evaluation plays the same instances, of a split of its own. None: take all `steps`."""
    evaluate_every: Count | None = 25
    """Steps between evaluations; None: never, so all `steps` are taken."""
    evaluate_episodes: Count = 128
    """Episodes of one evaluation."""


class TrainingConfig(Section):
    """One run: `num_epochs` epochs of `num_iters_per_epoch` updates on `batch_size` episodes each."""

    key: ClassVar[str] = "training"

    seed: int = 0
    """Seed of everything random in the run."""
    num_epochs: Count = 20
    """Epochs; a checkpoint falls on the end of one."""
    num_iters_per_epoch: Count = 10
    """Updates per epoch."""
    max_seconds: Positive | None = None
    """Wall time of the updates, and of the evaluations between them, after which the run ends in order, with a
    checkpoint; None: no limit. What comes before the first update and after the last is not counted."""
    stop_at_success: Fraction | None = None
    """End the run when an evaluation reaches this success rate; None: never."""

    batch_size: Count = 256
    """Episodes per update."""
    group_size: Count | None = None
    """Episodes of the same task that are compared with each other; None: 8 where `adv_estimator` compares within a
    group, 1 otherwise. `episodes_per_group` is the resolved number."""
    minibatches: Count = 2
    """Optimiser steps per pass over the episodes of an update."""
    update_epochs: Count = 1
    """Passes over the episodes of an update."""
    micro_batch_tokens: Count | None = None
    """Maximum number of tokens, with padding, of one forward and backward pass; keys and values of a prompt that is
    shared count as an eighth of its tokens for each sample. Changes memory, not the gradient. None:
    32768; for a checkpoint as many of its longest sequences as fit by the plan (docs/plan.md), where those are fewer,
    and one at least."""
    share_prompts: bool = True
    """A prompt that several samples of a micro-batch begin with is read once for all of them, as the members of a group
    do. Changes time and memory, and the gradient by rounding alone; with `model.lora.lora_dropout` its samples share
    what is dropped of the prompt. Models that do not take it read every sample by itself, and a warning says why."""
    padding_free: bool = True
    """Samples of unlike lengths are read in one row, one behind the other, without padding. Changes time and memory,
    and the gradient by rounding alone. Models that do not take such rows read padded ones; a warning says why."""

    optimizer: Literal["adamw", "adamw_8bit"] = "adamw"
    """'adamw': two float32 moments, 8 bytes a trained weight. 'adamw_8bit': two of 8 bits, 2 bytes (Dettmers et al.
    2022, 2110.02861); needs the package bitsandbytes. Warm start and `uirl evolve` use it too. Masters of narrower
    weights stay in float32."""
    learning_rate: Positive | None = None
    """Peak learning rate of AdamW. None: 4e-4 for a built-in model; 1e-6 for all weights of a checkpoint (GRPO,
    2402.03300; DAPO, 2503.14476) and 2e-5 for adapters, which want ten times as much and more (Schulman et al. 2025,
    LoRA Without Regret)."""
    betas: Pair = (0.9, 0.99)
    """AdamW's decay rates of the first and second moment."""
    weight_decay: NonNegative = 0.01
    """AdamW's decoupled weight decay."""
    warmup_steps: Index = 10
    """Optimiser steps over which the learning rate rises linearly from 0. A fresh AdamW without them loses success."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rates of updates fall over the run, after `warmup_steps`: 'linear' or 'cosine' to
    `lr_final_ratio` of the peak, by the updates done of all that the run has (those without a step included)."""
    lr_final_ratio: Fraction = 0.0
    """Share of the peak learning rate that is left when the run ends."""
    max_grad_norm: Positive | None = 1.0
    """Gradients of a larger norm are scaled down to this one; None: never."""

    adv_estimator: Estimator = "gae"
    """How rewards become advantages: 'gae' (PPO with a critic), 'grpo', 'rloo', 'reinforce_plus_plus',
    'reinforce_plus_plus_baseline', 'turn_level' and 'gigpo' (credit per turn), 'rejection_sampling' (imitate the
    successes)."""
    gamma: Fraction = 1.0
    """Discount per token ('gae', 'reinforce_plus_plus') or per turn ('turn_level', 'gigpo'); 1: none."""
    lam: Fraction = 0.95
    """Lambda of GAE, per token: 1 trusts the rewards alone, 0 the critic alone."""
    clip_ratio: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """PPO clips the probability ratio to [1 - clip_ratio, 1 + clip_ratio]."""
    clip_ratio_low: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Distance of the lower clip from 1 (eps_low); None: `clip_ratio`."""
    clip_ratio_high: Positive | None = None
    """Distance of the upper clip from 1 (eps_high); None: `clip_ratio`. More than the lower one keeps exploration."""
    old_log_probs: Literal["auto", "rollout", "recompute"] = "auto"
    """Log-probs at the start of an update: 'recompute' them in the learner, take the engine's ('rollout'), or 'auto':
    the engine's where they are the learner's to 1e-4 (embedded engine, float32, no top-p, top-k or dropout)."""
    entropy_coef: NonNegative | None = None
    """Weight of the entropy bonus in the loss; 0: none. None: 0.02 for a built-in model; 0 for a checkpoint, which
    has too many words for a bonus on all of them (DAPO, 2503.14476, trains without one)."""
    entropy_min_p: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """The bonus is the entropy of the choice among the tokens that have at least this share of the likeliest one's
    probability. 0: all of the vocabulary, where a large weight ends in tokens that mean nothing. Usual: 0.001."""
    target_entropy: Positive | None = None
    """Entropy of the bonus, in nats per token, to which `entropy_coef` is steered: after every update it grows or falls
    by up to a fifth, to at most 10 times and at least a tenth of what it was. None: it stays."""
    entropy_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How `target_entropy`, or without one `entropy_coef`, falls over the run: 'linear' or 'cosine' to
    `entropy_final_ratio` of it, by the updates done. A policy that begins at chance has to keep its choices until it
    knows what follows each."""
    entropy_final_ratio: Fraction = 0.0
    """Share of it that is left when the run ends."""
    value_coef: NonNegative = 0.5
    """Weight of the critic's loss ('gae')."""
    value_clip: Positive | None = 0.2
    """The critic's new value may differ from the old one by this much; None: freely."""
    value_learning_rate: Positive | None = None
    """Learning rate of the value head; None: `learning_rate`."""
    use_kl_in_reward: bool = False
    """Subtract `kl_coef` x KL(policy, reference) from the reward of every token. Loads a reference model."""
    kl_coef: NonNegative = 0.001
    """Initial weight of the KL penalty in the reward."""

    eval_every: Count | None = 10
    """Updates between evaluations; None: none but the first and the last."""
    eval_episodes: Count = 256
    """Episodes of one evaluation, on seeds that training never uses."""
    eval_temperature: NonNegative | None = None
    """Temperature in evaluation; 0: greedy; None: `inference.temperature`."""
    threads: Count | None = None
    """CPU threads of torch; None: torch's own choice is left alone. On a busy machine 1 is the quickest."""
    warm_start: WarmStartConfig = Field(default_factory=WarmStartConfig)

    @property
    def groups(self) -> int:
        """Groups of an update."""
        return self.batch_size // self.episodes_per_group

    @property
    def episodes_per_group(self) -> int:
        """`group_size`, resolved."""
        if self.group_size is not None:
            return self.group_size
        return DEFAULT_GROUP_SIZE if self.adv_estimator in GROUP_ESTIMATORS else 1

    @property
    def micro_batch_limit(self) -> int:
        """`micro_batch_tokens`, or the most that it can be where nobody has chosen it yet."""
        return MICRO_BATCH_TOKENS if self.micro_batch_tokens is None else self.micro_batch_tokens

    @property
    def clip_range(self) -> tuple[float, float]:
        """(distance below 1, distance above 1) at which the probability ratio is clipped."""
        low = self.clip_ratio if self.clip_ratio_low is None else self.clip_ratio_low
        high = self.clip_ratio if self.clip_ratio_high is None else self.clip_ratio_high
        return low, high
