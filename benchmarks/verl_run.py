"""One task under the local trainer and under verl, from the same weights: both curves and their picture.

    python -m benchmarks.verl_run --folder runs/beside [--steps 40] [section.key=value ...]

The local run (`uirl train configs/guess_number.yaml`) warms up on its careless demonstrator and goes on with GRPO. The
run under verl starts from the local run's checkpoint before its first update and makes as many updates of as many
episodes with the same settings, on the CPU platform of the tests. Both are measured on the same held-out instances
while they train, and at the end by the same evaluation of their newest checkpoints, verl's exported first. A run that
is there already is not made again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

os.environ |= {
    "VERL_PLATFORM": "cpu",
    "VERL_USE_EXTERNAL_MODULES": "tests.integrations.verl.cpu",
    "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]).strip(os.pathsep),
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
sys.path.insert(0, str(Path(__file__).parents[1]))

from uirl.config import ConfigStore, load_config
from uirl.metrics import read_metrics
from uirl.storage import TrajectoryStore
from uirl.training.evaluation.measure import measure

CONFIG = "configs/guess_number.yaml"
SETTINGS = ("training.stop_at_success=null", "checkpoint.keep_last_n=null", "algorithm.skip_dead_groups=false")
"""Both make every update, and both learn from all groups: verl has no place for leaving out those without a signal."""
CHANCE = 1 - (6 / 7) ** 3
"""Success of three guesses at random."""
TESTED = 512
"""Episodes of the last evaluation of each run."""


def settings(folder: Path, name: str, options: argparse.Namespace) -> ConfigStore:
    """What both runs share, and where this one is written."""
    epochs = (f"training.num_epochs={options.steps // 10}", "training.num_iters_per_epoch=10")
    where = (f"logging.runs_dir={folder}", f"logging.run_name={name}", "logging.trackers=[]")
    return load_config(CONFIG, [*SETTINGS, *epochs, *options.overrides, *where])


def train_locally(config: ConfigStore, folder: Path) -> float:
    """Seconds that `uirl train` took."""
    path = folder / "local.yaml"
    path.write_text(config.to_yaml())
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "uirl.cli.main", "train", str(path)], check=True)
    return time.perf_counter() - started


def train_under_verl(config: ConfigStore) -> float:
    """Seconds that the run under verl took, Ray's start included."""
    import ray

    from tests.integrations.verl.runs import CPU
    from uirl.integrations.verl import create_trainer

    actor = "actor_rollout_ref"
    keys = CPU | {
        "data.max_prompt_length": 32,
        "data.max_response_length": 64,
        "trainer.val_before_train": True,
        f"{actor}.actor.ppo_micro_batch_size_per_gpu": config.training.batch_size // config.training.minibatches,
        f"{actor}.rollout.log_prob_micro_batch_size_per_gpu": config.training.batch_size,
        "transfer_queue.backend.SimpleStorage.total_storage_size": 4000,
    }
    started = time.perf_counter()
    ray.init(num_cpus=8, num_gpus=1, include_dashboard=False, object_store_memory=500_000_000)
    try:
        create_trainer(config, overrides=keys).fit()
    finally:
        ray.shutdown()
    return time.perf_counter() - started


def test(run: Path, verl: bool) -> dict[str, Any]:
    """The evaluation of a run's newest checkpoint; one of verl's is exported first."""
    if verl:
        from uirl.integrations.verl import export_checkpoint

        export_checkpoint(run)
    report = measure(run, episodes=TESTED)
    return {"success": report.success, "interval": report.interval, "episodes": report.episodes}


def curve(run: Path) -> dict[str, list[tuple[int, float]]]:
    """(updates, success) of a run: of the episodes it learned from, and of the held-out ones."""
    rows = [row for row in read_metrics(run / "metrics.jsonl") if row.get("success") is not None]
    trained = [(row["step"], row["success"]) for row in rows]
    with TrajectoryStore(run / "trajectories.sqlite", read_only=True) as store:
        judged: dict[int, list[bool]] = {}
        for summary in store.list(split="eval"):
            if summary.failure is None and summary.success is not None:
                judged.setdefault(summary.step, []).append(summary.success)
    return {"trained": trained, "held_out": [(step, sum(own) / len(own)) for step, own in sorted(judged.items())]}


def draw(path: Path, curves: dict[str, Any], episodes: int) -> None:
    """Both curves, side by side."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 3.6), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (title, own) in zip(figure.subplots(1, 2, sharey=True), curves.items(), strict=True):
        axes.plot(*zip(*own["trained"], strict=True), color="#9db7d5", linewidth=1.4, label="while training")
        axes.plot(*zip(*own["held_out"], strict=True), color="#1f4e8c", marker="o", markersize=3.5, label="held out")
        axes.axhline(CHANCE, color="#b5651d", linestyle="--", linewidth=1, label=f"random guesses ({CHANCE:.2f})")
        axes.axhline(0.9, color="#888888", linestyle=":", linewidth=1, label="0.9")
        axes.set(title=title, xlabel=f"updates of {episodes} episodes", ylim=(-0.02, 1.02))
        axes.set_xlim(left=0)
        axes.title.set_fontsize(10)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("success")
    figure.axes[1].legend(fontsize=8, frameon=False, loc="lower right")
    figure.savefig(path, format="png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("runs/beside"), help="where both runs are written")
    parser.add_argument("--steps", type=int, default=40, help="updates of each run, a multiple of 10")
    parser.add_argument("--picture", type=Path, default=Path("docs/images/verl_beside_local.png"))
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    options = parser.parse_intermixed_args()
    folder = options.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    report: dict[str, Any] = (
        json.loads((folder / "report.json").read_text()) if (folder / "report.json").exists() else {}
    )
    local = settings(folder, "local", options)
    start = folder / "local" / "checkpoints" / "step_000000"
    under = settings(folder, "verl", options).override([f"model.local_path={start}"])
    for name, train in (("local", lambda: train_locally(local, folder)), ("verl", lambda: train_under_verl(under))):
        if name not in report:
            seconds = train()
            report[name] = {"seconds": seconds, **curve(folder / name), "test": test(folder / name, name == "verl")}
            (folder / "report.json").write_text(json.dumps(report, indent=1))
    titles = {"local": "uirl train", "verl": "the same under verl, from the same weights"}
    draw(options.picture, {titles[name]: report[name] for name in titles}, local.training.batch_size)
    print("| | before | last held out | test (95 %) | first held out >= 0.9 | seconds |\n|---|---|---|---|---|---|")
    for name in titles:
        print(row(name, report[name]))


def row(name: str, own: dict[str, Any]) -> str:
    """A line of the table."""
    low, high = own["test"]["interval"]
    first = next((step for step, success in own["held_out"] if success >= 0.9), None)
    return (
        f"| {name} | {own['trained'][0][1]:.3f} | {own['held_out'][-1][1]:.3f} | {own['test']['success']:.3f} "
        f"({low:.3f}-{high:.3f}) | {'never' if first is None else f'update {first}'} | {own['seconds']:.0f} |"
    )


if __name__ == "__main__":
    main()
