"""`uirl compare` and `uirl sweep`: runs side by side, and the runs for it."""

from __future__ import annotations

import argparse
import itertools
import re
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from uirl.cli.begin import path_of
from uirl.cli.options import count
from uirl.errors import ConfigError

PLOT = "comparison.png"


def add_command(commands: Any) -> None:
    """Add the commands to the parser of `uirl`."""
    compare = commands.add_parser("compare", help="print what runs came to, by setting, with intervals over seeds")
    compare.add_argument("runs", nargs="+", metavar="RUN", help="run directories")
    compare.add_argument("--plot", metavar="FILE", default=PLOT, help=f"draw their evaluations there (default {PLOT})")
    compare.set_defaults(run=_compare)
    sweep = commands.add_parser("sweep", help="train a config with every combination of values, and compare")
    sweep.add_argument("config", metavar="config.yaml")
    sweep.add_argument(
        "values", nargs="*", metavar="section.key=a,b,c | seeds=0..4", help="values to try; one: a change"
    )
    sweep.add_argument(
        "--out", metavar="FOLDER", help="for the runs; what is there goes on (default runs/CONFIG-sweep)"
    )
    sweep.add_argument("--parallel", type=count, default=1, metavar="N", help="runs at a time (default 1)")
    sweep.set_defaults(run=_sweep)


def _compare(options: argparse.Namespace) -> int:
    return _tell([Path(run) for run in options.runs], Path(options.plot))


def _tell(paths: Sequence[Path], plot: Path) -> int:
    from uirl.training.record.comparison import draw_comparison, read_run, settings_of, table_of

    settings = settings_of([read_run(path) for path in paths])
    print(table_of(settings))
    if draw_comparison(plot, settings):
        print(f"\ncurves  {plot}")
    return 0


def _sweep(options: argparse.Namespace) -> int:
    from uirl.config import load_config

    config = path_of(options.config)
    folder = Path(options.out or f"runs/{Path(config).stem}-sweep")
    runs = combinations(options.values)
    for changes in runs.values():  # what cannot be trained is told before anything is
        load_config(config, changes)
    folder.mkdir(parents=True, exist_ok=True)

    def train(name: str) -> bool:
        if (folder / name / "summary.json").is_file():
            print(f"{name}: done before", flush=True)
            return True
        words = [*runs[name], f"logging.runs_dir={folder}", f"logging.run_name={name}", "checkpoint.resume=auto"]
        print(f"{name}: begins", flush=True)
        with (folder / f"{name}.log").open("a") as log:
            ended = subprocess.run([sys.executable, "-m", "uirl", "train", config, *words], stdout=log, stderr=log)
        print(f"{name}: {'done' if ended.returncode == 0 else f'failed, see {log.name}'}", flush=True)
        return ended.returncode == 0

    with ThreadPoolExecutor(options.parallel) as pool:
        ended = dict(zip(runs, pool.map(train, runs), strict=True))
    done = [folder / name for name, well in ended.items() if well]
    print()
    if done:
        _tell(done, folder / PLOT)
    return 0 if len(done) == len(runs) else 1


def combinations(words: Sequence[str]) -> dict[str, list[str]]:
    """Return name -> changes of every combination of `key=a,b,c`; `seeds=0..4` stands for `training.seed`. Commas
    within brackets or quotes separate nothing. Raises ConfigError for what is no assignment."""
    axes: list[tuple[str, list[str]]] = []
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise ConfigError(f"got {word!r}, expected section.key=a,b,c, or seeds=0..4")
        values = _values(text)
        if key == "seeds":
            key, values = "training.seed", [seed for value in values for seed in _seeds(value)]
        axes.append((key, values))
    found = {}
    for chosen in itertools.product(*(values for _, values in axes)):
        telling = (
            f"{key.rpartition('.')[2]}-{value}"
            for (key, values), value in zip(axes, chosen, strict=True)
            if len(values) > 1
        )
        name = re.sub(r"[^A-Za-z0-9.-]+", "_", "_".join(telling)).strip("_") or "run"
        changes = [f"{key}={value}" for (key, _), value in zip(axes, chosen, strict=True)]
        if found.setdefault(name, changes) is not changes:
            raise ConfigError(f"two runs would be called {name}: a value is there twice")
    return found


def _values(text: str) -> list[str]:
    values, depth, quote = [""], 0, ""
    for sign in text:
        if quote or sign in "\"'":
            quote = "" if sign == quote else quote or sign
        depth += (sign in "[{(") - (sign in "]})")
        if sign == "," and depth == 0 and not quote:
            values.append("")
        else:
            values[-1] += sign
    return values


def _seeds(text: str) -> list[str]:
    first, dots, last = text.partition("..")
    try:
        return [str(seed) for seed in range(int(first), int(last) + 1)] if dots else [str(int(first))]
    except ValueError as error:
        raise ConfigError(f"got seeds={text}, expected numbers as 0..4 or 1,2,3") from error
