"""Actors that run ahead of the learner beside actors that wait for it: utilisation, throughput, success.

    python -m benchmarks.asynchrony sweep --out sweep.json           1, 4, 16, 64 actors, synchronous and asynchronous
    python -m benchmarks.asynchrony success --out success.json       16 actors, the same episodes, three seeds
    python -m benchmarks.asynchrony miniwob --out miniwob.json       pages of MiniWoB++ in Chromium
    python -m benchmarks.asynchrony staleness --out staleness.json   0, 1, 4, 16 versions and 'auto', corrected and not
    python -m benchmarks.asynchrony plot sweep.json --out docs/images/asynchrony.png
    python -m benchmarks.asynchrony table sweep.json                 the runs of any of these, those of seeds together

The screens wait for a heavy-tailed time whose mean is ten times what the model takes for a turn (`slow.py`). All
runs of a seed go on from one warm start, which is made without latency. A utilisation counts from the first row of
metrics to the last.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from uirl.metrics import read_metrics

SCREEN = ["configs/screen.yaml", "environment.name=benchmarks.slow:SlowScreen"]
PAGES = ["configs/miniwob_click.yaml", "environment.name=benchmarks.slow:SlowPages"]
SLOW = ["environment.options.latency=%g", "environment.options.tail=%s", "environment.options.busy_log=%s"]
SMALL_STEPS = ["training.learning_rate=8.0e-5", "training.value_learning_rate=1.3e-3"]
"""A third of what the job learns with from 256 episodes at a time."""
UPDATES = ["training.batch_size=16", "training.update_epochs=2", "training.minibatches=1", "training.threads=1"]
QUIET = ["training.eval_every=null", "training.stop_at_success=null", "checkpoint.save_interval=null"]
NUMBERS = ["configs/guess_number.yaml", "training.threads=1", "environment.eval_options={}"]
ACTORS = (1, 4, 16, 64)
CORRECTIONS = ["off", "truncated token", "truncated sequence", "masked token", "masked sequence"]
AHEAD = 8
"""The staleness of the asynchronous runs of a sweep."""


def train(folder: Path, name: str, settings: list[str], *, resume: bool = False) -> dict[str, Any]:
    """Run `uirl train` in a process of its own; return its summary."""
    where = [f"logging.runs_dir={folder}", f"logging.run_name={name}", f"checkpoint.resume={str(resume).lower()}"]
    command = [sys.executable, "-m", "uirl.cli.main", "train", *settings, *where]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stdout[-3000:]}")
    summary: dict[str, Any] = json.loads((folder / name / "summary.json").read_text())
    return summary


def warm(folder: Path, settings: list[str], seed: int) -> Path:
    """Return the run from which those of a seed go on: warm start and one synchronous update."""
    name = f"warm-{Path(settings[0]).stem}-{seed}"
    if not (folder / name / "summary.json").is_file():
        short = ["training.num_epochs=1", "training.num_iters_per_epoch=1", "training.eval_episodes=64"]
        train(folder, name, [*settings, *QUIET, *short, f"training.seed={seed}"])
    return folder / name


def go_on(start: Path, name: str, settings: list[str], updates: int, seed: int) -> tuple[list[dict[str, Any]], float]:
    """Take `updates` updates from `start`; return their rows of metrics, and the success at the end."""
    shutil.rmtree(start.parent / name, ignore_errors=True)
    shutil.copytree(start, start.parent / name)
    (start.parent / name / "summary.json").unlink()
    length = ["training.num_epochs=1", f"training.num_iters_per_epoch={updates + 1}", f"training.seed={seed}"]
    summary = train(start.parent, name, [*settings, *QUIET, *length], resume=True)
    rows = [row for row in read_metrics(start.parent / name / "metrics.jsonl") if row["step"] > 1]
    shutil.rmtree(start.parent / name)
    return rows, summary["success_after"]


def figures(rows: list[dict[str, Any]], slots: int, busy_log: Path | None) -> dict[str, float]:
    """Return what a run did between its first row and its last."""
    begin, end = rows[0]["time"], rows[-1]["time"]
    window, rows = end - begin, rows[1:]
    found = {
        "learner_idle": 1 - sum(row["time/update"] for row in rows) / window,
        "episodes_per_second": sum(row["trajectories"] for row in rows) / window,
        "updates_per_second": len(rows) / window,
        "seconds": window,
    }
    if busy_log is not None:
        calls = (tuple(map(float, line.split())) for line in busy_log.read_text().splitlines())
        busy = sum(max(0.0, min(stop, end) - max(start, begin)) for start, stop in calls)
        found["utilisation"] = busy / (window * slots)
    else:
        found["utilisation"] = sum(row["time/environment"] for row in rows) / (window * slots)
    return found | stale_figures(rows)


def stale_figures(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return means over the updates of what was stale; 0 where nothing was, a sample size of 1."""
    names = {"share": 0.0, "age_mean": 0.0, "age_max": 0.0, "gap": 0.0, "ess": 1.0, "capped": 0.0}
    found = {n: statistics.fmean((row.get(f"stale/{n}") or fill) for row in rows) for n, fill in names.items()}
    return found | {"dropped": (rows[-1].get("ledger/dropped/stale") or 0) / rows[-1]["ledger/ordered"]}


