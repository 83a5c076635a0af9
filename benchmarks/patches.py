"""Processor time per 56 x 56 screenshot: the HF image processor against `GridPatches`, PNG decoding included in both.

python benchmarks/patches.py
"""

from __future__ import annotations

import time

from uirl import ModelConfig, ScreenEnvironment, load_model, screenshot
from uirl.inference.models.vision import VisionInputs


def main() -> None:
    loaded = load_model(ModelConfig(device="cpu"))
    assert loaded.vision is not None
    environment = ScreenEnvironment()
    shots = [screenshot(environment.reset(seed=seed).images[0]) for seed in range(300)]
    for _ in range(2):
        costs = {}
        for name in ("HF image processor", "GridPatches"):
            vision = VisionInputs(loaded.config, loaded.vision.front)
            if name != "GridPatches":
                vision._patches = None
            started = time.process_time()
            vision.encode(shots)
            costs[name] = (time.process_time() - started) / len(shots) * 1e6
        ratio = costs["HF image processor"] / costs["GridPatches"]
        print(", ".join(f"{name} {cost:.0f} us" for name, cost in costs.items()), f"({ratio:.1f}x)")


if __name__ == "__main__":
    main()
