"""The vision tower of a Qwen2-VL model, forward and backward, as transformers has it and as we run it, in turns.

python -m benchmarks.vision_tower [--pictures 64] [--rounds 7]
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
import time
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from uirl.config import TinyConfig
from uirl.inference.models.loading import speed_up_vision
from uirl.inference.models.tiny import build_tiny


def cpu_seconds(tower: Any, pixels: torch.Tensor, grids: torch.Tensor) -> tuple[float, torch.Tensor]:
    """CPU seconds of a forward and a backward pass, and what came of the forward."""
    started = time.process_time()
    answer = torch.cat([*tower(pixels, grid_thw=grids).pooler_output])
    answer.sum().backward()
    return time.process_time() - started, answer.detach()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print("| tower | patches of a picture | transformers | ours | ratio |\n|---|---|---|---|---|")
    for width, layers, side in ((64, 2, 4), (64, 2, 16), (256, 4, 4), (256, 4, 16)):
        sizes = TinyConfig(vision_hidden_size=width, vision_layers=layers, architecture="qwen2_vl")
        plain = build_tiny("uirl/tiny-vlm", sizes, seed=0)[0].model.visual
        fast = copy.deepcopy(plain)
        speed_up_vision(fast)
        pictures = max(2, asked.pictures * 16 // side**2)
        grids = torch.tensor([[1, side, side]] * pictures)
        pixels = torch.randn(pictures * side**2, plain.patch_embed.proj.weight[0].numel())
        cpu_seconds(plain, pixels, grids), cpu_seconds(fast, pixels, grids)
        before, after = [], []
        for _ in range(asked.rounds):
            one, expected = cpu_seconds(plain, pixels, grids)
            other, got = cpu_seconds(fast, pixels, grids)
            assert torch.allclose(got, expected, atol=1e-4), "the towers disagree"
            before.append(one)
            after.append(other)
        ratios = [a / b for a, b in zip(before, after, strict=True)]
        print(
            f"| {layers} layers of {width} | {side**2} in each of {pictures} "
            f"| {1000 * statistics.median(before):.1f} ms | {1000 * statistics.median(after):.1f} ms "
            f"| {statistics.median(ratios):.2f}x ({min(ratios):.2f} to {max(ratios):.2f}) |",
            flush=True,
        )


if __name__ == "__main__":
    main()
