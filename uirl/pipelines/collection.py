"""The episodes of a round: each on disk when it ends, so that a round that was killed plays only what is missing."""

from __future__ import annotations

import time
from collections.abc import Container, Sequence
from dataclasses import replace

from uirl.rollout.episode import EpisodeSpec
from uirl.rollout.players import Order
from uirl.storage import TrajectoryStore
from uirl.training.assembly import Assembly
from uirl.training.channels.base import Channel
from uirl.training.record.progress import playing
from uirl.training.tasks.sources import TaskSource
from uirl.types import Trajectory, Turn

SPLIT = "train"
AHEAD = 4
"""So many times as many episodes as run at a time are in memory with their pictures."""


def specs_of_round(source: TaskSource, groups: int, size: int, starts: Sequence[Trajectory] = ()) -> list[EpisodeSpec]:
    """Return the next episodes of `source`: the first groups begin behind `starts`, one each, in the instance of
    theirs; all others where the environment begins."""
    specs = []
    for index, group in enumerate(source.groups(groups, size)):
        if index < len(starts):
            start = starts[index]
            turns = tuple(_by_hash(turn) for turn in start.turns)
            group = [replace(spec, task=start.task, environment_seed=start.seed, start=turns) for spec in group]
        specs += group
    return specs


async def collect(
    parts: Assembly, channel: Channel, specs: Sequence[EpisodeSpec], store: TrajectoryStore, step: int
) -> int:
    """Play the episodes that the store does not have yet; return how many were played now."""
    stored = {one.id: one.failure for one in store.list()}
    retries = channel.rules.retries

    def is_over(spec: EpisodeSpec) -> bool:
        attempts = [spec.trajectory_id] + [f"{spec.trajectory_id}-r{n}" for n in range(1, retries + 1)]
        return any(stored.get(id, "missing") is None for id in attempts) or attempts[-1] in stored

    missing = [spec for spec in specs if not is_over(spec)]
    player = channel.player(Order(SPLIT))

    def keep(trajectory: Trajectory) -> None:
        if trajectory.id not in stored:  # an attempt that failed before the kill failed again
            store.add(trajectory, step=step, split=SPLIT, images=parts.images)
            stored[trajectory.id] = None

    player.on_finished = keep
    at_once = max(1, AHEAD * channel.at_once)
    with playing(f"episodes of round {step}", player, len(missing)):
        for start in range(0, len(missing), at_once):
            with parts.images.holding():
                await player.collect(missing[start : start + at_once])
            parts.images.forget_before(time.time())  # what was played is on disk
    return len(missing)


def report_to(source: TaskSource, store: TrajectoryStore, step: int, behind: Container[str] = ()) -> None:
    """Tell the source how the episodes of a round went; of a long one only what counts is in memory. Those of the
    groups `behind` are left out: begun behind a beginning, they say nothing of how hard a task is."""
    played = []
    for summary in store.list(split=SPLIT):
        if summary.group_id in behind:
            continue
        record = store.get(summary.id)
        played.append(replace(record, turns=[_by_hash(turn) for turn in record.turns], final=None))
    source.report(played, step)


def _by_hash(turn: Turn) -> Turn:
    """Return the turn without what was seen: an actor that plays it again needs its reply, a source its reward."""
    return replace(turn, observation=replace(turn.observation, images=(), info={}), info={})
