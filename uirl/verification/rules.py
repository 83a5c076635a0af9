"""Rules: checks that are combined, one rule to a task, declared in a file beside the tasks.

```yaml
default: {success: {no: decisive}}
tasks:
  order-*:
    all:
      - equals: {of: state.submitted, value: true, no: decisive}
      - any:
          - tolerance: {of: state.total, value_of: checks.total, within: 0.01}
          - regex: {of: reply, pattern: "\\\\b12\\\\.50\\\\b"}
```
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from uirl.config import yaml_text
from uirl.errors import ConfigError, did_you_mean
from uirl.runtime.wire import WireError
from uirl.types import Task
from uirl.verification.checks import CHECKS, Check, Success
from uirl.verification.evidence import Evidence
from uirl.verification.outcome import Finding, Outcome, all_of, any_of, not_of

_DEPTH = 16
RULE_OF_TASK = "rule"
"""Key of a task's `checks` with a rule of its own, which comes before those of the file."""


@dataclass(frozen=True, slots=True)
class All:
    """Every part holds."""

    parts: tuple[Rule, ...]

    def ask(self, evidence: Evidence) -> Finding:
        """Return the conjunction of the parts."""
        return all_of([part.ask(evidence) for part in self.parts])


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Some part holds."""

    parts: tuple[Rule, ...]

    def ask(self, evidence: Evidence) -> Finding:
        """Return the disjunction of the parts."""
        return any_of([part.ask(evidence) for part in self.parts])


@dataclass(frozen=True, slots=True)
class Not:
    """The part does not hold. It must be able to fail, or this can never pass."""

    part: Rule

    def ask(self, evidence: Evidence) -> Finding:
        """Return the negation of the part."""
        return not_of(self.part.ask(evidence))


Rule = Check | All | AnyOf | Not
_MANY: dict[str, type[All] | type[AnyOf]] = {"all": All, "any": AnyOf}


def read_rule(value: Any, where: str = "the rule", depth: int = 0) -> Rule:
    """Return the rule that plain data describes: an object with one key, a check or 'all', 'any', 'not'. Raises
    ConfigError that names the place."""
    if not isinstance(value, Mapping) or len(value) != 1:
        raise ConfigError(f"{where} is {value!r:.80}; expected an object with one key, such as {{equals: {{...}}}}")
    if depth > _DEPTH:
        raise ConfigError(f"{where} is nested too deep; expected at most {_DEPTH} levels")
    ((name, inner),) = value.items()
    here = f"{where}.{name}"
    if name in _MANY:
        if not isinstance(inner, list) or not inner:
            raise ConfigError(f"{here} is {inner!r:.80}; expected a list of rules")
        return _MANY[name](tuple(read_rule(item, f"{here}[{i}]", depth + 1) for i, item in enumerate(inner)))
    if name == "not":
        return Not(read_rule(inner, here, depth + 1))
    if name not in CHECKS:
        raise ConfigError(f"{where}: no check {name!r}; {did_you_mean(str(name), [*CHECKS, *_MANY, 'not'])}")
    try:
        return CHECKS[name].read({} if inner is None else inner, here)
    except (WireError, ConfigError) as error:
        raise ConfigError(str(error)) from None


@dataclass(frozen=True, slots=True)
class RuleBook:
    """Which rule judges which task."""

    by_task: Mapping[str, Rule] = field(default_factory=dict)
    """Id of a task, or a pattern ('order-*'), in the order of the file -> rule."""
    default: Rule | None = None
    """Of every other task; None: nothing is known of it."""

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> RuleBook:
        """Read a YAML or JSON file with `tasks` and `default`. Raises ConfigError that names the file."""
        values = yaml_text.read(path)
        if not isinstance(values, dict) or not values or not set(values) <= {"tasks", "default"}:
            raise ConfigError(f"{path} holds no rules; expected the keys 'tasks' and 'default', or one of them")
        tasks = values.get("tasks") or {}
        if not isinstance(tasks, dict):
            raise ConfigError(f"{path}: tasks is {tasks!r:.80}; expected an object, task id -> rule")
        default = None if values.get("default") is None else read_rule(values["default"], f"{path}: default")
        return cls({str(id): read_rule(rule, f"{path}: tasks.{id}") for id, rule in tasks.items()}, default)

    @classmethod
    def of_environment(cls) -> RuleBook:
        """Return the rules where nobody wrote any: the environment's own word on success, which is decisive."""
        return cls(default=Success(no="decisive"))

    def rule_for(self, task: Task) -> Rule | None:
        """Return the rule of a task: its own (`checks['rule']`), that of its id, of the first pattern that fits, or the
        default; None: there is none."""
        if RULE_OF_TASK in task.checks:
            return read_rule(task.checks[RULE_OF_TASK], f"task {task.id!r}: checks.rule")
        if task.id in self.by_task:
            return self.by_task[task.id]
        return next((rule for name, rule in self.by_task.items() if fnmatchcase(task.id, name)), self.default)

    def ask(self, evidence: Evidence) -> Finding:
        """Return what the rule of the episode's task says."""
        task = evidence.trajectory.task
        rule = self.rule_for(task)
        if rule is None:
            return Finding(Outcome.UNKNOWN, f"there is no rule for task {task.id!r}")
        return rule.ask(evidence)

    def undecided(self) -> list[str]:
        """Return the names of the checks whose `no` is only 'unknown': without a judge beside them, episodes that they
        do not accept have no score."""
        rules = [*self.by_task.values(), *([] if self.default is None else [self.default])]
        return sorted({check.name for rule in rules for check in _leaves(rule) if check.no == "unknown"})


def _leaves(rule: Rule) -> Iterator[Check]:
    if isinstance(rule, Check):
        yield rule
    elif isinstance(rule, Not):
        yield from _leaves(rule.part)
    else:
        for part in rule.parts:
            yield from _leaves(part)
