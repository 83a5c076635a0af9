"""A date picker as a task of one's own: a page with a calendar, 'previous' and 'next', and a date that is asked for.

Dates of evaluation are never asked for in training. docs/not_learning.md tells which settings do not learn and why.
"""

from __future__ import annotations

import calendar
import random
from datetime import date, timedelta
from typing import ClassVar, Literal

from pydantic import Field

from uirl.environments import WebEnvironment
from uirl.environments.browser.environment import PageOptions
from uirl.environments.ui.vocabulary import ClickMark
from uirl.types import Action, Task

DATES = [date(2024, 1, 1) + timedelta(days) for days in range(366)]
KEPT = set(random.Random("held out").sample(DATES, 90))  # for evaluation alone
PAGE = """<!doctype html><title>none</title>
<style>
  body { margin: 0; font: 12px sans-serif }
  button { border: 1px solid #ccc; background: white; padding: 0; font: inherit }
  #bar { display: flex; justify-content: space-between; line-height: 22px }
  #bar button { width: 34px }
  #days { display: grid; grid-template-columns: repeat(7, 24px); grid-auto-rows: 22px }
</style>
<div id=bar><button id=previous>prev</button><b id=shown></b><button id=next>next</button></div>
<div id=days></div>
<script>
  let at = new Date(START);
  const name = d => d.toLocaleString('en', {month: 'long', year: 'numeric'});
  const draw = () => {
    shown.textContent = name(at);
    days.replaceChildren();
    const last = new Date(at.getFullYear(), at.getMonth() + 1, 0).getDate();
    for (let n = 1; n <= last; n++) {
      const day = document.createElement('button');
      day.id = 'd' + n; day.textContent = n;
      if (n === 1) day.style.gridColumnStart = (at.getDay() + 6) % 7 + 1;
      day.onclick = () => { document.title = n + ' ' + name(at); };
      days.append(day);
    }
  };
  previous.onclick = () => { at.setMonth(at.getMonth() - 1); draw(); };
  next.onclick = () => { at.setMonth(at.getMonth() + 1); draw(); };
  draw();
</script>"""


class DateOptions(PageOptions):
    """A calendar, and a date that is asked for."""

    key = "date_picker"

    dates: Literal["training", "held_out"] = "training"
    """Which dates are asked for."""
    months: int = Field(2, ge=0, le=6)
    """The month shown first is up to so many away from the one asked for."""
    error_rate: float = Field(0.5, ge=0, le=1)
    """How often the demonstrator takes any day in place of the right one."""
    reads_aloud: bool = False
    """With `say_target`: the demonstrator says the month shown and the one asked for before what it clicks."""


class DatePicker(WebEnvironment):
    """Choose a date in a calendar; the first day that is clicked ends the episode."""

    options_class = DateOptions
    options: DateOptions
    page_size = (168, 156)
    actions = ("click",)
    max_turns = 5
    demonstrator_may_fail = True
    keeps_page = True  # the page stores nothing
    state = "({shown: document.querySelector('#shown').textContent, chosen: document.title})"
    targets: ClassVar = {"previous": "#previous", "next": "#next", **{str(n): f"#d{n}" for n in range(1, 32)}}

    def prepare(self, rng: random.Random, task: Task | None) -> None:
        held_out = self.options.dates == "held_out"
        self.wanted = rng.choice([day for day in DATES if (day in KEPT) == held_out])
        far = rng.randint(0, self.options.months)
        year, month = divmod(2024 * 12 + self.wanted.month - 1 + rng.choice([-far, far]), 12)
        self.html = PAGE.replace("START", f"{year}, {month}, 1")
        self.goal = f"choose {self.wanted.day} {calendar.month_name[self.wanted.month]} 2024"
        self.day = rng.randint(1, 28) if rng.random() < self.options.error_rate else self.wanted.day

    def outcome(self, state):
        return None if state["chosen"] == "none" else f"choose {state['chosen']}" == self.goal

    def expert_action(self) -> Action | None:
        month, year = self.page_state["shown"].split()
        away = (int(year) - 2024) * 12 + list(calendar.month_name).index(month) - self.wanted.month
        button = str(self.day) if away == 0 else "previous" if away > 0 else "next"
        said = f"{month}, {self.goal.split()[2]}: {button}" if self.options.reads_aloud else button
        if self.space.marks:
            return self.act(ClickMark(list(self.targets).index(button) + 1), target=said)
        return self.click_on(button)
