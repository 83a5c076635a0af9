"""What pictures cost under verl: bytes per sequence and per update, and seconds, as verl keeps them and as we do.

    .venv-verl/bin/python -m benchmarks.verl_pictures [--size 1280x720] [--episodes 512] [--turns 16] [--max_images 3]

A screenshot with text, areas and a photograph's noise goes through Qwen2-VL's image processor (the one without
torchvision), is packed and unpacked, and travels to a server as a PIL image and as it was captured.
"""

from __future__ import annotations

import argparse
import pickle
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from uirl import ConfigStore, load_model
from uirl.images import Screenshot, screenshot
from uirl.integrations.verl.agent_loop import RemoteImage
from uirl.integrations.verl.workers import PIXELS, PackedInputs
from uirl.training.memory import rows_of_episode


def drawn(width: int, height: int) -> Screenshot:
    """A page: a menu, paragraphs, and a picture of noise on a tenth of it."""
    page = Image.new("RGB", (width, height), (250, 250, 252))
    pen = ImageDraw.Draw(page)
    pen.rectangle((0, 0, width, height // 12), fill=(30, 60, 110))
    for line in range(height // 24):
        pen.text(
            (20, height // 10 + 20 * line), f"{line}: the quick brown fox jumps over the lazy dog " * 3, (20, 20, 20)
        )
    photo = np.random.default_rng(0).normal(128, 40, (height // 3, width // 3, 3)).clip(0, 255).astype(np.uint8)
    page.paste(Image.fromarray(photo), (width * 3 // 5, height // 2))
    return screenshot(page)


def seconds(call: Callable[[], Any], times: int = 7) -> float:
    """Median CPU seconds of a call."""
    taken = []
    for _ in range(times):
        started = time.process_time()
        call()
        taken.append(time.process_time() - started)
    return statistics.median(taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="1280x720")
    for name, value in (("episodes", 512), ("turns", 16), ("max_images", 3)):
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    width, height = map(int, options.size.split("x"))
    vision = load_model(ConfigStore().override(["model.model_name=uirl/tiny-vlm"]).model, weights=False).vision
    assert vision is not None
    processor = vision.processor
    processor.size = {"shortest_edge": 56 * 56, "longest_edge": 12_845_056}  # as Qwen2.5-VL ships
    shot = drawn(width, height)
    picture = shot.open()
    inputs = dict(processor(images=[picture], return_tensors="pt"))
    packed = PackedInputs(inputs, processor)
    raw, small = inputs[PIXELS].nbytes, packed._values[PIXELS].codes.nbytes
    assert bool((packed[PIXELS] == inputs[PIXELS]).all())
    sent, travelling = len(pickle.dumps(picture)), len(pickle.dumps(RemoteImage(shot)))
    print(f"a screenshot of {width} x {height}, {len(shot.data) / 1e6:.2f} MB as PNG")
    print(f"in a sequence: float32 {raw / 1e6:.1f} MB, packed {small / 1e6:.2f} MB")
    print(f"to a server: PIL {sent / 1e6:.2f} MB, as captured {travelling / 1e6:.2f} MB")
    work = {
        "processor": lambda: processor(images=[picture], return_tensors="pt"),
        "pack": lambda: PackedInputs(inputs, processor),
        "unpack": lambda: packed[PIXELS],
        "PIL, pickled and back": lambda: pickle.loads(pickle.dumps(picture)).load(),
        "as captured, pickled and back": lambda: pickle.loads(pickle.dumps(RemoteImage(shot))),
    }
    for name, call in work.items():
        print(f"{name}: {seconds(call) * 1000:.0f} ms of CPU")
    shown = sum(min(turn + 1, options.max_images) for turn in range(options.turns))
    for kept in range(options.max_images, 0, -1):
        rows = rows_of_episode(options.turns, options.max_images, kept)
        count = options.episodes * sum(rows)
        print(
            f"{options.episodes} episodes, {kept} kept: {len(rows)} sequences and {sum(rows)} pictures each; "
            f"{count * raw / 1e9:.0f} GB as float32, {count * small / 1e9:.0f} GB packed"
        )
    requests = options.episodes * shown
    print(f"sent to servers: {requests * sent / 1e9:.0f} GB as PIL, {requests * travelling / 1e9:.1f} GB as captured")


if __name__ == "__main__":
    main()
