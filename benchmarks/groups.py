"""The first turn of a group: its shared prompt, with a picture, fed once or once for every member; in one run.

    python -m benchmarks.groups [--members 16] [--side 448] [--replies 1] [--rounds 5]

The model is a vision-language model with random weights whose patches and merging are those of Qwen2.5-VL (14 and 2),
so that a 448 x 448 picture takes 256 tokens. 'unshared' is the same engine without cache between turns
(`inference.kv_cache=false`), which a first turn needs not, and with a vision side that is given equal pictures one by
one; the rounds alternate, replies must be the same tokens, and the median of the ratios of processor time is told. With
more `--replies` more of the time goes into decoding, which both do.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time

import numpy as np

from benchmarks.pairs import pair, report
from uirl import GenerationRequest, LoadedModel, SamplingParams, load_model
from uirl.config import ModelConfig
from uirl.images import screenshot
from uirl.inference import ChatRenderer, Generation, Message, TransformersInferenceEngine


def model(side: int, width: int, layers: int) -> LoadedModel:
    """Return a model that takes a picture of `side` x `side` as it is."""
    tiny = {
        "architecture": "qwen2_5_vl",
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_layers": layers,
        "num_heads": 8,
        "vision_hidden_size": width,
        "vision_layers": layers,
        "patch_size": 14,
        "merge_size": 2,
        "image_size": side,
    }
    return load_model(ModelConfig(tiny=tiny, device="cpu"))  # type: ignore[arg-type]


async def first_turn(
    engine: TransformersInferenceEngine, requests: list[GenerationRequest]
) -> tuple[float, list[Generation]]:
    """Return (seconds of the processor, replies) of all members together."""
    started = time.process_time()
    made = await asyncio.gather(*[engine.generate(request) for request in requests])
    seconds = time.process_time() - started
    for request in requests:
        engine.release(request.session_id or "")
    return seconds, list(made)


async def measure(asked: argparse.Namespace) -> None:
    loaded = model(asked.side, asked.width, asked.layers)
    rng = random.Random(0)
    pixels = np.frombuffer(rng.randbytes(asked.side**2 * 3), np.uint8).reshape(asked.side, asked.side, 3)
    shot = screenshot(pixels)
    ids = tuple(ChatRenderer(loaded).whole([Message("user", "press the red button", (shot,))]))
    requests = [
        GenerationRequest(ids, (shot,), SamplingParams(asked.replies, seed=n), f"member-{n}")
        for n in range(asked.members)
    ]
    ways = {"unshared": False, "shared": True}
    engines = {name: TransformersInferenceEngine(loaded, kv_cache=kept) for name, kept in ways.items()}
    times: dict[str, list[float]] = {name: [] for name in engines}
    gap = 0.0
    for number in range(asked.rounds + 1):
        made = {}
        for name, engine in engines.items():
            loaded.features._apart = ways[name]  # False: the vision side is given every picture of a batch
            seconds, made[name] = await first_turn(engine, requests)
            if number:  # the first is for warming up
                times[name].append(seconds)
        for one, other in zip(made["unshared"], made["shared"], strict=True):
            assert one.token_ids == other.token_ids, "another reply"
            differences = zip(one.log_probs or (), other.log_probs or (), strict=True)
            gap = max([gap, *(abs(a - b) for a, b in differences)])
    parameters = sum(p.numel() for p in loaded.model.parameters())
    work = (
        f"first turn of {asked.members} members, {len(ids)} prompt tokens with a picture, {asked.replies} sampled, "
        f"{parameters / 1e6:.1f} M"
    )
    checked = f"the same tokens, log-probs within {gap:.0e}"
    made_of = pair(work, "CPU s", times, "shared", "unshared", checked, more_is_better=False)
    print(
        f"{work}: unshared {made_of.theirs:.3f} s, shared {made_of.ours:.3f} s, {made_of.better:.1f}x "
        f"({made_of.low:.1f} to {made_of.high:.1f}); {checked}"
    )
    report(asked.pairs, [made_of])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("members", 16), ("side", 448), ("replies", 1), ("rounds", 5), ("width", 256), ("layers", 6)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--pairs", help="a file to which the pairs are added")
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
