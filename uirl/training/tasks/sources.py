"""Which episodes to play next. The door for a curriculum: anything with these methods can stand here."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Protocol

from uirl.curriculum import Spread
from uirl.environments.base import BaseEnvironment
from uirl.errors import ConfigError
from uirl.rollout.episode import EpisodeSpec, derive_seed
from uirl.types import Task, Trajectory

PROMPT = "prompt"
"""The column that TRL and verl show the policy: where a row has one, no mapping is needed."""


class TaskSource(Protocol):
    """Hands out groups of episodes and hears how they went.

    `take_metrics()`, where it has it, gives what the metrics of an update say of the tasks, and `summary()` what the
    summary of the run says.
    """

    def groups(self, count: int, size: int) -> list[list[EpisodeSpec]]:
        """Return the next `count` groups of `size` episodes: one task and one instance per group."""
        ...

    def report(self, trajectories: Sequence[Trajectory], step: int) -> None:
        """Hear what became of those that came back for update `step`."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return plain data from which `load_state_dict` continues exactly here."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class UniformTasks:
    """Every task equally often: pass after pass through a list, each pass in another order. Tasks of unlike weight are
    drawn as often as these say, spread as evenly as whole numbers of draws allow.

    Task and instance are functions of (`instance_seed`, `split`, position), the policy's draws of (`seed`, `split`,
    position), so that a run continued from a position plays what the run that never stopped would have played.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        *,
        seed: int,
        split: str = "train",
        instance_seed: int | None = None,
        label: str | None = None,
    ) -> None:
        """`instance_seed` makes the order of the tasks and their instances; None: `seed`. Held-out splits fix it, so
        that every run is measured on the same instances of the same tasks. `label` begins the ids of the trajectories;
        None: `split`."""
        if not tasks:
            raise ConfigError("there are no tasks; the environment's tasks() and the dataset are empty")
        twice = [id for id, count in Counter(task.id for task in tasks).items() if count > 1]
        if twice:
            raise ConfigError(f"task ids must be unique, got {twice[0]!r} twice")
        self._tasks = list(tasks)
        self._seed, self._split = seed, split
        self._instances = seed if instance_seed is None else instance_seed
        self._label = label or split
        self._position = 0
        weights = [task.weight for task in tasks]
        alike = len(set(weights)) == 1
        self._spread = None if alike else Spread(weights, derive_seed(self._instances, split, "order", 0))
        self._order: tuple[int, list[int]] = (-1, [])
        """(number of a pass, its order): made once per pass, and again after a jump."""

    def groups(self, count: int, size: int) -> list[list[EpisodeSpec]]:
        return [self._group(size) for _ in range(count)]

    def report(self, trajectories: Sequence[Trajectory], step: int) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {"position": self._position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._position = int(state["position"])

    def _group(self, size: int) -> list[EpisodeSpec]:
        at, self._position = self._position, self._position + 1
        task, level = self._task(at), self._level()
        instance = task.seed if task.seed is not None else derive_seed(self._instances, self._split, "instance", at)
        group = f"{self._label}-{at:06d}"
        return [
            EpisodeSpec(
                task=task,
                environment_seed=instance,
                sampling_seed=derive_seed(self._seed, self._split, "draws", at, member),
                trajectory_id=f"{group}-{member}",
                group_id=group,
                level=level,
            )
            for member in range(size)
        ]

    def _level(self) -> str | None:
        """Return the level at which the newest task was drawn; None: tasks have none."""
        return None

    def _task(self, at: int) -> Task:
        if self._spread is not None:
            return self._tasks[self._spread.at(at)]
        number, index = divmod(at, len(self._tasks))
        if len(self._tasks) == 1:
            return self._tasks[0]
        if self._order[0] != number:
            order = list(range(len(self._tasks)))
            random.Random(derive_seed(self._instances, self._split, "order", number)).shuffle(order)
            self._order = (number, order)
        return self._tasks[self._order[1][index]]


def tasks_of(
    environment: BaseEnvironment, dataset: Iterable[Any] | None = None, columns: Mapping[str, str] | None = None
) -> list[Task]:
    """Return the tasks to train on: those of `dataset` (`Task`s, mappings of their fields, plain goals, or rows that
    `columns` maps to tasks), else the environment's, else one that stands for the environment itself."""
    if dataset is not None:
        return [task_of(item, i, type(environment).__name__, columns) for i, item in enumerate(dataset)]
    tasks = environment.tasks()
    return list(tasks) if tasks else [Task(id=type(environment).__name__)]


