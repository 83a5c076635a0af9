"""`DataEntryEnvironment`: copy rows of a sheet into a form, from one digit on a slip to a hundred contacts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from uirl.environments.browser.options import ImageFormat
from uirl.environments.browser.web import State, WebEnvironment
from uirl.environments.data_entry.page import STATE, WATCH, render_page
from uirl.environments.data_entry.rows import LABELS, Progress, distinct_rows, draw_rows
from uirl.environments.ui.actions import Coordinates, Keys, Type
from uirl.errors import ConfigError, did_you_mean
from uirl.types import Action, Task


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
_OFFERED = {True: ("click", "type"), False: ("click", "type", "keys", "scroll")}
"""Whether there is a slip -> the actions."""
WORDS = {"code": "field", "first": "first", "last": "last", "email": "email"}
"""Field -> the word for it before the coordinates of a click."""


class DataEntryEnvironment(WebEnvironment):
    """A sheet at the left, a form at the right: copy `rows` different rows, one at a time, and submit each.

    A submission that equals any row of the sheet in all fields counts for that row; any other is wrong. An action is
    worth `(new rows - penalty * wrong submissions) / rows`, so a flawless episode sums to 1; sending a row again is
    worth nothing. The episode ends with the last row, after `patience` wrong submissions, or with the turns. The rows
    are compared here, from what the form held when it was sent: the page knows no score.
    """

    state, watch = STATE, WATCH
    keeps_page = True

    def __init__(
        self,
        config: Any = None,
        *,
        level: int = 4,
        rows: int | None = None,
        listed: int | None = None,
        fields: Sequence[str] | None = None,
        tell: bool = False,
        penalty: float = 0.1,
        patience: int | None = None,
        width: int | None = None,
        height: int | None = None,
        zoom: float = 1.0,
        image_size: int | Sequence[int] | None = None,
        image_format: ImageFormat = "png",
        quality: int | None = None,
        actions: Sequence[str] | None = None,
        coordinates: Coordinates = "pixels",
        say_target: bool = False,
        marks: bool = False,
        tree: int = 0,
        max_turns: int | None = None,
    ) -> None:
        """An environment that opens its page at the first reset. What is not listed: see `PageEnvironment`.

        Args:
            level: one of `LEVELS`: which fields, how many rows, how it looks.
            rows: rows to copy; None: the level's.
            listed: rows in the sheet, at least `rows`; None: the level's, or `rows` where that is more.
            fields: of 'code', 'first', 'last' and 'email'; None: the level's. A slip holds one field.
            tell: the goal says what to enter, for policies that cannot read pictures yet.
            penalty: what a wrong submission costs, in rows.
            patience: wrong submissions that end the episode; None: they never do.
            actions: what is offered; None: click and type, and on levels with a sheet keys and scroll.
            max_turns: actions per episode; None: half as many again as are needed, and one.

        Raises:
            ConfigError: an option does not fit, or there is no browser.
        """
        if level not in LEVELS:
            raise ConfigError(f"data_entry: level must be one of {list(LEVELS)}, got {level!r}")
        base = LEVELS[level]
        self._fields = _checked_fields(base.fields if fields is None else fields, base.slip)
        self._rows = base.rows if rows is None else rows
        self._listed = max(base.listed, self._rows) if listed is None else listed
        most = min(1000, distinct_rows(self._fields))
        if not 1 <= self._rows <= self._listed <= most:
            raise ConfigError(f"data_entry: expected 1 <= rows <= listed <= {most}, got {self._rows}, {self._listed}")
        if base.slip and min(width or base.size[0], height or base.size[1]) < SMALLEST_SLIP:
            raise ConfigError(f"data_entry: a page with a slip has at least {SMALLEST_SLIP} pixels a side")
        if not penalty >= 0 or (patience is not None and patience < 1):
            raise ConfigError(f"data_entry: penalty is at least 0 and patience 1, got {penalty!r} and {patience!r}")
        needed = 2 * len(self._fields) * self._rows
        super().__init__(
            config,
            width=base.size[0] if width is None else width,
            height=base.size[1] if height is None else height,
            zoom=zoom,
            image_size=image_size,
            image_format=image_format,
            quality=quality,
            actions=_OFFERED[base.slip] if actions is None else actions,
            coordinates=coordinates,
            say_target=say_target,
            marks=marks,
            tree=tree,
            max_turns=needed + needed // 2 + 1 if max_turns is None else max_turns,
        )
        self.level, self._slip, self._told = level, base.slip, tell
        self._penalty, self._patience = penalty, patience
        self._sheet: list[dict[str, str]] = []
        self._progress = Progress()
        self._counted = 0
        self._gained = 0.0

    def prepare(self, rng: random.Random, task: Task | None) -> None:
        self._sheet = draw_rows(rng, self._fields, self._listed)
        self._progress, self._counted = Progress(), 0
        labels = {name: LABELS[name] for name in self._fields}
        places = _places(rng, *self._frame.page) if self._slip else None
        self.html = render_page({"labels": labels, "rows": self._sheet, "places": places})
        self.goal = self._instruction()

    def outcome(self, state: State) -> bool | None:
        if len(self._progress.done) >= self._rows:
            return True
        spent = self._patience is not None and self._progress.num_incorrect_submissions >= self._patience
        return False if spent else None

    def reward(self, before: State, now: State) -> float:
        return self._gained / self._rows

    def record(self, state: State) -> dict[str, Any]:
        """Counts what was sent since the last look; the progress."""
        rows, wrong = len(self._progress.done), self._progress.num_incorrect_submissions
        for sent in state["sent"][self._counted :]:
            self._progress.add(sent, self._sheet)
        self._counted = len(state["sent"])
        new = min(len(self._progress.done), self._rows) - min(rows, self._rows)
        self._gained = new - self._penalty * (self._progress.num_incorrect_submissions - wrong)
        return {"progress": self.progress()}

    def progress(self) -> dict[str, Any]:
        """`submitted_row_indices` and `num_incorrect_submissions` of this episode."""
        return self._progress.as_json()

    def tasks(self) -> list[Task]:
        """One: this level."""
        kind = "slip" if self._slip else "sheet"
        return [Task(f"data_entry/level-{self.level}", "data_entry", tags=("browser", "click", "type", kind))]

    def expert_action(self) -> Action | None:
        """The next thing a careful clerk would do; None: the rows are done."""
        done = self._progress.done
        if len(done) >= self._rows or not self._state:
            return None
        # A slip shows the next row after every submission, right or wrong.
        next_row = self._counted % self._listed if self._slip else min(set(range(self._listed)) - done)
        for entry in self._state["fields"]:
            name, wanted = entry["name"], self._sheet[next_row][entry["name"]]
            if entry["value"] == wanted:
                continue
            if not entry["focused"]:
                x, y = entry["at"]
                return self.act_at(x, y, WORDS[name])
            if not entry["value"] or entry["selected"]:
                return self.act(Type(wanted))
            if "keys" in self.space.names:
                return self.act(Keys(("ctrl", "a")))
            break  # no way to mend it: sending it clears the form
        x, y = self._state["button"]
        return self.act_at(x, y, "button")

    def _instruction(self) -> str:
        if self._slip and self._told:
            values = ", then ".join(row[self._fields[0]] for row in self._sheet[: self._rows])
            return f"type {values} and submit"
        if self._slip:
            return "type the code and submit" if self._rows == 1 else f"type and submit {self._rows} codes"
        rows = "any row" if self._rows == 1 else f"{self._rows} different rows"
        goal = f"Copy {rows} of the sheet into the form and submit each."
        if not self._told:
            return goal
        lines = (", ".join(f"{LABELS[name]} {value}" for name, value in row.items()) for row in self._sheet)
        return goal + "\n" + "\n".join(list(lines)[: self._rows])


def _checked_fields(fields: Sequence[str], slip: bool) -> tuple[str, ...]:
    for name in fields:
        if name not in LABELS:
            raise ConfigError(f"data_entry: no field {name!r}; {did_you_mean(str(name), LABELS)}")
    ordered = tuple(name for name in LABELS if name in fields)
    if len(ordered) != len(fields) or not ordered or (slip and len(ordered) != 1):
        raise ConfigError(f"data_entry: fields are different and at least one, on a slip exactly one; got {fields!r}")
    return ordered


def _places(rng: random.Random, width: int, height: int) -> dict[str, list[int]]:
    """Boxes (left, top, width, height) of slip, field and button: slip and field above or below the button."""
    unit_x, unit_y = width // 14, height // 14
    button_top = rng.random() < 0.5
    upper = height // 2 if button_top else unit_y
    row = rng.randrange(unit_y, height // 2 - 5 * unit_y) if button_top else height // 2 + rng.randrange(2 * unit_y)
    slip_left = rng.randrange(unit_x, 3 * unit_x)
    slide = rng.randrange(2 * unit_y)
    return {
        "slip": [slip_left, upper + slide, 4 * unit_x, 4 * unit_y],
        "field": [slip_left + 5 * unit_x, upper + slide, 5 * unit_x, 4 * unit_y],
        "button": [rng.randrange(unit_x, width - 8 * unit_x), row, 7 * unit_x, 4 * unit_y],
    }
