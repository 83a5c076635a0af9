"""`uirl audit`: whether what a run says of itself follows from what it recorded."""

from __future__ import annotations

import argparse
import json
from typing import Any

from uirl.cli.imports import make_importable
from uirl.errors import ConfigError
from uirl.runtime.terminal import visible


def add_command(commands: Any) -> None:
    """Add the command to the parser of `uirl`."""
    audit = commands.add_parser("audit", help="make the figures of a finished run again, from its record")
    audit.add_argument("path", metavar="RUN", help="run directory")
    audit.add_argument("--share", type=float, default=0.01, help="of the episodes is played again (default 0.01)")
    audit.add_argument("--seed", type=int, default=0, help="which of them (default 0)")
    audit.add_argument("--json", action="store_true", help="print the whole report as JSON")
    audit.add_argument("overrides", nargs="*", metavar="section.key=value", help="changes to the run's config")
    audit.set_defaults(run=_audit)


def _audit(options: argparse.Namespace) -> int:
    from uirl.training.audit import audit
    from uirl.training.record.progress import lines_on_stderr

    if not 0 <= options.share <= 1:
        raise ConfigError(f"--share must be between 0 and 1, got {options.share:g}")
    make_importable(opened=options.path)
    with lines_on_stderr(options.json):
        report = audit(options.path, options.overrides, share=options.share, seed=options.seed)
    print(json.dumps(report.to_dict(), indent=2) if options.json else visible(str(report)))
    return 1 if report.problems else 0
