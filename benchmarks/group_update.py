"""The learner's pass over a group: its shared prompt, with a picture, read once or once for every member; in one run.

    python -m benchmarks.group_update [--members 16] [--groups 1] [--side 448] [--reply 24] [--text 0] [--rounds 5]

The model is that of `benchmarks/groups.py`. A pass is forward and backward over all members, as in an update, one
micro-batch. 'unshared' is the same learner with `training.share_prompts=false`. Both give the vision side each picture
once. The rounds alternate, gradients are compared, and the median of the ratios of processor time is told. `--text`: as
many words before the picture, for a prompt that is longer than a picture.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from benchmarks.groups import model
from benchmarks.pairs import alternate, pair, report
from uirl.images import ImageStore, screenshot
from uirl.inference import ChatRenderer, Message
from uirl.learner import Policy
from uirl.learner.batch import MicroBatchRoom, SampleBatches
from uirl.types import Sample


def group(
    policy: Policy, images: ImageStore, number: int, members: int, side: int, reply: int, text: int
) -> list[Sample]:
    """Return the samples of group `number`: one prompt, and made-up replies of two thirds to all of `reply` tokens."""
    rng = random.Random(number)
    pixels = np.frombuffer(rng.randbytes(side**2 * 3), np.uint8).reshape(side, side, 3)
    shot = screenshot(pixels)
    images.put(shot)
    ids = ChatRenderer(policy.loaded).whole([Message("user", "press the red button " + "a " * text, (shot,))])
    banned = {*policy.loaded.banned_ids}
    words = [i for i in range(len(policy.loaded.tokenizer)) if i not in banned]
    samples = []
    for member in range(members):
        said = rng.choices(words, k=rng.randint(2 * reply // 3, reply))
        n = len(ids) + len(said)
        mask = (False,) * len(ids) + (True,) * len(said)
        turns = tuple(0 if sampled else -1 for sampled in mask)
        samples.append(
            Sample((*ids, *said), mask, (0.0,) * n, (0.0,) * n, turns, (shot.hash,), trajectory_id=f"{number}-{member}")
        )
    return samples


def gradients(policy: Policy, batches: SampleBatches) -> tuple[float, list[Tensor]]:
    """Return (processor seconds, gradients) of a pass forward and backward."""
    for _, parameter in policy.named_trainable():
        parameter.grad = None
    started = time.process_time()
    for batch, _ in batches.of(range(len(batches))):
        scores = policy.log_probs_and_values(batch)
        assert scores.log_probs is not None
        scores.log_probs.sum().backward()
    seconds = time.process_time() - started
    return seconds, [p.grad.clone() for _, p in policy.named_trainable() if p.grad is not None]


def difference(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> float:
    """Return the size of the difference of two gradients in parts of their size."""
    apart = sum(float((a - b).square().sum()) for a, b in zip(ours, theirs, strict=True))
    return float((apart / sum(float(b.square().sum()) for b in theirs)) ** 0.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (
        ("members", 16),
        ("groups", 1),
        ("side", 448),
        ("reply", 24),
        ("text", 0),
        ("rounds", 5),
        ("width", 256),
    ):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--pairs", help="a file to which the pairs are added")
    asked = parser.parse_args()
    policy, images = Policy(model(asked.side, asked.width, asked.layers)), ImageStore()
    with images.holding():
        sizes = asked.members, asked.side, asked.reply, asked.text
        samples = [one for number in range(asked.groups) for one in group(policy, images, number, *sizes)]
        sides = {
            name: SampleBatches(policy.loaded, samples, images, MicroBatchRoom(2**20), share)
            for name, share in (("unshared", False), ("shared", True))
        }
        apart = difference(*(gradients(policy, batches)[1] for batches in sides.values()))
        assert 0 < apart < 1e-4, f"gradients {apart:.1g} apart"
        figures = alternate(
            {name: lambda batches=batches: gradients(policy, batches)[0] for name, batches in sides.items()},
            asked.rounds,
        )
    parameters = sum(p.numel() for p in policy.model.parameters())
    prompt = samples[0].response_mask.index(True)
    work = (
        f"a pass of the learner over {asked.groups} x {asked.members} members, {prompt} prompt tokens with a picture, "
        f"{asked.reply} behind it, {parameters / 1e6:.1f} M"
    )
    checked = f"gradients within {apart:.0e} of their size"
    made = pair(work, "CPU s", figures, "shared", "unshared", checked, more_is_better=False)
    print(
        f"{work}: unshared {made.theirs:.3f} s, shared {made.ours:.3f} s, {made.better:.1f}x "
        f"({made.low:.1f} to {made.high:.1f}); {checked}"
    )
    report(asked.pairs, [made])


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
