"""Credit for the right beginnings of failed episodes: GRPO on drawn forms of two and three pages, with and without it.

    python -m benchmarks.step_credit [--seeds 0 1 2] [--updates 40] [--ways NAME ...] [section.key=value ...]

24 tasks of one policy, warmed up once. A form is solved or not, and a group compares whole episodes; `step_credit`
spares or pays the turns that were right before a fork from a solved episode, each played again. The last way is what
credit per step could reach at best: the environment itself pays every page.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from dataclasses import asdict
from itertools import product
from pathlib import Path

from benchmarks.curriculum import curve_of, train, warmed_up
from uirl import read_metrics
from uirl.environments.screen.suite import ScreenSuite

WHOLE = "verification.enabled=true"
WAYS = {
    "whole forms": [WHOLE],
    "right turns are not blamed": [WHOLE, "algorithm.step_credit=spare"],
    "right turns share 0.5": [WHOLE, "algorithm.step_credit=reward", "algorithm.step_right=0.5"],
    "the environment pays each page": [],
}


def beginnings(run: Path) -> tuple[float, float]:
    """Return how many beginnings the updates of a run found and refused."""
    rows = read_metrics(run / "metrics.jsonl")
    found, refused = (sum(row.get(f"count/beginnings_{name}") or 0.0 for row in rows) for name in ("found", "refused"))
    return found, refused


def row(way: str, runs: list[Path]) -> str:
    """Return the line of a way: held-out success in %, mean of the seeds, and the beginnings that were found."""
    curves = [[100 * success for _, success in curve_of(run)] for run in runs]
    ends = [statistics.mean(curve[-2:]) for curve in curves]
    found, refused = (statistics.mean(numbers) for numbers in zip(*map(beginnings, runs), strict=True))
    spread = f" +- {statistics.stdev(ends):.1f}" if len(ends) > 1 else ""
    return (
        f"| {way} | {statistics.mean(map(statistics.mean, curves)):.1f} | {statistics.mean(ends):.1f}{spread} | "
        f"{', '.join(f'{end:.1f}' for end in ends)} | {found:.0f} | {refused:.0f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--updates", type=int, default=40)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--folder", type=Path, help="keep the runs here; those that are there are read")
    parser.add_argument("overrides", nargs="*")
    options = parser.parse_intermixed_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        tasks = folder / "tasks.json"
        tasks.write_text(json.dumps([asdict(task) for task in ScreenSuite().tasks() if task.checks["level"] > 1]))
        shared = warmed_up(folder)
        found: dict[str, list[Path]] = {way: [] for way in options.ways}
        for seed, way in product(options.seeds, options.ways):
            run = folder / f"{way.replace(' ', '-')}-{seed}"
            if not (run / "summary.json").is_file():
                own = [f"training.seed={seed}", f"training.num_iters_per_epoch={options.updates}", *WAYS[way]]
                own += [f"training.eval_every={options.updates // 2}", "training.eval_episodes=192"]
                own += [f"environment.tasks={tasks}"]
                run = train([*shared, *own, *options.overrides], folder, run.name)
            found[way].append(run)
            print(f"{way} {seed}: " + " ".join(f"{at}:{y:.3f}" for at, y in curve_of(run)), flush=True)
        print("\n| credit | held-out success, mean of the run | at the end | seeds | beginnings found | refused |")
        print("|---|---|---|---|---|---|")
        for way, runs in found.items():
            print(row(way, runs))


if __name__ == "__main__":
    main()
