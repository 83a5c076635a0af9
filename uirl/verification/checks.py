"""The checks that rules are made of. Each compares one thing, and says by declaration what its `no` is worth."""

from __future__ import annotations

import math
from abc import abstractmethod
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import regex
from pydantic import Field, field_validator, model_validator

from uirl.errors import ConfigError
from uirl.images import Screenshot
from uirl.runtime.limits import InputError, clip, is_finite, read_json, shown
from uirl.runtime.wire import Plain, WireModel
from uirl.verification.evidence import MISSING, Evidence, split_path, walk
from uirl.verification.outcome import Finding, Outcome

SECONDS = 0.5
"""A pattern that takes longer on a text (which a page may choose) gives no answer."""
No = Literal["decisive", "unknown"]


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
        try:
            split_path(path)
        except ConfigError as error:
            raise ValueError(str(error)) from None
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
        told = f"expected {expected:g} within {max(self.within, self.relative * abs(expected)):g}"
        if got is None:
            return False, told
        return math.isclose(got, expected, rel_tol=0, abs_tol=max(self.within, self.relative * abs(expected))), told


class JsonPath(_Expected):
    """A text is JSON, in which this stands at `path` ('total', 'items[0].name', 'items[*].id')."""

    name = "json"
    path: str

    @field_validator("path")
    @classmethod
    def _is_inner_path(cls, path: str) -> str:
        inner = path.removeprefix("$").removeprefix(".")
        try:
            split_path(f"state{inner if inner.startswith('[') else '.' + inner if inner else ''}")
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return inner

    def compare(self, value: Any, evidence: Evidence) -> tuple[bool | None, str]:
        expected = self.expected(evidence)
        try:
            read = read_json(value, where=self.of) if isinstance(value, str) else value
        except InputError as error:
            return False, clip(str(error), 120)
        found = _inside(read, self.path)
        told = f"expected {shown(expected)} at {self.path or 'its top'}"
        return found is not MISSING and _same(found, expected, False), f"{told}, found {_said(found)}"


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


def _inside(value: Any, path: str) -> Any:
    start = "state" + (path if path.startswith("[") else f".{path}" if path else "")
    return walk(value, split_path(start)[1:])


def _said(value: Any) -> str:
    return "nothing" if value is MISSING else shown(value)
