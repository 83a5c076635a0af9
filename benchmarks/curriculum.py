"""Curriculum beside uniform sampling, one policy for a suite of tasks: episodes to the same mean success.

    python -m benchmarks.curriculum [--suite screens|pages] [--seeds 0,1,2] [--updates 48] [--samplers NAME ...]
      [section.key=value ...]

`screens`: 36 drawn forms of mixed difficulty: one, two or three pages, one to four buttons, three palettes. The policy
is warmed up once, by a demonstrator who presses any button on most pages. `pages`: all pages of MiniWoB++ that by their
tags are easy and need one click and nothing else of the hand; in Chromium, reward 1 or 0, dead groups played anew. The
policy begins as `uirl/tiny-vlm-grounded` with LoRA. All samplers begin with the same weights and seeds.
'curriculum, the middle' gives nine tenths of the draws to the two levels around a success of 1/2. The curves are
held-out success, the mean over all tasks, each equally often, on the same instances, smoothed over three evaluations.
One target is half of the way from the success before training to the lower of the samplers' levels at the end.
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
from uirl.environments.browser.miniwob import page_tags

MIDDLE = "{frontier: 0.05, exploration: 0.5, near_mastery: 0.4, exploitation: 0.05}"
SAMPLERS = {
    "uniform": ["curriculum.enabled=false"],
    "curriculum": ["curriculum.enabled=true"],
    "curriculum, the middle": [*("curriculum.enabled=true", f"curriculum.initial_distribution={MIDDLE}")],
}
"""Name -> its changes; what is compared with comes first."""
GROUP, GROUPS = 8, 8
LEFT_OUT = {"type", "drag", "scroll", "hover", "moving", "steps"}
PAGES = tuple(name for name, tags in page_tags().items() if {"click", "easy"} <= set(tags) and not LEFT_OUT & set(tags))
SUITES = {
    "screens": [
        *("model.model_name=uirl/tiny-vlm", "inference.max_tokens=16", "inference.max_turns=3"),
        *("environment.name=screen_suite", "environment.options={demonstrator: careless, carelessness: 0.9}"),
    ],
    "pages": [
        *("model.model_name=uirl/tiny-vlm-grounded", "inference.max_tokens=16", "inference.max_turns=1"),
        *("inference.system_prompt=''", "environment.name=miniwob", "model.freeze_vision=true", "rollout.parallel=16"),
        *("training.minibatches=4", "training.warmup_steps=4", "algorithm.target_kl=0.05"),
        *("algorithm.max_resamples=3", f"training.eval_episodes={10 * len(PAGES)}"),
        "environment.options={task: [" + ", ".join(PAGES) + "], crop: area, max_turns: 1, reward: success}",
    ],
}
"""Name -> its tasks and the policy that begins."""
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
    *("logging.trackers=[]", "logging.store_trajectories=false", "checkpoint.save_interval=null"),
]


def train(changes: Sequence[str], folder: Path, name: str) -> Path:
    """Train and return the run directory; what it prints stands in a file beside it."""
    where = [f"logging.runs_dir={folder}", f"logging.run_name={name}", "training.threads=1"]
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        trainer = RayPPOTrainer(ConfigStore().override([*changes, *where]))
        try:
            trainer.fit()
        finally:
            trainer.cleanup()
    (folder / f"{name}.log").write_text(said.getvalue())
    assert trainer.run_path is not None
    return trainer.run_path


def warmed_up(folder: Path) -> list[str]:
    """Return the changes with which a run on the screens begins where the warm start ended, which is made where it is
    not there."""
    shared, warm = [*SUITES["screens"], *RL], folder / "warm"
    if not (warm / "summary.json").is_file():
        warm = train([*shared, *WARM], folder, "warm")
    return [*shared, f"model.local_path={warm / 'checkpoints' / 'step_000000' / 'policy'}"]


def curve_of(run: Path) -> list[tuple[int, float]]:
    """Return (training episodes, held-out success) of every evaluation."""
    before = json.loads((run / "summary.json").read_text())["success_before"]
    rows = read_metrics(run / "metrics.jsonl")
    found = [(int(row["episodes_total"]), float(row["eval/success"])) for row in rows if row.get("eval/success")]
    return [(0, before), *found]


def live_share(run: Path) -> float:
    """Return the share of the groups that a run played in which rewards differed, those that were replaced included."""
    rows = [row for row in read_metrics(run / "metrics.jsonl") if row.get("live_groups") is not None]
    played = sum(GROUPS + row["count/replaced_groups"] for row in rows)
    return float(sum(GROUPS * row["live_groups"] for row in rows) / played)


def smoothed(curve: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return the curve with each point replaced by the mean of it and its neighbours: an evaluation is noisy."""
    return [(at, statistics.mean(y for _, y in curve[max(0, i - 1) : i + 2])) for i, (at, _) in enumerate(curve)]


def episodes_to(curve: Sequence[tuple[int, float]], target: float) -> float | None:
    """Return the episodes after which the curve first reaches `target`, interpolated; None: it does not."""
    for (x0, y0), (x1, y1) in pairwise(curve):
        if y1 >= target:
            return x0 if y0 >= target else x0 + (x1 - x0) * (target - y0) / (y1 - y0)
    return None


