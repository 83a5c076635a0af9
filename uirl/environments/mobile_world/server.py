"""The HTTP interface of a MobileWorld server, one method per request: typed failures, and no act sent twice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from uirl.environments.remote.client.http import EnvironmentClient, Refused, ServerLost
from uirl.environments.remote.protocol.pictures import whole
from uirl.environments.remote.protocol.wire import WireError, from_base64
from uirl.errors import ConfigError, EnvironmentFailure
from uirl.images import Screenshot
from uirl.runtime.limits import is_finite, shown

SUITE = "mobile_world"
FAMILIES = (SUITE, "android_world")
SWITCH = "/suite_family/switch"
UNHEALTHY = "Device is not healthy"
"""The server's words, behind a status of 500, for an emulator that has stopped working."""


class DeviceUnhealthy(ServerLost):
    """The server is there and its phone is not: other phones are used until it was restarted, which the server does
    when its health is asked for."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds of one request."""

    step: float
    """Of an action, a screenshot and whatever else is quick."""
    task: float
    """Of setting a task up, and of its score."""
    tear_down: float
    restart: float = 600.0
    """Of what may restart the emulator: a question for its health, and another suite."""

    def __post_init__(self) -> None:
        for name in ("step", "task", "tear_down", "restart"):
            seconds = getattr(self, name)
            if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds > 0:
                raise ConfigError(f"mobile_world: a time limit must be positive seconds, got {seconds!r} for {name}")


@dataclass(frozen=True, slots=True)
class Suite:
    """A family of tasks. Raises ConfigError for a seed where nothing is drawn."""

    family: str = SUITE
    """'android_world': later servers know it."""
    seed: int | None = None
    """Of the parameters of AndroidWorld's tasks; None: the server's choice."""

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise ConfigError(f"mobile_world: suite is one of {', '.join(FAMILIES)}, got {self.family!r:.60}")
        if self.seed is not None and (isinstance(self.seed, bool) or not isinstance(self.seed, int)):
            raise ConfigError(f"mobile_world: suite_seed must be an int or null, got {self.seed!r:.60}")
        if self.seed is not None and self.family == SUITE:
            raise ConfigError(f"mobile_world: the tasks of {SUITE} take no seed; leave suite_seed out")

    @property
    def question(self) -> dict[str, str]:
        """The parameters of a switch to it."""
        return {"target_family": self.family} | ({} if self.seed is None else {"seed": str(self.seed)})


@dataclass(frozen=True, slots=True)
class Score:
    """What the server says of an episode."""

    value: float
    """0 to 1."""
    reason: str = ""

    @property
    def success(self) -> bool:
        """The benchmark counts what is above 0.99."""
        return self.value > 0.99


class PhoneServer:
    """Requests to one server about one device; call them between `hold` and `release` of the client.

    Each raises ServerLost, NoAnswer, DeviceUnhealthy, Refused, or EnvironmentFailure for an answer that makes no sense.
    """

    def __init__(self, client: EnvironmentClient, url: str, device: str, timeouts: Timeouts) -> None:
        self.client, self.url, self.device, self.timeouts = client, url, device, timeouts

    async def check_health(self) -> None:
        """Raises DeviceUnhealthy where the server says so, in either of its two ways."""
        try:
            said = await self._ask("GET", "/health", timeout=self.timeouts.restart, retries=0)
        except Refused as refused:
            if refused.status == 503:
                raise DeviceUnhealthy(str(refused)) from None
            raise
        if not isinstance(said, dict) or not isinstance(said.get("ok"), bool):
            raise EnvironmentFailure(f"{self.url} is no MobileWorld server: GET /health said {shown(said, 80)}")
        if not said["ok"]:
            raise DeviceUnhealthy(f"{self.url}/health says that a device is not well: {shown(said, 200)}")

    async def prepare(self, suite: Suite = Suite()) -> None:
        """Chooses the suite of tasks and connects the device: once in the life of a server."""
        said = await self._switch(suite)
        if suite.seed is not None and not (isinstance(said, dict) and said.get("switched")):
            # a server that has the suite keeps the seed it has, and does not say which
            await self._switch(Suite())
            await self._switch(suite)
        await self._ask("POST", "/init", json={"device": self.device}, timeout=self.timeouts.task)

    async def _switch(self, suite: Suite) -> Any:
        return await self._ask("POST", SWITCH, params=suite.question, timeout=self.timeouts.restart)

    async def tasks(self) -> Any:
        """The list of tasks, not yet read."""
        return await self._ask("GET", "/task/list")

    async def goal(self, task: str) -> str:
        said = await self._ask("GET", "/task/goal", params={"task_name": task})
        if not isinstance(said, str) or not said:
            raise EnvironmentFailure(f"{self.url}/task/goal answered {shown(said, 80)}; expected a text")
        return said

    async def begin(self, task: str) -> None:
        """Brings the phone to the first state of a task. May be sent again: it begins with a snapshot."""
        await self._ask("POST", "/task/init", json=self._of(task), timeout=self.timeouts.task)

    async def look(self) -> Screenshot:
        """The screen, decoded once to see that it is whole."""
        said = await self._ask("GET", "/screenshot", params={"device": self.device, "return_b64": "true"})
        encoded = said.get("b64_png") if isinstance(said, dict) else None
        where = f"{self.url}/screenshot"
        if not isinstance(encoded, str):
            raise EnvironmentFailure(f"{where} answered {shown(said, 80)}; expected b64_png")
        try:
            data = from_base64(encoded, "b64_png")
        except WireError as error:
            raise EnvironmentFailure(f"{where} sent a picture that cannot be used: {error}") from None
        return await whole(data, where)

    async def act(self, action: Mapping[str, Any]) -> str:
        """What the server says of an action: the user's reply to a question, else of no interest. Never sent twice."""
        body = {"device": self.device, "action": dict(action)}
        said = await self._ask("POST", "/step", json=body, again=False)
        if not isinstance(said, dict) or "result" not in said:
            raise EnvironmentFailure(f"{self.url}/step answered {shown(said, 80)}; expected a result")
        result = said["result"]
        return result if isinstance(result, str) else ""

    async def score(self, task: str) -> Score:
        """How the task stands. An answer without a score is a failure, never a score of zero."""
        said = await self._ask("GET", "/task/eval", json=self._of(task), timeout=self.timeouts.task)
        value: Any = said.get("score") if isinstance(said, dict) else None
        if not is_finite(value) or not 0 <= value <= 1:
            raise EnvironmentFailure(f"{self.url}/task/eval answered {shown(said, 120)}; expected a score from 0 to 1")
        reason = said.get("reason")
        return Score(float(value), reason if isinstance(reason, str) else "")

    async def end(self, task: str) -> None:
        """Tears the task down."""
        await self._ask(
            "POST", "/task/tear_down", json=self._of(task), timeout=self.timeouts.tear_down, retries=1
        )  # fmt: skip

    def _of(self, task: str) -> dict[str, str]:
        return {"task_name": task, "req_device": self.device}

    async def _ask(self, method: str, path: str, **options: Any) -> Any:
        options = {"timeout": self.timeouts.step, "again": True, **options}
        try:
            return await self.client.json(method, self.url + path, **options)
        except Refused as refused:
            if UNHEALTHY in str(refused):
                raise DeviceUnhealthy(str(refused)) from None
            raise
