"""`AppsEnvironment`: tasks in a real web application, checked by the difference of its whole store."""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from uirl.environments.apps.host import HEADER
from uirl.environments.apps.options import AppsOptions
from uirl.environments.apps.process import Server, shared_server
from uirl.environments.apps.schema import App, read_app
from uirl.environments.apps.store import Difference, Rows, Store, difference, filled
from uirl.environments.apps.tasks import (
    Kind,
    Problem,
    Step,
    draw_rows,
    is_answer,
    is_held_out,
    kinds_of,
    make_problem,
    shown_value,
)
from uirl.environments.browser.page import Page
from uirl.environments.browser.web import State, WebEnvironment
from uirl.environments.options import OptionsLike
from uirl.environments.ui.vocabulary import Answer, Click, ClickMark, Fill, Scroll, Select
from uirl.errors import ConfigError, EnvironmentFailure, StorageError, did_you_mean
from uirl.runtime.assets import read_asset
from uirl.types import Action, Observation, Task

_LOG = logging.getLogger(__name__)
_STATE = read_asset(__file__, "state.js")


@dataclass
class _Session:
    """One episode's place in the app."""

    server: Server
    folder: Path

    def __post_init__(self) -> None:
        self.store = Store(self.server.app, self.folder / self.server.app.store)


