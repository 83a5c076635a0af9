"""The curriculum: which task comes next, by how often each is solved now."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from uirl.config.section import Count, Fraction, NonNegative, Positive, Section
from uirl.errors import ConfigError, did_you_mean

LEVEL_NAMES = ("frontier", "exploration", "near_mastery", "exploitation")
"""The levels, from success rates below 1/4 to those of 3/4 and more."""


class CurriculumConfig(Section):
    """Tasks are drawn by level: frontier (success below 0.25), exploration (to 0.5), near_mastery (to 0.75) and
    exploitation. What is known of a task fades; where it leaves several levels possible, the task has the one nearest
    to a success of 1/2."""

    key: ClassVar[str] = "curriculum"

    enabled: bool = False
    """false: every task as often as its weight says. true: a curriculum for each environment of a mixture."""
    min_attempts_per_task: Count = 5
    """Episodes after which a task has a level; until then it is new."""
    initial_distribution: dict[str, NonNegative] = Field(
        default_factory=lambda: {"frontier": 0.1, "exploration": 0.3, "near_mastery": 0.4, "exploitation": 0.2}
    )
    """Level -> share of the draws at the beginning. A level that is left out has none."""
    final_distribution: dict[str, NonNegative] = Field(
        default_factory=lambda: {"frontier": 0.3, "exploration": 0.4, "near_mastery": 0.2, "exploitation": 0.1}
    )
    """Level -> share of the draws at the end of the schedule."""
    schedule: Literal["success", "steps", "none"] = "success"
    """What moves the mix from the initial to the final distribution: the mean success over the tasks that were tried,
    the updates done, or nothing."""
    schedule_start: NonNegative = 0.3
    """Mean success, or updates, up to which the mix is the initial one."""
    schedule_end: Positive = 0.8
    """Mean success, or updates, from which on it is the final one."""
    new_share: Fraction = 0.5
    """Share of the draws for new tasks, as long as there are new ones and others; each at most once in an update."""
    oversampling: Positive = 4.0
    """A level gets at most so many times its share of the tasks, so that a level of one task is not played over and
    over."""
    window: Count = 20
    """Episodes of a task that count: the newest fully, the others less and less."""
    half_life: Positive = 30.0
    """Updates after which what is known of a task that was not played counts half."""
    confidence: Positive = 1.0
    """Half width of the interval of a success rate, in standard deviations (1: 68 %). A task has the level nearest to
    1/2 that the interval allows."""

    @model_validator(mode="after")
    def _something_can_be_drawn(self) -> Self:
        for name in ("initial_distribution", "final_distribution"):
            distribution = getattr(self, name)
            for level in distribution:
                if level not in LEVEL_NAMES:
                    raise ConfigError(f"curriculum.{name}: no level {level!r}; {did_you_mean(level, LEVEL_NAMES)}")
            if not 0 < sum(distribution.values()) < float("inf"):
                raise ConfigError(f"curriculum.{name}: the shares sum to 0, so no task can be drawn")
        if self.schedule != "none" and self.schedule_end <= self.schedule_start:
            raise ConfigError(
                f"curriculum: schedule_end must be above schedule_start, got {self.schedule_start} to "
                f"{self.schedule_end}"
            )
        return self
