"""Processor time per 56 x 56 screenshot: the HF image processor against `GridPatches`, PNG decoding included in both.

python -m benchmarks.patches
"""

from __future__ import annotations

import argparse
import time
from functools import partial

import torch

from benchmarks.pairs import alternate, pair, report
from uirl import LoadedModel, ModelConfig, ScreenEnvironment, load_model, screenshot
from uirl.images import Screenshot
from uirl.inference.models.vision import VisionInputs


def seconds(loaded: LoadedModel, shots: list[Screenshot], grid: bool, made: list[torch.Tensor]) -> float:
    """Processor time per screenshot, by inputs of their own: nothing is kept from the round before."""
    assert loaded.vision is not None
    vision = VisionInputs(loaded.config, loaded.vision.front)
    assert vision._patches is not None, "the model has no grid of patches to compare"
    if not grid:
        vision._patches = None
    started = time.process_time()
    encoded = vision.encode(shots)
    cost = (time.process_time() - started) / len(shots)
    made[:] = [image.pixels for image in encoded]
    return cost


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pairs", help="a file to which the pairs are added")
    asked = parser.parse_args()
    loaded = load_model(ModelConfig(device="cpu"))
    environment = ScreenEnvironment()
    shots = [screenshot(environment.reset(seed=seed).images[0]) for seed in range(300)]
    ours: list[torch.Tensor] = []
    theirs: list[torch.Tensor] = []
    sides = {
        "HF image processor": partial(seconds, loaded, shots, False, theirs),
        "GridPatches": partial(seconds, loaded, shots, True, ours),
    }
    figures = alternate(sides, asked.rounds)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True)), "the patches differ"
    work = "a screenshot of 56 x 56 to patches, PNG decoding included"
    checked = "patches equal to the last bit"
    made = pair(work, "CPU s", figures, "GridPatches", "HF image processor", checked, more_is_better=False)
    print(f"HF image processor {made.theirs * 1e6:.0f} us, GridPatches {made.ours * 1e6:.0f} us ({made.better:.1f}x)")
    report(asked.pairs, [made])


if __name__ == "__main__":
    main()
