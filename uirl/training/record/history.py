"""Rows of metrics, one per update -> one entry per epoch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def fold_row(history: list[dict[str, Any]], counts: Mapping[str, int], row: Mapping[str, Any]) -> dict[str, int]:
    """Fold `row` into the newest entry of `history`, or begin one where its epoch is new.

    An entry holds the epoch, the number of its `updates`, and of every metric the mean over those rows that have it:
    None is no evidence. `counts`: metric -> rows of the newest epoch that have it; returned is the count with `row`.
    """
    epoch = int(row["epoch"])
    if not history or history[-1]["epoch"] != epoch:
        history.append({"epoch": epoch, "updates": 0, "policy_loss": None})
        counts = {}
    entry, rows = history[-1], dict(counts)
    entry["updates"] += 1
    for name, value in row.items():
        if name != "epoch" and value is not None:
            rows[name] = rows.get(name, 0) + 1
            so_far = entry.get(name)
            entry[name] = value if so_far is None else so_far + (value - so_far) / rows[name]
    return rows
