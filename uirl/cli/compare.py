"""`uirl compare` and `uirl sweep`: runs side by side, and the runs for it."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from uirl.cli.begin import path_of
from uirl.cli.learners import require_alone
from uirl.cli.options import count
from uirl.errors import ConfigError, UirlError
from uirl.runtime.terminal import short

PLOT = "comparison.png"
LONGEST_NAME = 100
"""Characters of the name of a run."""


def add_command(commands: Any, uirl: Callable[[Sequence[str]], int]) -> None:
    """Add the commands to the parser of `uirl`, which `uirl` is with the words of a command."""
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
    sweep.add_argument("--parallel", type=count, metavar="N", help="runs at a time (default 1; with --ray all of them)")
    sweep.add_argument(
        "--ray", metavar="ADDRESS", help="each run where a Ray cluster has room: HOST:6379, auto or local"
    )
    sweep.add_argument("--cpus", type=float, default=1.0, metavar="N", help="that Ray reserves for a run (default 1)")
    sweep.add_argument("--gpus", type=float, default=0.0, metavar="N", help="that Ray reserves for a run (default 0)")
    sweep.set_defaults(run=_sweep, uirl=uirl)


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

    require_alone("sweep")
    config = str(Path(path_of(options.config)).absolute())
    folder = Path(options.out or f"runs/{Path(config).stem}-sweep").absolute()
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

    place = Here() if options.ray is None else InRay(options.uirl, options.ray, options.cpus, options.gpus)
    running: set[Any] = set()
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
        log = folder / f"{name}.log"
        print(f"{name}: begins, with the log {short(log)}", flush=True)
        run = place.start(["train", config, *words], log)
        running.add(run)
        if stopped.is_set():
            place.stop(run)
        status = place.wait(run)
        running.discard(run)
        how = "done" if status == 0 else "stopped" if stopped.is_set() else "failed"
        print(f"{name}: {how}{f', see {log}' * (status != 0)}", flush=True)
        return status == 0

    at_once = options.parallel or (1 if options.ray is None else len(runs))
    with contextlib.closing(place), stops_as_ctrl_c(), ThreadPoolExecutor(at_once) as pool:
        try:
            ended = dict(zip(runs, pool.map(train, runs), strict=True))
        except KeyboardInterrupt:
            stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)
            for run in list(running):
                place.stop(run)  # it saves; the same sweep goes on with it
            raise
    done = [folder / name for name, well in ended.items() if well]
    print()
    if done:
        _tell(done, folder / PLOT)
    if failed := [name for name, well in ended.items() if not well]:
        print(f"\n{len(failed)} of {len(runs)} runs failed and are not in the table: {', '.join(failed)}")
    return 0 if len(done) == len(runs) else 1


class Here:
    """Where the runs of a sweep are processes of this machine."""

    def start(self, words: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
        """Begin `uirl` with `words`; what it says is added to `log`."""
        with log.open("a") as file:
            # in a session of its own: a run that hears Ctrl-C from the terminal and from here stops without saving
            command = [sys.executable, "-m", "uirl", *words]
            return subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)

    def wait(self, run: subprocess.Popen[bytes]) -> int:
        """Return the exit status of a run once it has ended."""
        return run.wait()

    def stop(self, run: subprocess.Popen[bytes]) -> None:
        """Have a run save and end."""
        run.terminate()

    def close(self) -> None:
        """There is nothing to free."""


class InRay:
    """Where they are tasks in a Ray cluster. The folder of the sweep and that of the config are on a disk that its
    machines share."""

    def __init__(self, uirl: Callable[[Sequence[str]], int], address: str, cpus: float, gpus: float) -> None:
        from uirl.workers.ray import Demand, RayCluster, import_ray

        self._uirl, self._ray = uirl, import_ray()
        self._cluster = RayCluster(address, Demand(cpus, {}))
        # a run that was lost with its machine goes on from its checkpoint
        self._task = self._ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=3, max_calls=1)(_in_ray)

    def start(self, words: Sequence[str], log: Path) -> Any:
        """Hand `uirl` with `words` to Ray; it begins where and when there is room."""
        return self._task.remote(self._uirl, list(words), log, os.getcwd())

    def wait(self, run: Any) -> int:
        """Return the exit status of a run once it has ended; -1: Ray lost it, or never began it."""
        try:
            return self._ray.get(run)
        except self._ray.exceptions.RayError as error:
            print(f"uirl: {str(error).splitlines()[0]}", file=sys.stderr)
            return -1

    def stop(self, run: Any) -> None:
        """Have a run save and end, or never begin."""
        self._ray.cancel(run)

    def close(self) -> None:
        """Leave the cluster."""
        self._cluster.close()


def _in_ray(uirl: Callable[[Sequence[str]], int], words: Sequence[str], log: Path, folder: str) -> int:
    """Be `uirl` with `words`, in `folder`: this process of Ray's serves no other task."""
    # Ray interrupts without a signal, which a main thread that waits for another does not hear until one comes
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.5, 0.5)
    os.chdir(folder)
    with log.open("a") as file:
        for output in (1, 2):
            os.dup2(file.fileno(), output)
    return uirl(words)


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