def calibrate(folder: Path, job: list[str]) -> float:
    """Return the seconds that the model takes for a turn where one episode is played at a time."""
    start = warm(folder, job, 0)
    rows, _ = go_on(start, "calibrate", [*job, *UPDATES, "rollout.parallel=1", "training.eval_episodes=1"], 6, 0)
    turns = sum(row["turns"] * row["trajectories"] for row in rows[1:])
    return sum(row["time/engine_prefill"] + row["time/engine_decode"] for row in rows[1:]) / turns


def slow_run(
    folder: Path, job: list[str], actors: int, ahead: int, updates: int, seed: int, *extra: str
) -> dict[str, Any]:
    """Return the figures of one run. `extra`: settings, the latency among them."""
    log = folder / "busy.log"
    log.unlink(missing_ok=True)
    settings = [*job, *UPDATES, SLOW[2] % log, "environment.eval_options={latency: 0}"]
    settings += [f"rollout.parallel={actors}", f"actors.staleness={ahead}", *extra]
    rows, success = go_on(warm(folder, job, seed), "run", settings, updates, seed)
    return figures(rows, actors, log) | {"actors": actors, "staleness": ahead, "seed": seed, "success": success}


def slowness(folder: Path, job: list[str], options: argparse.Namespace) -> tuple[float, list[str]]:
    """Return the seconds that the model takes for a turn, and the settings that make a call take ten times that."""
    turn = options.turn or calibrate(folder, job)
    print(f"the model takes {1000 * turn:.1f} ms for a turn, a call waits {10_000 * turn:.0f} ms in the mean")
    return turn, [SLOW[0] % (10 * turn), SLOW[1] % options.tail]


def sweep(folder: Path, options: argparse.Namespace, job: list[str] = SCREEN) -> Iterator[dict[str, Any]]:
    """Yield the runs of every number of actors, those that wait beside those that run ahead."""
    turn, slow = slowness(folder, job, options)
    for actors in options.actors:
        for ahead, share in ((0, 0.25), (AHEAD, 1.0)):
            # few where each takes long: an update has 16 episodes of some calls
            updates = max(4, round(share * options.updates * min(1.0, actors / 16)))
            run = slow_run(folder, job, actors, ahead, updates, 0, *slow, *options.set)
            yield run | {"turn": turn, "tail": options.tail}


