"""A step of the warm start of configs/screen.yaml on the thread of the event loop, where the thread that waits for it
keeps its OpenMP team, and where it gives it back (`uirl.runtime.event_loop`).

python -m benchmarks.threads [--rounds 5]

All by turns in one process, on the same batch; the least of the rounds' means and, in brackets, the largest.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from uirl import RLTrainer, load_config
from uirl.learner import Learner
from uirl.runtime import event_loop
from uirl.types import Sample

CONFIG = Path(__file__).parents[1] / "configs" / "screen.yaml"
STEPS = 15


def first_batch(folder: str) -> tuple[RLTrainer, Sequence[Sample]]:
    """A trainer after two steps of its warm start, and the batch of the second."""
    warm = {"steps": 2, "evaluate_every": "null", "stop_at_success": "null"}
    changes = [f"training.warm_start.{key}={value}" for key, value in warm.items()]
    changes += ["training.num_epochs=1", "training.num_iters_per_epoch=1", "training.batch_size=4"]
    changes += ["training.eval_episodes=4", f"logging.runs_dir={folder}"]
    trainer, batches, step = RLTrainer(load_config(CONFIG, changes)), [], Learner.supervised

    def kept(learner: Learner, samples: Sequence[Sample]) -> dict[str, float]:
        batches.append(samples)
        return step(learner, samples)

    Learner.supervised = kept  # type: ignore[method-assign]
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            trainer.fit()
    finally:
        Learner.supervised = step  # type: ignore[method-assign]
    return trainer, batches[-1]


def seconds(trainer: RLTrainer, samples: Sequence[Sample], threads: int, give_back: Callable[[], None]) -> float:
    """The mean of some steps."""
    event_loop.give_back_team = give_back
    torch.set_num_threads(threads)
    torch.ones(1000, 1000).exp_()  # the caller has a team

    async def steps() -> float:
        torch.set_num_threads(threads)
        trainer.learner.supervised(samples)
        started = time.perf_counter()
        for _ in range(STEPS):
            trainer.learner.supervised(samples)
        return (time.perf_counter() - started) / STEPS

    return trainer._loop.run(steps())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    cores, give_back = os.cpu_count() or 1, event_loop.give_back_team
    ways: dict[str, tuple[int, Callable[[], None]]] = {
        "one thread": (1, give_back),
        f"{cores} threads, the caller keeps its team": (cores, lambda: None),
        f"{cores} threads, the caller gives it back": (cores, give_back),
    }
    with tempfile.TemporaryDirectory() as folder:
        trainer, samples = first_batch(folder)
        times = {name: [] for name in ways}
        for _ in range(rounds):
            for name, (threads, way) in ways.items():
                times[name].append(seconds(trainer, samples, threads, way))
        trainer.cleanup()
    print("| CPU threads of torch | a step, ms |\n|---|---|")
    for name, all_times in times.items():
        print(f"| {name} | {min(all_times) * 1e3:.0f} ({max(all_times) * 1e3:.0f}) |")


if __name__ == "__main__":
    main()
