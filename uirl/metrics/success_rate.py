"""How sure a success rate is: confidence intervals and pass@k."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

REPORTED_K = (1, 2, 4, 8, 16, 32, 64)


def success_interval(successes: float, n: float, z: float = 1.959963984540054) -> tuple[float, float]:
    """Return (low, high) of the Wilson interval of a success rate; `z` = 1.96 is 95 % confidence. Episodes may have
    weights: `n` is their sum, `successes` that of the solved ones.

    centre = (p + z^2 / 2n) / (1 + z^2 / n), half width = z / (1 + z^2 / n) * sqrt(p (1 - p) / n + z^2 / 4n^2) with
    p = successes / n (Wilson 1927). Never empty and never outside [0, 1], not even at 0 or n successes. Raises
    ValueError where n is 0: no episodes are no rate.
    """
    if not 0 <= successes <= n or not n > 0:
        raise ValueError(f"expected 0 <= successes <= n with n above 0, got {successes} of {n}")
    p, spread = successes / n, z * z / n
    centre = (p + spread / 2) / (1 + spread)
    half = z / (1 + spread) * math.sqrt(p * (1 - p) / n + spread / (4 * n))
    return (0.0 if successes == 0 else centre - half, 1.0 if successes == n else centre + half)


def pass_at_k(n: int, c: int, k: int) -> float:
    """Estimate without bias the chance that one of `k` tries solves a task, from `c` successes in `n` tries.

    1 - C(n - c, k) / C(n, k) (Chen et al. 2021). Raises ValueError where k is more than n.
    """
    _check_counts(c, n)
    if not 1 <= k <= n:
        raise ValueError(f"pass@{k} needs 1 <= k <= n tries, got n={n}; evaluate each task at least {k} times")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def mean_pass_at_k(attempts: Iterable[Collection[bool]]) -> dict[int, float]:
    """Average pass@k over tasks, for each k of `REPORTED_K` that some task was tried often enough for.

    `attempts`: one collection of outcomes per task. A task with fewer than k tries does not count for k.
    """
    tasks = list(attempts)
    longest = max((len(outcomes) for outcomes in tasks), default=0)
    averages = {}
    for k in (k for k in REPORTED_K if k <= longest):
        rates = [pass_at_k(len(outcomes), sum(outcomes), k) for outcomes in tasks if len(outcomes) >= k]
        averages[k] = sum(rates) / len(rates)
    return averages


def _check_counts(successes: int, n: int) -> None:
    if n < 1 or not 0 <= successes <= n:
        raise ValueError(f"expected 0 <= successes <= n with n of at least 1, got {successes} of {n}")