class AppsEnvironment(WebEnvironment):
    """A real web application with a store of its own: add, change, remove and find records.

    The episode ends with success when the store differs from what it was by exactly what is wanted, whatever the way;
    a question is answered with `answer`, and the store is as it was. It ends without where the policy answers or
    terminates before. The store is read outside of the app. An episode has a store and a process of its own.
    """

    page_size = (960, 720)
    actions = ("click", "fill", "select", "type", "keys", "scroll", "back", "goto", "answer", "terminate")
    max_turns = 40

    options_class = AppsOptions
    options: AppsOptions

    _session: _Session | None = None
    _before: Rows = {}  # noqa: RUF012 (replaced, never changed)
    _begins_with = b""
    _problem = Problem("", Difference())
    _made: Difference | None = Difference()
    """What was done to the store; None: it cannot be read any more."""

    def __init__(self, config: Any = None, options: OptionsLike = None, **keys: Any) -> None:
        """Create an environment that starts its app at the first reset. Options: see `AppsOptions`.

        Raises ConfigError where an option does not fit, or there is no browser.
        """
        super().__init__(config, options, **keys)
        self.app, _ = read_app(self.options.app)
        self._kinds = _chosen(self.app, self.options)

    async def reset(self, task: Task | None = None, seed: int | None = None) -> Observation:
        """Return the goal and the first page of a new episode; the app is started where it does not run."""
        server = await asyncio.to_thread(shared_server, self.options.app)
        self.url = server.address + self.app.start
        return await super().reset(task, seed)

    def prepare(self, rng: random.Random, task: Task | None) -> None:
        kind = self._kind_of(task, rng)
        inserts = draw_rows(self.app, rng) if self.app.rows else {}
        self._begins_with, self._before = filled(self.app, shared_server(self.options.app).template, inserts)
        self._problem = make_problem(self.app, self._before, kind, rng)
        self._made, self.goal = Difference(), self._problem.goal
        self._read_page()

    async def begin(self, page: Page, task: Task | None, seed: int) -> str:
        server = shared_server(self.options.app)
        self._end_session()
        self._session = _Session(server, server.new_session(self._begins_with))
        cookies: Any = [{"name": n, "value": v, "url": self.url} for n, v in server.cookies.items()]
        name = {HEADER: self._session.folder.name}
        await page.first.run(lambda: page.context.add_cookies(cookies), "signing in")
        await page.first.run(lambda: page.context.set_extra_http_headers(name), "naming the session")
        try:
            goal = await super().begin(page, task, seed)
            await page.settle(drawn=True)  # the first picture is that of a page at rest
            return goal
        except EnvironmentFailure as error:
            raise EnvironmentFailure(f"{error}; the app wrote: {server.told(self._session.folder)}") from error

    def record(self, state: State) -> Mapping[str, Any]:
        """Compare the store with what it was; return the size of the difference."""
        assert self._session is not None
        try:
            self._made = difference(self._before, self._session.store.rows())
        except StorageError as error:  # the policy alone has used the app
            _LOG.warning("an action made the store of an app unreadable: %s", error)
            self._made = None
        self._read_page()
        made = self._made or Difference()
        return {"added": len(made.added), "removed": len(made.removed), "changed": len(made.changed)}

    def outcome(self, state: State) -> bool | None:
        if self._made is None:
            return False
        right = self._made.equals(self._problem.wanted)
        if self._problem.answer is None:
            return True if right else None
        return right and is_answer(self._problem.answer, self.answer) if self.answer is not None else None

    def tasks(self) -> list[Task]:
        """Return the tasks of the split, named 'apps/<app>/<entity>/<template>/<fields>', with their tags."""
        return [Task(self._id(kind), "apps", tags=_tags(kind)) for kind in self._kinds]

    def spawn(self) -> Self:
        held, self._session = self._session, None
        try:
            return super().spawn()
        finally:
            self._session = held

    async def close(self) -> None:  # type: ignore[override]
        self._end_session()
        await super().close()

    @property
    def has_demonstrator(self) -> bool:
        """Whether the app says where its pages are."""
        return bool(self.app.pages.list)

    def expert_action(self) -> Action | None:
        """Return what somebody who knows the app does next; None: nothing is left, or nobody knows."""
        if not self.has_demonstrator or not self._state or self._made is None:
            return None
        step = self._next_step()
        if step is None:
            return None
        seen = self._state
        page = self._page_of(step)
        if seen["path"] != page:
            return self._go(step, page)
        if step is self._problem.about:
            return self.act(Answer(self._problem.answer or ""))
        for one, wanted in step.values.items():
            field = seen["fields"].get(one)
            if field is None:
                return None
            if field["box"]:
                if field["value"] != (wanted == "yes"):
                    return self._use(field["at"], Click)
            elif field["value"] != wanted:
                return self._use(field["at"], Select if field["list"] else Fill, wanted)
        return None if seen["submit"] is None else self._use(seen["submit"], Click)

    # -- what the demonstrator does ----------------------------------------------------------------------------------

    def _next_step(self) -> Step | None:
        """Return the first step whose part of the difference is not there; of a question the place of its answer."""
        made = self._made or Difference()
        added = [row for _, row in made.added]
        for step in self._problem.steps:
            table = self.app.table(step.entity)
            if step.key is None:
                row = next((row for row in added if self._is_of(step, row)), None)
                if row is None:
                    return step
                added.remove(row)
            elif not step.values:
                if (table, step.key) not in made.removed:
                    return step
            elif (table, step.key) not in made.changed:
                return step
        return self._problem.about

    def _is_of(self, step: Step, row: Mapping[str, Any]) -> bool:
        fields = self.app.entities[step.entity].fields
        title = next(iter(fields))
        if title not in step.values or self.app.column(step.entity, title) not in row:
            return False
        value = row[self.app.column(step.entity, title)]
        return shown_value(self.app, self._before, fields[title], value) == step.values[title]

    def _page_of(self, step: Step) -> str:
        if step is self._problem.about:
            return self.app.page("list" if step.key is None else "edit", step.entity, step.key)
        kind = "add" if step.key is None else "edit" if step.values else "delete"
        return self.app.page(kind, step.entity, step.key)

    def _pages(self, step: Step) -> list[str]:
        """Return the pages on the way to that of a step, the nearest first."""
        pages = [self._page_of(step)]
        if step.key is not None:
            pages.append(self.app.page("edit", step.entity, step.key))
        return [*pages, self.app.page("list", step.entity), self.app.pages.home]

    def _go(self, step: Step, page: str) -> Action | None:
        for path in self._pages(step):
            place = self._state["links"].get(path)
            if place is not None and self._state["path"] != path:
                return self._use(place, Click)
        return None

    def _use(self, place: Sequence[float], kind: type[Click | Fill | Select], value: str = "") -> Action:
        """Return an action on what is at a place of the window; where that is out of the picture, it is scrolled to."""
        x, y = place
        pixel = self._viewport.in_picture(x, y)
        if pixel is None:
            middle = self.picture_size[0] // 2, self.picture_size[1] // 2
            away = y - self._viewport.page[1] / 2
            return self.act(Scroll("down" if away > 0 else "up", max(1, min(10, round(abs(away) / 53))), *middle))
        mark = self._mark_at(x, y) if self.space.marks else None
        if kind is Click:
            return self.act(Click(*pixel) if mark is None else ClickMark(mark))
        on = (*pixel, None) if mark is None else (None, None, mark)
        return self.act(Fill(*on, value) if kind is Fill else Select(*on, (value,)))

    def _mark_at(self, x: float, y: float) -> int | None:
        """Return the number of the smallest thing there that has one."""
        areas = {
            number: (thing.mark[2] - thing.mark[0]) * (thing.mark[3] - thing.mark[1])
            for number, thing in enumerate(self._named, start=1)
            if thing.mark and thing.mark[0] <= x <= thing.mark[2] and thing.mark[1] <= y <= thing.mark[3]
        }
        return min(areas, key=areas.__getitem__, default=None)

    def _read_page(self) -> None:
        """Say what of the page is read: the links on the demonstrator's way, and the form."""
        step = self._next_step() if self.has_demonstrator else None
        wanted = {"links": [] if step is None else self._pages(step), "submit": self.app.pages.submit}
        self.state = _STATE.replace("WANTED", json.dumps(wanted))

    # -- which task --------------------------------------------------------------------------------------------------

    def _id(self, kind: Kind) -> str:
        return f"apps/{Path(self.options.app).name}/{kind.id}"

    def _kind_of(self, task: Task | None, rng: random.Random) -> Kind:
        if task is None or not task.id.startswith("apps/"):
            return rng.choice(self._kinds)
        known = {self._id(kind): kind for kind in kinds_of(self.app)}
        if task.id not in known:
            raise ConfigError(f"apps: no task {task.id!r}; {did_you_mean(task.id, known)}")
        return known[task.id]

    def _end_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.server.end_session(session.folder)


def _tags(kind: Kind) -> tuple[str, ...]:
    return ("browser", kind.entity.split(".")[0], kind.entity, kind.template)


def _chosen(app: App, options: AppsOptions) -> list[Kind]:
    kinds = kinds_of(app)
    known = {tag for kind in kinds for tag in _tags(kind)}
    for tag in options.tags:
        if tag not in known:
            raise ConfigError(f"apps: no task has the tag {tag!r}; {did_you_mean(tag, known)}")
    chosen = [
        kind
        for kind in kinds
        if set(options.tags) <= set(_tags(kind))
        and options.split in ("all", "test" if is_held_out(app, kind) else "train")
    ]
    if not chosen:
        raise ConfigError(
            f"apps: none of the tasks of the split {options.split!r} has all the tags {', '.join(options.tags)}"
        )
    return chosen
