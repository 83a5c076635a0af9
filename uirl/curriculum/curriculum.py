"""`TaskCurriculum` draws the next task by how well the policy of today does on it; `MixedCurriculum` has one for each
environment of a mixture."""

from __future__ import annotations

import bisect
import itertools
import logging
import math
import random
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from uirl.config.sections.curriculum import CurriculumConfig
from uirl.curriculum.levels import LEVELS, NEW, Evidence, mixed, progress_of, shares
from uirl.errors import ConfigError, did_you_mean
from uirl.types import Task

PLACES = (NEW, *LEVELS)
ENOUGH_TASKS = 10
"""The mean success moves the mix fully once so many tasks were tried."""
_COUNTS = ("step", "draws", "heard", "tried", "rates")
_GOLDEN = (math.sqrt(5) - 1) / 2
"""Steps of this length around a circle fall into each part of it as often as it is long, in any stretch of steps."""
_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class Tally:
    """Counts, by the place that the task had then."""

    draws: Counter[str] = field(default_factory=Counter)
    episodes: Counter[str] = field(default_factory=Counter)
    wins: Counter[str] = field(default_factory=Counter)
    groups: Counter[str] = field(default_factory=Counter)
    """Groups that were compared."""
    live: Counter[str] = field(default_factory=Counter)
    """Of these, those with something to learn."""
    substituted: int = 0
    """Draws of a named level that was empty."""

    def to_dict(self) -> dict[str, Any]:
        """Return the counts as plain data of its own."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: dict(value) if isinstance(value, Counter) else value for name, value in values.items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Tally:
        """Return the counts in the data of `to_dict`. Raises KeyError where one is missing."""
        found: dict[str, Any] = {field.name: values[field.name] for field in fields(cls)}
        made: dict[str, Any] = {name: Counter(v) if isinstance(v, dict) else v for name, v in found.items()}
        return cls(**made)

    def __add__(self, other: Tally) -> Tally:
        """Return the sum of both, of its own."""
        return Tally(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))

    def outcome(self, place: str, outcomes: Sequence[bool], signal: bool | None) -> None:
        """Count one group of a task at `place`; `signal` None: it was not compared."""
        self.episodes[place] += len(outcomes)
        self.wins[place] += sum(bool(outcome) for outcome in outcomes)
        if signal is not None:
            self.groups[place] += 1
            self.live[place] += bool(signal)

    def row(self) -> dict[str, float | None]:
        """Return the numbers; None where there is no evidence."""
        places = sorted(self.draws | self.episodes)
        levels = {f"curriculum/{place}/{name}": value for place in places for name, value in self.of(place).items()}
        return levels | {"count/levels_substituted": self.substituted}

    def of(self, place: str) -> dict[str, float | None]:
        """Return the share of the draws, the success and the share of groups with something to learn at a place; None
        where there is no evidence."""
        return {
            "drawn": _share(self.draws[place], self.draws.total()),
            "success": _share(self.wins[place], self.episodes[place]),
            "live_groups": _share(self.live[place], self.groups[place]),
        }


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


class Queues:
    """Each name is in one queue: new ones come last, and what is played goes to the end. So the first of a queue is the
    one that was not played for longest. Everything but the iteration takes constant time."""

    def __init__(self, places: Iterable[str]) -> None:
        self._queues: dict[str, OrderedDict[str, None]] = {place: OrderedDict() for place in places}
        self._place: dict[str, str] = {}

    def put(self, name: str, place: str) -> None:
        """Move a name to the end of the queue of `place`."""
        old = self._place.get(name)
        if old is not None and old != place:
            del self._queues[old][name]
        self._place[name] = place
        self._queues[place][name] = None
        self._queues[place].move_to_end(name)

    def place_of(self, name: str) -> str:
        return self._place[name]

    def first(self, place: str) -> str | None:
        """Return the name that waits longest; None: the queue is empty."""
        return next(iter(self._queues[place]), None)

    def size(self, place: str) -> int:
        return len(self._queues[place])

    def names(self, place: str) -> Iterator[str]:
        """Return the names of a queue, the first one first."""
        return iter(self._queues[place])

    def __contains__(self, name: object) -> bool:
        return name in self._place

    def __len__(self) -> int:
        return len(self._place)


class TaskCurriculum:
    """Draws tasks by level of success (the stratification of MAI-UI, arXiv:2512.22047).

    A draw chooses a level by the mix of the day and takes the task of that level that was not played for longest. New
    tasks have a share of their own. What is drawn follows from the seed, the number of the draw and the outcomes told
    before it. A draw and an outcome take the same time for ten tasks and for 100 000.
    """

    def __init__(
        self,
        min_attempts_per_task: int = 5,
        initial_distribution: Mapping[str, float] | None = None,
        *,
        seed: int = 0,
        **options: Any,
    ) -> None:
        """Start with no tasks.

        Args:
            min_attempts_per_task: Episodes after which a task has a level.
            initial_distribution: Level -> share of the draws at the beginning; None: the default.
            seed: Of the draws.
            options: The other keys of the config section `curriculum`.

        Raises ConfigError for an unknown option or a value that does not fit.
        """
        if initial_distribution is not None:
            options["initial_distribution"] = dict(initial_distribution)
        self._options = CurriculumConfig.build({"min_attempts_per_task": min_attempts_per_task, **options})
        self._seed = seed
        self._queues = Queues(PLACES)
        self._evidence: dict[str, Evidence] = {}
        """Of the tasks that were handed out or played; insertion follows the first time."""
        self._order: dict[str, int] = {}
        """Task -> in which order it was registered."""
        self._step = self._draws = self._heard = self._tried = 0
        self._rates = 0.0
        """Sum of the success rates of the `_tried` tasks."""
        self._tally, self._total = Tally(), Tally()
        self.drawn_level: str | None = None
        """Level of the newest task that was drawn, when it was: one of `LEVELS`, or 'new'; None: none was."""

    @classmethod
    def from_config(cls, config: CurriculumConfig, *, seed: int) -> TaskCurriculum:
        """Return the curriculum that a config section describes."""
        values = config.to_dict()
        del values["enabled"]
        return cls(seed=seed, **values)

    # -- what is asked and told ----------------------------------------------------------------------------------

    def register_tasks(self, task_list: Iterable[Any]) -> None:
        """Add tasks that were never tried: names, or objects with an `id`. Those that are known keep their history."""
        for task in task_list:
            name = task if isinstance(task, str) else getattr(task, "id", None)
            if not isinstance(name, str):
                raise ConfigError(f"got the task {task!r:.60}; expected its name, or an object with an `id`")
            if name not in self._queues:
                self._order[name] = len(self._order)
                self._queues.put(name, NEW)

    def sample_task(self, difficulty_level: str | None = None) -> str:
        """Return the task to play next.

        `difficulty_level` names its level; where that is empty, the nearest one that is not, which is counted. Raises
        ConfigError for an unknown level, and where no task is registered.
        """
        if difficulty_level is not None and difficulty_level not in LEVELS:
            raise ConfigError(
                f"difficulty_level: no level {difficulty_level!r}; {did_you_mean(difficulty_level, LEVELS)}"
            )
        if not len(self._queues):
            raise ConfigError("the curriculum has no tasks; call register_tasks(names) first")
        self._review()
        place = self._draw() if difficulty_level is None else self._nearest(difficulty_level)
        self._draws += 1
        name = self._queues.first(place)
        assert name is not None
        self._tally.draws[place] += 1
        self.drawn_level = place
        evidence = self._evidence.setdefault(name, Evidence(step=self._step))
        evidence.heard = self._heard
        self._queues.put(name, place)
        return name

    def update_success_rate(self, task_name: str, success: bool, step: int = 0) -> None:
        """Count one episode of a task, played in update `step`. A task that is not registered is registered."""
        self.update_group(task_name, [success], step=step)

    def update_group(
        self, task_name: str, outcomes: Sequence[bool], *, step: int = 0, signal: bool | None = None
    ) -> None:
        """Count the episodes of one group.

        `signal`: whether the group holds something to learn; None: nobody compared. Raises ValueError for what is no
        outcome, and for a step below 0.
        """
        for outcome in outcomes:
            if outcome is None or outcome not in (0, 1):
                raise ValueError(f"task {task_name!r}: got the outcome {outcome!r}, expected True or False; leave out "
                                 "episodes that nobody judged")  # fmt: skip
        if step < 0:
            raise ValueError(f"task {task_name!r}: got step {step}, expected 0 or more")
        self.register_tasks([task_name])
        if not outcomes:
            return
        options, place = self._options, self._queues.place_of(task_name)
        self._step, self._heard = max(self._step, step), self._heard + 1
        evidence = self._evidence.setdefault(task_name, Evidence(step=step))
        self._tally.outcome(place, outcomes, signal)
        before = evidence.rate
        for outcome in outcomes:
            evidence.add(bool(outcome), step, window=options.window, half_life=options.half_life)
        self._tried += before is None
        self._rates += (evidence.rate or 0.0) - (before or 0.0)
        if (belongs := self._belongs(evidence)) != place:
            self._queues.put(task_name, belongs)

    # -- what is known -------------------------------------------------------------------------------------------

    def level(self, task_name: str) -> str:
        """Return where a task is: one of `LEVELS`, or 'new'. Raises KeyError for one that is unknown."""
        return self._queues.place_of(task_name)

    def success_rate(self, task_name: str) -> float | None:
        """Return the success rate of the episodes of a task that count; None: there are none."""
        evidence = self._evidence.get(task_name)
        return None if evidence is None else evidence.rate

    @property
    def mean_success(self) -> float:
        """The mean of the success rates of the tasks that were tried. Before ten were tried (or all, where there are
        fewer) the missing ones count 0."""
        return self._rates / max(self._tried, min(len(self._queues), ENOUGH_TASKS), 1)

    @property
    def distribution(self) -> dict[str, float]:
        """Level -> its share of the draws today, if every level has tasks enough."""
        options = self._options
        return mixed(options.initial_distribution, options.final_distribution, self._progress())

    def take_metrics(self) -> dict[str, float | None]:
        """Return the numbers since the last call: tasks per level, and of each level the share of the draws, the
        success and the share of groups with something to learn."""
        row: dict[str, float | None] = {
            "curriculum/mean_success": self.mean_success,
            "curriculum/progress": self._progress(),
        }
        for place in PLACES:
            row[f"curriculum/{place}/tasks"] = self._queues.size(place)
        row |= self._tally.row()
        self._total, self._tally = self._total + self._tally, Tally()
        return row

    def report(self) -> dict[str, Any]:
        """Return the numbers of the whole run, for its summary: per level the tasks of today and, over the run, share
        of the draws, success and share of groups with something to learn."""
        whole = self._total + self._tally
        levels = {
            place: {"tasks": self._queues.size(place), **whole.of(place)}
            for place in PLACES
            if self._queues.size(place) or whole.draws[place]
        }
        return {
            "mean_success": self.mean_success,
            "progress": self._progress(),
            "draws": self._draws,
            "levels": levels,
            "levels_substituted": whole.substituted,
        }

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return plain JSON data, of its own, from which `load_state_dict` continues with the same draws."""
        queues = {place: list(self._queues.names(place)) for place in PLACES}
        names = dict.fromkeys([*self._evidence, *(name for queue in queues.values() for name in queue)])
        row, known = {name: i for i, name in enumerate(names)}, self._evidence.values()
        return {
            "tasks": list(names),
            "evidence": {field.name: [getattr(one, field.name) for one in known] for field in fields(Evidence)},
            "queues": {place: [row[name] for name in queue] for place, queue in queues.items()},
            "counts": {name: getattr(self, f"_{name}") for name in _COUNTS},
            "tally": self._tally.to_dict(),
            "total": self._total.to_dict(),
        }

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        """Continue from the data of `state_dict`. Register the tasks first.

        Registered tasks that it does not name are new. What it knows of tasks that are not registered is dropped, and
        a warning says of how many; where none is registered, those of the state are. Raises ValueError or KeyError for
        data that is no state.
        """
        evidence, queues = _unpacked(values)
        tallies = [Tally.from_dict(values[name]) for name in ("tally", "total")]
        counts = {name: values["counts"][name] for name in _COUNTS}
        if not len(self._queues):
            self.register_tasks(name for names in queues.values() for name in names)
        if gone := [name for names in queues.values() for name in names if name not in self._order]:
            _LOG.warning(
                "the curriculum knows %d tasks that are not registered any more, e.g. %r; what it knows of them is "
                "dropped",
                len(gone),
                gone[0],
            )
        self._queues = Queues(PLACES)
        self._evidence = {name: one for name, one in evidence.items() if name in self._order}
        for place, names in queues.items():
            for name in names:
                if name in self._order:
                    self._queues.put(name, place)
        for name in self._order:
            if name not in self._queues:
                self._queues.put(name, NEW)
        for name, value in counts.items():
            setattr(self, f"_{name}", value)
        if len(self._evidence) < len(evidence):
            rates = [one.rate for one in self._evidence.values() if one.rate is not None]
            self._tried, self._rates = len(rates), sum(rates)
        self._tally, self._total = tallies

    # -- parts of it ---------------------------------------------------------------------------------------------

    def _progress(self) -> float:
        options = self._options
        if options.schedule == "none":
            return 0.0
        value = self.mean_success if options.schedule == "success" else float(self._step)
        return progress_of(value, options.schedule_start, options.schedule_end)

    def _belongs(self, evidence: Evidence) -> str:
        """Return the place of a task by what is known of it."""
        options = self._options
        if evidence.attempts < options.min_attempts_per_task:
            return NEW
        return evidence.level(self._step, half_life=options.half_life, z=options.confidence)

    def _draw(self) -> str:
        """Return the place to take the next task from."""
        generator = random.Random(f"{self._seed}:{self._draws}")
        tasks = {level: self._queues.size(level) for level in LEVELS}
        known = sum(tasks.values())
        if self._queues.size(NEW) and (
            not known or (self._new_waits() and generator.random() < self._options.new_share)
        ):
            return NEW
        chances = shares(self.distribution, tasks, self._options.oversampling)
        return generator.choices(list(chances), list(chances.values()))[0]

    def _new_waits(self) -> bool:
        """Return whether some new task was not handed out since something was last heard: where tasks are drawn for a
        whole update, once is enough for each."""
        name = self._queues.first(NEW)
        evidence = None if name is None else self._evidence.get(name)
        return evidence is None or evidence.heard != self._heard

    def _nearest(self, level: str) -> str:
        """Return `level`, or the nearest that has tasks; then the new ones."""
        names = list(LEVELS)
        by_distance = sorted(names, key=lambda name: abs(names.index(name) - names.index(level)))
        place = next(place for place in (*by_distance, NEW) if self._queues.size(place))
        self._tally.substituted += place != level
        return place

    def _review(self) -> None:
        """Move the first task of each level that is elsewhere by now: the first is the one whose evidence is oldest."""
        for level in LEVELS:
            name = self._queues.first(level)
            if name is not None and (belongs := self._belongs(self._evidence[name])) != level:
                self._queues.put(name, belongs)


