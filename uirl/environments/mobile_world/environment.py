"""`MobileWorldEnvironment`: Android phones behind MobileWorld servers, one phone and one episode per server."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import random
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlencode

from uirl.environments.mobile_world import mai_ui
from uirl.environments.mobile_world.actions import (
    ACTIONS,
    APPS,
    Answer,
    AskUser,
    OpenApp,
    PhoneAction,
    PhoneSpace,
    Swipe,
    Terminate,
    UseTool,
    command,
)
from uirl.environments.mobile_world.options import MobileWorldOptions
from uirl.environments.mobile_world.server import SWITCH, TASKS, PhoneServer, PhoneTask, Score, read_tasks
from uirl.environments.options import OptionsLike
from uirl.environments.remote.client.base import (
    EnvironmentClient,
    NoAnswer,
    Refused,
    RemoteEnvironment,
    Server,
    ServerLost,
)
from uirl.errors import ConfigError, EnvironmentFailure, RolloutFailure, did_you_mean
from uirl.images import Screenshot
from uirl.tools import MCPServer, Tool, ToolRegistry
from uirl.types import Action, Observation, StepResult, Task


def notes_of(score: Score, meant: PhoneAction | mai_ui.Instead | str | None, over: bool) -> dict[str, Any]:
    """Return the info of the last observation.

    `meant`: the last action, None where the run ended the episode; `over`: that action ended it, and not a limit.
    """
    reason = score.reason if isinstance(score.reason, str) else ""
    info: dict[str, Any] = {"success": score.success, "score": score.score, "reason": reason}
    if isinstance(meant, Terminate):
        info["claimed"] = meant.status
    elif isinstance(meant, mai_ui.Unknown):
        info["unknown"] = meant.why
    elif not over and meant is not None:
        info["out_of_turns"] = True
    return info


@dataclass(slots=True)
class ServerState:
    """What all instances know of the servers."""

    tasks: list[PhoneTask] | None = None
    prepared: set[Server] = field(default_factory=set)
    """Servers that have their suite and their device."""


@dataclass(slots=True)
class Episode:
    """One task on one phone."""

    phone: PhoneServer
    task: PhoneTask
    tools: ToolRegistry
    goal: str = ""
    begun: bool = False
    """The task may be set up, and is to be torn down."""
    screenshot: Screenshot | None = None
    """The screen as the policy last saw it, in full size."""


_ROLE = (
    "You hold an Android phone and carry out what its owner asks. You are shown the screen; reply with your plan and "
    "with exactly one action, look at what became of it, and go on until the task is done."
)
_REPLY = """\
<thinking>
what the screen shows, what is still to do, and what the next action is for
</thinking>
<tool_call>
{"name":"mobile_use","arguments":{"action":"click","coordinate":[500,250]}}
</tool_call>"""
_PLACES = (
    "A place is [x,y]: both from 0 to 999, whatever the size of the screen, x from left to right, y from top to bottom."
)
_ACTIONS: dict[str, tuple[Mapping[str, Any], str]] = {
    "click": ({"coordinate": [500, 250]}, "taps there"),
    "long_press": ({"coordinate": [500, 250]}, "keeps a finger there for a second"),
    "double_click": ({"coordinate": [500, 250]}, "taps there twice"),
    "type": ({"text": "hello"}, "types into the field that has the focus; tap on the field first"),
    "swipe": (
        {"direction": "up"},
        "moves a finger up, down, left or right; up shows what is further down. Swipes to a side may begin at a "
        '"coordinate"',
    ),
    "drag": (
        {"start_coordinate": [500, 700], "end_coordinate": [500, 300]},
        "holds the one place and drags to the other",
    ),
    "open": ({"text": "Settings"}, "opens an app by its name"),
    "system_button": ({"button": "back"}, "presses back, home or enter"),
    "wait": ({}, "waits a second"),
    "ask_user": ({"text": "Which Anna do you mean?"}, "asks the owner; the reply is text"),
    "answer": ({"text": "It is 7:45."}, "gives the answer that the task asks for, and ends it"),
    "terminate": ({"status": "success"}, "ends the task: success, or fail where it cannot be done"),
}
_RULES = (
    "Where the task asks a question, end with answer; otherwise with terminate.",
    "An action that was refused changes nothing on the phone: read why, and do better.",
)


def system_prompt(names: Sequence[str], apps: Sequence[str], tools: Sequence[Mapping[str, Any]]) -> str:
    """Return the prompt for the actions `names` and the `tools` of a task, as JSON schemas."""
    parts = [_ROLE, f"# Reply\n{_REPLY}\n{_PLACES}", "# Actions\n" + "\n".join(_line(name) for name in names)]
    if apps:
        parts.append(f"Apps that open by name: {', '.join(apps)}.")
    if tools:
        lines = "\n".join(json.dumps(dict(tool), ensure_ascii=False) for tool in tools)
        parts.append(
            "# Tools\nThese are no part of the phone. Call one in the same way, by its own name "
            '({"name":NAME,"arguments":{...}}); its result is text.\n' + lines
        )
    parts.append("# Rules\n" + "\n".join(f"- {rule}" for rule in _RULES))
    return "\n\n".join(parts)


def _line(name: str) -> str:
    arguments, purpose = _ACTIONS[name]
    return f"{json.dumps({'action': name, **arguments}, separators=(',', ':'))}  {purpose}"


_FIELDS = ("command", "url", "env", "cwd", "headers", "prefix", "connect_timeout", "call_timeout", "token_env")


class ToolServers:
    """Servers of tools by the name that tasks know them under (`MCP-<name>`; upper and lower case are the same).

    Each is an `MCPServer`, the arguments of one as a mapping, or tools and functions. A mapping may name the
    environment variable of a bearer token (`token_env`), so that no token stands in a config.
    """

    def __init__(self, servers: Mapping[str, Any]) -> None:
        if not isinstance(servers, Mapping):
            raise ConfigError(f"mobile_world: mcp maps names to servers of tools, got {servers!r:.80}")
        self._sources = {str(name).lower(): _source(name, value) for name, value in servers.items()}

    @property
    def names(self) -> frozenset[str]:
        """The names of the servers, in lower case."""
        return frozenset(self._sources)

    def registry(self, names: Iterable[str]) -> ToolRegistry:
        """Return new instances of the tools of these servers. Connects where that was not done, and blocks until then.

        Raises EnvironmentFailure where a server does not answer, ConfigError for two tools of one name and for a tool
        with the name of an action.
        """
        registry = ToolRegistry()
        for name in names:
            source = self._sources[name]
            tools = source.start().tools() if isinstance(source, MCPServer) else source
            for tool in tools:
                registered = registry.register(tool.spawn() if isinstance(tool, Tool) else tool)
                if registered.name in ACTIONS:
                    raise ConfigError(
                        f"mcp.{name} has a tool {registered.name!r}, which is an action of the phone; give that server "
                        "a prefix"
                    )
        return registry


def _source(name: Any, value: Any) -> MCPServer | list[Any]:
    if isinstance(value, MCPServer):
        return value
    if isinstance(value, (list, tuple, ToolRegistry)):
        return list(value)
    if not isinstance(value, Mapping):
        raise ConfigError(f"mobile_world: mcp.{name} is {value!r:.80}; expected a mapping with url or command")
    options = dict(value)
    unknown = sorted(set(options) - set(_FIELDS))
    if unknown:
        raise ConfigError(f"mobile_world: mcp.{name} has no option {unknown[0]!r}; expected {', '.join(_FIELDS)}")
    variable = options.pop("token_env", None)
    if variable is not None:
        token = os.environ.get(str(variable), "").strip()
        if not token:
            raise ConfigError(f"mobile_world: mcp.{name} takes its token from {variable}, which is empty")
        options["headers"] = {**options.get("headers", {}), "authorization": f"Bearer {token}"}
    return MCPServer(**options)


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
            problems.append(str(failure).rstrip(" ."))
    raise EnvironmentFailure(
        f"no MobileWorld server lists its tasks: {'; '.join(problems)}. Do the containers run, and is 6800 the port?"
    )


_LOG = logging.getLogger(__name__)
T = TypeVar("T")


class MobileWorldEnvironment(RemoteEnvironment):
    """One task of MobileWorld on a phone: screenshots in, actions in the words of MAI-UI out, the score at the end.

    The score (0 to 1) is the reward of the last action: of `terminate`, of `answer`, or of the one that spends the last
    turn. Nothing is paid before. A reply that cannot be carried out is told to the policy, and reaches no phone; what
    the user or a tool replies comes as text in place of a picture. Whatever breaks is a typed failure. The task is torn
    down in every case, on a failure or a cancellation too, and only then the phone is free for the next episode.

    A server has one phone and plays one task: as many episodes run at a time as there are servers.
    """

    action_format = "mai_ui"
    fixed_start = True  # a task is set up the same way each time
    scored_at_end = True
    _episode: Episode | None = None

    options_class = MobileWorldOptions
    options: MobileWorldOptions
    default_url = "http://127.0.0.1:6800"

    def __init__(self, config: Any = None, options: OptionsLike = None, **keys: Any) -> None:
        """Check the options; no server is asked yet. Raises ConfigError where they do not fit `MobileWorldOptions`.

        In code `mcp` also takes an `MCPServer`, or tools and functions, see `ToolServers`.
        """
        super().__init__(config, options, **keys)
        options = self.options
        self.prompt = options.prompt
        self.max_turns = options.max_turns
        self.tool_servers = ToolServers(options.mcp or {})
        self.choice = Choice(options, self.tool_servers.names)
        self._apps = (*APPS, *options.more_apps)
        self._servers = ServerState()
        self._goal = ""
        self._tear_downs: set[asyncio.Future[None]] = set()
        self._one_call = asyncio.Lock()
        self._forget()

    def _max_sessions(self) -> int | None:
        return 1

    # -- what the environment is -----------------------------------------------------------------------------------

    def tasks(self) -> list[Task]:
        """Return the tasks taken, by name; ask a server the first time. Raises ConfigError where none is left."""
        if self._servers.tasks is None:
            urls = [server.url for server in self.pool.servers]
            self._servers.tasks = ask_any(self.client, urls, self.options)
        return [task.as_task() for task in self.choice.of(self._servers.tasks)]

    def get_prompt_prefix(self) -> str:
        """Return how to use the phone, with the tools of the current task."""
        tools = [tool.definition for tool in self._episode.tools] if self._episode else []
        if self._published:
            return mai_ui.system_prompt(tools, self._apps[len(APPS) :])
        names = PhoneSpace(1, 1, ask_user=self.options.ask_user).names
        return system_prompt(names, self._apps, [tool.schema()["function"] for tool in tools])

    def get_state_description(self) -> str:
        return self._goal

    @property
    def message_style(self) -> str:  # type: ignore[override]
        return "mai_ui" if self._published else "plain"

    @property
    def _published(self) -> bool:
        return self.prompt == "mai_ui"

    def with_prompt(self, prompt: str | None) -> MobileWorldEnvironment:
        """Return an environment on the same phones with this prompt. Raises ConfigError for an unknown prompt."""
        other = self.spawn()
        other.prompt = MobileWorldOptions.from_arguments(self.options, {"prompt": prompt}).prompt
        return other

    def spawn(self) -> MobileWorldEnvironment:
        """Return an environment for another episode on the same phones."""
        other = super().spawn()
        assert isinstance(other, MobileWorldEnvironment)
        other._tear_downs, other._one_call = set(), asyncio.Lock()
        other._goal = ""
        return other

    # -- an episode ------------------------------------------------------------------------------------------------

    async def reset(self, task: Task | None = None, seed: int | None = None) -> Observation:
        """Return the goal and the screen of a task on the next free phone.

        `task` None: one of those that are taken, by `seed`. The goal is the server's, unless the task has its own.
        """
        async with self._one_call:
            self._start_tear_down()
            await self._wait_for_tear_down()
            self._wanted = (task, seed)
            self._turns, self._goal = 0, ""
            await self._lease()
            episode = self._episode
            assert episode is not None and episode.screenshot is not None  # noqa: PT018
            self._goal = episode.goal
            return Observation(episode.goal, (await self._shown(episode.screenshot),), {"task": episode.task.name})

    async def step(self, action: Action) -> StepResult:
        """Return the next screen, the text of a reply, or the end with the score as reward."""
        return await self._holding(self._step(action))

    async def score_now(self) -> tuple[float, dict[str, Any]] | None:
        """Return the score of a task that the run ends here, as after the last turn; None: there is none."""
        return await self._holding(self._score_now())

    async def close(self) -> None:  # type: ignore[override]
        """Tear the task down, where there is one, and give the phone back."""
        async with self._one_call:
            self._start_tear_down()
        await self._wait_for_tear_down()

    async def _holding(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what `work` with the phone returns; where it fails or is cancelled the phone is left."""
        async with self._one_call:
            try:
                return await work
            except RolloutFailure as error:
                self._blame(error)
                self._start_tear_down()
                raise
            except asyncio.CancelledError:
                if self._server is not None:
                    self._given_up(self._server)
                self._start_tear_down()
                raise

    async def _score_now(self) -> tuple[float, dict[str, Any]] | None:
        last = None if self._episode is None else await self._finish(self._episode, None, over=False)
        return None if last is None else (last.reward, dict(last.observation.info))

    async def _step(self, action: Action) -> StepResult:
        episode = self._episode
        if self._server is None or episode is None or episode.screenshot is None:
            raise EnvironmentFailure("mobile_world has no phone; reset it first")
        self._turns += 1
        meant: PhoneAction | mai_ui.Instead | str = self._space(episode.screenshot, episode.tools).read(action)
        if self._published and isinstance(meant, str):
            meant = mai_ui.instead_of(action, meant)
        elif self._published and isinstance(meant, Swipe):
            meant = Swipe(meant.direction)
        over = isinstance(meant, (Answer, Terminate, mai_ui.Unknown))
        reply = await self._perform(episode, meant)
        if not over and not isinstance(meant, (str, AskUser, UseTool)):
            await asyncio.sleep(self.options.step_wait_time)
        if over or self._turns >= (self.max_turns or math.inf):
            return await self._finish(episode, meant, over)
        if reply or isinstance(meant, AskUser):
            return StepResult(Observation(reply))
        episode.screenshot = await episode.phone.look()
        return StepResult(Observation("", (await self._shown(episode.screenshot),)))

    async def _perform(self, episode: Episode, meant: PhoneAction | mai_ui.Instead | str) -> str:
        """Carry out an action; return what the policy is told in place of a picture, empty: it is shown one."""
        if isinstance(meant, str):
            return meant
        if isinstance(meant, UseTool):
            result = await episode.tools.call(meant.call)
            if self._published:
                return mai_ui.tool_words(result)
            return f"{result.name} {'answered' if result.success else 'refused'}:\n{result.text}"
        request = None if isinstance(meant, (mai_ui.Nothing, mai_ui.Unknown)) else command(meant)
        if request is None:
            return ""
        try:
            reply = await episode.phone.act(request)
        except Refused:
            if not isinstance(meant, OpenApp) or not self._published:
                raise
            return ""  # there is no such app, and the published agent is shown the screen
        if not isinstance(meant, AskUser):
            return ""
        if self._published:
            return reply
        return f"The owner replied:\n{reply}" if reply else "The owner did not reply."

    async def _finish(self, episode: Episode, meant: Any, over: bool) -> StepResult:
        """End the episode: read the score, all that it can earn, then tear down, which cannot change the score."""
        score = await episode.phone.score(episode.task.name)
        info = notes_of(score, meant, over)
        self._start_tear_down()
        await self._wait_for_tear_down()
        return StepResult(Observation("", (), info), reward=score.score, terminated=True)

    # -- the phone -------------------------------------------------------------------------------------------------

    async def _open(self, server: Server) -> None:
        phone = PhoneServer(self.client, server.url, self.options)
        try:
            await phone.check_health()
            if server not in self._servers.prepared:
                await phone.prepare()
                self._servers.prepared.add(server)
            if self._servers.tasks is None:
                self._servers.tasks = await phone.tasks()
            wanted = self._chosen(self._servers.tasks)
            tools = await asyncio.to_thread(self._tools_of, wanted)
            episode = self._episode = Episode(phone, wanted, tools)
            task = self._wanted[0]
            episode.goal = (task.goal if task else "") or await phone.goal(wanted.name)
            episode.begun = True
            await phone.begin(wanted.name)
            await asyncio.sleep(self.options.step_wait_time)  # the phone is on its way home
            episode.screenshot = await phone.look()
        except RolloutFailure:
            self._servers.prepared.discard(server)
            raise
        except asyncio.CancelledError:
            self._given_up(server)
            raise

    def _given_up(self, server: Server) -> None:
        """Take the server out after a cancelled call: what the phone was told may still be under way."""
        self.pool.take_out(server, "a call was given up")

    def _chosen(self, listed: list[PhoneTask]) -> PhoneTask:
        task, seed = self._wanted
        if task is None:
            return random.Random(seed).choice(self.choice.of(listed))
        by_name = {one.name: one for one in listed}
        if task.id not in by_name:
            raise EnvironmentFailure(f"the server has no task {task.id!r:.80}; {did_you_mean(task.id, by_name)}")
        missing = set(by_name[task.id].tool_servers) - self.tool_servers.names
        if missing:
            raise EnvironmentFailure(f"task {task.id!r} needs the tools of {sorted(missing)}; name them in option mcp")
        return by_name[task.id]

    def _tools_of(self, task: PhoneTask) -> ToolRegistry:
        registry = self.tool_servers.registry(task.tool_servers)
        registry.reset(self._wanted[1])
        return registry

    async def _leave(self, server: Server) -> None:
        """End an episode that did not reach its first screen."""
        episode = self._episode
        if episode is not None:
            await asyncio.shield(self._tracked(self._tear_down(episode, server)))

    def _start_tear_down(self) -> None:
        """Begin to tear the task down; a cancellation meanwhile does not stop it."""
        server, episode = self._server, self._episode
        self._server = None
        self._forget()
        if server is not None and episode is not None:
            self._tracked(self._give_back(episode, server))

    async def _wait_for_tear_down(self) -> None:
        """Wait until all tear-downs are done."""
        while self._tear_downs:
            await asyncio.shield(asyncio.gather(*self._tear_downs))

    def _tracked(self, work: Any) -> asyncio.Future[None]:
        job = asyncio.ensure_future(work)
        self._tear_downs.add(job)
        job.add_done_callback(self._tear_downs.discard)
        return job

    async def _give_back(self, episode: Episode, server: Server) -> None:
        try:
            await self._tear_down(episode, server)
        finally:
            self.pool.give_back(server)
            await self.client.release()

    async def _tear_down(self, episode: Episode, server: Server) -> None:
        """Tear down without raising what a server or a tool did: the episode is over, and its record stands."""
        try:
            if episode.begun:
                await episode.phone.end(episode.task.name)
        except RolloutFailure as error:
            _LOG.warning("task %s was not torn down: %s", episode.task.name, error)
            self._servers.prepared.discard(server)
            if isinstance(error, (ServerLost, NoAnswer)):
                self.pool.take_out(server, str(error))
        try:
            await episode.tools.close()
        except RolloutFailure as error:
            _LOG.warning("a tool of task %s was not closed: %s", episode.task.name, error)

    def _forget(self) -> None:
        self._episode = None

    def _blame(self, error: RolloutFailure) -> None:
        if self._server is not None:
            self._servers.prepared.discard(self._server)
        super()._blame(error)

    # -- pictures --------------------------------------------------------------------------------------------------

    def _space(self, screenshot: Screenshot, tools: ToolRegistry) -> PhoneSpace:
        """Return the actions on the screen as it was last seen: a phone that is turned has other sides."""
        return PhoneSpace(
            *screenshot.read_size(), self._apps, frozenset(tools.names), self._published or self.options.ask_user
        )

    async def _shown(self, screenshot: Screenshot) -> Screenshot:
        """Return the picture as the policy sees it."""
        size = self.options.image_size
        if size is None or size == screenshot.read_size():
            return screenshot
        return await asyncio.to_thread(screenshot.resized, size)
