"""Two sides that do the same work, by turns: what a benchmark against a peer returns, and the table of all of them.

A benchmark that has a peer calls `alternate` (or takes turns itself), checks that both sides did the same work, and
hands its pairs to `report`. `benchmarks/bench.py` runs all such benchmarks with `--pairs FILE` and makes one table.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

Figures = dict[str, list[float]]
"""By side: one figure per round."""


@dataclass(frozen=True)
class Pair:
    """Our side and a peer's on one piece of work; figures are medians over rounds."""

    work: str
    unit: str
    """Of `ours` and `theirs`: 's', 'CPU s', 'turns/s', ..."""
    peer: str
    ours: float
    theirs: float
    better: float
    """Median over rounds of how many times better ours was; above 1: ours is better."""
    low: float
    high: float
    checked: str
    """What was compared to make sure that both did the same work."""


def alternate(sides: Mapping[str, Callable[[], float]], rounds: int, warm_up: int = 1) -> Figures:
    """Call each side in turn, A B A B ..., and return its figures by round; the first `warm_up` rounds do not count."""
    figures: Figures = {name: [] for name in sides}
    for number in range(rounds + warm_up):
        for name, side in sides.items():
            figure = side()
            if number >= warm_up:
                figures[name].append(figure)
    return figures


def pair(
    work: str,
    unit: str,
    figures: Mapping[str, Sequence[float]],
    ours: str,
    peer: str,
    checked: str,
    *,
    more_is_better: bool,
) -> Pair:
    """Return the pair of two sides of `figures`; a ratio is taken within a round, between neighbours in time."""
    mine, theirs = figures[ours], figures[peer]
    ratios = [a / b if more_is_better else b / a for a, b in zip(mine, theirs, strict=True)]
    median = statistics.median
    return Pair(work, unit, peer, median(mine), median(theirs), median(ratios), min(ratios), max(ratios), checked)


def report(path: str | None, pairs: Sequence[Pair]) -> None:
    """Add the pairs to a file of JSON lines; None: nowhere."""
    if path is not None:
        with open(path, "a", encoding="utf-8") as file:
            file.writelines(json.dumps(asdict(one)) + "\n" for one in pairs)


def read(path: Path) -> list[Pair]:
    """Return the pairs of such a file, none where it is missing."""
    if not path.exists():
        return []
    return [Pair(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def table(pairs: Sequence[Pair]) -> str:
    """Return a Markdown table, one line per pair."""
    lines = [
        "| work | peer | unit | peer's | ours | times better (lowest to highest) | the same work, by |",
        "|---" * 7 + "|",
    ]
    lines += [
        f"| {one.work.replace('|', '/')} | {one.peer} | {one.unit} | {one.theirs:.4g} | {one.ours:.4g} | "
        f"**{one.better:.2f}** ({one.low:.2f} to {one.high:.2f}) | {one.checked} |"
        for one in pairs
    ]
    return "\n".join(lines)
