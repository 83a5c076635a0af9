"""Which task comes next, by how often each was solved: the section `curriculum` of a run in verl's terms."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, Self

from pydantic import model_validator

from uirl.config import Section
from uirl.config.section import Count, NonNegative
from uirl.errors import ConfigError, did_you_mean
from uirl.runtime.lazy import load

STRATA = {"frontier": 0.25, "exploration": 0.5, "near_mastery": 0.75, "exploitation": 1.0}
"""Stratum -> success rates up to which (exclusive, but for the last) a task belongs to it."""
DISTRIBUTION = {"frontier": 0.1, "exploration": 0.3, "near_mastery": 0.4, "exploitation": 0.2}


class SuccessRateOptions(Section):
    """The keys of the section `curriculum`, and keyword arguments of a `SuccessRateSampler`."""

    key = "curriculum"

    min_attempts_per_task: Count = 5
    """Episodes after which a task has a stratum."""
    initial_distribution: dict[str, NonNegative] = DISTRIBUTION
    """Stratum -> share of the draws."""
    window: Count = 20
    """Newest episodes of a task that count."""
    seed: int = 0
    """Of the draws."""

    @model_validator(mode="after")
    def _some_task_can_be_drawn(self) -> Self:
        for name in self.initial_distribution:
            if name not in STRATA:
                raise ConfigError(f"curriculum: no stratum {name!r}; {did_you_mean(name, STRATA)}")
        if sum(self.initial_distribution.values()) <= 0:
            raise ConfigError("curriculum: every stratum has a share of 0, so no task can be drawn")
        return self


class SuccessRateSampler:
    """A curriculum over strata of success rates: a task that was hardly tried comes first; then a stratum is drawn, and
    its least tried task is played."""

    def __init__(self, **options: Any) -> None:
        """Start with no tasks. `options`: the fields of `SuccessRateOptions`. Raises ConfigError for what does not
        fit."""
        self._options = SuccessRateOptions.build(options)
        self._tried: dict[str, int] = {}
        self._handed_out: dict[str, int] = {}
        self._outcomes: dict[str, list[bool]] = {}
        self._draws = 0

    def register_tasks(self, task_list: Sequence[str]) -> None:
        """Add tasks that were never tried."""
        for name in task_list:
            for counts in (self._tried, self._handed_out):
                counts.setdefault(name, 0)

    def sample_task(self, difficulty_level: str | None = None) -> str:
        """Return the task to play next; of `difficulty_level`, a stratum, where one is named and not empty."""
        if not self._tried:
            raise ConfigError("curriculum: no tasks are registered")
        self._draws += 1
        name = min(self._candidates(difficulty_level), key=lambda task: (self._handed_out[task], task))
        self._handed_out[name] += 1
        return name

    def update_success_rate(self, task_name: str, success: bool, step: int) -> None:
        """Count one episode of a task, played in update `step`."""
        self.register_tasks([task_name])
        self._tried[task_name] += 1
        self._outcomes[task_name] = [*self._outcomes.get(task_name, []), bool(success)][-self._options.window :]

    def stratum(self, name: str) -> str | None:
        """Return the stratum of a task; None: it was tried too seldom to say."""
        if self._tried.get(name, 0) < self._options.min_attempts_per_task:
            return None
        rate = sum(self._outcomes[name]) / len(self._outcomes[name])
        return next((stratum for stratum, bound in STRATA.items() if rate < bound), "exploitation")

    def state_dict(self) -> dict[str, Any]:
        """Return plain data from which `load_state_dict` continues with the same draws."""
        return {
            "tried": self._tried,
            "handed_out": self._handed_out,
            "outcomes": self._outcomes,
            "draws": self._draws,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the data of `state_dict`; tasks that are new since then stay registered."""
        self._tried |= {str(name): int(count) for name, count in state["tried"].items()}
        self._handed_out |= {str(name): int(count) for name, count in state["handed_out"].items()}
        self._outcomes = {str(name): [bool(won) for won in outcomes] for name, outcomes in state["outcomes"].items()}
        self._draws = int(state["draws"])

    def _candidates(self, level: str | None) -> list[str]:
        strata: dict[str | None, list[str]] = {}
        for name in self._tried:
            strata.setdefault(self.stratum(name), []).append(name)
        if level is not None and level in strata:
            return strata[level]
        seldom = [name for name in strata.get(None, []) if self._handed_out[name] < self._options.min_attempts_per_task]
        if seldom:
            return seldom
        shares = self._options.initial_distribution
        drawn = [name for name in STRATA if name in strata and shares.get(name, 0) > 0]
        if not drawn:
            return list(self._tried)
        generator = random.Random(f"{self._options.seed}:{self._draws}")
        return strata[generator.choices(drawn, [shares[name] for name in drawn])[0]]


def create_curriculum(section: Mapping[str, Any], seed: int = 0) -> Any | None:
    """Return the curriculum that a section describes; None: it is not `enabled`.

    `class` ('package.module:Class') names another one than `SuccessRateSampler`; all other keys are its arguments.
    Raises ConfigError.
    """
    options = dict(section)
    enabled, named = options.pop("enabled", True), options.pop("class", None)
    if not section or enabled is False:
        return None
    if enabled is not True:
        raise ConfigError(f"curriculum.enabled is {enabled!r}, expected true or false")
    if named is None:
        return SuccessRateSampler(**{"seed": seed, **options})
    curriculum = _class(str(named))
    try:
        return curriculum(**options)
    except TypeError as error:
        raise ConfigError(
            f"section curriculum: {error}; its keys are the arguments of {curriculum.__name__}"
        ) from error


def _class(name: str) -> Any:
    try:
        return load(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"curriculum.class={name!r}: {error}; expected 'package.module:Class'") from error
