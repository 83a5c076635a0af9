"""What a run on Ray keeps in memory as groups and episodes grow: Ray's object store, the learner, the shared pictures.

One update of one group in an environment whose every observation is a screenshot of 1080 x 2400 pixels, new each time;
two Ray actors on this machine. Each size is a run in a process of its own, `--updates` updates long. The learner is
measured after each update, without giving memory back to the system first. A picture is small for this model (8 tokens)
and large in bytes (4 MB), so that micro-batches are cut at 512 tokens: their pictures are decoded at once.

python -m benchmarks.ray_memory
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from PIL import Image

from uirl import BaseEnvironment, ConfigStore, Observation, RayPPOTrainer, StepResult

SIZES = ((4, 4), (16, 4), (64, 4), (4, 16), (4, 64))
"""(episodes of the group, screenshots of an episode)."""


class Album(BaseEnvironment):
    """Shows one new page after another; every reply that is longer than the last is worth something."""

    def __init__(self, pages: int = 4) -> None:
        self.pages = pages

    def reset(self, seed: int | None = None) -> Observation:
        self.draw, self.seen = np.random.default_rng(), 1
        return self.page()

    def step(self, action: str) -> StepResult:
        self.seen += 1
        return StepResult(self.page(), float(len(action) % 3), terminated=self.seen > self.pages)

    def page(self) -> Observation:
        blocks = self.draw.integers(0, 255, (150, 68, 3), dtype=np.uint8)
        return Observation("what now?", (Image.fromarray(blocks).resize((1080, 2400)),))

    def get_state_description(self) -> str:
        return f"page {self.seen}"


def one(group: int, pages: int, updates: int, folder: str) -> dict[str, Any]:
    """Run one size; return megabytes after the first and after the last update."""
    from ray._private.internal_api import memory_summary

    config = ConfigStore()
    config.model.model_name = "uirl/tiny-vlm"
    config.environment.name, config.environment.options = "benchmarks.ray_memory:Album", {"pages": pages}
    config.inference.max_tokens, config.rollout.max_turns, config.rollout.max_images = 2, pages + 1, 2
    config.training.adv_estimator, config.training.batch_size, config.training.group_size = "grpo", group, group
    config.training.micro_batch_tokens = 512
    config.training.minibatches, config.training.eval_every, config.training.eval_episodes = 1, None, 2
    config.training.warm_start.enabled = False
    config.logging.runs_dir, config.logging.run_name, config.logging.trackers = folder, f"{group}-{pages}", ()
    config.ray.use_ray, config.ray.num_actors, config.ray.actor_cpus = True, 2, 0.25
    found: list[dict[str, float]] = []
    trainer = RayPPOTrainer(config)
    log = trainer._after_step

    async def measured(*arguments: Any) -> None:
        await log(*arguments)
        text = memory_summary(stats_only=True)
        used = re.search(r"Plasma memory usage (\d+) MiB, (\d+) objects", text)
        assert used is not None, text
        shared = sum(path.stat().st_size for path in Path("/dev/shm").glob("uirl-pictures-*/**/*") if path.is_file())
        found.append(
            {
                "object store MiB": float(used[1]),
                "objects": float(used[2]),
                "learner MB": psutil.Process().memory_info().rss / 1e6,
                "pictures MB": shared / 1e6,
            }
        )

    trainer._after_step = measured  # type: ignore[method-assign]
    trainer.fit(num_epochs=1, num_iters_per_epoch=updates)
    trainer.cleanup()
    return {"group": group, "screenshots": pages, "first": found[0], "last": found[-1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=6)
    parser.add_argument("--one", type=int, nargs=2)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if args.one:
            print(json.dumps(one(*args.one, args.updates, folder)))
            return
        print(
            "| group | screenshots | store MiB (objects) | learner MB, update 1 | last | pictures MB, update 1 | last |"
        )
        for group, pages in SIZES:
            command = [sys.executable, __file__, "--updates", str(args.updates), "--one", str(group), str(pages)]
            root = str(Path(__file__).parents[1])
            env = os.environ | {"PYTHONPATH": f"{root}:{os.environ.get('PYTHONPATH', '')}"}
            done = subprocess.run(command, check=True, capture_output=True, text=True, env=env)
            row = json.loads(done.stdout.splitlines()[-1])
            a, b = row["first"], row["last"]
            print(
                f"| {group} | {pages} | {b['object store MiB']:.0f} ({b['objects']:.0f}) | {a['learner MB']:.0f} | "
                f"{b['learner MB']:.0f} | {a['pictures MB']:.0f} | {b['pictures MB']:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