def task_of(item: Any, index: int, name: str, columns: Mapping[str, str] | None = None) -> Task:
    """Return the task that row `index` is: a Task, a mapping of its fields, a plain goal, or a row of other columns.

    `columns`: field of a task -> column that holds it. With it, or with a column `prompt`, every other column is an
    entry of `checks`, where a reward function finds it and the policy does not. A prompt in messages is the texts of
    its system and user, and lies among the checks as `prompt`. Raises ConfigError.
    """
    if isinstance(item, Task):
        return item
    if isinstance(item, str):
        return Task(id=f"{name}/{index}", goal=item)
    if not isinstance(item, Mapping):
        raise ConfigError(f"dataset item {index} is a {type(item).__name__}; expected a Task, a mapping or a str")
    is_task = item.keys() <= Task.__dataclass_fields__.keys()
    # those that a run has stored are no rows to map, whatever columns made them
    if is_task and ("checks" in item or not any(column in item for column in (columns or {}).values())):
        columns = {}
    columns = columns or ({"goal": PROMPT} if PROMPT in item else {})
    if missing := [column for column in columns.values() if column not in item]:
        raise ConfigError(f"dataset item {index} has no column {missing[0]!r}; it has {', '.join(map(str, item))}")
    try:
        mapped = {field: item[column] for field, column in columns.items()} if columns else dict(item)
        fields: dict[str, Any] = {"id": f"{name}/{index}"} | _fields(mapped, asks="goal" in columns)
        if columns:
            rest = {column: value for column, value in item.items() if column not in columns.values()}
            if isinstance(mapped.get("goal"), list):
                rest[PROMPT] = mapped["goal"]
            fields["checks"] = json.loads(json.dumps(rest, default=_plain)) | fields.get("checks", {})
        return Task(**fields)
    except (TypeError, ValueError, RecursionError) as error:
        expected = ", ".join(Task.__dataclass_fields__)
        others = "" if columns else ", or environment.columns={goal: goal}, with which all others are entries of checks"
        raise ConfigError(
            f"dataset item {index} is no task: {error}; expected keys among {expected}{others}"
        ) from error


def _fields(values: dict[str, Any], *, asks: bool) -> dict[str, Any]:
    """Return the values of fields of a Task, numbers as words and words as numbers where a field is such. `asks`: there
    is a goal. Raises ValueError."""
    fields = dict(values)
    if isinstance(fields.get("goal"), list):
        fields["goal"] = _text_of(fields["goal"])
    for field in ("id", "goal"):
        if isinstance(fields.get(field), (int, float)):
            fields[field] = str(fields[field])
        if field in fields and (not isinstance(fields[field], str) or (field == "goal" and asks and not fields[field])):
            raise ValueError(f"its {field} is {fields[field]!r:.80}; expected text")
    if isinstance(seed := fields.get("seed"), str) and seed.isascii() and seed.isdigit():
        fields["seed"] = int(seed)
    if not isinstance(fields.get("seed"), int | None) or isinstance(fields.get("seed"), bool):
        raise ValueError(f"its seed is {fields['seed']!r:.80}; expected a whole number")
    if isinstance(weight := fields.get("weight"), str):
        fields["weight"] = float(weight)
    elif weight is not None and (isinstance(weight, bool) or not isinstance(weight, int | float)):
        raise ValueError(f"its weight is {weight!r:.80}; expected a number")
    tags = fields.get("tags", ())
    if not isinstance(tags, (list, tuple)) or not all(isinstance(tag, str) for tag in tags):
        raise ValueError(f"its tags are {tags!r:.80}; expected a list of texts")
    if not isinstance(fields.get("checks", {}), Mapping):
        raise ValueError(f"its checks are {fields['checks']!r:.80}; expected a mapping")
    return fields


def _text_of(messages: list[Any]) -> str:
    for message in messages:
        if not isinstance(message, Mapping) or message.get("role") not in ("system", "user"):
            raise ValueError(f"its prompt holds {message!r:.80}; expected messages of system and user")
        if not isinstance(message.get("content"), str):
            raise ValueError(f"a message of its prompt is no text: {message.get('content')!r:.80}")
    return "\n\n".join(message["content"] for message in messages)


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):  # numpy's
        return value.tolist()
    if isinstance(value, Decimal):
        return str(value)
    if not hasattr(value, "isoformat"):
        raise ValueError(f"a column holds {type(value).__name__}, which is no JSON; leave it out of the data")
    return value.isoformat()
