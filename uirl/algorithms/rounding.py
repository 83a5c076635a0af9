"""When two sums of rewards are one: the order of adding must decide nothing."""

from collections.abc import Sequence
from typing import Any

ROUNDING = 2.0**-21
"""Four units in the last place of float32, in which the learner keeps rewards: 0.1 + 0.2 is 0.3."""


def at_most(one: Any, other: Any, size: Any) -> Any:
    """Return whether `one <= other` but for rounding, where both are sums of numbers that sum up to `size` without
    their signs; of tensors `[...]`, elementwise. NaN is at most nothing."""
    return one - other <= ROUNDING * size


def differ(sums: Sequence[float], sizes: Sequence[float]) -> bool:
    """Return whether some of `sums` differ by more than rounding; `sizes`: the same sums without signs."""
    return len(sums) > 1 and not at_most(max(sums), min(sums), max(sizes))
