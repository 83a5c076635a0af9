"""What a run tells the person who watches it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console

_console = Console(highlight=False)


def say(message: str) -> None:
    """One line."""
    _console.print(message, markup=False, soft_wrap=True)


def step_line(step: int, steps: int, row: Mapping[str, Any]) -> str:
    """The numbers of one update, on one line."""
    parts = [f"step {step:>4}/{steps}", f"episodes {int(row['episodes_total']):>6}"]
    if row.get("success") is not None:
        parts.append(f"success {row['success']:.3f}")
    if row.get("eval/success") is not None:
        parts.append(f"held-out {row['eval/success']:.3f}")
    parts.append(f"reward {_number(row.get('reward'))}")
    parts.append(f"turns {_number(row.get('turns'), 1)}")
    for key, name in (
        ("entropy", "entropy"),
        ("approx_kl", "kl"),
        ("clip_fraction", "clip"),
        ("log_prob_gap_max", "gap"),
    ):
        if row.get(key) is not None:
            parts.append(f"{name} {row[key]:.2g}")
    if row.get("count/failed_episodes"):
        parts.append(f"FAILED {int(row['count/failed_episodes'])}")
    parts.append(f"{_number(row.get('tokens_per_second'), 0)} tok/s")
    parts.append(f"{row['time/elapsed']:.0f} s")
    return "  ".join(parts)


def report_table(title: str, rows: Mapping[str, Any]) -> None:
    """Two columns: what, how much."""
    width = max((len(name) for name in rows), default=0)
    say("\n".join([title, *(f"  {name:<{width}}  {value}" for name, value in rows.items())]))


def percent(value: float | None, interval: tuple[float, float] | None = None) -> str:
    """'93.0 % (89.1 to 95.6)'; '-' for None."""
    if value is None:
        return "-"
    text = f"{100 * value:.1f} %"
    return text if interval is None else f"{text} (95 %: {100 * interval[0]:.1f} to {100 * interval[1]:.1f})"


def _number(value: float | None, digits: int = 3) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
