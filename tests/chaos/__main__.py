"""`make chaos`: does a run survive what kills its processes? `python -m tests.chaos --help` lists the options."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.chaos.driver import Chaos, ChaosOptions, train_arguments
from tests.chaos.targets import RayNodes, changes_for, servers_of
from uirl.cli.imports import make_importable
from uirl.cli.options import count, seconds, whole
from uirl.config import load_config
from uirl.errors import ConfigError, UirlError
from uirl.storage import free_run_name
from uirl.training.record.progress import report_table, say

UIRL = [sys.executable, "-m", "uirl"]
DEFAULTS = ["checkpoint.save_seconds=10"]
"""Changes before those that are typed: a run that is killed every minute has to save more often than every minute."""


def parser() -> argparse.ArgumentParser:
    chaos = argparse.ArgumentParser(prog="chaos", description="Train while processes of the run are killed.")
    add = chaos.add_argument
    add("config", nargs="?", metavar="config.yaml", help="the job; default: that of `uirl train`")
    add("--seconds", type=seconds, default=120.0, help="how long processes are killed (default 120)")
    add("--seed", type=int, default=0, help="of the schedule of kills (default 0)")
    add("--set", dest="changes", action="append", default=[], metavar="section.key=value", help="change the config")
    add("--servers", type=count, metavar="N", help="play on N `uirl serve` processes, which are killed too")
    add("--ray-nodes", type=count, metavar="N", help="play in a Ray cluster of N nodes, which are killed too")
    add("--after-updates", type=whole, default=0, metavar="N", help="updates before the first kill (default 0)")
    add("--finish", type=seconds, default=3600.0, metavar="S", help="seconds to end after the last kill")
    return chaos


def main(words: Sequence[str] | None = None) -> int:
    """Return the exit status: 0 balanced, 1 not, 2 the run failed or cannot begin."""
    options = parser().parse_args(words)
    try:
        return chaos(options)
    except UirlError as error:
        print(f"chaos: {error}", file=sys.stderr)
        return 2


def chaos(options: argparse.Namespace) -> int:
    make_importable(config=options.config)
    changes = [*DEFAULTS, *options.changes]
    config = load_config(options.config, changes).check(training=True)
    stem = "chaos" if options.config is None else f"{Path(options.config).stem}-chaos"
    name = config.logging.run_name or free_run_name(config.logging.runs_dir, stem)
    run = Path(config.logging.runs_dir).resolve() / name
    if run.is_dir() and any(run.iterdir()):
        raise ConfigError(f"{run} holds a run already, and chaos kills what it runs; choose another logging.run_name")
    with tempfile.TemporaryDirectory(prefix="uirl-chaos-") as folder:
        servers = [] if options.servers is None else servers_of(config, options.servers, Path(folder), UIRL)
        if servers:
            changes += changes_for(servers)
        job = ChaosOptions(
            config=config,
            run=run,
            command=[*UIRL, *train_arguments(options.config, changes, run)],
            seconds=options.seconds,
            seed=options.seed,
            after_updates=options.after_updates,
            finish_seconds=options.finish,
            servers=servers,
            nodes=None if options.ray_nodes is None else RayNodes(config, options.ray_nodes),
        )
        say(f"chaos: {run} for {options.seconds:g} s, seed {options.seed}")
        report = Chaos(job).execute()
    for event in report.events:
        say(event.line())
    report_table(f"chaos in {name}", report.rows())
    return report.status()


if __name__ == "__main__":
    sys.exit(main())
