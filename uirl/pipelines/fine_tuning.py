"""Supervised learning on what rounds have kept, by steps that a kill repeats at most a few of."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from uirl.images import ImageStore, Screenshot
from uirl.learner import Learner, latest_checkpoint, load_checkpoint, save_checkpoint
from uirl.metrics import Metrics
from uirl.pipelines.selection import Example
from uirl.rollout.episode import derive_seed
from uirl.rollout.samples import samples_of
from uirl.storage import TrajectoryStore
from uirl.training.record.progress import doing
from uirl.training.saving import SaveClock
from uirl.types import Sample


@dataclass(frozen=True, slots=True)
class Source:
    """The examples of a round, in its store."""

    store: TrajectoryStore
    examples: Sequence[Example]

    def samples(self) -> Iterator[Sample]:
        """Yield the sequences of every example: its mask ends where the example ends."""
        for example in self.examples:
            yield from samples_of(self.store.get(example.id).prefix(example.turns))


@dataclass(frozen=True, slots=True)
class Plan:
    """How it is learned."""

    epochs: int
    batch_size: int
    seed: int

    def batches(self, count: int) -> list[list[int]]:
        """Return the indexes of each step: every pass in an order of its own."""
        found = []
        for epoch in range(self.epochs):
            order = list(range(count))
            random.Random(derive_seed(self.seed, "epoch", epoch)).shuffle(order)
            found += [order[i : i + self.batch_size] for i in range(0, count, self.batch_size)]
        return found


def fine_tune(
    learner: Learner, images: ImageStore, sources: Sequence[Source], plan: Plan, folder: Path, clock: SaveClock
) -> dict[str, float]:
    """Take all steps of the plan, or those that are left after the newest checkpoint in `folder`; return the mean loss
    of those taken now and how many steps, sequences and learned tokens there are. A checkpoint is written where
    `clock` says so."""
    data = [(source, sample) for source in sources for sample in source.samples()]
    batches, done = plan.batches(len(data)), 0
    newest = latest_checkpoint(folder)
    if newest is not None:
        done = int(load_checkpoint(newest, learner)["step"])
    metrics = Metrics()
    with doing(f"fine-tuning on {len(data)} sequences"):
        for step, batch in enumerate(batches[done:], done + 1):
            started = time.monotonic()
            with images.holding():
                for source, sample in (data[i] for i in batch):
                    _bring(images, source.store, sample)
                metrics.add_all(learner.supervised([data[i][1] for i in batch]))
            images.forget_before(time.time())
            if clock.due():
                save_checkpoint(folder / f"step_{step:06d}", learner, {"step": step}, keep_last_n=1)
                clock.saved(started)
    loss = metrics.reduce().get("loss")
    tokens = sum(sum(sample.response_mask) for _, sample in data)
    found: dict[str, float] = {"steps": len(batches), "sequences": len(data), "learned_tokens": tokens}
    return found if loss is None else found | {"loss": loss}


def _bring(images: ImageStore, store: TrajectoryStore, sample: Sample) -> None:
    for name in sample.images:
        try:
            images.get(name)
        except KeyError:
            images.put(Screenshot(store.image(name), name))
