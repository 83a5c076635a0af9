"""The state of a curriculum as plain JSON data: columns, and only of tasks that something is known of."""

from __future__ import annotations

import logging
from collections.abc import Container, Mapping
from dataclasses import dataclass, fields
from typing import Any

from uirl.curriculum.levels import Evidence
from uirl.curriculum.tally import Tally

COUNTS = ("step", "draws", "heard", "tried", "rates")
_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class Loaded:
    """A state that was read."""

    evidence: dict[str, Evidence]
    queues: dict[str, list[str]]
    counts: dict[str, Any]
    tally: Tally
    """Since the last row of metrics."""
    total: Tally
    """Before that."""


def packed(
    evidence: Mapping[str, Evidence],
    queues: Mapping[str, list[str]],
    counts: Mapping[str, Any],
    tally: Tally,
    total: Tally,
) -> dict[str, Any]:
    """Return the state as data of its own: a column per field of `Evidence`, queues as rows of the list of tasks. The
    tasks that something is known of come first."""
    names = dict.fromkeys([*evidence, *(name for queue in queues.values() for name in queue)])
    row = {name: i for i, name in enumerate(names)}
    return {
        "tasks": list(names),
        "evidence": {field.name: [getattr(one, field.name) for one in evidence.values()] for field in fields(Evidence)},
        "queues": {place: [row[name] for name in queue] for place, queue in queues.items()},
        "counts": dict(counts),
        "tally": tally.to_dict(),
        "total": total.to_dict(),
    }


def unpacked(values: Mapping[str, Any]) -> Loaded:
    """Return the state in `values`. Raises ValueError or KeyError where it is none."""
    names, columns = list(values["tasks"]), values["evidence"]
    try:
        rows = zip(*(columns[field.name] for field in fields(Evidence)), strict=True)
        evidence = {name: Evidence(*row) for name, row in zip(names, rows, strict=False)}
        queues = {place: [names[i] for i in row] for place, row in values["queues"].items()}
    except (TypeError, IndexError) as error:
        raise ValueError(f"no state of a curriculum: {error}; expected what state_dict() returned") from error
    if sorted(name for queue in queues.values() for name in queue) != sorted(names):
        raise ValueError("no state of a curriculum: its queues do not hold each task once")
    tallies = [Tally.from_dict(values[name]) for name in ("tally", "total")]
    return Loaded(evidence, queues, {n: values["counts"][n] for n in COUNTS}, *tallies)


def of_known(loaded: Loaded, names: Container[str]) -> Loaded:
    """Return `loaded` without the tasks that are not in `names`; a warning says how many these are."""
    gone = [name for queue in loaded.queues.values() for name in queue if name not in names]
    if not gone:
        return loaded
    _LOG.warning(
        "the curriculum knows %d tasks that are not registered any more, e.g. %r; what it knows of them is dropped",
        len(gone),
        gone[0],
    )
    return Loaded(
        {name: one for name, one in loaded.evidence.items() if name in names},
        {place: [name for name in queue if name in names] for place, queue in loaded.queues.items()},
        loaded.counts,
        loaded.tally,
        loaded.total,
    )
