"""How episodes are played: how many at once, how long, and how much history a generation sees."""

from __future__ import annotations

from typing import ClassVar, Literal

from uirl.config.section import Count, Index, Positive, Section

PARALLEL = 256
"""`rollout.parallel` where memory is no limit."""


class RolloutConfig(Section):
    """Limits of an episode, the context window, and what happens to failed episodes."""

    key: ClassVar[str] = "rollout"

    parallel: Count | None = None
    """Maximum number of episodes at the same time. An environment whose instances are costly may hold fewer
    (`max_parallel`): a browser opens the pages for which the machine has memory and cores. None: 256; for a
    checkpoint that is sampled in this process as many as have room for their attention caches by the plan
    (docs/plan.md), where those are fewer."""
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
    keep_images: Count | None = None
    """Once there are more than `max_images` screenshots, the newest so many stay, and a generation sees between
    `keep_images` and `max_images`; None: `max_images`. Fewer: fewer training sequences, in which each picture stands
    less often. 12 turns are 4 sequences with 18 pictures at `max_images: 5, keep_images: 3`, else 8 with 40."""
    token_budget: Count | None = None
    """Maximum number of history tokens that a generation sees; the oldest turns are dropped first, and the opening and
    the newest observation stay; None: no limit."""
    retries: Index = 2
    """How often a failed episode (environment, engine, judge, time-out) is played again before its group shrinks."""
    group_repair: Literal["retry", "shrink"] = "retry"
    """A group with a failed episode: 'retry' plays it again up to `retries` times, then shrinks; 'shrink' goes on with
    the others at once. A failure is never a reward of zero."""

    @property
    def parallel_limit(self) -> int:
        """`parallel`, or the most that it can be where nobody has chosen it yet."""
        return PARALLEL if self.parallel is None else self.parallel

    @property
    def repeats(self) -> int:
        """How often a failed episode is played again: `retries`, as `group_repair` says."""
        return self.retries if self.group_repair == "retry" else 0
