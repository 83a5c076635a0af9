"""Which task comes next, by how often each was solved: the section `curriculum` of a run in verl's terms."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from uirl.errors import ConfigError, did_you_mean
from uirl.runtime.lazy import load

STRATA = {"frontier": 0.25, "exploration": 0.5, "near_mastery": 0.75, "exploitation": 1.0}
"""Stratum -> success rates up to which (exclusive, but for the last) a task belongs to it."""
DISTRIBUTION = {"frontier": 0.1, "exploration": 0.3, "near_mastery": 0.4, "exploitation": 0.2}


class SuccessRateSampler:
    """A curriculum over strata of success rates: a task that was hardly tried comes first; then a stratum is drawn, and
    its least tried task is played."""

    def __init__(
        self,
        min_attempts_per_task: int = 5,
        initial_distribution: Mapping[str, float] | None = None,
        window: int = 20,
        seed: int = 0,
    ) -> None:
        """`min_attempts_per_task`: episodes after which a task has a stratum. `initial_distribution`: stratum -> share
        of the draws; None: `DISTRIBUTION`. `window`: newest episodes of a task that count. Raises ConfigError."""
        shares = dict(DISTRIBUTION if initial_distribution is None else initial_distribution)
        for name, share in shares.items():
            if name not in STRATA:
                raise ConfigError(f"curriculum: no stratum {name!r}; {did_you_mean(str(name), STRATA)}")
            if not isinstance(share, int | float) or share < 0:
                raise ConfigError(f"curriculum: the share of {name} is {share!r}, expected a number of at least 0")
        if sum(shares.values()) <= 0:
            raise ConfigError("curriculum: every stratum has a share of 0, so no task can be drawn")
        if min_attempts_per_task < 1 or window < 1:
            raise ConfigError("curriculum: min_attempts_per_task and window count episodes, expected at least 1")
        self._shares, self._least, self._window, self._seed = shares, min_attempts_per_task, window, seed
        self._tried: dict[str, int] = {}
        self._handed_out: dict[str, int] = {}
        self._outcomes: dict[str, list[bool]] = {}
        self._draws = 0

    def register_tasks(self, task_list: Sequence[str]) -> None:
        """Nothing; adds tasks that were never tried."""
        for name in task_list:
            for counts in (self._tried, self._handed_out):
                counts.setdefault(name, 0)

    def sample_task(self, difficulty_level: str | None = None) -> str:
        """The task to play next; of `difficulty_level`, a stratum, where one is named and not empty."""
        if not self._tried:
            raise ConfigError("curriculum: no tasks are registered")
        self._draws += 1
        name = min(self._candidates(difficulty_level), key=lambda task: (self._handed_out[task], task))
        self._handed_out[name] += 1
        return name

    def update_success_rate(self, task_name: str, success: bool, step: int) -> None:
        """Nothing; one episode of a task went so, in update `step`."""
        self.register_tasks([task_name])
        self._tried[task_name] += 1
        self._outcomes[task_name] = [*self._outcomes.get(task_name, []), bool(success)][-self._window :]

    def stratum(self, name: str) -> str | None:
        """Where a task stands; None: it was tried too seldom to say."""
        if self._tried.get(name, 0) < self._least:
            return None
        rate = sum(self._outcomes[name]) / len(self._outcomes[name])
        return next((stratum for stratum, bound in STRATA.items() if rate < bound), "exploitation")

    def state_dict(self) -> dict[str, Any]:
        """Plain data from which `load_state_dict` continues with the same draws."""
        return {
            "tried": self._tried,
            "handed_out": self._handed_out,
            "outcomes": self._outcomes,
            "draws": self._draws,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`; tasks that are new since then stay registered."""
        self._tried |= {str(name): int(count) for name, count in state["tried"].items()}
        self._handed_out |= {str(name): int(count) for name, count in state["handed_out"].items()}
        self._outcomes = {str(name): [bool(won) for won in own] for name, own in state["outcomes"].items()}
        self._draws = int(state["draws"])

    def _candidates(self, level: str | None) -> list[str]:
        strata: dict[str | None, list[str]] = {}
        for name in self._tried:
            strata.setdefault(self.stratum(name), []).append(name)
        if level is not None and level in strata:
            return strata[level]
        seldom = [name for name in strata.get(None, []) if self._handed_out[name] < self._least]
        if seldom:
            return seldom
        known = [name for name in STRATA if name in strata and self._shares.get(name, 0) > 0]
        if not known:
            return list(self._tried)
        draw = random.Random(f"{self._seed}:{self._draws}")
        return strata[draw.choices(known, [self._shares[name] for name in known])[0]]


def create_curriculum(section: Mapping[str, Any], seed: int = 0) -> Any | None:
    """The curriculum that a section describes; None: it is not `enabled`.

    `class` ('package.module:Class') names another one than `SuccessRateSampler`; all other keys are its arguments.
    Raises ConfigError.
    """
    options = dict(section)
    enabled, named = options.pop("enabled", True), options.pop("class", None)
    if not section or enabled is False:
        return None
    if enabled is not True:
        raise ConfigError(f"curriculum.enabled is {enabled!r}, expected true or false")
    made = SuccessRateSampler if named is None else _class(str(named))
    if named is None:
        options.setdefault("seed", seed)
    try:
        return made(**options)
    except TypeError as error:
        raise ConfigError(f"section curriculum: {error}; its keys are the arguments of {made.__name__}") from error


def _class(name: str) -> Any:
    try:
        return load(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"curriculum.class={name!r}: {error}; expected 'package.module:Class'") from error
