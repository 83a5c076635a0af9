"""Which channel a run has: the one place where its config decides that."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable

from uirl.training.assembly import Assembly
from uirl.training.channels.base import Channel, GroupRules, LocalChannel
from uirl.training.channels.workers import process_channel, ray_channel


def channel_of(parts: Assembly) -> Channel:
    """Return the channel between the learner of `parts` and its actors."""
    if parts.config.ray.use_ray:
        return ray_channel(parts, _rules(parts))
    if parts.config.actors.processes > 0:
        return process_channel(parts, _rules(parts))
    return local_channel(parts)


def local_channel(parts: Assembly) -> LocalChannel:
    """Return a channel whose actors are in this process, whatever the config says."""
    return LocalChannel(parts, _rules(parts))


def _rules(parts: Assembly) -> GroupRules:
    config = parts.config
    return GroupRules(
        size=config.training.episodes_per_group,
        floor=config.group_floor,
        close_after=config.actors.close_after,
        retries=config.rollout.repeats,
    )


@contextlib.asynccontextmanager
async def open_channel(
    parts: Assembly, open_now: Channel | None = None, make: Callable[[Assembly], Channel] = channel_of
) -> AsyncIterator[Channel]:
    """Yield a channel for episodes that no update learns from, and hold pictures meanwhile.

    It is `open_now`, which stays open, or one of `make`, which plays the policy as it is now (where the engine takes
    weights) and is closed afterwards.
    """
    with parts.images.holding():
        if open_now is not None:
            yield open_now
            return
        channel = make(parts)
        try:
            if parts.engine.takes_weights:
                await parts.publish()
            yield channel
        finally:
            await channel.close()
