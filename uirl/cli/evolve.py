"""`uirl evolve`: rounds of playing, keeping what was right, and fine-tuning on it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from uirl.cli.learners import require_alone
from uirl.cli.options import add_config, read_config
from uirl.errors import ConfigError
from uirl.runtime.terminal import short


def add_command(commands: Any) -> None:
    """Add the command to the parser of `uirl`."""
    evolve = commands.add_parser("evolve", help="play, keep what was right, fine-tune on it, and again")
    add_config(evolve)
    evolve.add_argument(
        "--resume", action="store_true", help="go on with the newest run of this config, or logging.run_name=<name>"
    )
    evolve.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    require_alone("evolve")
    if options.resume:
        options.overrides.insert(0, "checkpoint.resume=true")
    path, config = read_config(options)
    if path is not None and Path(path).is_dir():
        if not config.checkpoint.resume:
            raise ConfigError(f"{path} is a run; go on with it by --resume, or name a config file to begin another")
        config.logging.runs_dir, config.logging.run_name = str(Path(path).resolve().parent), Path(path).resolve().name
    from uirl.pipelines import Evolution
    from uirl.training.record.progress import live_board
    from uirl.training.resume import run_name_for

    if path is not None and Path(path).is_file():
        config.logging.call_runs(f"{Path(path).stem}-evolve")
    if config.checkpoint.resume:
        config.logging.run_name = run_name_for(config)
    evolution = Evolution(config)
    try:
        with live_board(f"{config.environment.label}  evolve  {config.model.model_name}"):
            summary = evolution.run()
    except KeyboardInterrupt:
        print("uirl: interrupted; --resume goes on, with what is finished", file=sys.stderr, flush=True)
        return 130
    finally:
        evolution.close()
    _tell(evolution.path, summary)
    return 0


def _tell(path: Path, summary: dict[str, Any]) -> None:
    from uirl.training.record.progress import report_table

    rows: dict[str, object] = {}
    for row in summary["rounds"]:
        kinds = [f"{row[kind]} {kind}" for kind in ("solved", "beginnings") if kind in row]
        kept = f"  ({', '.join(kinds)})" if kinds else ""
        rows[f"round {row['round']}"] = f"{row['result']}{kept}"
    report_table(str(short(path)), {**rows, "checkpoint": summary["checkpoint"]})
