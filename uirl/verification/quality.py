"""How good a judge is, where somebody more certain spoke too: rates with intervals, drift, and what they correct.

First comes what reinforcement learning is harmed by: a judge that accepts what is wrong. Agreement hides it.
"""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from uirl.metrics import clustered_interval

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Confusion:
    """Counts of what a judge said against the truth."""

    true_accepts: int = 0
    false_accepts: int = 0
    false_rejects: int = 0
    true_rejects: int = 0
    by_instance: tuple[Confusion, ...] = ()
    """The counts of each group of episodes of one instance, which a judge judges alike; empty: every episode is one of
    its own."""

    @classmethod
    def of(cls, pairs: Iterable[tuple[bool, bool]], instances: Iterable[str] | None = None) -> Confusion:
        """Count pairs of (truth, what the judge said). `instances`: of each pair the instance that its episode shares
        with others; None: none shares any."""
        counted = list(pairs)
        grouped: dict[str, list[tuple[bool, bool]]] = defaultdict(list)
        for instance, pair in zip(instances or (), counted, strict=instances is not None):
            grouped[instance].append(pair)
        return cls(
            true_accepts=counted.count((True, True)),
            false_accepts=counted.count((False, True)),
            false_rejects=counted.count((True, False)),
            true_rejects=counted.count((False, False)),
            by_instance=tuple(map(cls.of, grouped.values())),
        )

    @property
    def solved(self) -> int:
        """Episodes that solved their task."""
        return self.true_accepts + self.false_rejects

    @property
    def unsolved(self) -> int:
        return self.false_accepts + self.true_rejects

    @property
    def accepts(self) -> int:
        return self.true_accepts + self.false_accepts

    @property
    def n(self) -> int:
        return self.solved + self.unsolved

    @property
    def precision(self) -> float | None:
        """Share of the accepted episodes that solved their task; None: none was accepted."""
        return _share(self.true_accepts, self.accepts)

    @property
    def false_accept_rate(self) -> float | None:
        """Share of the unsolved episodes that were accepted; None: there were none."""
        return _share(self.false_accepts, self.unsolved)

    @property
    def recall(self) -> float | None:
        """Share of the solved episodes that were accepted; None: there were none."""
        return _share(self.true_accepts, self.solved)

    @property
    def f1(self) -> float | None:
        """2 TP / (2 TP + FP + FN); None: nothing was solved or accepted."""
        return _share(2 * self.true_accepts, 2 * self.true_accepts + self.false_accepts + self.false_rejects)

    @property
    def agreement(self) -> float | None:
        """Share of the episodes of which the judge said the truth."""
        return _share(self.true_accepts + self.true_rejects, self.n)

    @property
    def kappa(self) -> float | None:
        """Cohen's kappa, (p_o - p_e) / (1 - p_e): agreement beyond that of a judge that answers by chance as often
        (Cohen 1960). None: there is nothing, or truth or judge say the same of everything."""
        if self.n == 0:
            return None
        by_chance = (self.accepts * self.solved + (self.n - self.accepts) * self.unsolved) / self.n**2
        observed = (self.true_accepts + self.true_rejects) / self.n
        return None if by_chance == 1 else (observed - by_chance) / (1 - by_chance)

    @property
    def precision_interval(self) -> Interval | None:
        """Interval at 95 %, by instance (`clustered_interval`); None: none was accepted."""
        return self._interval("true_accepts", "accepts")

    @property
    def false_accept_interval(self) -> Interval | None:
        return self._interval("false_accepts", "unsolved")

    @property
    def recall_interval(self) -> Interval | None:
        return self._interval("true_accepts", "solved")

    def report(self) -> dict[str, Any]:
        """Return all numbers, those that matter first. Rates of nothing are None, which is not 0."""
        names = (
            *("precision", "precision_interval", "false_accept_rate", "false_accept_interval", "recall"),
            *("recall_interval", "kappa", "agreement", "f1"),
            *("true_accepts", "false_accepts", "false_rejects", "true_rejects"),
        )
        counted = {"episodes": self.n, "instances": len(self.by_instance) or self.n}
        return counted | {name: getattr(self, name) for name in names}

    def _interval(self, part: str, whole: str) -> Interval | None:
        if not getattr(self, whole):
            return None
        hits, n = getattr(self, part), getattr(self, whole)
        singly = [(1, 1)] * hits + [(0, 1)] * (n - hits)
        return clustered_interval([(getattr(one, part), getattr(one, whole)) for one in self.by_instance] or singly)


