"""Time and memory of a training step as episodes, turns, groups, pictures and replies grow.

    python -m benchmarks.scaling [--dimensions turns pictures] [--doublings 4]

GRPO on a small vision-language model, in an environment that shows new pictures in every turn. One number at a time is
doubled; every size is a run of its own in a process of its own. Time is processor time of a whole step (episodes,
record, update; the least of the steps after the first). 'but attention' is the same without the time in the attention
kernel and its backward pass, whose work is quadratic in the tokens of a sequence. Memory is what the process held at
most (VmHWM) less what it held before the first step. An exponent is the slope of the logarithms: 1 is linear. In
brackets that of the last doubling alone, which what a step costs anyway hides least.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import math
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.ray_memory import Album
from uirl import ConfigStore, Observation, RLTrainer, screenshot

BASE = {"episodes": 8, "group": 4, "turns": 4, "pictures": 1, "reply": 4, "window": 0}
"""`pictures` of one observation; `reply` in tokens; `window`: newest pictures that a generation sees, 0: all."""
DIMENSIONS: dict[str, tuple[dict[str, int], tuple[str, ...]]] = {
    "episodes": ({}, ("episodes",)),
    "members of a group (two groups)": ({}, ("group", "episodes")),
    "turns, text alone": ({"pictures": 0}, ("turns",)),
    "turns, a picture each": ({}, ("turns",)),
    "turns, a window of 4 pictures": ({"window": 4}, ("turns",)),
    "pictures of a turn": ({}, ("pictures",)),
    "tokens of a reply": ({"pictures": 0}, ("reply",)),
}
UPDATES = 3
COLUMNS = (("tokens", 1, ".0f"), ("seconds", 1, ".2f"), ("but attention", 1, ".2f"), ("memory", 2**20, ".0f"))
"""What is shown: key, divisor, form."""


class Book(Album):
    """Shows some new pictures in every turn."""

    def __init__(self, pages: int = 4, pictures: int = 1) -> None:
        super().__init__(pages)
        self.pictures = pictures

    def page(self) -> Observation:
        shots = [self.draw.integers(0, 255, (112, 112, 3), dtype=np.uint8) for _ in range(self.pictures)]
        return Observation("what do you see, and what now?", tuple(screenshot(pixels) for pixels in shots))


def config_of(size: dict[str, int], folder: str) -> ConfigStore:
    """Return the run of one size."""
    config = ConfigStore()
    config.model.model_name, config.model.device = "uirl/tiny-vlm", "cpu"
    config.model.tiny.image_size = 112
    config.environment.name = "benchmarks.scaling:Book"
    config.environment.options = {"pages": size["turns"], "pictures": size["pictures"]}
    config.inference.max_tokens, config.rollout.max_turns = size["reply"], size["turns"] + 1
    config.rollout.max_images = size["window"] or None
    training = config.training
    training.adv_estimator, training.batch_size, training.group_size = "grpo", size["episodes"], size["group"]
    training.minibatches, training.micro_batch_tokens = 1, 4096
    training.eval_every, training.eval_episodes, training.warm_start.enabled = None, 2, False
    training.num_epochs, training.num_iters_per_epoch = 1, UPDATES
    config.algorithm.skip_dead_groups = False
    config.logging.runs_dir, config.logging.trackers = folder, ()
    return config


class Timed(torch.autograd.Function):
    """The attention kernel, whose processor time is added up."""

    seconds = 0.0
    kernel = staticmethod(torch.nn.functional.scaled_dot_product_attention)

    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any, options: dict[str, Any]) -> Any:
        started = time.thread_time()
        ctx.inputs = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in (query, key, value)]
        with torch.set_grad_enabled(any(ctx.needs_input_grad)):
            ctx.output = Timed.kernel(*ctx.inputs, **options)
        Timed.seconds += time.thread_time() - started
        return ctx.output.detach()

    @staticmethod
    def backward(ctx: Any, *of_output: Any) -> Any:
        started = time.thread_time()
        grads = torch.autograd.grad(ctx.output, ctx.inputs, of_output)
        Timed.seconds += time.thread_time() - started
        return *grads, None


def attention(query: Any, key: Any, value: Any, **options: Any) -> Any:
    if not torch.is_inference_mode_enabled():
        return Timed.apply(query, key, value, options)
    started = time.thread_time()
    output = Timed.kernel(query, key, value, **options)
    Timed.seconds += time.thread_time() - started
    return output


def measure(size: dict[str, int]) -> dict[str, float]:
    """Run one size in this process; return seconds of a step, and bytes."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        trainer = RLTrainer(config_of(size, folder))
        learner, ends, tokens = trainer.learner, [], []
        torch.nn.functional.scaled_dot_product_attention = attention  # what transformers calls
        update = learner.update

        def updated(samples: Any, *args: Any, **options: Any) -> Any:
            figures = update(samples, *args, **options)
            ends.append((time.process_time(), Timed.seconds))
            tokens.append(sum(len(sample.token_ids) for sample in samples))
            return figures

        learner.update = updated  # type: ignore[method-assign]
        before = status("VmRSS")
        trainer.fit()
        trainer.cleanup()
    steps = [[b - a for a, b in zip(*pair, strict=True)] for pair in itertools.pairwise(ends)]
    seconds, in_attention = min(steps)
    found = {"seconds": seconds, "but attention": seconds - in_attention}
    return found | {"memory": status("VmHWM") - before, "tokens": tokens[-1]}


def status(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def exponent(values: list[float]) -> float:
    """Return the slope of log2(value) over doublings, by least squares."""
    logs = [math.log2(value) for value in values]
    middle, mean = (len(logs) - 1) / 2, sum(logs) / len(logs)
    return sum((i - middle) * (y - mean) for i, y in enumerate(logs)) / sum((i - middle) ** 2 for i in range(len(logs)))


def row(name: str, doublings: int) -> str:
    """Measure one dimension; return its line of the table."""
    changed, grown = DIMENSIONS[name]
    found, sizes = [], []
    for number in range(doublings + 1):
        size = BASE | changed
        size |= {key: size[key] * 2**number for key in grown}
        command = [sys.executable, "-m", "benchmarks.scaling", "--one", json.dumps(size)]
        found.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
        sizes.append(size[grown[0]])
        print(f"{name} {sizes[-1]}: {found[-1]}", file=sys.stderr, flush=True)
    columns = [name, f"{sizes[0]} to {sizes[-1]}"]
    for key, scale, form in COLUMNS:
        values = [one[key] / scale for one in found]
        columns += [f"{values[0]:{form}} to {values[-1]:{form}}"]
        columns += [f"{exponent(values):.2f} ({exponent(values[-2:]):.2f})"]
    return f"| {' | '.join(columns)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dimensions", nargs="+", default=list(DIMENSIONS), choices=DIMENSIONS)
    parser.add_argument("--doublings", type=int, default=4)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(measure(json.loads(asked.one))))
        return
    titles = [title for key, *_ in COLUMNS for title in (key, "exponent")]
    print(f"| what grows | from, to | {' | '.join(titles)} |\n" + "|---" * (2 + len(titles)) + "|")
    for name in asked.dimensions:
        print(row(name, asked.doublings), flush=True)


if __name__ == "__main__":
    main()
