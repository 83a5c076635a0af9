"""How episodes are played: how many at once, how long, and how much history a generation sees."""

from __future__ import annotations

from typing import ClassVar, Literal

from uirl.config.section import Count, Index, Positive, Section


class RolloutConfig(Section):
    """Limits of an episode, the context window, and what happens to failed episodes."""

    key: ClassVar[str] = "rollout"

    parallel: Count = 256
    """Maximum number of episodes at the same time. An environment whose instances are costly may hold fewer
    (`max_parallel`): a browser opens the pages for which the machine has memory and cores."""
    max_turns: Count | None = None
    """Turns after which an episode is cut; None: `inference.max_turns` (1 where `inference.multi_turn` is false). An
    environment's own limit holds as well."""
    max_tokens: Count | None = None
    """Tokens of one trajectory (prompts and responses) after which it is cut; None: no limit."""
    max_seconds: Positive | None = None
    """Wall time of one episode, in seconds, after which it is cut; None: no limit."""
    max_images: Count | None = None
    """A generation sees the newest `max_images` screenshots; None: all. Dropping an image rewrites the history, and
    the trajectory becomes several training sequences."""
    image_block: Count = 1
    """Of more than `max_images` screenshots so many are dropped at once, and a generation sees between
    `max_images - image_block + 1` and `max_images`. More than 1: fewer and longer training sequences; with 3 of 3 an
    episode of 16 turns is 6 instead of 14, and each picture stands in one of them instead of three."""
    token_budget: Count | None = None
    """Maximum number of history tokens that a generation sees; the oldest turns are dropped first; None: no limit."""
    retries: Index = 2
    """How often a failed episode (environment, engine, judge, time-out) is played again before its group shrinks."""
    group_repair: Literal["retry", "shrink"] = "retry"
    """A group with a failed episode: 'retry' plays it again up to `retries` times, then shrinks; 'shrink' goes on with
    the others at once. A failure is never a reward of zero."""
