"""Which tasks of a suite a run takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from urllib.parse import urlencode

from uirl.environments.mobile_world.options import MobileWorldOptions
from uirl.environments.mobile_world.server import SWITCH, TASKS, PhoneTask, read_tasks
from uirl.environments.remote.client.http import EnvironmentClient
from uirl.errors import ConfigError, EnvironmentFailure

NEEDS_USER = "agent-user-interaction"
NEEDS_TOOLS = "agent-mcp"


@dataclass(frozen=True, slots=True)
class Choice:
    """Which tasks are taken: what the options name, as far as its servers of tools are there."""

    options: MobileWorldOptions
    tool_servers: frozenset[str] = frozenset()
    """The servers of tools there are: a task that needs another is not taken."""

    def takes(self, task: PhoneTask) -> bool:
        """Return whether a task is taken; an option that is empty leaves none out."""
        options = self.options
        return (
            (not options.task_names or task.name in options.task_names)
            and set(options.tags) <= set(task.tags)
            and not set(options.without_tags) & set(task.tags)
            and (not options.apps or task.phone_apps <= set(options.apps))
            and set(task.tool_servers) <= self.tool_servers
            and (NEEDS_TOOLS not in task.tags or bool(task.tool_servers))
            and (options.ask_user or NEEDS_USER not in task.tags)
        )

    def of(self, tasks: Iterable[PhoneTask]) -> list[PhoneTask]:
        """Return the tasks that are taken. Raises ConfigError where none is, or a named one is not."""
        listed, options = list(tasks), self.options
        taken = [task for task in listed if self.takes(task)]
        missing = sorted(set(options.task_names) - {task.name for task in taken})
        if missing or not taken:
            what = f"{missing[0]!r} is not among them" if missing else "none is left"
            raise ConfigError(
                f"of the {len(listed)} tasks of the server {what}, with tags={list(options.tags)}, without_tags="
                f"{list(options.without_tags)}, apps={list(options.apps)}, tools of {sorted(self.tool_servers)} and "
                f"ask_user={options.ask_user}; a task tagged {NEEDS_TOOLS} needs every server of tools that it names "
                "(option mcp)"
            )
        return taken


def ask_any(client: EnvironmentClient, urls: Sequence[str], options: MobileWorldOptions) -> list[PhoneTask]:
    """Return the tasks of the suite, of the first server that has it and lists them; waits for it, event loop or not.

    A switch to the suite may restart an emulator and has `restart_timeout` for it. Raises EnvironmentFailure.
    """
    switch = f"{SWITCH}?{urlencode(options.suite_query)}"
    problems = []
    for url in urls:
        try:
            client.first_answer([url], switch, dict, f"no suite {options.suite}", "", {}, options.restart_timeout)
            return client.first_answer([url], TASKS, partial(read_tasks, url=url), "no list", "")
        except EnvironmentFailure as failure:
            problems.append(str(failure))
    raise EnvironmentFailure(
        f"no MobileWorld server lists its tasks: {'; '.join(problems)}. Do the containers run, and is 6800 the port?"
    )
