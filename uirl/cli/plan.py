"""`uirl plan`: what a run takes of a GPU, before anything is loaded."""

from __future__ import annotations

import argparse
import re
from dataclasses import replace
from typing import Any

from uirl.cli.options import add_config, count, read_config
from uirl.errors import ConfigError


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

    gpu, limit = memory_here(config.model.device) if options.gpu is None else (True, _bytes(options.gpu))
    model, picture = Described.of(config.model), (int(size[1]), int(size[2]))
    how: dict[str, Any] = {"picture": picture, "tokens": options.tokens, "model": model}
    settled = replace(settle(config, here=(gpu, limit), **how), how=how | {"limit": limit, "gpu": gpu})
    plan = plan_of(settled.config, **settled.how)
    if settled.chosen:
        print(settled)
    print(plan)
    for problem in plan.problems:
        print(f"does not fit: {problem}")
    if plan.problems:
        print(advice(*remedies(settled, plan)))
    return 1 if plan.problems else 0


def _bytes(text: str) -> int:
    """Read a size of memory as GPUs are sold by: 80GB are 80 x 2^30 bytes."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(?:GB|GiB|G)?", text, re.IGNORECASE)
    if found is None or not 0 < float(found[1]) <= 1024:  # 4090 is the name of one of 24GB
        raise ConfigError(f"--gpu {text}: expected the gigabytes of one GPU, as in 80GB")
    return round(float(found[1]) * 2**30)
