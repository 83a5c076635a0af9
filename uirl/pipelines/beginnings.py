"""How far the failed episodes of a round were right, certified where the environment can play them again."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace

from uirl.environments.base import BaseEnvironment
from uirl.rollout.replay import Certifier
from uirl.storage import TrajectoryStore, TrajectorySummary
from uirl.verification.evidence import Evidence
from uirl.verification.fork import ForkFinder
from uirl.verification.prefixes import BEGINNING, FineGrainedTrajectoryAnalyzer

AT_ONCE = 4
"""Groups that are looked at at the same time; each holds an instance of the environment, and in memory its solved
episodes and a failed one."""


async def find_beginnings(
    store: TrajectoryStore,
    analyzer: FineGrainedTrajectoryAnalyzer,
    environment: BaseEnvironment,
    *,
    certify: bool,
    timeouts: tuple[float, float],
) -> Counter[str]:
    """Write into the verdict of every failed episode of the store how far it was right; return how many were found by
    whom, and what became of them. Episodes that have it are left alone, so that it can be killed and goes on."""
    groups: dict[tuple[str, str], list[TrajectorySummary]] = defaultdict(list)
    for one in store.list(split="train"):
        if one.failure is None and one.success is not None and one.turns > 0:
            groups[one.task_id, one.group_id].append(one)
    counts: Counter[str] = Counter()
    waiting = list(groups.values())
    pictures = ForkFinder(analyzer.matcher)

    async def work() -> None:
        certifier = Certifier(environment, pictures, *timeouts)
        try:
            while waiting:
                await _of_group(store, waiting.pop(), analyzer, certifier if certify else None, counts)
        finally:
            await certifier.close()

    limit = environment.max_parallel or AT_ONCE
    await asyncio.gather(*(work() for _ in range(min(AT_ONCE, limit, max(1, len(waiting))))))
    return counts


async def _of_group(
    store: TrajectoryStore,
    group: Sequence[TrajectorySummary],
    analyzer: FineGrainedTrajectoryAnalyzer,
    certifier: Certifier | None,
    counts: Counter[str],
) -> None:
    successes = [store.get(one.id) for one in group if one.success]
    for one in group:
        if one.success:
            continue
        failed = store.get(one.id)
        if failed.verdict is not None and BEGINNING in failed.verdict.reason:
            counts["known before"] += 1
            continue
        found = await analyzer.analyze(Evidence(failed), successes)
        counts[f"found by {found.by}"] += 1
        certified = True
        if certifier is not None and found.right > 0:
            found, certified = await certifier.certify(failed, found, successes)
            counts["certified" if certified else "not certified"] += 1
        verdict = found.verdict_on(failed)
        store.set_verdict(failed.id, verdict if certified else replace(verdict, correct_prefix=None))
