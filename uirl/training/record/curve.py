"""The learning curve of a run as a picture."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from uirl.runtime.files import write_atomically


def draw_curve(
    path: Path, rows: Sequence[Mapping[str, Any]], *, title: str, controls: Mapping[str, float] | None = None
) -> bool:
    """Draw success, or the reward where nobody says it, over episodes to `path`: sampled in training, and in
    evaluations. False where the rows hold nothing to draw. `controls` are horizontal lines: what a policy scores that
    does not do what it should."""
    said = any(row.get(name) is not None for row in rows for name in ("success", "eval/success"))
    label = "success" if said else "reward"
    trained = [(row["episodes_total"], row[label]) for row in rows if row.get(label) is not None]
    held_out = [(row["episodes_total"], row[key]) for row in rows if row.get(key := f"eval/{label}") is not None]
    if not trained and not held_out:
        return False
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 3.6), dpi=130, layout="constrained")
    axes = figure.add_subplot()
    if trained:
        axes.plot(*zip(*trained, strict=True), color="#9db7d5", linewidth=1.4, label=f"{label} while training")
    if held_out:
        points = list(zip(*held_out, strict=True))
        axes.plot(*points, color="#1f4e8c", marker="o", markersize=4, linewidth=2, label=f"{label} in evaluations")
    for style, (name, value) in zip(("--", ":", "-."), (controls or {}).items(), strict=False):
        axes.axhline(value, color="#b5651d", linestyle=style, linewidth=1, label=f"control: {name} ({value:.2f})")
    if label == "success":
        axes.set_ylim(-0.02, 1.02)
    axes.set_xlim(left=0)
    axes.set_xlabel("episodes of reinforcement learning")
    axes.set_ylabel(label)
    axes.set_title(title, fontsize=10)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False, loc="center right")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    write_atomically(path, buffer.getvalue())
    return True
