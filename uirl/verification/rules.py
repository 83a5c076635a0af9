"""Rules: checks that are combined, one rule to a task, declared in a file beside the tasks.

A check compares one thing, and says by declaration what its `no` is worth.

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

import math
import os
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import regex
from pydantic import Field, field_validator, model_validator

from uirl.config import yaml_text
from uirl.errors import ConfigError, did_you_mean
from uirl.images import Screenshot
from uirl.runtime.limits import InputError, clip, is_finite, read_json, shown
from uirl.runtime.wire import Plain, WireError, WireModel
from uirl.types import Task
from uirl.verification.evidence import MISSING, Evidence, split_path, walk
from uirl.verification.outcome import Finding, Outcome, all_of, any_of, not_of

SECONDS = 0.5
"""A pattern that takes longer on a text (which a page may choose) gives no answer."""
No = Literal["decisive", "unknown"]
_DEPTH = 16
RULE_OF_TASK = "rule"
"""Key of a task's `checks` with a rule of its own, which comes before those of the file."""


class Check(WireModel):
    """One question to the record of an episode."""

    name: ClassVar[str]
    """In task files."""
    no: No = "unknown"
    """What it means where the check does not hold: 'decisive': the task was not solved. 'unknown': perhaps it was, in a
    way that this check does not know, and somebody else has to say."""

    def ask(self, evidence: Evidence) -> Finding:
        """Return what the check says of an episode."""
        holds, reason = self.holds(evidence)
        if holds is None or (not holds and self.no == "unknown"):
            return Finding(Outcome.UNKNOWN, reason)
        return Finding(Outcome.of(holds), reason)

    @abstractmethod
    def holds(self, evidence: Evidence) -> tuple[bool | None, str]:
        """Return whether it holds, and why; None where that cannot be known here, whatever the episode did."""


class Success(Check):
    """The environment's own word."""

    name = "success"

    def holds(self, evidence: Evidence) -> tuple[bool | None, str]:
        said = evidence.read("success")
        if said is MISSING:
            return None, "the environment does not say"
        return said, f"the environment says success={str(said).lower()}"


class _Comparison(Check):
    """Compares what stands at `of`. What is missing does not hold."""

    of: str

    @field_validator("of")
    @classmethod
    def _is_path(cls, path: str) -> str:
        _refuse_bad_path(path)
        return path

    def holds(self, evidence: Evidence) -> tuple[bool | None, str]:
        value = evidence.read(self.of)
        if value is MISSING:
            return False, f"there is no {self.of}"
        holds, expected = self.compare(value, evidence)
        return holds, f"{self.of} is {shown(value)}{'' if holds else ';'} {expected}"

    @abstractmethod
    def compare(self, value: Any, evidence: Evidence) -> tuple[bool | None, str]:
        """Return whether `value` is as it should be, and what was expected."""


class Exists(_Comparison):
    """There is something."""

    name = "exists"

    def compare(self, value: Any, evidence: Evidence) -> tuple[bool | None, str]:
        return True, "as expected"


class _Expected(_Comparison):
    """Compares with `value`, or with what the task says at `value_of` ('checks.answer')."""

    value: Plain = None
    value_of: str | None = None

    @model_validator(mode="after")
    def _says_what(self) -> Self:
        if ("value" in self.model_fields_set) == (self.value_of is not None):
            raise ValueError(f"{self.name} needs either value or value_of")
        if self.value_of is not None and split_path(self.value_of)[0] not in ("checks", "goal"):
            raise ValueError(f"value_of reads what the task says: 'checks...' or 'goal', got {self.value_of!r}")
        return self

    def expected(self, evidence: Evidence) -> Any:
        """Return what to compare with. Raises ConfigError where the task does not say."""
        if self.value_of is None:
            return self.value
        value = evidence.read(self.value_of)
        if value is MISSING:
            raise ConfigError(f"task {evidence.trajectory.task.id!r} has no {self.value_of}, which its rule needs")
        return value


class Equals(_Expected):
    """It is this value. True is not 1, and '1' is not 1."""

    name = "equals"
    ignore_case: bool = False

    def compare(self, value: Any, evidence: Evidence) -> tuple[bool | None, str]:
        expected = self.expected(evidence)
        return _same(value, expected, self.ignore_case), f"expected {shown(expected)}"


class Contains(_Expected):
    """A text has this part, a list this item, an object this key."""

    name = "contains"
    ignore_case: bool = False

    def compare(self, value: Any, evidence: Evidence) -> tuple[bool | None, str]:
        expected = self.expected(evidence)
        told = f"expected {shown(expected)} in it"
        if isinstance(value, str):
            fold = str.casefold if self.ignore_case else str
            return isinstance(expected, str) and fold(expected) in fold(value), told
        items = list(value) if isinstance(value, (list, tuple, dict)) else []
        return any(_same(item, expected, self.ignore_case) for item in items), told


