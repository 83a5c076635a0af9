"""`TaskCurriculum`: draws the next task by how well the policy of today does on it."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from uirl.config.sections.curriculum import CurriculumConfig
from uirl.curriculum import state
from uirl.curriculum.levels import LEVELS, NEW, PARKED, Evidence
from uirl.curriculum.queues import Queues
from uirl.curriculum.schedule import mixed, progress_of, shares
from uirl.curriculum.tally import Tally
from uirl.errors import ConfigError, did_you_mean

MOST_RESTS = 16
"""A task that is parked again and again rests at most so many times `park_for`."""
SILENCE = 4
"""A new task may be under way several times, ahead of the learner, before it counts as one that is never heard of."""
ENOUGH_TASKS = 10
"""The mean success moves the mix fully once so many tasks were tried."""


class TaskCurriculum:
    """Draws tasks by level of success (the stratification of MAI-UI, arXiv:2512.22047).

    A draw chooses a level by the mix of the day and takes the task of that level that was not played for longest. New
    tasks have a share of their own. Tasks that are only failed, and from which nothing can be learned, are parked, and
    come back later. What is drawn follows from the seed, the number of the draw and the outcomes told before it. A draw
    and an outcome take the same time for ten tasks and for 100 000.
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
        self._queues = Queues((NEW, *LEVELS, PARKED))
        self._evidence: dict[str, Evidence] = {}
        """Of the tasks that were handed out or played; insertion follows the first time."""
        self._order: dict[str, int] = {}
        """Task -> in which order it was registered."""
        self._due: list[tuple[int, int, str]] = []
        """Heap of (step, order, task) of parked tasks; what does not agree with `_evidence` is out of date."""
        self._step = self._draws = self._heard = self._tried = 0
        self._rates = 0.0
        """Sum of the success rates of the `_tried` tasks."""
        self._tally, self._total = Tally(), Tally()
        self.drawn_level: str | None = None
        """Level of the newest task that was drawn, when it was: one of `LEVELS`, 'new' or 'parked'; None: none was."""

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
        self._wake()
        self._review()
        place = self._draw() if difficulty_level is None else self._nearest(difficulty_level)
        self._draws += 1
        name = self._queues.first(place)
        assert name is not None
        self._tally.draw(place)
        self.drawn_level = place
        evidence = self._evidence.setdefault(name, Evidence(step=self._step))
        evidence.unanswered += evidence.heard != self._heard
        evidence.heard = self._heard
        self._queues.put(name, place)
        if place == NEW and evidence.unanswered >= max(SILENCE, self._options.min_attempts_per_task):
            self._park(name, evidence, "silent")
        return name

    def update_success_rate(self, task_name: str, success: bool, step: int = 0) -> None:
        """Count one episode of a task, played in update `step`. A task that is not registered is registered."""
        self.update_group(task_name, [success], step=step)

    def update_group(
        self, task_name: str, outcomes: Sequence[bool], *, step: int = 0, signal: bool | None = None
    ) -> None:
        """Count the episodes of one group.

        `signal`: whether the group holds something to learn; a task that is failed and still teaches (by rewards of
        parts of it) is not parked. None: nobody compared, so failures alone teach nothing. Raises ValueError for what
        is no outcome, and for a step below 0.
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
            evidence.streak = 0 if outcome else evidence.streak + 1
        if signal:
            evidence.streak = 0
        if any(outcomes):
            evidence.rests = 0
        evidence.unanswered = 0
        self._tried += before is None
        self._rates += (evidence.rate or 0.0) - (before or 0.0)
        if evidence.streak >= options.park_after and evidence.attempts >= options.min_attempts_per_task:
            if place != PARKED:
                self._park(task_name, evidence, "failed")
        elif (belongs := self._belongs(evidence)) != place:
            self._queues.put(task_name, belongs)

    # -- what is known -------------------------------------------------------------------------------------------

    def level(self, task_name: str) -> str:
        """Return where a task is: one of `LEVELS`, 'new' or 'parked'. Raises KeyError for one that is unknown."""
        return self._queues.place_of(task_name)

    def success_rate(self, task_name: str) -> float | None:
        """Return the success rate of the episodes of a task that count; None: there are none."""
        evidence = self._evidence.get(task_name)
        return None if evidence is None else evidence.rate

    def success_interval(self, task_name: str) -> tuple[float, float]:
        """Return (low, high) of it, as of today; (0, 1) where nothing is known."""
        evidence, options = self._evidence.get(task_name, Evidence()), self._options
        return evidence.interval(self._step, half_life=options.half_life, z=options.confidence)

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
        success and the share of groups with something to learn; how many tasks were parked and woken."""
        row: dict[str, float | None] = {
            "curriculum/mean_success": self.mean_success,
            "curriculum/progress": self._progress(),
        }
        for place in (NEW, *LEVELS, PARKED):
            row[f"curriculum/{place}/tasks"] = self._queues.size(place)
        row |= self._tally.row()
        self._total, self._tally = self._total + self._tally, Tally()
        return row

    def report(self) -> dict[str, Any]:
        """Return the numbers of the whole run, for its summary: per level the tasks of today and, over the run, share
        of the draws, success and share of groups with something to learn; how many tasks were parked and woken."""
        whole = self._total + self._tally
        levels = {
            place: {"tasks": self._queues.size(place), **whole.of(place)}
            for place in (NEW, *LEVELS, PARKED)
            if self._queues.size(place) or whole.draws[place]
        }
        return {
            "mean_success": self.mean_success,
            "progress": self._progress(),
            "draws": self._draws,
            "levels": levels,
            **whole.events(),
        }

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return plain JSON data, of its own, from which `load_state_dict` continues with the same draws."""
        counts = {name: getattr(self, f"_{name}") for name in state.COUNTS}
        queues = {place: list(self._queues.names(place)) for place in (NEW, *LEVELS, PARKED)}
        return state.packed(self._evidence, queues, counts, self._tally, self._total)

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        """Continue from the data of `state_dict`. Register the tasks first.

        Registered tasks that it does not name are new. What it knows of tasks that are not registered is dropped, and
        a warning says of how many; where none is registered, those of the state are. Raises ValueError or KeyError for
        data that is no state.
        """
        loaded = state.unpacked(values)
        if not len(self._queues):
            self.register_tasks(name for names in loaded.queues.values() for name in names)
        known = state.of_known(loaded, self._order)
        self._queues, self._evidence = Queues((NEW, *LEVELS, PARKED)), known.evidence
        for place, names in known.queues.items():
            for name in names:
                self._queues.put(name, place)
        for name in self._order:
            if name not in self._queues:
                self._queues.put(name, NEW)
        for name, value in known.counts.items():
            setattr(self, f"_{name}", value)
        if len(known.evidence) < len(loaded.evidence):
            rates = [one.rate for one in known.evidence.values() if one.rate is not None]
            self._tried, self._rates = len(rates), sum(rates)
        self._tally, self._total = known.tally, known.total
        self._due = [(known.evidence[n].until, self._order[n], n) for n in known.queues[PARKED]]
        heapq.heapify(self._due)

    # -- parts of it ---------------------------------------------------------------------------------------------

    def _progress(self) -> float:
        options = self._options
        if options.schedule == "none":
            return 0.0
        value = self.mean_success if options.schedule == "success" else float(self._step)
        return progress_of(value, options.schedule_start, options.schedule_end)

    def _belongs(self, evidence: Evidence) -> str:
        """Return the place of a task that is not parked."""
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
        if not known:
            return PARKED
        chances = shares(self.distribution, tasks, self._options.oversampling)
        return generator.choices(list(chances), list(chances.values()))[0]

    def _new_waits(self) -> bool:
        """Return whether some new task was not handed out since something was last heard: where tasks are drawn for a
        whole update, once is enough for each."""
        name = self._queues.first(NEW)
        evidence = None if name is None else self._evidence.get(name)
        return evidence is None or evidence.heard != self._heard

    def _nearest(self, level: str) -> str:
        """Return `level`, or the nearest that has tasks; then the new and the parked ones."""
        names = list(LEVELS)
        by_distance = sorted(names, key=lambda name: abs(names.index(name) - names.index(level)))
        place = next(place for place in (*by_distance, NEW, PARKED) if self._queues.size(place))
        self._tally.substituted += place != level
        return place

    def _park(self, name: str, evidence: Evidence, why: str) -> None:
        evidence.until = self._step + self._options.park_for * min(2**evidence.rests, MOST_RESTS)
        evidence.rests = min(evidence.rests + 1, MOST_RESTS)
        evidence.unanswered = 0
        heapq.heappush(self._due, (evidence.until, self._order[name], name))
        self._queues.put(name, PARKED)
        self._tally.park(why)

    def _wake(self) -> None:
        """Bring back the parked tasks that are due: one that fails again `min_attempts_per_task` times is parked again.
        Each was pushed once for a park, so that the time is paid for there."""
        options = self._options
        while self._due and self._due[0][0] <= self._step:
            until, _, name = heapq.heappop(self._due)
            evidence = self._evidence[name]
            if self._queues.place_of(name) != PARKED or evidence.until != until:
                continue  # it was solved meanwhile
            evidence.streak = min(evidence.streak, max(0, options.park_after - options.min_attempts_per_task))
            self._queues.put(name, self._belongs(evidence), first=True)
            self._tally.woken += 1

    def _review(self) -> None:
        """Move the first task of each level that is elsewhere by now: the first is the one whose evidence is oldest."""
        for level in LEVELS:
            name = self._queues.first(level)
            if name is not None and (belongs := self._belongs(self._evidence[name])) != level:
                self._queues.put(name, belongs)
