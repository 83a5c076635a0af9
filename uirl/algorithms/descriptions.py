"""Algorithms as small frozen descriptions: the second argument of `Trainer(model, algorithm, ...)`.

A description computes nothing. It names an entry of `ALGORITHMS` and carries the hyper-parameters, in the
words of its paper; the learner reads them as keyword arguments through `advantage_options()` and
`loss_options()`.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import cast

from uirl.algorithms.aggregation import Aggregation
from uirl.algorithms.checks import check_unit_interval
from uirl.algorithms.losses import LossOptions, PolicyLossOptions, RatioLevel
from uirl.algorithms.registry import AdvantageOptions, AlgorithmSpec, get_algorithm


class Algorithm(ABC):
    """What the learner reads from any algorithm."""

    @property
    @abstractmethod
    def adv_estimator(self) -> str:
        """The name in `ALGORITHMS`."""

    @property
    def spec(self) -> AlgorithmSpec:
        """The entry of `ALGORITHMS`."""
        return get_algorithm(self.adv_estimator)

    def advantage_options(self) -> AdvantageOptions:
        """Return the keyword arguments for `AdvantageInputs`, next to the tensors: fields of these names."""
        own = {name: getattr(self, name) for name in AdvantageOptions.__annotations__ if hasattr(self, name)}
        return cast(AdvantageOptions, own)

    def loss_options(self) -> LossOptions:
        """Return the keyword arguments for the loss named by `spec.loss`, next to the tensors and the denominator."""
        return {}


@dataclass(frozen=True, kw_only=True)
class _Clipped(Algorithm):
    """The options that every algorithm with the clipped policy loss shares."""

    clip_ratio_c: float | None = None
    """Dual clip bound for negative advantages; None: off."""
    tis_cap: float | None = None
    """Cap of the importance weight learner / engine; None: no correction."""
    aggregation: Aggregation = "token-mean"
    """How token losses become one number, see `aggregate_loss`."""
    loss_length: int | None = None
    """The constant of 'seq-mean-token-sum-norm'; None with the other aggregations."""
    kl_coef: float = 0.0
    """Weight of the KL to the reference policy; 0: no reference policy is needed."""
    ratio_level: RatioLevel = "token"
    """'sequence' clips the ratio of the whole row, as GSPO does."""

    def __post_init__(self) -> None:
        own = vars(self)
        for name in ("clip_epsilon", "eps_low", "eps_high"):
            if name in own and not own[name] > 0:
                raise ValueError(f"{name} must be positive: got {own[name]}; at 0 the policy could not move at all")
        check_unit_interval(**{name: own[name] for name in ("gamma", "gae_lambda") if name in own})

    @property
    @abstractmethod
    def clip_range(self) -> tuple[float, float]:
        """Distances of the lower and the upper clip of the ratio from 1."""

    def loss_options(self) -> LossOptions:
        eps_low, eps_high = self.clip_range
        options = PolicyLossOptions(
            eps_low=eps_low,
            eps_high=eps_high,
            clip_ratio_c=self.clip_ratio_c,
            ratio_level=self.ratio_level,
            tis_cap=self.tis_cap,
        )
        return {"options": options, "aggregation": self.aggregation, "loss_length": self.loss_length}


@dataclass(frozen=True)
class _OneClipRange(_Clipped):
    """An algorithm that clips the ratio by the same distance below and above 1."""

    clip_epsilon: float = 0.2
    """Clip range of the ratio on both sides."""

    @property
    def clip_range(self) -> tuple[float, float]:
        return self.clip_epsilon, self.clip_epsilon


@dataclass(frozen=True)
class _TwoClipRanges(_Clipped):
    """An algorithm with a clip range of its own below and above 1."""

    eps_low: float = 0.2
    """Clip range below 1."""
    eps_high: float = 0.3
    """Clip range above 1."""

    @property
    def clip_range(self) -> tuple[float, float]:
        return self.eps_low, self.eps_high


@dataclass(frozen=True)
class RejectionSampling(Algorithm):
    """Train, supervised, on the trajectories whose reward is larger than `reward_threshold`."""

    reward_threshold: float = 0.0
    """Strict: with 0 a reward of exactly 0 is dropped."""
    aggregation: Aggregation = "token-mean"
    """How token losses become one number, see `aggregate_loss`."""

    adv_estimator = "rejection_sampling"

    def loss_options(self) -> LossOptions:
        return {"aggregation": self.aggregation}


@dataclass(frozen=True)
class PPO(_OneClipRange):
    """Proximal policy optimisation with a critic (1707.06347)."""

    gamma: float = 0.99
    """Discount per response token."""
    gae_lambda: float = 0.95
    """Trace decay."""
    cliprange_value: float | None = 0.2
    """How far the critic may move in one update; None: unclipped."""
    whiten: bool = True
    """Whether advantages are whitened over the batch."""

    adv_estimator = "gae"

    def advantage_options(self) -> AdvantageOptions:
        return {**super().advantage_options(), "lam": self.gae_lambda}


@dataclass(frozen=True)
class GRPO(_TwoClipRanges):
    """Group relative policy optimisation (2402.03300) with DAPO's asymmetric clip range (2503.14476).

    `GRPO(normalize_by_std=False)` is Dr. GRPO; `GRPO(3e-4, 4e-4, ratio_level="sequence",
    aggregation="seq-mean-token-mean")` is GSPO.
    """

    normalize_by_std: bool = True
    """Whether to divide by the group's standard deviation."""

    adv_estimator = "grpo"


@dataclass(frozen=True)
class RLOO(_OneClipRange):
    """REINFORCE with the mean of the others in the group as baseline (2402.14740)."""

    adv_estimator = "rloo"


@dataclass(frozen=True)
class ReinforcePlusPlus(_OneClipRange):
    """REINFORCE++ (2501.03262): no critic, advantages whitened over the batch."""

    gamma: float = 1.0
    """Discount per response token; not read with `group_baseline`."""
    group_baseline: bool = False
    """Whether to subtract the group's mean first (the "-baseline" variant)."""

    @property
    def adv_estimator(self) -> str:
        return "reinforce_plus_plus_baseline" if self.group_baseline else "reinforce_plus_plus"


@dataclass(frozen=True)
class TurnLevel(_TwoClipRanges):
    """Reward-to-go of each turn relative to the same turn of the group."""

    gamma: float = 1.0
    """Discount per turn."""
    normalize_by_std: bool = True
    """Whether to divide by the standard deviation among the compared turns."""

    adv_estimator = "turn_level"


@dataclass(frozen=True)
class GiGPO(TurnLevel):
    """Group in group (2505.10978): the episode's advantage plus the turn's among equal states."""

    gamma: float = 0.95
    """Discount per turn."""
    step_advantage_weight: float = 1.0
    """Weight of the turn's advantage next to the episode's."""

    adv_estimator = "gigpo"
