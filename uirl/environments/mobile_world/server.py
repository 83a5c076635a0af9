"""The HTTP interface of a MobileWorld server, one method per request: typed failures, and no act sent twice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import Field

from uirl.environments.mobile_world.options import MobileWorldOptions
from uirl.environments.options import Names
from uirl.environments.remote.client.base import EnvironmentClient, Refused, ServerLost, understood
from uirl.errors import EnvironmentFailure
from uirl.http.wire import Base64, whole
from uirl.images import Screenshot
from uirl.runtime.limits import shown
from uirl.runtime.wire import Plain, Text, WireAnswer
from uirl.types import Task

SWITCH, TASKS = "/suite_family/switch", "/task/list"
UNHEALTHY = "Device is not healthy"
"""The server's words, behind a status of 500, for an emulator that has stopped working."""
_TOOLS_OF = "MCP-"


class DeviceUnhealthy(ServerLost):
    """The server is there and its phone is not: other phones are used until it was restarted, which the server does
    when its health is asked for."""


class Health(WireAnswer):
    """`GET /health`."""

    ok: bool
    device_status: Plain = None


class Switched(WireAnswer):
    """`POST /suite_family/switch`."""

    switched: Plain = False
    """False: the server had the suite already."""


class PhoneTask(WireAnswer):
    """One task as the server lists it."""

    name: Annotated[Text, Field(min_length=1)]
    tags: Names = ()
    apps: Names = ()
    """Names of apps, and `MCP-<name>` for every server of tools."""

    @property
    def tool_servers(self) -> tuple[str, ...]:
        """Names of the servers of tools that the task needs, in small letters."""
        return tuple(app[len(_TOOLS_OF) :].lower() for app in self.apps if app.startswith(_TOOLS_OF))

    @property
    def phone_apps(self) -> set[str]:
        """Names of the apps on the phone that the task uses."""
        return {app for app in self.apps if not app.startswith(_TOOLS_OF)}

    def as_task(self, environment: str = "mobile_world") -> Task:
        """Return the task for a run: its tags, then its apps as `app:<name>`."""
        return Task(self.name, environment, tags=(*self.tags, *(f"app:{app}" for app in self.apps)))


class TaskList(WireAnswer):
    """`GET /task/list`, whose answer is the list alone."""

    tasks: Annotated[list[PhoneTask], Field(min_length=1)]


class ScreenAnswer(WireAnswer):
    """`GET /screenshot`."""

    b64_png: Base64


class Score(WireAnswer):
    """`GET /task/eval`."""

    score: Annotated[float, Field(ge=0, le=1)]
    reason: Plain = ""

    @property
    def success(self) -> bool:
        """Whether the score is above 0.99, which the benchmark counts as a success."""
        return self.score > 0.99


AnswerT = TypeVar("AnswerT", bound=WireAnswer)


class PhoneServer:
    """Requests to one server about one device; call them between `hold` and `release` of the client.

    Each raises ServerLost, NoAnswer, DeviceUnhealthy, Refused, or EnvironmentFailure for an answer that makes no sense.
    """

    def __init__(self, client: EnvironmentClient, url: str, options: MobileWorldOptions) -> None:
        self.client, self.url, self.options = client, url, options

    async def check_health(self) -> None:
        """Raise DeviceUnhealthy where the server reports it, in either of its two ways."""
        try:
            health = await self._read(Health, "GET", "/health", timeout=self.options.restart_timeout, retries=0)
        except Refused as refused:
            if refused.status == 503:
                raise DeviceUnhealthy(str(refused)) from None
            raise
        if not health.ok:
            raise DeviceUnhealthy(
                f"{self.url}/health says that a device is not well: {shown(health.device_status, 200)}"
            )

    async def prepare(self) -> None:
        """Choose the suite of tasks and connect the device: once in the life of a server."""
        answer = await self._switch(self.options.suite_query)
        if self.options.suite_seed is not None and not answer.switched:
            # a server that has the suite keeps the seed it has, and does not say which
            await self._switch({"target_family": "mobile_world"})
            await self._switch(self.options.suite_query)
        await self._ask("POST", "/init", json={"device": self.options.device}, timeout=self.options.task_timeout)

    async def _switch(self, query: Mapping[str, str]) -> Switched:
        return await self._read(Switched, "POST", SWITCH, params=query, timeout=self.options.restart_timeout)

    async def tasks(self) -> list[PhoneTask]:
        """Return the tasks of the suite that the server has."""
        return read_tasks(await self._ask("GET", TASKS), self.url)

    async def goal(self, task: str) -> str:
        goal = await self._ask("GET", "/task/goal", params={"task_name": task})
        if not isinstance(goal, str) or not goal:
            raise EnvironmentFailure(f"{self.url}/task/goal answered {shown(goal, 80)}; expected a text")
        return goal

    async def begin(self, task: str) -> None:
        """Bring the phone to the first state of a task. May be sent again: it begins with a snapshot."""
        await self._ask("POST", "/task/init", json=self._of(task), timeout=self.options.task_timeout)

    async def look(self) -> Screenshot:
        """Return the screen, decoded once to see that it is whole."""
        query = {"device": self.options.device, "return_b64": "true"}
        answer = await self._read(ScreenAnswer, "GET", "/screenshot", params=query)
        return await whole(answer.b64_png, f"{self.url}/screenshot")

    async def act(self, action: Mapping[str, Any]) -> str:
        """Return the server's words on an action: the user's reply to a question, else unused. Never sent twice."""
        body = {"device": self.options.device, "action": dict(action)}
        answer = await self._ask("POST", "/step", json=body, again=False)
        if not isinstance(answer, dict) or "result" not in answer:
            raise EnvironmentFailure(f"{self.url}/step answered {shown(answer, 80)}; expected a result")
        result = answer["result"]
        return result if isinstance(result, str) else ""

    async def score(self, task: str) -> Score:
        """Return the score of the task. An answer without a score is a failure, never a score of zero."""
        return await self._read(Score, "GET", "/task/eval", json=self._of(task), timeout=self.options.task_timeout)

    async def end(self, task: str) -> None:
        """Tear the task down."""
        limit = self.options.tear_down_timeout
        await self._ask("POST", "/task/tear_down", json=self._of(task), timeout=limit, retries=1)

    def _of(self, task: str) -> dict[str, str]:
        return {"task_name": task, "req_device": self.options.device}

    async def _read(self, kind: type[AnswerT], method: str, path: str, **options: Any) -> AnswerT:
        answer = await self._ask(method, path, **options)
        with understood(self.url + path):
            return kind.read(answer, "the answer")

    async def _ask(self, method: str, path: str, **options: Any) -> Any:
        options = {"timeout": self.options.step_timeout, "again": True, **options}
        try:
            return await self.client.json(method, self.url + path, **options)
        except Refused as refused:
            if UNHEALTHY in str(refused):
                raise DeviceUnhealthy(str(refused)) from None
            raise


def read_tasks(answer: Any, url: str) -> list[PhoneTask]:
    """Return the tasks that the server at `url` listed. Raises EnvironmentFailure for what is no list of tasks."""
    with understood(url + TASKS):
        return TaskList.read({"tasks": answer}, "the answer").tasks
