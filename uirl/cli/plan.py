"""`uirl plan`: what a run takes of a GPU and how long its steps take, before anything is loaded."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from uirl.cli.options import add_config, count, read_config
from uirl.errors import ConfigError
from uirl.storage import RunDirectory

if TYPE_CHECKING:
    from uirl.training.plan import Described, Plan, Settled


def add_command(commands: Any) -> None:
    """Add the command to the parser of `uirl`."""
    plan = commands.add_parser("plan", help="print what a run takes of a GPU, part by part; 1: it does not fit")
    add_config(plan)
    plan.add_argument("--gpu", metavar="80GB", help="memory of the GPU (default: the one here, else the machine's)")
    plan.add_argument("--picture", default="1280x720", metavar="WxH", help="size of a screenshot (1280x720)")
    plan.add_argument("--tokens", type=count, metavar="N", help="longest sequence (default: as the config bounds it)")
    plan.add_argument("--like", metavar="RUN", help="a finished run, as which this one plays: seconds of a step")
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
    if options.gpu is None:
        _tell_seconds(settled, plan, model, options.like)
    else:
        print("how long a step takes is measured on the machine itself; leave out --gpu there")
    for problem in plan.problems:
        print(f"does not fit: {problem}")
    if plan.problems:
        print(advice(*remedies(settled, plan)))
    return 1 if plan.problems else 0


def _tell_seconds(settled: Settled, plan: Plan, model: Described, like: str | None) -> None:
    """Measure this machine; print how long a step takes on it."""
    import torch

    from uirl.inference.models.precision import DTYPES, device_of, dtype_of
    from uirl.training.record.meter import Machine, longest_step, measure, seconds_like, weights_of

    config, work, threads = settled.config, plan.workload, torch.get_num_threads()
    dtype, recompute = DTYPES[dtype_of(config.model)], bool(config.model.gradient_checkpointing)
    weights = weights_of(model.loaded.model, dtype.itemsize) if config.model.quantization is None else None
    if weights is None:
        print("how long a step takes cannot be said of this model: its weights cannot be counted")
        return
    torch.set_num_threads(config.training.threads or threads)
    try:
        machine = measure(device_of(config.model.device), dtype, weights.held, 0.5)
    finally:
        torch.set_num_threads(threads)
    print(f"this machine: {machine}")
    episodes = config.training.batch_size
    longest = f"{episodes} episodes of {work.turns} turns, {work.segments} x {work.longest} tokens"
    least = longest_step(plan.reads, weights, machine, recompute=recompute)
    print(f"a step of {longest}, the longest there may be, at the limit of this machine: {_parts(least)}")
    if like is None:
        print("a run has shorter episodes and reaches a share of that limit; --like RUN counts with those of a run")
        return
    try:
        summary = RunDirectory.open(like).read_json("summary.json")
        meter, more = summary["meter"], episodes * summary["steps"] / summary["episodes"]
        seconds, there = seconds_like(meter, machine, more), Machine(**meter["machine"])
    except (LookupError, TypeError, ArithmeticError, AttributeError) as error:
        raise ConfigError(f"--like {like}: got a summary.json without a meter ({error!r}); expected one of a run that "
                          "ended with updates. Train it with this version") from error  # fmt: skip
    print(f"as {like} went, on {there}, with {more:.3g} times its episodes: {_parts(seconds)}")


def _parts(seconds: Mapping[str, float]) -> str:
    """Return '3.1 s: update 2 s, decode 1.1 s'."""
    return f"{sum(seconds.values()):.2g} s: " + ", ".join(f"{name} {took:.2g} s" for name, took in seconds.items())


def _bytes(text: str) -> int:
    """Read a size of memory as GPUs are sold by: 80GB are 80 x 2^30 bytes."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(?:GB|GiB|G)?", text, re.IGNORECASE)
    if found is None or not 0 < float(found[1]) <= 1024:  # 4090 is the name of one of 24GB
        raise ConfigError(f"--gpu {text}: expected the gigabytes of one GPU, as in 80GB")
    return round(float(found[1]) * 2**30)
