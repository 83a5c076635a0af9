"""`uirl compare` and `uirl sweep`: runs side by side, and the runs for it."""

from __future__ import annotations

import argparse
import itertools
import json
import re
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from uirl.cli.begin import path_of
from uirl.cli.options import count
from uirl.errors import ConfigError, UirlError

PLOT = "comparison.png"
LONGEST_NAME = 100
"""Characters of the name of a run."""


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

    runs, status = [], 0
    for path in {path.resolve(): path for path in paths}.values():
        try:
            runs.append(read_run(path))
        except UirlError as error:  # the others are compared all the same
            print(f"uirl: {error}", file=sys.stderr)
            status = 2
    if not runs:
        return status
    settings = settings_of(runs)
    print(table_of(settings))
    if draw_comparison(plot, settings):
        print(f"\ncurves  {plot}")
    return status


def _sweep(options: argparse.Namespace) -> int:
    from uirl.config import load_config
    from uirl.runtime.event_loop import stops_as_ctrl_c

    config = path_of(options.config)
    folder = Path(options.out or f"runs/{Path(config).stem}-sweep")
    runs = combinations(options.values)
    configs = {name: load_config(config, changes).to_dict() for name, changes in runs.items()}  # or a ConfigError
    seen: dict[str, str] = {}
    for name, values in configs.items():
        other = seen.setdefault(json.dumps(values, sort_keys=True), name)
        if other != name:
            raise ConfigError(f"{name} and {other} are the same run; expected other values")
    for name, values in configs.items():
        noted = folder / f"{name}.json"
        if noted.is_file() and json.loads(noted.read_text("utf-8")) != values:
            raise ConfigError(f"{folder / name} is a run of another setting; expected another --out, or a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    for name, values in configs.items():
        (folder / f"{name}.json").write_text(json.dumps(values), "utf-8")

    running: set[subprocess.Popen[bytes]] = set()
    stopped = threading.Event()

    def train(name: str) -> bool:
        if (folder / name / "summary.json").is_file():
            print(f"{name}: done before", flush=True)
            return True
        words = [
            *runs[name],
            f"logging.runs_dir={json.dumps(str(folder))}",
            f"logging.run_name={name}",
            "checkpoint.resume=auto",
        ]
        print(f"{name}: begins", flush=True)
        with (folder / f"{name}.log").open("a") as log:
            command = [sys.executable, "-m", "uirl", "train", config, *words]
            # in a session of its own: a run that hears Ctrl-C from the terminal and from here stops without saving
            run = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
            running.add(run)
            if stopped.is_set():
                run.terminate()
            status = run.wait()
            running.discard(run)
        print(f"{name}: {'done' if status == 0 else f'failed, see {log.name}'}", flush=True)
        return status == 0

    with stops_as_ctrl_c(), ThreadPoolExecutor(options.parallel) as pool:
        try:
            ended = dict(zip(runs, pool.map(train, runs), strict=True))
        except KeyboardInterrupt:
            stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)
            for run in list(running):
                run.terminate()  # it saves; the same sweep goes on with it
            raise
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
        if key in (other for other, _ in axes):
            raise ConfigError(f"{key} is there twice; expected all of its values in one place")
        axes.append((key, values))
    found = {}
    for chosen in itertools.product(*(values for _, values in axes)):
        telling = (
            f"{key.rpartition('.')[2]}-{value}"
            for (key, values), value in zip(axes, chosen, strict=True)
            if len(values) > 1
        )
        name = re.sub(r"[^A-Za-z0-9.-]+", "_", "_".join(telling)).strip("_") or "run"
        name = name[:LONGEST_NAME]
        same = sum(other == name or other.startswith(f"{name}.") for other in found)  # what no name can hold differs
        name += f".{same + 1}" * (same > 0)
        found[name] = [f"{key}={value}" for (key, _), value in zip(axes, chosen, strict=True)]
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
        seeds = range(int(first), int(last if dots else first) + 1)
    except ValueError:
        seeds = range(0)
    if not seeds:
        raise ConfigError(f"got seeds={text}, expected numbers as 0..4 or 1,2,3")
    return [str(seed) for seed in seeds]
