"""Curriculum beside uniform sampling on a suite of drawn screens: episodes to the same mean success.

    python benchmarks/curriculum.py [--seeds 0,1,2] [--updates 48] [section.key=value ...]

One policy for 36 tasks of mixed difficulty: one, two or three pages, one to four buttons, three palettes. It is warmed
up once, by a demonstrator who presses any button on most pages; both samplers begin there, with the same seeds. The
curves are held-out success, the mean over all tasks, each equally often.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from itertools import pairwise, product
from pathlib import Path

from uirl import ConfigStore, RayPPOTrainer, read_metrics

SAMPLERS = ("uniform", "curriculum")
GROUP, GROUPS = 8, 8
MODEL = [
    *("model.model_name=uirl/tiny-vlm", "inference.max_tokens=16", "inference.max_turns=3"),
    *("environment.name=screen_suite", "environment.options={demonstrator: careless, carelessness: 0.9}"),
]
WARM = [
    *("training.warm_start.enabled=true", "training.warm_start.steps=130", "training.warm_start.learning_rate=2.0e-3"),
    *("training.warm_start.evaluate_every=null", "training.warm_start.stop_at_success=null"),
    *("training.num_iters_per_epoch=1", "training.eval_every=null"),
]
RL = [
    *("training.adv_estimator=grpo", f"training.group_size={GROUP}", f"training.batch_size={GROUP * GROUPS}"),
    *("training.learning_rate=2.0e-4", "training.entropy_coef=0.003", "training.clip_ratio_high=0.3"),
    *("training.eval_every=8", "training.eval_episodes=216", "training.num_epochs=1"),
    "training.warm_start.enabled=false",
    *("logging.tensorboard=false", "logging.store_trajectories=false", "checkpoint.save_interval=null"),
]


def train(changes: Sequence[str], folder: Path, name: str) -> Path:
    """Train and return the run directory; what it prints stands in a file beside it."""
    where = [f"logging.runs_dir={folder}", f"logging.run_name={name}", "training.threads=1"]
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        trainer = RayPPOTrainer(ConfigStore().override([*MODEL, *changes, *where]))
        try:
            trainer.fit()
        finally:
            trainer.cleanup()
    (folder / f"{name}.log").write_text(said.getvalue())
    assert trainer.run_path is not None
    return trainer.run_path


def curve_of(run: Path) -> list[tuple[int, float]]:
    """Return (training episodes, held-out success) of every evaluation."""
    before = json.loads((run / "summary.json").read_text())["success_before"]
    rows = read_metrics(run / "metrics.jsonl")
    found = [(int(row["episodes_total"]), float(row["eval/success"])) for row in rows if row.get("eval/success")]
    return [(0, before), *found]


def live_share(run: Path) -> float:
    """Return the share of a run's groups in which rewards differed."""
    rows = read_metrics(run / "metrics.jsonl")
    return statistics.mean(row["live_groups"] for row in rows if row.get("live_groups") is not None)


def smoothed(curve: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return the curve with each point replaced by the mean of it and its neighbours: an evaluation is noisy."""
    return [(at, statistics.mean(y for _, y in curve[max(0, i - 1) : i + 2])) for i, (at, _) in enumerate(curve)]


def episodes_to(curve: Sequence[tuple[int, float]], target: float) -> float | None:
    """Return the episodes after which the curve first reaches `target`, interpolated; None: it does not."""
    for (x0, y0), (x1, y1) in pairwise(curve):
        if y1 >= target:
            return x0 if y0 >= target else x0 + (x1 - x0) * (target - y0) / (y1 - y0)
    return None


def table(curves: Mapping[str, Mapping[int, list[tuple[int, float]]]], target: float, folder: Path) -> list[str]:
    """Return the lines of the table: of each seed the episodes to `target`, their ratio, success at the end (mean of
    the last three evaluations) and the share of groups with something to learn."""
    lines = [
        "| seed | uniform | curriculum | ratio | at the end: uniform | curriculum | live: uniform | curriculum |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for seed in curves["uniform"]:
        reached = [episodes_to(smoothed(curves[name][seed]), target) for name in SAMPLERS]
        ratio = f"{reached[1] / reached[0]:.2f}" if reached[0] and reached[1] else "-"
        ends = [f"{statistics.mean(y for _, y in curves[name][seed][-3:]):.3f}" for name in SAMPLERS]
        counts = ["not reached" if count is None else f"{count:.0f}" for count in reached]
        live = [f"{live_share(folder / f'{name}-{seed}'):.2f}" for name in SAMPLERS]
        lines.append("| " + " | ".join([str(seed), *counts, ratio, *ends, *live]) + " |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="0,1,2", help="numbers, separated by commas")
    parser.add_argument("--updates", type=int, default=48)
    parser.add_argument("--folder", type=Path, help="keep the runs here; those that are there are read")
    parser.add_argument("overrides", nargs="*")
    options = parser.parse_intermixed_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        warm = folder / "warm"
        if not (warm / "summary.json").is_file():
            warm = train([*RL, *WARM], folder, "warm")
        start = warm / "checkpoints" / "step_000000" / "policy"
        curves: dict[str, dict[int, list[tuple[int, float]]]] = {name: {} for name in SAMPLERS}
        for seed, name in product(map(int, options.seeds.split(",")), SAMPLERS):
            changes = [f"training.seed={seed}", f"training.num_iters_per_epoch={options.updates}"]
            changes += [f"model.local_path={start}", f"curriculum.enabled={str(name == 'curriculum').lower()}"]
            run = folder / f"{name}-{seed}"
            if not (run / "summary.json").is_file():
                run = train([*RL, *changes, *options.overrides], folder, run.name)
            curves[name][seed] = curve_of(run)
            print(f"{name} {seed}: " + " ".join(f"{at}:{y:.3f}" for at, y in curves[name][seed]), flush=True)
        ends = [statistics.mean(y for _, y in curve[-3:]) for curve in curves["uniform"].values()]
        print(f"`{' '.join(['python', 'benchmarks/curriculum.py', *options.overrides])}`\n")
        for target in sorted({round(min(ends), 2), round(min(ends) - 0.05, 2)}):
            print(f"episodes to a mean success of {target:.2f}:\n")
            print("\n".join(table(curves, target, folder)) + "\n")


if __name__ == "__main__":
    main()
