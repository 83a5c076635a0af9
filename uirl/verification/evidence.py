"""What rules look at: the record of an episode, by paths such as `state.cart.items[0].name`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from uirl.errors import ConfigError, did_you_mean
from uirl.images import Screenshot, screenshot
from uirl.types import Observation, Trajectory

Pictures = Callable[[str], Any]
"""Hash -> the picture; raises KeyError (or StorageError) for one that was not kept."""

SOURCES: dict[str, str] = {
    "state": "what the environment says beside the last screen (`info`)",
    "success": "the environment's own word",
    "reward": "total reward of the environment",
    "turns": "number of turns",
    "stop_reason": "why the episode ended",
    "metrics": "numbers of the episode",
    "checks": "`checks` of the task",
    "goal": "the task's goal",
    "text": "text of the last screen: a page may write anything",
    "reply": "the policy's last reply: it may write anything",
    "calls": "the policy's calls, [{name, arguments}, ...]: it may write anything",
}
"""First step of a path -> what it is. The last three are written by the page or the policy, who can thus move a rule
that reads them; all others can not be."""

MISSING = object()
"""There is no such thing."""
_STEP = re.compile(r"\.?([A-Za-z_][A-Za-z0-9_-]*)|\[(-?\d+|\*)\]|\['([^']*)'\]")


@dataclass(frozen=True, slots=True)
class Evidence:
    """One episode that ended."""

    trajectory: Trajectory
    environment: Any = None
    """The instance that it was played in, as it is now; None: it is over and gone."""
    pictures: Pictures | None = None
    """Finds the pictures that the record names by hash; None: only those that it carries are there."""

    @property
    def last(self) -> Observation:
        """What stood there at the end; of a record without that, what the last turn saw."""
        record = self.trajectory
        if record.final is not None:
            return record.final
        return record.turns[-1].observation if record.turns else Observation()

    def read(self, path: str) -> Any:
        """Return what stands at `path`, or `MISSING`. `[*]` gives the list of what follows for every item."""
        source, *steps = split_path(path)
        return walk(self._source(str(source)), steps)

    def picture(self, image: Any) -> Screenshot | None:
        """Return the picture that an observation names or carries; None: it was not kept."""
        if not isinstance(image, str):
            return screenshot(image)
        if self.pictures is None:
            return None
        try:
            found = self.pictures(image)
        except Exception as error:
            if isinstance(error, KeyError) or type(error).__name__ == "StorageError":
                return None
            raise
        return None if isinstance(found, str) else screenshot(found)

    def _source(self, name: str) -> Any:
        record = self.trajectory
        match name:
            case "state":
                return record.turns[-1].info if record.turns else self.last.info
            case "success":
                said = record.metrics.get("success")
                return MISSING if said is None else bool(said)
            case "reward":
                return record.total_reward()
            case "turns":
                return len(record)
            case "stop_reason":
                return record.stop_reason
            case "metrics":
                return record.metrics
            case "checks":
                return record.task.checks
            case "goal":
                return record.task.goal
            case "text":
                return self.last.text
            case "reply":
                return record.turns[-1].action.text if record.turns else MISSING
            case _:
                calls = [call for turn in record.turns for call in turn.action.tool_calls]
                return [{"name": call.name, "arguments": call.arguments} for call in calls]


def split_path(path: str) -> list[str | int]:
    """Return the steps of a path. Raises ConfigError for what is none, and for an unknown source."""
    steps: list[str | int] = []
    at = 0
    while at < len(path):
        step = _STEP.match(path, at)
        if step is None:
            raise ConfigError(
                f"{path!r} is no path: cannot read {path[at:]!r}; expected one like 'state.items[0].name'"
            )
        name, index, quoted = step.groups()
        steps.append(name or quoted if index is None else index if index == "*" else int(index))
        at = step.end()
    if not steps or steps[0] not in SOURCES:
        raise ConfigError(
            f"{path!r} begins with no source of evidence; {did_you_mean(str(steps[0]) if steps else '', SOURCES)}"
        )
    return steps


def walk(value: Any, steps: list[str | int]) -> Any:
    """Return what stands below `value` after these steps, or `MISSING`."""
    for number, step in enumerate(steps):
        if step == "*":
            if not isinstance(value, (list, tuple)):
                return MISSING
            found = [walk(item, steps[number + 1 :]) for item in value]
            return [item for item in found if item is not MISSING]
        if isinstance(step, int):
            if not isinstance(value, (list, tuple)) or not -len(value) <= step < len(value):
                return MISSING
            value = value[step]
        elif isinstance(value, Mapping) and step in value:
            value = value[step]
        else:
            return MISSING
    return value
