"""What it costs to keep the learner's figures: processor time of an update and bytes per trajectory, with and without.

python -m benchmarks.record [CONFIG] [key=value ...]

Episodes of one update are played once, by the untrained policy, and get random rewards, so that every group is learned
from. Then the same update is taken again and again from the same weights, by turns with the figures written to the
store and without.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

from uirl import ConfigStore, TrajectoryStore
from uirl.rollout.episode import EngineAgent, EpisodeSpec
from uirl.rollout.samples import anchors_of, samples_of_all
from uirl.storage import origin_of
from uirl.storage.records import encode_header, encode_turn
from uirl.training.assembly import Assembly, assemble, sampling_of
from uirl.training.tasks.sources import UniformTasks
from uirl.types import Trajectory

REPEATS = 9
"""Pairs of updates; the first is not counted."""


async def play(parts: Assembly) -> list[Trajectory]:
    """The episodes of one update, with random rewards."""
    training, draws = parts.config.training, random.Random(0)
    await parts.publish()
    tasks = UniformTasks(parts.tasks.train, seed=0)
    groups = tasks.groups(training.batch_size // training.episodes_per_group, training.episodes_per_group)

    def agent(spec: EpisodeSpec) -> EngineAgent:
        return EngineAgent(parts.engine, sampling_of(parts.config.inference), spec.trajectory_id)

    played = await parts.collector.collect([spec for group in groups for spec in group], agent)
    for trajectory in played:
        trajectory.turns[-1] = replace(trajectory.turns[-1], reward=draws.random())
    return [one for one in played if one.failure is None]


def measure(parts: Assembly, played: list[Trajectory], store: TrajectoryStore) -> dict[bool, list[float]]:
    """Processor seconds of each update, with the figures (True) and without."""
    learner, samples = parts.learner, samples_of_all(played)
    anchors = anchors_of(played) if learner.settings.spec.needs_anchors else None
    before = {name: p.detach().clone() for name, p in learner.policy.named_trainable()}
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for pair in range(REPEATS + 1):
        for kept in (True, False) if pair % 2 else (False, True):
            with torch.no_grad():
                for name, p in learner.policy.named_trainable():
                    p.copy_(before[name])
            learner.version = 0

            def write(learned: list, version: int, step: int = pair) -> None:
                store.add_learned(learned, step=step, version=version)

            started = time.process_time()
            learner.update(samples, anchors=anchors, on_learned=write if kept else None)
            if pair:
                seconds[kept].append(time.process_time() - started)
    return seconds


def said_of(trajectory: Trajectory) -> int:
    """Bytes that say how a trajectory was sampled and what became of its pictures."""
    silent = replace(trajectory, sampling=None, level=None)
    header = len(encode_header(trajectory)) - len(encode_header(silent))
    plain = [replace(turn, pictures=()) for turn in trajectory.turns]
    pairs = zip(trajectory.turns, plain, strict=True)
    return header + sum(len(encode_turn(a, (), "")[0]) - len(encode_turn(b, (), "")[0]) for a, b in pairs)


def bytes_of(path: Path) -> int:
    """Size of a store with everything that is in its log."""
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path.stat().st_size


def main(words: list[str]) -> None:
    path = words[0] if words and "=" not in words[0] else "configs/screen.yaml"
    config = ConfigStore.from_yaml(path).override([word for word in words if "=" in word])
    torch.set_num_threads(1)
    parts = assemble(config)
    with parts.images.holding(), tempfile.TemporaryDirectory() as folder:
        played = asyncio.run(play(parts))
        with TrajectoryStore(Path(folder) / "t.sqlite", origin=origin_of(config.model, config.inference)) as store:
            store.add_many(played, step=1, images=parts.images)
            without = bytes_of(store.path)
            seconds = measure(parts, played, store)
        figures = (bytes_of(Path(folder) / "t.sqlite") - without) / (REPEATS + 1)
    ours, theirs = (statistics.median(seconds[kept]) for kept in (True, False))
    tokens = sum(len(turn.response_ids) for one in played for turn in one.turns)
    print(f"{path}: {len(played)} trajectories, {tokens / len(played):.0f} sampled tokens each")
    print(f"an update: {ours:.3f} CPU s with figures, {theirs:.3f} without ({100 * (ours / theirs - 1):+.1f} %)")
    print(f"a trajectory: {figures / len(played):.0f} bytes of figures beside {without / len(played):.0f} of the rest,")
    print(
        f"of which {sum(map(said_of, played)) / len(played):.0f} say how it was sampled and how its pictures were fed"
    )
    asyncio.run(parts.close())


if __name__ == "__main__":
    main(sys.argv[1:])