class Matches(_Comparison):
    """A text matches a regular expression somewhere (`^` and `$` for the whole)."""

    name = "regex"
    pattern: str
    ignore_case: bool = False

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        try:
            regex.compile(pattern)
        except regex.error as error:
            raise ValueError(f"{pattern!r} is no regular expression: {error}") from None
        return pattern

    def compare(self, value: Any, evidence: Evidence) -> tuple[bool | None, str]:
        if not isinstance(value, str):
            return False, "expected a text"
        try:
            found = regex.search(self.pattern, value, regex.IGNORECASE if self.ignore_case else 0, timeout=SECONDS)
        except TimeoutError:
            # whoever wrote the text made it so: a text that hangs a pattern is none that matches
            return False, f"the pattern {self.pattern!r} takes longer than {SECONDS} s on it"
        return found is not None, f"expected a match of {self.pattern!r}"


class Tolerance(_Expected):
    """A number is near another: |x - value| <= within, or <= relative * |value|."""

    name = "tolerance"
    within: Annotated[float, Field(ge=0, strict=False)] = 0.0
    relative: Annotated[float, Field(ge=0, strict=False)] = 0.0

    def compare(self, value: Any, evidence: Evidence) -> tuple[bool | None, str]:
        expected, got = _number(self.expected(evidence)), _number(value)
        if expected is None:
            raise ConfigError(f"tolerance compares numbers; the rule expects {shown(self.expected(evidence))}")
        within = max(self.within, self.relative * abs(expected))
        near = got is not None and math.isclose(got, expected, rel_tol=0, abs_tol=within)
        return near, f"expected {expected:g} within {within:g}"


class JsonPath(_Expected):
    """A text is JSON, in which this stands at `path` ('total', 'items[0].name', 'items[*].id')."""

    name = "json"
    path: str

    @field_validator("path")
    @classmethod
    def _is_inner_path(cls, path: str) -> str:
        inner = path.removeprefix("$").removeprefix(".")
        _refuse_bad_path(_below_state(inner))
        return inner

    def compare(self, value: Any, evidence: Evidence) -> tuple[bool | None, str]:
        expected = self.expected(evidence)
        try:
            read = read_json(value, where=self.of) if isinstance(value, str) else value
        except InputError as error:
            return False, clip(str(error), 120)
        found = walk(read, split_path(_below_state(self.path))[1:])
        told = f"expected {shown(expected)} at {self.path or 'its top'}"
        said = "nothing" if found is MISSING else shown(found)
        return found is not MISSING and _same(found, expected, False), f"{told}, found {said}"


class Predicate(Check):
    """A method of the environment says so: true, false, or None where it cannot tell. It sees the environment as the
    episode left it, so stored episodes have none to ask."""

    name = "environment"
    predicate: str
    arguments: Plain = None

    @field_validator("predicate")
    @classmethod
    def _is_public(cls, name: str) -> str:
        if not name.isidentifier() or name.startswith("_"):
            raise ValueError(f"{name!r} is no name of a public method")
        return name

    def holds(self, evidence: Evidence) -> tuple[bool | None, str]:
        if evidence.environment is None:
            return None, f"{self.predicate}() asks the environment, which is gone"
        method = getattr(evidence.environment, self.predicate, None)
        if not callable(method):
            kind = type(evidence.environment).__name__
            raise ConfigError(f"{kind} has no method {self.predicate}(), which a rule asks; name one it has")
        said = method(**(self.arguments or {}))
        if said is not None and not isinstance(said, bool):
            raise ConfigError(f"{self.predicate}() returned {shown(said)}; expected True, False or None")
        return said, f"{self.predicate}() says {said}"


