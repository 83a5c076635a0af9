"""Writes the golden files again: `python -m tests.golden.write`, or with names of runs these alone. Digits that
differ by rounding stay.

What others see of the package is written as text: keys and their defaults, commands and options, tables, names,
defaults of functions.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import os
import re
import sqlite3
import sys
import tempfile
from pathlib import Path
from unittest import mock

import torch

import uirl
from tests.config.test_store import reference_page
from tests.golden import runs
from uirl import algorithms, curriculum, learner, rollout, storage
from uirl.cli.begin import shipped
from uirl.cli.main import main as uirl_command
from uirl.config import load_config
from uirl.storage import TrajectoryStore
from uirl.training.plan import plan_of

HERE = Path(__file__).parent
DIGITS, METRICS = HERE / "digits.json", HERE / "metric_names.txt"
PACKAGES = (uirl, algorithms, curriculum, learner, rollout, storage)
MARKS = ("application_id", "user_version")
COMMANDS = (
    *(
        "train",
        "eval",
        "check",
        "apps",
        "attack",
        "audit",
        "environments",
        "evolve",
        "export",
        "judge",
        "judge-report",
        "plan",
    ),
    *("serve", "serve-model", "verl", "view", "configs", "init", "doctor", "compare", "sweep"),
)


def config_keys() -> str:
    """Every key and option with its kind of value and its default; not what it means, in words."""
    lines, section = [], ""
    for line in reference_page().splitlines():
        if line.startswith("#"):
            section = line.lstrip("# ")
        elif match := re.match(r"\| `(\w+)` \| (.*)", line):
            kind, default = re.split(r"(?<!\\) \| ", match[2])[:2]
            lines.append(f"{section}.{match[1]} | {kind} | {default}")
        elif match := re.match(r"\| `([\w.]+)` \| ", line):
            lines.append(f"alias {match[1]}")
    return "\n".join(lines) + "\n"


def command_help() -> str:
    """What `--help` says of every command, an option a line, however wide the terminal is."""
    pages = []
    for command in ("", *COMMANDS):
        said = io.StringIO()
        wide = mock.patch.dict(os.environ, COLUMNS="200", NO_COLOR="1")
        with wide, contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
            uirl_command([*command.split(), "--help"])
        words = " ".join(said.getvalue().split())
        pages.append(re.sub(r" (?=\[?--\w)", "\n  ", words))
    return "\n\n".join(pages) + "\n"


def store_schema(folder: Path) -> str:
    """The statements that make a trajectory store, with its marks in the header."""
    path = folder / "trajectories.sqlite"
    TrajectoryStore(path).close()
    connection = sqlite3.connect(path)
    marks = [f"{name} {connection.execute(f'PRAGMA {name}').fetchone()[0]}" for name in MARKS]
    made = connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name")
    statements = [" ".join(sql.split()) for (sql,) in made]
    connection.close()
    return "\n".join([*marks, *statements]) + "\n"


PLANNED = {  # name -> config, on a GPU, changes
    "text": ("guess_number", False, ()),
    "text on a GPU": ("guess_number", True, ("training.adv_estimator=gae", "algorithm.max_update_kl=0.05")),
    "pictures": ("screen", False, ("algorithm.kl_loss_coef=0.1",)),
    "pictures on a GPU": ("screen", True, ("model.use_lora=true", "model.dtype=bfloat16", "actors.staleness=1")),
    "recomputed": ("screen", True, ("model.gradient_checkpointing=true", "inference.backend=vllm")),
}


def plans() -> str:
    """What a run takes by `uirl plan`, in bytes: the formulas by which runs choose are those they were."""
    lines = []
    for name, (config, gpu, changes) in PLANNED.items():
        plan = plan_of(load_config(shipped()[config], changes), limit=24 * 2**30, gpu=gpu)
        lines.append(f"{name} | {plan.workload} | trained {plan.trained}")
        for moment in plan.moments:
            lines += [f"{name} | {moment.name} | {part} | {size:.0f}" for part, size in sorted(moment.parts.items())]
    return "\n".join(lines) + "\n"


def defaults() -> str:
    """Every public function, class and method with what holds where nobody says otherwise, but for None and configs."""
    names = {name: getattr(package, name) for package in PACKAGES for name in package.__all__}
    for name, thing in list(names.items()):
        own = vars(thing).items() if inspect.isclass(thing) else ()
        functions = {method: getattr(it, "__func__", it) for method, it in own if not method.startswith("_")}
        names |= {f"{name}.{method}": it for method, it in functions.items() if inspect.isfunction(it)}
    lines = []
    for name, thing in sorted(names.items()):
        with contextlib.suppress(TypeError, ValueError):  # no function: a constant, a property, a kind of error
            parameters = inspect.signature(thing).parameters.values()
            given = [f"{p.name}={p.default!r}" for p in parameters if isinstance(p.default, str | int | float | tuple)]
            lines += [f"{name}: {' '.join(given)}\n"] if given and not name.endswith("Config") else []
    return "".join(lines)


def surfaces(folder: Path) -> dict[str, str]:
    """Return file name -> what stands in it."""
    return {
        "config_keys.txt": config_keys(),
        "command_help.txt": command_help(),
        "store_schema.txt": store_schema(folder),
        "plans.txt": plans(),
        "defaults.txt": defaults(),
        "public_names.txt": "\n".join(uirl.__all__) + "\n",
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
            played, found = runs.play(run, Path(folder))
        if run not in digits or runs.differences(digits[run], played):
            digits[run] = played
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
