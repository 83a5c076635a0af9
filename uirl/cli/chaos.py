"""`uirl chaos`: does a run survive what kills its processes?"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from uirl.cli.imports import make_importable
from uirl.cli.options import count, seconds, whole
from uirl.errors import ConfigError


def add_command(commands: Any, program: Sequence[str]) -> None:
    """Add the command to those of `uirl`. `program`: how that is called, for the processes that are killed."""
    chaos = commands.add_parser("chaos", help="train while processes of the run are killed, and account for it")
    chaos.add_argument("config", nargs="?", metavar="config.yaml", help="the job; default: that of `uirl train`")
    chaos.add_argument("--seconds", type=seconds, default=120.0, help="how long processes are killed (default 120)")
    chaos.add_argument("--seed", type=int, default=0, help="of the schedule of kills (default 0)")
    chaos.add_argument(
        "--set", dest="changes", action="append", default=[], metavar="section.key=value", help="a change to the config"
    )
    chaos.add_argument(
        "--servers", type=count, metavar="N", help="play on N `uirl serve` processes, which are killed too"
    )
    chaos.add_argument(
        "--ray-nodes", type=count, metavar="N", help="play in a Ray cluster of N nodes, which are killed too"
    )
    chaos.add_argument(
        "--after-updates", type=whole, default=0, metavar="N", help="updates before the first kill (default 0)"
    )
    chaos.add_argument(
        "--finish", type=seconds, default=3600.0, metavar="S", help="seconds for the run to end after the last kill"
    )
    chaos.set_defaults(run=_chaos, program=program)


def _chaos(options: argparse.Namespace) -> int:
    from uirl.config import load_config
    from uirl.storage import free_run_name
    from uirl.training.chaos.driver import Chaos, ChaosOptions, train_arguments
    from uirl.training.chaos.ray_nodes import RayNodes
    from uirl.training.chaos.servers import changes_for, servers_of
    from uirl.training.record.progress import report_table, say

    make_importable(config=options.config)
    changes = [*_DEFAULTS, *options.changes]
    config = load_config(options.config, changes).check(training=True)
    stem = "chaos" if options.config is None else f"{Path(options.config).stem}-chaos"
    name = config.logging.run_name or free_run_name(config.logging.runs_dir, stem)
    run = Path(config.logging.runs_dir).resolve() / name
    if run.is_dir() and any(run.iterdir()):
        raise ConfigError(f"{run} holds a run already, and chaos kills what it runs; choose another logging.run_name")
    with tempfile.TemporaryDirectory(prefix="uirl-chaos-") as folder:
        servers = [] if options.servers is None else servers_of(config, options.servers, Path(folder), options.program)
        if servers:
            changes += changes_for(servers)
        chaos = Chaos(
            ChaosOptions(
                config=config,
                run=run,
                command=[*options.program, *train_arguments(options.config, changes, run)],
                seconds=options.seconds,
                seed=options.seed,
                after_updates=options.after_updates,
                finish_seconds=options.finish,
                servers=servers,
                nodes=None if options.ray_nodes is None else RayNodes(config, options.ray_nodes),
            )
        )
        say(f"chaos: {run} for {options.seconds:g} s, seed {options.seed}")
        report = chaos.execute()
    for event in report.events:
        say(event.line())
    report_table(f"chaos in {name}", report.rows())
    return report.status()


_DEFAULTS = ["checkpoint.save_seconds=10"]
"""Changes before those that are typed: a run that is killed every minute has to save more often than every minute."""
