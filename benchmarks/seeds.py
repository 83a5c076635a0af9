"""One config, many seeds, one after the other: the table of how each seed ended. Nothing is left out.

python -m benchmarks.seeds configs/screen.yaml --seeds 0,1,2,3,4 [section.key=value ...]
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any


def run(config: str, seed: int, overrides: list[str], folder: Path) -> dict[str, Any]:
    """The summary of one run in a process of its own, with its wall time and peak memory."""
    name = f"seed-{seed}"
    where = [f"logging.runs_dir={folder}", f"logging.run_name={name}", f"training.seed={seed}"]
    command = [sys.executable, "-m", "uirl.cli.main", "train", config, *overrides, *where]
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    seconds = time.perf_counter() - started
    summary = json.loads((folder / name / "summary.json").read_text())
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024**2
    return summary | {"wall_seconds": seconds, "peak_gib": peak}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config")
    parser.add_argument("--seeds", default="0,1,2,3,4", help="numbers, separated by commas")
    parser.add_argument("overrides", nargs="*")
    options = parser.parse_intermixed_args()
    print(f"`{' '.join(['python -m benchmarks.seeds', *sys.argv[1:]])}`\n")
    print("| seed | before | after (95 %) | controls | episodes | warm start + RL | whole run | peak so far |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for seed in map(int, options.seeds.split(",")):
            row = run(options.config, seed, options.overrides, Path(folder))
            low, high = row["success_after_interval"]
            controls = ", ".join(f"{name} {value:.3f}" for name, value in row["controls"].items())
            print(
                f"| {seed} | {row['success_before']:.3f} "
                f"| {row['success_after']:.3f} ({low:.3f}-{high:.3f}) | {controls} "
                f"| {row['episodes']} | {row['train_seconds']:.0f} s | {row['wall_seconds']:.0f} s "
                f"| {row['peak_gib']:.2f} GiB |",
                flush=True,
            )


if __name__ == "__main__":
    main()