def rows(curves: Mapping[str, Mapping[int, list[tuple[int, float]]]], target: float, folder: Path) -> list[str]:
    """Return the lines of the table. Of each sampler: the episodes to `target` of every seed and, over the seeds, their
    ratio to those of the first sampler, the success at the end (mean of the last three evaluations) and the share of
    groups with something to learn."""
    first = next(iter(curves))
    reached = {
        name: {seed: episodes_to(smoothed(curve), target) for seed, curve in of_seeds.items()}
        for name, of_seeds in curves.items()
    }
    lines = [f"| sampler | episodes to {target:.2f} | beside {first} | at the end | live |", "|---|---|---|---|---|"]
    for name, of_seeds in reached.items():
        pairs = [(count, reached[first][seed]) for seed, count in of_seeds.items()]
        ratios = [count / other for count, other in pairs if count and other]
        whole = f"{statistics.mean(ratios):.2f} ({', '.join(f'{ratio:.2f}' for ratio in ratios)})" if ratios else "-"
        counts = ", ".join("not reached" if count is None else f"{count:.0f}" for count in of_seeds.values())
        ends = list(at_the_end(curves[name]).values())
        live = statistics.mean(live_share(folder / run_name(name, seed)) for seed in of_seeds)
        at_end = f"{statistics.mean(ends):.3f} ({', '.join(f'{end:.3f}' for end in ends)})"
        lines.append(f"| {name} | {counts} | {whole} | {at_end} | {live:.2f} |")
    return lines


def at_the_end(curves: Mapping[int, Sequence[tuple[int, float]]]) -> dict[int, float]:
    """Return seed -> the mean success of the last three evaluations."""
    return {seed: statistics.mean(y for _, y in curve[-3:]) for seed, curve in curves.items()}


def half_way(curves: Mapping[str, Mapping[int, Sequence[tuple[int, float]]]]) -> float:
    """Return the success in the middle between the start, the mean of all runs, and the lowest level at the end of a
    sampler, the mean of its seeds."""
    start = statistics.mean(curve[0][1] for of_seeds in curves.values() for curve in of_seeds.values())
    end = min(statistics.mean(at_the_end(of_seeds).values()) for of_seeds in curves.values())
    return round((start + end) / 2, 3)


def levels(curves: Mapping[str, Mapping[int, object]], folder: Path) -> list[str]:
    """Return the lines of a table: of each level of each curriculum, over its seeds, tasks there at the end, the share
    of the draws, the success of their episodes and the share of groups with something to learn."""
    lines = ["| sampler | level | tasks at the end | draws | success | live |", "|---|---|---|---|---|---|"]
    for name, of_seeds in curves.items():
        summaries = [json.loads((folder / run_name(name, seed) / "summary.json").read_text()) for seed in of_seeds]
        found = [summary["curriculum"]["levels"] for summary in summaries if "curriculum" in summary]
        for level in dict.fromkeys(level for one in found for level in one):
            rows = [one[level] for one in found if level in one]
            tasks = ", ".join(str(row["tasks"]) for row in rows)
            known = {
                key: [row[key] for row in rows if row[key] is not None] for key in ("drawn", "success", "live_groups")
            }
            told = [f"{statistics.mean(values):.2f}" if values else "-" for values in known.values()]
            lines.append(f"| {name} | {level} | {tasks} | {' | '.join(told)} |")
    return lines


def run_name(sampler: str, seed: int) -> str:
    return f"{sampler.replace(', ', '-').replace(' ', '-')}-{seed}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--suite", default="screens", choices=SUITES)
    parser.add_argument("--seeds", default="0,1,2", help="numbers, separated by commas")
    parser.add_argument("--updates", type=int, default=48)
    parser.add_argument("--samplers", nargs="+", default=list(SAMPLERS), choices=SAMPLERS)
    parser.add_argument("--folder", type=Path, help="keep the runs here; those that are there are read")
    parser.add_argument("overrides", nargs="*")
    options = parser.parse_intermixed_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        shared = warmed_up(folder) if options.suite == "screens" else [*RL, *SUITES["pages"]]
        curves: dict[str, dict[int, list[tuple[int, float]]]] = {name: {} for name in options.samplers}
        for seed, name in product(map(int, options.seeds.split(",")), options.samplers):
            changes = [f"training.seed={seed}", f"training.num_iters_per_epoch={options.updates}"]
            run = folder / run_name(name, seed)
            if not (run / "summary.json").is_file():
                run = train([*shared, *changes, *SAMPLERS[name], *options.overrides], folder, run.name)
            curves[name][seed] = curve_of(run)
            print(f"{name} {seed}: " + " ".join(f"{at}:{y:.3f}" for at, y in curves[name][seed]), flush=True)
        ends = list(at_the_end(curves[options.samplers[0]]).values())
        print(f"`{' '.join(['python -m benchmarks.curriculum --suite', options.suite, *options.overrides])}`\n")
        for target in sorted({half_way(curves), round(min(ends), 2), round(min(ends) - 0.05, 2)}):
            print("\n".join(rows(curves, target, folder)) + "\n")
        print("\n".join(levels(curves, folder)))


if __name__ == "__main__":
    main()
