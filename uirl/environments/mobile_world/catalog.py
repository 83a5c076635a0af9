"""The tasks of a suite, and which of them a run takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from uirl.environments.mobile_world.server import SWITCH, Suite
from uirl.environments.remote.client.http import EnvironmentClient
from uirl.errors import ConfigError, EnvironmentFailure
from uirl.runtime.limits import shown
from uirl.types import Task

NEEDS_USER = "agent-user-interaction"
NEEDS_TOOLS = "agent-mcp"
_TOOLS_OF = "MCP-"


@dataclass(frozen=True, slots=True)
class PhoneTask:
    """One task as the server lists it."""

    name: str
    tags: tuple[str, ...] = ()
    apps: tuple[str, ...] = ()
    """Names of apps, and `MCP-<name>` for every server of tools."""

    @property
    def tool_servers(self) -> tuple[str, ...]:
        """Names of the servers of tools that the task needs, in small letters."""
        return tuple(app[len(_TOOLS_OF) :].lower() for app in self.apps if app.startswith(_TOOLS_OF))

    def as_task(self, environment: str = "mobile_world") -> Task:
        """The task for a run: its tags, then its apps as `app:<name>`."""
        return Task(self.name, environment, tags=(*self.tags, *(f"app:{app}" for app in self.apps)))


@dataclass(frozen=True, slots=True)
class Choice:
    """Which tasks are taken; empty fields choose nothing out."""

    names: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    """A task has all of them."""
    without_tags: tuple[str, ...] = ()
    """A task has none of them."""
    apps: tuple[str, ...] = ()
    """A task uses no others; servers of tools do not count."""
    tool_servers: frozenset[str] = frozenset()
    """The servers of tools there are: a task that needs another is not taken."""
    ask_user: bool = True
    """False: a task that needs an answer of its user is not taken."""

    def takes(self, task: PhoneTask) -> bool:
        own = {app for app in task.apps if not app.startswith(_TOOLS_OF)}
        return (
            (not self.names or task.name in self.names)
            and set(self.tags) <= set(task.tags)
            and not set(self.without_tags) & set(task.tags)
            and (not self.apps or own <= set(self.apps))
            and set(task.tool_servers) <= self.tool_servers
            and (NEEDS_TOOLS not in task.tags or bool(task.tool_servers))
            and (self.ask_user or NEEDS_USER not in task.tags)
        )

    def of(self, tasks: Iterable[PhoneTask]) -> list[PhoneTask]:
        """The tasks that are taken. Raises ConfigError where none is, or a named one is not."""
        known = list(tasks)
        taken = [task for task in known if self.takes(task)]
        missing = sorted(set(self.names) - {task.name for task in taken})
        if missing or not taken:
            what = f"{missing[0]!r} is not among them" if missing else "none is left"
            raise ConfigError(
                f"of the {len(known)} tasks of the server {what}, with tags={list(self.tags)}, without_tags="
                f"{list(self.without_tags)}, apps={list(self.apps)}, tools of {sorted(self.tool_servers)} and ask_user="
                f"{self.ask_user}; a task tagged {NEEDS_TOOLS} needs every server of tools that it names (option mcp)"
            )
        return taken


def read_list(said: Any, where: str) -> list[PhoneTask]:
    """The tasks of what a server listed. Raises EnvironmentFailure for what is no list of tasks."""
    if not isinstance(said, list) or not said:
        raise EnvironmentFailure(f"{where} answered {shown(said, 80)}; expected a list of tasks")
    return [_read(item, where) for item in said]


def ask_any(client: EnvironmentClient, urls: Sequence[str], suite: Suite, timeout: float) -> list[PhoneTask]:
    """The tasks of the suite, of the first server that has it and lists them; waits for it, event loop or not.

    `timeout`: seconds of a switch to the suite, which may restart an emulator. Raises EnvironmentFailure.
    """
    path, problem = "/task/list", "no MobileWorld server lists its tasks"
    remedy = "Do the containers run, and is 6800 the port?"
    switch = f"{SWITCH}?{urlencode(suite.question)}"
    said = []
    for url in urls:
        try:
            client.first_answer([url], switch, dict, f"no suite {suite.family}", "", {}, timeout)
            return client.first_answer([url], path, lambda said: read_list(said, path), "no list", "")
        except EnvironmentFailure as failure:
            said.append(str(failure))
    raise EnvironmentFailure(f"{problem}: {'; '.join(said)}. {remedy}")


def _read(item: Any, where: str) -> PhoneTask:
    name = item.get("name") if isinstance(item, dict) else None
    if not isinstance(name, str) or not name:
        raise EnvironmentFailure(f"{where} lists {shown(item, 80)}; expected a task with a name")
    return PhoneTask(name, _words(item, "tags", where), _words(item, "apps", where))


def _words(item: dict[str, Any], key: str, where: str) -> tuple[str, ...]:
    value = item.get(key) or ()
    if not isinstance(value, (list, tuple)) or not all(isinstance(word, str) for word in value):
        raise EnvironmentFailure(f"{where}: {key} of {shown(item['name'])} is {shown(value)}; expected words")
    return tuple(value)
