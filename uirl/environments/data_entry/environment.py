"""`DataEntryEnvironment`: copy rows of a sheet into a form, from one digit on a slip to a hundred contacts."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any

from uirl.environments.browser.web import State, WebEnvironment
from uirl.environments.data_entry.options import DataEntryOptions
from uirl.environments.data_entry.rows import LABELS, Progress, draw_rows
from uirl.environments.options import OptionsLike
from uirl.environments.ui.vocabulary import Keys, Type
from uirl.runtime.assets import read_asset
from uirl.types import Action, Task

_PAGE = read_asset(__file__, "page.html")
"""A sheet (or a slip with the value to copy) and a form. Its scripts know no score."""
STATE = read_asset(__file__, "state.js")
"""What was sent, and where the hand of a demonstrator must go."""
WATCH = """const sent = [];
addEventListener('submit', event => {
  if (event.isTrusted && event.target.tagName === 'FORM')
    sent.push(Object.fromEntries([...event.target.querySelectorAll('input')].map(e => [e.name, e.value])));
}, true);"""
"""Runs apart from the page: what every submission held, at the moment it was made."""
_OFFERED = {True: ("click", "type"), False: ("click", "type", "keys", "scroll")}
"""Whether there is a slip -> the actions."""
WORDS = {"code": "field", "first": "first", "last": "last", "email": "email"}
"""Field -> the word for it before the coordinates of a click."""


class DataEntryEnvironment(WebEnvironment):
    """A sheet at the left, a form at the right: copy `rows` different rows, one at a time, and submit each.

    A submission that equals any row of the sheet in all fields counts for that row; any other is wrong. An action is
    worth `(new rows - penalty * wrong submissions) / rows`, so a flawless episode sums to 1; sending a row again is
    worth nothing. The episode ends with the last row, after `max_wrong_submissions`, or with the turns. The rows
    are compared here, from what the form held when it was sent: the page knows no score.
    """

    state, watch = STATE, WATCH
    keeps_page = True

    options_class = DataEntryOptions
    options: DataEntryOptions

    def __init__(self, config: Any = None, options: OptionsLike = None, **keys: Any) -> None:
        """Create an environment that opens its page at the first reset. Options: see `DataEntryOptions`.

        Raises ConfigError where an option does not fit, or there is no browser.
        """
        chosen = DataEntryOptions.from_arguments(options, keys)
        level = chosen.base
        needed = 2 * len(chosen.columns) * chosen.wanted
        self.page_size, self.actions, self.max_turns = level.size, _OFFERED[level.slip], needed + needed // 2 + 1
        super().__init__(config, chosen)
        self.level, self._slip = chosen.level, level.slip
        self._fields, self._rows, self._listed = chosen.columns, chosen.wanted, chosen.shown
        self._sheet: list[dict[str, str]] = []
        self._progress = Progress()
        self._counted = 0
        self._gained = 0.0

    def prepare(self, rng: random.Random, task: Task | None) -> None:
        self._sheet = draw_rows(rng, self._fields, self._listed)
        self._progress, self._counted = Progress(), 0
        labels = {name: LABELS[name] for name in self._fields}
        places = _places(rng, *self._viewport.page) if self._slip else None
        self.html = render_page({"labels": labels, "rows": self._sheet, "places": places})
        self.goal = self._instruction()

    def outcome(self, state: State) -> bool | None:
        if len(self._progress.done) >= self._rows:
            return True
        limit = self.options.max_wrong_submissions
        return False if limit is not None and self._progress.num_incorrect_submissions >= limit else None

    def reward(self, before: State, now: State) -> float:
        return self._gained / self._rows

    def record(self, state: State) -> dict[str, Any]:
        """Count what was sent since the last call; return the progress."""
        rows, wrong = len(self._progress.done), self._progress.num_incorrect_submissions
        for sent in state["sent"][self._counted :]:
            self._progress.add(sent, self._sheet)
        self._counted = len(state["sent"])
        new = min(len(self._progress.done), self._rows) - min(rows, self._rows)
        self._gained = new - self.options.penalty * (self._progress.num_incorrect_submissions - wrong)
        return {"progress": self.progress()}

    def progress(self) -> dict[str, Any]:
        """Return `submitted_row_indices` and `num_incorrect_submissions` of this episode."""
        return self._progress.as_json()

    def tasks(self) -> list[Task]:
        """Return one task: this level."""
        kind = "slip" if self._slip else "sheet"
        return [Task(f"data_entry/level-{self.level}", "data_entry", tags=("browser", "click", "type", kind))]

    def expert_action(self) -> Action | None:
        """Return the next action of a careful clerk; None: the rows are done."""
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
        if self._slip and self.options.tell:
            values = ", then ".join(row[self._fields[0]] for row in self._sheet[: self._rows])
            return f"type {values} and submit"
        if self._slip:
            return "type the code and submit" if self._rows == 1 else f"type and submit {self._rows} codes"
        rows = "any row" if self._rows == 1 else f"{self._rows} different rows"
        goal = f"Copy {rows} of the sheet into the form and submit each."
        if not self.options.tell:
            return goal
        lines = (", ".join(f"{LABELS[name]} {value}" for name, value in row.items()) for row in self._sheet)
        return goal + "\n" + "\n".join(list(lines)[: self._rows])


def render_page(task: Mapping[str, Any]) -> str:
    """Return the page as HTML. `task`: `labels` (field -> words), `rows`, `places` of slip, field, button, or None."""
    # Inside a script element '<' could end it.
    return _PAGE.replace("__TASK__", json.dumps(task).replace("<", "\\u003c"))


def _places(rng: random.Random, width: int, height: int) -> dict[str, list[int]]:
    """Return boxes (left, top, width, height) of slip, field and button: slip and field above or below the button."""
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
