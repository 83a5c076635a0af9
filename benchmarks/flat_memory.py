"""Memory of a run over many updates, with pictures that are new each time.

    python -m benchmarks.flat_memory [--updates 200] [--episodes 8] [--turns 4] [--scale 4]

GRPO with adapters on 'uirl/tiny-vlm', on an environment that shows a new picture of 1080 x 2400 in every turn;
`--scale` divides the sides of the pictures. Resident memory is read after each update ('now'), and the most that it
ever was until then ('peak').
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import tempfile
from pathlib import Path
from typing import Any

from uirl import ConfigStore, RLTrainer

SHOWN = (1, 20, 50, 100, 150, 200, 400, 600, 800, 1000, 1500, 2000)


def resident() -> tuple[float, float]:
    """Return (now, peak) of this process, in MB."""
    status = Path("/proc/self/status").read_text()
    now, peak = (int(re.search(rf"{name}:\s+(\d+) kB", status)[1]) / 1000 for name in ("VmRSS", "VmHWM"))  # type: ignore[index]
    return now, peak


def config_of(asked: argparse.Namespace) -> ConfigStore:
    """Return the run that is measured."""
    config, scale = ConfigStore(), asked.scale
    config.model.model_name, config.model.device, config.model.use_lora = "uirl/tiny-vlm", "cpu", True
    tiny = config.model.tiny
    tiny.hidden_size = tiny.vision_hidden_size = 32
    tiny.patch_size, tiny.image_size = 112 // scale, 2016 // scale
    config.environment.name = "benchmarks.encodings:Album"
    config.environment.options = {"pages": asked.turns, "width": 1080 // scale, "height": 2400 // scale}
    config.inference.max_tokens, config.rollout.max_turns = 2, asked.turns + 1
    training = config.training
    training.adv_estimator, training.batch_size, training.group_size = "grpo", asked.episodes, 4
    training.minibatches, training.micro_batch_tokens = 1, 2048
    training.eval_every, training.eval_episodes, training.warm_start.enabled = None, 2, False
    training.num_epochs, training.num_iters_per_epoch = 1, asked.updates
    config.algorithm.skip_dead_groups = False
    return config


def main() -> None:
    """Run the benchmark and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("updates", 200), ("episodes", 8), ("turns", 4), ("scale", 4)):
        parser.add_argument(f"--{name}", type=int, default=default)
    asked = parser.parse_args()
    config, rows = config_of(asked), []
    with tempfile.TemporaryDirectory() as folder:
        config.logging.runs_dir, config.logging.trackers = folder, ()
        with contextlib.redirect_stdout(io.StringIO()):
            trainer = RLTrainer(config)
            parts: Any = trainer._parts
            update, vision = parts.learner.update, parts.learner.policy.loaded.vision

            def updated(*args: Any, **options: Any) -> Any:
                figures = update(*args, **options)
                encoded = vision.cache.kept.held / 1e6
                rows.append((*resident(), len(parts.images), encoded, parts.engine.cache_bytes / 1e6))
                return figures

            parts.learner.update = updated
            trainer.fit()
            trainer.cleanup()
    print("| after update | resident now, MB | peak, MB | pictures in the store | encoded, MB | attention cache, MB |")
    print("|---|---|---|---|---|---|")
    for number in SHOWN:
        if number <= len(rows):
            now, peak, pictures, encoded, cache = rows[number - 1]
            print(f"| {number} | {now:.0f} | {peak:.0f} | {pictures} | {encoded:.1f} | {cache:.1f} |")


if __name__ == "__main__":
    main()