def _unpacked(values: Mapping[str, Any]) -> tuple[dict[str, Evidence], dict[str, list[str]]]:
    """Return (task -> evidence, place -> tasks) of a state. Raises ValueError or KeyError where it is none."""
    names, columns = list(values["tasks"]), values["evidence"]
    try:
        rows = zip(*(columns[field.name] for field in fields(Evidence)), strict=True)
        evidence = {name: Evidence(*row) for name, row in zip(names, rows, strict=False)}
        queues = {place: [names[i] for i in values["queues"][place]] for place in PLACES}
    except (TypeError, IndexError) as error:
        raise ValueError(f"no state of a curriculum: {error}; expected what state_dict() returned") from error
    if sorted(name for queue in queues.values() for name in queue) != sorted(names):
        raise ValueError("no state of a curriculum: its queues do not hold each task once")
    return evidence, queues


class Spread:
    """Draws an index as often as its weight says, as evenly as whole numbers of draws allow: a function of the seed and
    the number of the draw."""

    def __init__(self, weights: Iterable[float], seed: int) -> None:
        self._sums = list(itertools.accumulate(weights))
        self._begin = random.Random(seed).random()

    def at(self, draw: int) -> int:
        """Return the index that is drawn as number `draw`."""
        place = (self._begin + draw * _GOLDEN) % 1.0 * self._sums[-1]
        return min(bisect.bisect_right(self._sums, place), len(self._sums) - 1)