def miniwob(folder: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the runs of a sweep on real pages."""
    yield from sweep(folder, options, PAGES)


def success(folder: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield, for every seed, a run that waits and one that runs ahead, over the same number of episodes."""
    _, slow = slowness(folder, SCREEN, options)
    for seed in options.seeds:
        for ahead in (0, 2):
            for extra in ([], SMALL_STEPS):
                run = slow_run(folder, SCREEN, 16, ahead, options.updates, seed, *slow, *extra)
                yield run | {"correction": "learning rate / 3" if extra else "learning rate of the job"}


def staleness(folder: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield runs of every staleness and correction, for every seed."""
    for seed in options.seeds:
        for ahead in options.ahead:
            for both in options.corrections if ahead in ("1", "4", "16") else [""]:
                correction, _, level = both.partition(" ")
                settings = [*NUMBERS, "training.batch_size=64", f"actors.staleness={ahead}", "rollout.parallel=1024"]
                settings += ["training.eval_episodes=512"]
                settings += [f"algorithm.stale_correction={correction}"] if correction else []
                settings += [f"algorithm.stale_level={level}"] if level else []
                rows, reached = go_on(warm(folder, NUMBERS, seed), "run", settings, options.updates, seed)
                run = {"staleness": ahead, "correction": both or "the default", "seed": seed, "success": reached}
                yield figures(rows, 1, None) | run


def plot(path: Path, out: Path) -> None:
    """Draw the figures of a sweep."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    runs = json.loads(path.read_text())
    panels = (("utilisation", "utilisation of the environments"), ("learner_idle", "share of time the learner waits"))
    figure, axes = pyplot.subplots(1, 3, figsize=(11, 3.4))
    for axis, (name, title) in zip(axes, (*panels, ("episodes_per_second", "episodes per second")), strict=True):
        for ahead, label, colour in ((0, "synchronous", "#888888"), (AHEAD, f"staleness {AHEAD}", "#1f6fb4")):
            chosen = [run for run in runs if run["staleness"] == ahead]
            axis.plot([run["actors"] for run in chosen], [run[name] for run in chosen], "o-", color=colour, label=label)
        axis.set(xscale="log", xticks=ACTORS, xticklabels=[str(n) for n in ACTORS], xlabel="actors", title=title)
        axis.set_ylim(0, 1 if name != "episodes_per_second" else None)
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(out, dpi=110)


COLUMNS = {
    "utilisation": "utilisation",
    "learner_idle": "learner idle",
    "episodes_per_second": "episodes/s",
    "age_mean": "mean age",
    "gap": "gap (nats)",
    "ess": "sample size",
    "dropped": "dropped as stale",
    "success": "success",
}

MACHINE = ("utilisation", "learner_idle", "episodes_per_second")
"""Of no interest where environments answer at once."""


def table(path: Path) -> None:
    """Print the mean of the runs that differ in the seed alone, and the success of each."""
    runs = json.loads(path.read_text())
    named = [name for name in ("actors", "staleness", "correction") if name in runs[0]]
    shown = {name: title for name, title in COLUMNS.items() if "correction" not in named or name not in MACHINE}
    cells: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for run in runs:
        cells.setdefault(tuple(run[name] for name in named), []).append(run)
    print(f"| {' | '.join([*named, *shown.values()])} |\n|{'---|' * (len(named) + len(shown))}")
    for key, members in cells.items():
        means = [f"{statistics.fmean(run[name] for run in members):.3g}" for name in shown if name != "success"]
        reached = ", ".join(f"{run['success']:.3f}" for run in members)
        print(f"| {' | '.join([*map(str, key), *means, reached])} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("sweep", "success", "miniwob", "staleness", "plot", "table"))
    parser.add_argument("file", nargs="?", type=Path, help="of a sweep, for its plot")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--folder", type=Path, help="keeps the warm starts for another call; default: a temporary one")
    parser.add_argument("--actors", type=lambda text: tuple(map(int, text.split(","))), default=ACTORS)
    parser.add_argument("--seeds", type=lambda text: tuple(map(int, text.split(","))), default=(0, 1, 2))
    parser.add_argument("--ahead", type=lambda text: text.split(","), default=["0", "1", "4", "16", "auto"])
    parser.add_argument("--corrections", type=lambda text: text.split(","), default=CORRECTIONS)
    parser.add_argument("--turn", type=float, help="seconds that the model takes for a turn; default: measured")
    parser.add_argument("--updates", type=int, default=100)
    parser.add_argument("--set", action="append", default=[], help="section.key=value in the runs of a sweep")
    parser.add_argument("--tail", choices=("lognormal", "pareto"), default="lognormal")
    options = parser.parse_args()
    if options.what == "plot":
        plot(options.file, options.out)
        return
    if options.what == "table":
        table(options.file)
        return
    if options.out is None:
        parser.error("--out FILE is missing: where the runs are written")
    print(f"`{' '.join(['python -m benchmarks.asynchrony', *sys.argv[1:]])}`\n", flush=True)
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for run in globals()[options.what](folder, options):
            print("  ".join(f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in run.items()), flush=True)
            runs.append(run)
            options.out.write_text(json.dumps(runs, indent=1))


if __name__ == "__main__":
    main()
