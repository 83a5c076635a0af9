"""Writes the golden files again: `python -m tests.golden.write`, or with names of runs these alone."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import torch

from tests.golden import runs, surface

HERE = Path(__file__).parent
DIGITS, METRICS = HERE / "digits.json", HERE / "metric_names.txt"


def surfaces(folder: Path) -> dict[str, str]:
    """Return file name -> what stands in it."""
    return {
        "config_keys.txt": surface.config_keys(),
        "command_help.txt": surface.command_help(),
        "store_schema.txt": surface.store_schema(folder),
        "public_names.txt": surface.public_names(),
    }


def stored_names() -> dict[str, set[str]]:
    """Return metric -> the runs that have it."""
    lines = METRICS.read_text().splitlines() if METRICS.exists() else []
    return {name: set(found.split()) for name, found in (line.split(":") for line in lines)}


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    digits = json.loads(DIGITS.read_text()) if DIGITS.exists() else {}
    metrics = stored_names()
    for run in names or runs.RUNS:
        with tempfile.TemporaryDirectory() as folder:
            digits[run], found = runs.play(run, Path(folder))
        for name in found:
            metrics.setdefault(name, set())
        for name, having in metrics.items():
            having.add(run) if name in found else having.discard(run)
    DIGITS.write_text(json.dumps(digits, indent=1) + "\n")
    METRICS.write_text(
        "".join(f"{name}: {' '.join(sorted(having))}\n" for name, having in sorted(metrics.items()) if having)
    )
    with tempfile.TemporaryDirectory() as folder:
        for name, text in surfaces(Path(folder)).items():
            (HERE / name).write_text(text)


if __name__ == "__main__":
    main(sys.argv[1:])
