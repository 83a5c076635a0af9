"""How often each picture goes through the image processor, and its vision features are computed, in one update.

    python -m benchmarks.encodings [--episodes 32] [--turns 8] [--scale 4]

An update of GRPO with a reference, adapters on the language layers, on an environment that shows a new picture of
1080 x 2400 in every turn. `--scale` divides the sides of the pictures and, squared, what the caches hold, so that a
small machine does the same work on less. 'before': 256 MiB of pixels as the processor returns them, asked for anew
where only their number of tokens is needed, and the vision tower run over every picture of every pass.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import tempfile
import time
from collections import Counter
from typing import Any

import numpy as np

from benchmarks import ray_memory
from benchmarks.pairs import pair, report
from uirl import ConfigStore, Observation, RLTrainer
from uirl.images import Screenshot, screenshot
from uirl.inference.models.picture_cache import KEPT_BYTES, PictureCache


class Album(ray_memory.Album):
    """The same with pictures of any size."""

    def __init__(self, pages: int = 8, width: int = 270, height: int = 600) -> None:
        super().__init__(pages)
        self.width, self.height = width, height

    def page(self) -> Observation:
        pixels = self.draw.integers(0, 255, (self.height, self.width, 3), dtype=np.uint8)
        return Observation("what now?", (screenshot(pixels),))


def one(asked: argparse.Namespace, before: bool) -> dict[str, float]:
    """Return counts per picture, and seconds, of one update."""
    scale = asked.scale
    config = ConfigStore()
    config.model.model_name, config.model.device = "uirl/tiny-vlm", "cpu"
    tiny = config.model.tiny
    tiny.hidden_size = tiny.vision_hidden_size = 32
    tiny.patch_size, tiny.merge_size, tiny.image_size = 112 // scale, 2, 2016 // scale
    config.model.use_lora = True
    config.environment.name = "benchmarks.encodings:Album"
    config.environment.options = {"pages": asked.turns, "width": 1080 // scale, "height": 2400 // scale}
    config.inference.max_tokens, config.rollout.max_turns = 2, asked.turns + 1
    config.training.adv_estimator, config.algorithm.kl_loss_coef = "grpo", 0.01
    config.training.batch_size, config.training.group_size, config.training.minibatches = asked.episodes, 8, 1
    config.training.eval_every, config.training.eval_episodes, config.training.warm_start.enabled = None, 2, False
    config.training.old_log_probs, config.training.micro_batch_tokens = "recompute", 2048
    with tempfile.TemporaryDirectory() as folder:
        config.logging.runs_dir, config.logging.trackers = folder, ()
        trainer = RLTrainer(config)
        loaded = trainer.learner.policy.loaded
        vision = loaded.vision
        assert vision is not None
        runs: Counter[str] = Counter()
        features: Counter[str] = Counter()
        process = vision._process

        def processed(images: list[Screenshot]) -> Any:
            runs.update(image.hash for image in images)
            return process(images)

        vision._process = processed  # type: ignore[method-assign]
        size = (256 * 2**20 if before else KEPT_BYTES) // scale**2
        vision.cache.kept.keep_at_most(size)
        if before:
            vision.cache = PictureCache(processed, pack=lambda image: image, bare=lambda image: image, max_bytes=size)
            vision.cache.describe = vision.cache.encode  # type: ignore[method-assign]
            loaded.features.kept, loaded.features._apart = False, False
        pixels = type(loaded).pixel_inputs

        def fed(model: Any, images: Any) -> Any:
            features.update(image.hash for image in images)
            return pixels(model, images)

        type(loaded).pixel_inputs = fed
        started = time.perf_counter()
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                trainer.fit(num_epochs=1, num_iters_per_epoch=1)
        finally:
            type(loaded).pixel_inputs = pixels
        seconds = time.perf_counter() - started
        trainer.cleanup()
    return {
        "pictures": len(runs),
        "encodings per picture": sum(runs.values()) / len(runs),
        "vision runs per picture": sum(features.values()) / len(runs),
        "seconds": seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("episodes", 32), ("turns", 8), ("scale", 4)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--pairs", help="a file to which the pairs are added")
    asked = parser.parse_args()
    found = {}
    for name, before in (("before", True), ("after", False)):
        found[name] = one(asked, before)
        print(f"{name}: " + ", ".join(f"{key} {value:.4g}" for key, value in found[name].items()), flush=True)
    assert found["before"]["pictures"] == found["after"]["pictures"], "other pictures were played"
    work = (
        f"an update of {asked.episodes} episodes of {asked.turns} turns, {1080 // asked.scale} x {2400 // asked.scale}"
    )
    checked = f"{found['after']['pictures']:.0f} pictures on both sides"
    units = {
        "encodings per picture": "encodings per picture",
        "vision runs per picture": "vision runs per picture",
        "seconds": "s",
    }
    figures = [{name: [row[key]] for name, row in found.items()} for key in units]
    rows = zip(figures, units.values(), strict=True)
    report(
        asked.pairs, [pair(work, unit, sides, "after", "before", checked, more_is_better=False) for sides, unit in rows]
    )


if __name__ == "__main__":
    main()