@dataclass(frozen=True, slots=True)
class Channel:
    """The judge as a noisy binary channel: how often it accepts what is solved, and what is not."""

    true_accept_rate: float
    false_accept_rate: float

    @classmethod
    def of(cls, confusion: Confusion) -> Channel | None:
        """Estimate the rates, each with one half added to both of its counts (Jeffreys' prior), so that none is 0 or 1.
        A judge that accepts what is not solved more often than what is says as much as one the other way round. None:
        not enough of either kind (`ENOUGH`), or the judge says next to nothing."""
        if min(confusion.solved, confusion.unsolved) < ENOUGH:
            return None
        channel = cls(
            (confusion.true_accepts + 0.5) / (confusion.solved + 1),
            (confusion.false_accepts + 0.5) / (confusion.unsolved + 1),
        )
        return channel if abs(channel.true_accept_rate - channel.false_accept_rate) >= MIN_GAP else None

    def corrected(self, reward: float) -> float:
        """Return (reward - false_accept_rate) / (true_accept_rate - false_accept_rate).

        Its mean over the judge's errors is the true reward of 0 or 1: an unbiased reward [arXiv 2606.24515; the same as
        the backward correction of arXiv 2510.00915]. A single value lies outside of [0, 1]; that of an acceptance is
        the lower one where the judge accepts what is not solved more often.
        """
        return (reward - self.false_accept_rate) / (self.true_accept_rate - self.false_accept_rate)


MIN_GAP = 0.1
"""A judge whose two rates are nearer than this says next to nothing, and a correction would only blow up noise."""
ENOUGH = 10
"""Solved and unsolved episodes each that an estimate of the error rates needs."""


class Heard(NamedTuple):
    """What a judge said of one episode of which the truth is known."""

    task: str
    truth: bool
    said: bool
    instance: str
    """What the episode shares with those of the same instance, such as its group."""


@dataclass(slots=True)
class JudgeQuality:
    """The live account of one judge: every episode of which the truth is known, and the newest of them."""

    window: int = 200
    """Episodes that count as the newest."""
    limit: float | None = None
    """A judge whose precision interval (of the newest) lies below this is not believed alone; None: it always is."""
    pairs: list[Heard] = field(default_factory=list)

    def add(self, task: str, truth: bool, said: bool, instance: str | None = None) -> None:
        """Note one episode. `instance`: see `Heard`; None: it shares it with none."""
        self.pairs.append(Heard(task, truth, said, f"episode {len(self.pairs)}" if instance is None else instance))

    @property
    def overall(self) -> Confusion:
        return _confusion(self.pairs)

    @property
    def newest(self) -> Confusion:
        return _confusion(deque(self.pairs, self.window))

    @property
    def by_task(self) -> Mapping[str, Confusion]:
        """Task -> its counts, in the order of their names."""
        pairs: dict[str, list[Heard]] = defaultdict(list)
        for pair in self.pairs:
            pairs[pair.task].append(pair)
        return {task: _confusion(pairs[task]) for task in sorted(pairs)}

    @property
    def believed(self) -> bool:
        """Whether the judge is believed where it alone speaks: not where the whole interval of its precision, of the
        newest episodes, lies below the limit. What is not known yet is believed."""
        interval = self.newest.precision_interval
        return self.limit is None or interval is None or interval[1] >= self.limit

    def drift(self, parts: int = 4) -> list[Confusion]:
        """Return the counts of equal parts of the run, the first episodes first."""
        size = len(self.pairs)
        edges = [round(i * size / parts) for i in range(parts + 1)]
        return [_confusion(self.pairs[start:end]) for start, end in itertools.pairwise(edges) if end > start]

    def report(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return self.overall.report() | {
            "believed_alone": self.believed,
            "drift": [part.report() for part in self.drift()],
            "tasks": {task: counts.report() for task, counts in self.by_task.items()},
        }

    def row(self) -> dict[str, float | None]:
        """Return what the metrics of an update say of the newest episodes."""
        newest = self.newest
        low, high = newest.precision_interval or (None, None)
        return {
            "judge/precision": newest.precision,
            "judge/precision_low": low,
            "judge/precision_high": high,
            "judge/false_accept_rate": newest.false_accept_rate,
            "judge/kappa": newest.kappa,
            "judge/agreement": newest.agreement,
            "judge/believed": float(self.believed),
        }


def _confusion(pairs: Iterable[Heard]) -> Confusion:
    counted = list(pairs)
    return Confusion.of(((pair.truth, pair.said) for pair in counted), (pair.instance for pair in counted))


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def answers_that_matter(rewards: Sequence[float | None], digests: Sequence[str]) -> list[int]:
    """Return the members of a group of which a judge must be asked, so that every advantage within the group is known.

    `rewards`: what is known already (a decisive rule); None: unknown. `digests`: equal for episodes that are the same.
    Not asked: members that are decided, all but one of those that are the same, and the only member of a group, which
    is compared with nobody.
    """
    if len(rewards) < 2:
        return []
    seen: set[str] = set()
    wanted = []
    for i, (reward, digest) in enumerate(zip(rewards, digests, strict=True)):
        if reward is None and digest not in seen:
            seen.add(digest)
            wanted.append(i)
    return wanted
