"""Which channel a run has: the one place where its config decides that."""

from __future__ import annotations

from uirl.training.assembly import Assembly, sampling_of
from uirl.training.channels.base import Channel, GroupRules
from uirl.training.channels.local import LocalChannel
from uirl.training.channels.process import ProcessChannel
from uirl.training.channels.ray import RayChannel


def channel_of(parts: Assembly) -> Channel:
    """Return the channel between the learner of `parts` and its actors."""
    rules = GroupRules.from_config(parts.config)
    if parts.config.ray.use_ray:
        return RayChannel(parts, rules)
    if parts.config.actors.processes > 0:
        return ProcessChannel(parts, rules)
    return LocalChannel(
        parts.collector, parts.engine, sampling_of(parts.config), rules, eval_collector=parts.eval_collector
    )