class MixedCurriculum:
    """One `TaskCurriculum` per environment. Weights say which environment is next, its curriculum says which task, so
    that one that is learned quickly does not lose its share."""

    def __init__(self, tasks: Sequence[Task], curricula: Mapping[str, TaskCurriculum], *, seed: int) -> None:
        """`curricula`: environment -> its curriculum, of all environments of `tasks`."""
        self._curricula, self._of = dict(curricula), {task.id: task.environment for task in tasks}
        weights = dict.fromkeys(curricula, 0.0)
        for task in tasks:
            weights[task.environment] += task.weight
            self._curricula[task.environment].register_tasks([task.id])
        self._spread, self._draws = Spread(weights.values(), seed), 0
        self.drawn_level: str | None = None
        """Level of the newest task that was drawn."""

    def sample_task(self) -> str:
        """Return the id of the task to play next."""
        curriculum = list(self._curricula.values())[self._spread.at(self._draws)]
        self._draws += 1
        name = curriculum.sample_task()
        self.drawn_level = curriculum.drawn_level
        return name

    def update_success_rate(self, task_name: str, success: bool, step: int = 0) -> None:
        """Count one episode of a task."""
        self.update_group(task_name, [success], step=step)

    def update_group(
        self, task_name: str, outcomes: Sequence[bool], *, step: int = 0, signal: bool | None = None
    ) -> None:
        """Count the episodes of one group: see `TaskCurriculum.update_group`."""
        self._curricula[self._of[task_name]].update_group(task_name, outcomes, step=step, signal=signal)

    def take_metrics(self) -> dict[str, float | None]:
        """Return the numbers of all since the last call: 'curriculum/ENVIRONMENT.LEVEL/tasks'."""
        return {
            name.replace("/", f"/{member}.", 1): value
            for member, one in self._curricula.items()
            for name, value in one.take_metrics().items()
        }

    def report(self) -> dict[str, Any]:
        """Return the numbers of the whole run: the levels of all, and the rest by environment."""
        reports = {member: one.report() for member, one in self._curricula.items()}
        levels = {f"{m}.{level}": row for m, report in reports.items() for level, row in report.pop("levels").items()}
        return {"draws": self._draws, "levels": levels, "environments": reports}

    def state_dict(self) -> dict[str, Any]:
        """Return plain data from which `load_state_dict` continues with the same draws."""
        return {"draws": self._draws, "environments": {name: c.state_dict() for name, c in self._curricula.items()}}

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        """Continue from the data of `state_dict`; environments that it does not name begin anew."""
        self._draws = values["draws"]
        for name, curriculum in self._curricula.items():
            if name in values["environments"]:
                curriculum.load_state_dict(values["environments"][name])