class Region(Check):
    """A part of the last screen looks like a picture, or has one colour.

    Similarity is 1 - the mean absolute difference of the channels / 255.
    """

    name = "region"
    box: Annotated[list[Annotated[float, Field(strict=False)]], Field(min_length=4, max_length=4)]
    """Left, top, right, bottom, as shares of width and height."""
    colour: Annotated[list[int], Field(min_length=3, max_length=3)] | None = None
    """Red, green, blue."""
    picture: str | None = None
    """File of a picture, scaled to the size of the region."""
    similarity: Annotated[float, Field(gt=0, le=1, strict=False)] = 0.95

    @model_validator(mode="after")
    def _fits(self) -> Self:
        left, top, right, bottom = self.box
        if not (0 <= left < right <= 1 and 0 <= top < bottom <= 1):
            raise ValueError(f"box is {self.box}; expected shares 0 <= left < right <= 1 and 0 <= top < bottom <= 1")
        if (self.colour is None) == (self.picture is None):
            raise ValueError("region needs either colour or picture")
        return self

    def holds(self, evidence: Evidence) -> tuple[bool | None, str]:
        if not evidence.last.images:
            return False, "there is no last screen"
        shot = evidence.picture(evidence.last.images[-1])
        if shot is None:
            return None, "the last screen was not kept"
        similarity = self._similarity(shot)
        return similarity >= self.similarity, f"the region is similar by {similarity:.3f}, expected {self.similarity:g}"

    def _similarity(self, shot: Screenshot) -> float:
        from PIL import Image, ImageChops, ImageStat

        screen = shot.open()
        width, height = screen.size
        left, top, right, bottom = self.box
        corner = (int(left * width), int(top * height))
        region = screen.crop(
            (*corner, max(corner[0] + 1, int(right * width)), max(corner[1] + 1, int(bottom * height)))
        )
        if self.colour is not None:
            wanted = Image.new("RGB", region.size, (self.colour[0], self.colour[1], self.colour[2]))
        else:
            assert self.picture is not None
            try:
                wanted = Screenshot(Path(self.picture).read_bytes()).open().resize(region.size)
            except (OSError, InputError) as error:
                raise ConfigError(f"the picture {self.picture} of a rule cannot be read: {error}") from None
        return 1 - sum(ImageStat.Stat(ImageChops.difference(region, wanted)).mean) / 3 / 255


CHECKS: dict[str, type[Check]] = {
    kind.name: kind for kind in (Success, Exists, Equals, Contains, Matches, Tolerance, JsonPath, Predicate, Region)
}


def _same(got: Any, expected: Any, ignore_case: bool) -> bool:
    if isinstance(got, str) and isinstance(expected, str):
        return got.casefold() == expected.casefold() if ignore_case else got == expected
    if isinstance(got, bool) or isinstance(expected, bool):
        return got is expected
    if isinstance(got, (list, tuple)) and isinstance(expected, (list, tuple)):
        return len(got) == len(expected) and all(map(_same, got, expected, [ignore_case] * len(got)))
    if isinstance(got, dict) and isinstance(expected, dict):
        return got.keys() == expected.keys() and all(_same(got[key], expected[key], ignore_case) for key in got)
    return bool(got == expected)


def _number(value: Any) -> float | None:
    """Return a number, or one that is written as text; None for everything else."""
    if isinstance(value, str):
        try:
            value = float(value.strip())
        except ValueError:
            return None
    return float(value) if is_finite(value) else None


def _below_state(path: str) -> str:
    return "state" + (path if path.startswith("[") else f".{path}" if path else "")


def _refuse_bad_path(path: str) -> None:
    try:
        split_path(path)
    except ConfigError as error:
        raise ValueError(str(error)) from None


# -- rules ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Combined:
    """Rules combined by Kleene's logic. Of 'not' the part must be able to fail, or it can never pass."""

    how: Literal["all", "any", "not"]
    parts: tuple[Rule, ...]

    def ask(self, evidence: Evidence) -> Finding:
        """Return what the parts say together."""
        found = [part.ask(evidence) for part in self.parts]
        return not_of(found[0]) if self.how == "not" else (all_of if self.how == "all" else any_of)(found)


Rule = Check | Combined


def read_rule(value: Any, where: str = "the rule", depth: int = 0) -> Rule:
    """Return the rule that plain data describes: an object with one key, a check or 'all', 'any', 'not'. Raises
    ConfigError that names the place."""
    if not isinstance(value, Mapping) or len(value) != 1:
        raise ConfigError(f"{where} is {value!r:.80}; expected an object with one key, such as {{equals: {{...}}}}")
    if depth > _DEPTH:
        raise ConfigError(f"{where} is nested too deep; expected at most {_DEPTH} levels")
    ((name, inner),) = value.items()
    here = f"{where}.{name}"
    if name in ("all", "any"):
        if not isinstance(inner, list) or not inner:
            raise ConfigError(f"{here} is {inner!r:.80}; expected a list of rules")
        return Combined(name, tuple(read_rule(item, f"{here}[{i}]", depth + 1) for i, item in enumerate(inner)))
    if name == "not":
        return Combined("not", (read_rule(inner, here, depth + 1),))
    if name not in CHECKS:
        raise ConfigError(f"{where}: no check {name!r}; {did_you_mean(str(name), [*CHECKS, 'all', 'any', 'not'])}")
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
    else:
        for part in rule.parts:
            yield from _leaves(part)
