"""The levels of `DataEntryEnvironment`, and its options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

from pydantic import model_validator

from uirl.config.section import Count, NonNegative
from uirl.environments.browser.environment import PageOptions
from uirl.environments.data_entry.rows import LABELS, distinct_rows
from uirl.environments.options import Names
from uirl.errors import ConfigError, did_you_mean


@dataclass(frozen=True, slots=True)
class Level:
    """How much there is to copy, and how it looks."""

    fields: tuple[str, ...]
    rows: int
    """To be copied."""
    listed: int
    """In the sheet."""
    size: tuple[int, int]
    """Width and height of the page."""
    slip: bool = False
    """The value stands on a slip above a large form, in place of a sheet; where things stand changes with the seed."""


LEVELS = {
    1: Level(("code",), 1, 1, (112, 112), slip=True),
    2: Level(("code",), 3, 3, (112, 112), slip=True),
    3: Level(("first",), 2, 3, (400, 240)),
    4: Level(("first", "last", "email"), 3, 8, (960, 540)),
    5: Level(("first", "last", "email"), 10, 100, (1280, 720)),
}
"""1: one digit; 2: three digits, one after the other; 3: first names; 4: three contacts; 5: ten of a hundred."""
SMALLEST_SLIP = 56
MOST_ROWS = 1000


class DataEntryOptions(PageOptions):
    """A sheet at the left, a form at the right: copy rows and submit each."""

    key = "data_entry"
    renamed: ClassVar[Mapping[str, str]] = {"patience": "max_wrong_submissions"}

    level: Literal[1, 2, 3, 4, 5] = 4
    """Which fields, how many rows, how it looks: 1: one digit; 2: three digits, one after the other; 3: first names;
    4: three contacts; 5: ten of a hundred."""
    rows: Count | None = None
    """Rows to copy; None: the level's."""
    listed: Count | None = None
    """Rows in the sheet, at least `rows`; None: the level's, or `rows` where that is more."""
    fields: Names | None = None
    """Of 'code', 'first', 'last' and 'email'; None: the level's. A slip (levels 1 and 2) holds one field."""
    tell: bool = False
    """The goal says what to enter, for policies that cannot read pictures yet."""
    penalty: NonNegative = 0.1
    """What a wrong submission costs, in rows."""
    max_wrong_submissions: Count | None = None
    """Wrong submissions that end the episode; None: they never do."""
    actions: Names | None = None
    """What is offered; None: click and type, and on levels with a sheet keys and scroll."""
    max_turns: Count | None = None
    """Actions per episode; None: half as many again as are needed, and one."""

    @property
    def base(self) -> Level:
        """What the level says."""
        return LEVELS[self.level]

    @property
    def columns(self) -> tuple[str, ...]:
        """The fields, in the order of the form."""
        chosen = self.base.fields if self.fields is None else self.fields
        return tuple(name for name in LABELS if name in chosen)

    @property
    def wanted(self) -> int:
        """Rows to copy."""
        return self.base.rows if self.rows is None else self.rows

    @property
    def shown(self) -> int:
        """Rows in the sheet."""
        return max(self.base.listed, self.wanted) if self.listed is None else self.listed

    @model_validator(mode="after")
    def _fields_fit(self) -> Self:
        for name in self.fields or ():
            if name not in LABELS:
                raise ConfigError(f"data_entry: no field {name!r}; {did_you_mean(name, LABELS)}")
        count = len(self.columns)
        if not count or (self.fields is not None and count != len(self.fields)) or (self.base.slip and count != 1):
            raise ConfigError(
                f"data_entry: fields are different and at least one, on a slip exactly one; got {self.fields!r}"
            )
        return self

    @model_validator(mode="after")
    def _rows_fit(self) -> Self:
        most = min(MOST_ROWS, distinct_rows(self.columns))
        if not self.wanted <= self.shown <= most:
            raise ConfigError(f"data_entry: expected 1 <= rows <= listed <= {most}, got {self.wanted}, {self.shown}")
        width, height = self.width or self.base.size[0], self.height or self.base.size[1]
        if self.base.slip and min(width, height) < SMALLEST_SLIP:
            raise ConfigError(f"data_entry: a page with a slip has at least {SMALLEST_SLIP} pixels a side")
        return self
