"""`uirl plan`: what a run takes of a GPU, before anything is loaded."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING, Any

from uirl.cli.options import add_config, count, read_config
from uirl.errors import ConfigError

if TYPE_CHECKING:
    from uirl.config import ConfigStore
    from uirl.training.plan import Plan


def add_command(commands: Any) -> None:
    """Add the command to the parser of `uirl`."""
    plan = commands.add_parser("plan", help="print what a run takes of a GPU, part by part; 1: it does not fit")
    add_config(plan)
    plan.add_argument("--gpu", metavar="80GB", help="memory of the GPU (default: the one here, else the machine's)")
    plan.add_argument("--picture", default="1280x720", metavar="WxH", help="size of a screenshot (1280x720)")
    plan.add_argument("--tokens", type=count, metavar="N", help="longest sequence (default: as the config bounds it)")
    plan.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    _, config = read_config(options)
    size = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", options.picture)
    if size is None:
        raise ConfigError(f"--picture {options.picture}: expected width and height in pixels, as in 1280x720")
    from uirl.training.plan import Described, advice, memory_here, plan_of, remedies, settle

    gpu, limit = memory_here(config) if options.gpu is None else (True, _bytes(options.gpu))
    shown: Any = {"picture": (int(size[1]), int(size[2])), "tokens": options.tokens, "model": Described.of(config)}
    settled = settle(config, here=(gpu, limit), **shown)

    def again(of: ConfigStore) -> Plan:
        return plan_of(of, limit=limit, gpu=gpu, **shown)

    plan = again(settled.config)
    if settled.chosen:
        print(settled)
    print(plan)
    for problem in plan.problems:
        print(f"does not fit: {problem}")
    if plan.problems:
        print(advice(*remedies(settled.config, plan, again)))
    return 1 if plan.problems else 0


def _bytes(text: str) -> int:
    """Read a size of memory as GPUs are sold by: 80GB are 80 x 2^30 bytes."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(?:GB|GiB|G)?", text, re.IGNORECASE)
    if found is None or float(found[1]) == 0:
        raise ConfigError(f"--gpu {text}: expected gigabytes, as in 80GB")
    return round(float(found[1]) * 2**30)
