"""How sure a success rate is: confidence intervals and pass@k."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable
from statistics import NormalDist

REPORTED_K = (1, 2, 4, 8, 16, 32, 64)
ALIKE = 2
"""Instances that `clustered_interval` adds to those it has seen, whose tries all end alike."""


def clustered_interval(groups: Iterable[tuple[int, int]], confidence: float = 0.95) -> tuple[float, float]:
    """Return (low, high) of a success rate from `groups`: (solved, episodes) of each instance, or of whatever else the
    episodes share that makes them alike. Instances are drawn, tries of one are not independent of each other.

    Wilson's interval with the effective sample size of a cluster-robust variance (Miller 2024, Adding Error Bars to
    Evals, arXiv 2411.00640) and Student's t of m - 1 degrees of freedom. With s_i of n_i solved, p = sum s_i / n:

        m = n^2 / sum n_i^2 (Kish 1965: the instances, where each has as many tries)
        share = sum (s_i - n_i p)^2 / (p (1 - p) sum n_i^2): 1 if tries of an instance all end alike, 1 / tries if they
            are independent
        effective n = m / ((m share + ALIKE) / (m + ALIKE)), at most n; m at 0 and at n solved

    `ALIKE` keeps few instances from seeming more regular than they can show. One try each: Wilson's interval of m
    episodes. One instance alone says nothing of others: (0, 1). Raises ValueError without episodes.
    """
    counts = [(solved, n) for solved, n in groups if n]
    solved, n = sum(s for s, _ in counts), sum(n for _, n in counts)
    if not counts or not all(0 <= s <= n for s, n in counts):
        raise ValueError(f"expected groups of at least one episode, 0 <= solved <= episodes, got {counts[:8]}")
    squares = sum(n * n for _, n in counts)
    m, p = n * n / squares, solved / n
    if round(m) < 2:
        return 0.0, 1.0
    effective = m
    if 0 < solved < n:
        share = sum((s - n_i * p) ** 2 for s, n_i in counts) / (p * (1 - p) * squares)
        effective = min(n, m * (m + ALIKE) / (m * share + ALIKE))
    return success_interval(p * effective, effective, student_t(confidence, round(m) - 1))


def by_instance(outcomes: Iterable[tuple[Hashable, bool]]) -> list[tuple[int, int]]:
    """Return (solved, episodes) of each instance, of pairs (instance, whether an episode of it was solved)."""
    counts: dict[Hashable, tuple[int, int]] = {}
    for instance, solved in outcomes:
        wins, n = counts.get(instance, (0, 0))
        counts[instance] = (wins + bool(solved), n + 1)
    return list(counts.values())


def student_t(confidence: float, degrees: int) -> float:
    """Return the t within +-t of which Student's distribution has the share `confidence`: 12.7, 4.30, 3.18, ... 1.96
    for 0.95. Exact for 1 and 2 degrees of freedom, else Fisher's expansion about the normal quantile (Abramowitz and
    Stegun 26.7.5), right to 0.2 %."""
    p = 0.5 + confidence / 2
    if degrees == 1:
        return math.tan(math.pi * (p - 0.5))
    if degrees == 2:
        return confidence * math.sqrt(2 / (1 - confidence**2))
    z = NormalDist().inv_cdf(p)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / degrees ** (i + 1) for i, term in enumerate(terms))


def success_interval(successes: float, n: float, z: float = 1.959963984540054) -> tuple[float, float]:
    """Return (low, high) of the Wilson interval of a success rate of independent episodes; `z` = 1.96 is 95 %
    confidence. Episodes may have weights: `n` is their sum, `successes` that of the solved ones. Episodes of one
    instance are not independent: see `clustered_interval`.

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
    if n < 1 or not 0 <= c <= n:
        raise ValueError(f"expected 0 <= successes <= n with n of at least 1, got {c} of {n}")
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


def clopper_pearson(successes: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return the one-sided (lower, upper) bounds of the rate of independent episodes, each with `confidence` (Clopper
    and Pearson 1934): the rates at which so many successes, or so few, have the chance 1 - `confidence`.

    Exact, where Wilson's interval is not: without a success the upper one is 1 - (1 - `confidence`)^(1/n), by the rule
    of three about 3 / n. Without episodes nothing is known: (0, 1).
    """
    if not 0 <= successes <= n:
        raise ValueError(f"expected 0 <= successes <= n, got {successes} of {n}")
    lower = 1.0 - _upper(n - successes, n, confidence) if n else 0.0
    return lower, _upper(successes, n, confidence) if n else 1.0


def _upper(successes: int, n: int, confidence: float) -> float:
    """Return the rate at which at most so many successes have the chance 1 - `confidence`, by bisection."""
    if successes == n:
        return 1.0
    low, high = successes / n, 1.0
    for _ in range(60):
        rate = (low + high) / 2
        chance = sum(math.comb(n, k) * rate**k * (1 - rate) ** (n - k) for k in range(successes + 1))
        low, high = (rate, high) if chance > 1 - confidence else (low, rate)
    return high
