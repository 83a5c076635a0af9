"""`NativeRemoteEnvironment`: plays an environment that `uirl serve` serves as if it were here."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from uirl.environments.base import BaseEnvironment
from uirl.environments.remote.client.http import Refused, ServerLost
from uirl.environments.remote.client.leased import GOODBYE, RemoteEnvironment
from uirl.environments.remote.client.servers import Server
from uirl.environments.remote.protocol.native import (
    Fields,
    WireError,
    read_action,
    read_observation,
    read_task,
    write_action,
    write_task,
)
from uirl.environments.remote.protocol.pictures import whole
from uirl.errors import ConfigError, EnvironmentFailure, RolloutFailure
from uirl.runtime.limits import shown
from uirl.types import Action, Observation, StepResult, Task

PROTOCOL = 1


@dataclass(slots=True)
class _Known:
    """What the servers say of their environment: the same for all sessions."""

    description: dict[str, Any] = field(default_factory=dict)


class NativeRemoteEnvironment(RemoteEnvironment):
    """One session of `uirl serve` per instance: same observations, rewards, tool results and ends as played locally.

    What the environment is (its action format, prompt, tasks, controls) is asked of the first server that answers, when
    it is first needed. All servers must serve the same, with the same options.
    """

    def __init__(
        self,
        config: Any = None,
        *,
        url: str | None = None,
        urls: Sequence[str] = (),
        spares: Sequence[str] = (),
        token_env: str | None = None,
        sessions_per_server: int | None = None,
        blind: bool = False,
        variant: str | None = None,
        patience: float = 30.0,
        rest: float = 5.0,
        step_timeout: float = 60.0,
        reset_timeout: float = 180.0,
    ) -> None:
        """Raises ConfigError for options that do not fit.

        Args:
            config: the environment section of the run's configuration; not read.
            url, urls: the servers; none: http://127.0.0.1:8000.
            spares: servers that are used only while none of the others is.
            token_env: environment variable with the token. Rewards need the grader's.
            sessions_per_server: that this process opens; None: as many as a server takes.
            blind: go without rewards (0.0 each), for an agent's token; None of its episodes says whether it succeeded.
            variant: name of one of the environment's controls, to play it.
            patience: seconds that a reset waits for a server with room.
            rest: seconds that a server which failed is left alone; they double with each failure in a row.
            step_timeout, reset_timeout: seconds for a server to answer.
        """
        timeouts = (step_timeout, reset_timeout)
        super().__init__(
            config, url, urls, spares, token_env,
            most=sessions_per_server, patience=patience, rest=rest, timeouts=timeouts,
        )  # fmt: skip
        self._blind, self._variant = blind, variant
        self._known = _Known()
        self._episode: dict[str, Any] = {}
        """Task and seed of the episode that begins."""
        self._opening: Any = None
        """What the server said as it opened the session: the first observation."""
        self._turn, self._state = 0, ""
        self._forget()

    _heart: asyncio.Task[None] | None = None
    """Renews the lease of the session."""

    # -- what the environment is -----------------------------------------------------------------------------------

    @property
    def action_format(self) -> str:  # type: ignore[override]
        return str(self._described("action_format"))

    @property
    def max_turns(self) -> int | None:  # type: ignore[override]
        limit: int | None = self._described("max_turns")
        return limit

    @property
    def scored_at_end(self) -> bool:  # type: ignore[override]
        return bool(self._described("scored_at_end"))

    @property
    def message_style(self) -> str:  # type: ignore[override]
        return str(self._described("message_style"))

    @property
    def demonstrator_may_fail(self) -> bool:  # type: ignore[override]
        return bool(self._described("demonstrator_may_fail"))

    def get_prompt_prefix(self) -> str:
        return str(self._described("prompt_prefix"))

    def tool_schemas(self) -> Sequence[Mapping[str, Any]]:
        return tuple(self._described("tool_schemas"))

    def callable_tools(self) -> Sequence[Mapping[str, Any]]:
        return tuple(self._described("callable_tools"))

    def tasks(self) -> Sequence[Task] | None:
        """The tasks of the served environment, with their checks where the token may see them."""
        given = self._ask("/v1/tasks").get("tasks")
        return None if given is None else [read_task(task) for task in given]

    def controls(self) -> dict[str, BaseEnvironment | Action | str]:
        """The controls of the served environment: actions as they are, variants as sessions of that variant."""
        found: dict[str, BaseEnvironment | Action | str] = {}
        for name, control in self._described("controls").items():
            if "action" in control:
                found[name] = read_action(control["action"])
            elif "text" in control:
                found[name] = str(control["text"])
            elif self._variant is None:
                variant = self.spawn()
                assert isinstance(variant, NativeRemoteEnvironment)
                variant._variant = name
                found[name] = variant
        return found

    def spawn(self) -> BaseEnvironment:
        """Another session on the same servers. Raises EnvironmentFailure where none of them ever answered."""
        self._described("protocol")
        return super().spawn()

    # -- an episode ------------------------------------------------------------------------------------------------

    async def reset(self, task: Task | None = None, seed: int | None = None) -> Observation:
        """The first observation. Nothing is lost with a session between two episodes: one that ran out, or whose server
        is gone, is replaced."""
        self._episode = {"task": None if task is None else write_task(task), "seed": seed}
        said: dict[str, Any] | None = None
        if self._server is not None:
            try:
                said = await self._call("POST", "/reset", self._episode, timeout=self.reset_timeout, again=True)
            except (Refused, ServerLost) as error:
                if isinstance(error, Refused) and error.status not in (404, 410):
                    raise
                await self.close()
        if said is None:
            await self._lease()
            said = self._opening
        self._turn, self._state = 0, ""
        with understood(self.url):
            return await self._seen(Fields(said, "answer").take("observation", dict))

    async def step(self, action: Action | str) -> StepResult:
        """What the served environment answers. An act whose outcome is unknown raises, and is never sent again."""
        if isinstance(action, str):
            action = Action(text=action)
        limit = self.max_turns
        # the session ends with the episode: others may be waiting for one
        close = "after" if limit is not None and self._turn + 1 >= limit else "done"
        body = {"action": write_action(action), "turn": self._turn, "close": close}
        url = self.url
        said = await self._call("POST", "/step", body, timeout=self.step_timeout, again=False)
        self._turn += 1
        if "state" in said:
            self._state, self._session = str(said["state"]), ""
            await self.close()
        with understood(url):
            fields = Fields(said, "answer")
            reward = fields.take("reward", (int, float), None)
            if reward is None and not self._blind:
                raise EnvironmentFailure(f"{url} shows no rewards to this token any more")
            return StepResult(
                observation=await self._seen(fields.take("observation", dict), url),
                reward=0.0 if reward is None else float(reward),
                terminated=fields.take("terminated", bool),
                truncated=fields.take("truncated", bool),
            )

    async def get_state_description(self) -> str:  # type: ignore[override]
        """The state as the served environment describes it: the last one of an episode that is over, empty before the
        first."""
        if self._server is None:
            return self._state
        said = await self._call("GET", "/state", None, timeout=self.step_timeout, again=True)
        return str(said.get("text", ""))

    async def expert_action(self) -> Action | None:  # type: ignore[override]
        """What the served environment's demonstrator would do; needs a token with grader rights."""
        if self._server is None:
            return None
        said = await self._call("POST", "/expert", {}, timeout=self.step_timeout, again=True)
        given = said.get("action")
        with understood(self.url):
            return None if given is None else read_action(given)

    async def score_now(self) -> tuple[float, dict[str, Any]] | None:
        """What the served environment says of an episode that the run ends here; None: it does not know, its server is
        of a version without this call, or the token sees no rewards. The session ends with it."""
        if self._server is None or self._blind or not self._described("scores_now", False):
            return None
        url = self.url
        said = await self._call("POST", "/score", {}, timeout=self.reset_timeout, again=False)
        self._session = ""
        await self.close()
        with understood(url):
            given = Fields(said, "answer").take("score", dict, None)
            if given is None:
                return None
            fields = Fields(given, "answer.score")
            return float(fields.take("reward", (int, float))), fields.take("info", dict, {})

    # -- the session -----------------------------------------------------------------------------------------------

    async def _open(self, server: Server) -> None:
        body = {"variant": self._variant, "reset": True, **self._episode}
        said = self._opening = await self.client.json(
            "POST", f"{server.url}/v1/sessions", json=body, timeout=self.reset_timeout, again=False, retries=0
        )
        with understood(server.url):
            fields = Fields(said, "answer")
            self._session = fields.take("session", str)
            lease, fingerprint = float(fields.take("lease_seconds", (int, float))), fields.take("fingerprint", str)
        # a lost heartbeat or two must not end the session
        self._heart = asyncio.create_task(_beat(weakref.ref(self), self._session, lease / 4))
        if fingerprint != self._described("fingerprint"):
            raise EnvironmentFailure(
                f"{server.url} serves another environment than the rest of the pool, or with other options; start all "
                "servers alike"
            )

    async def _leave(self, server: Server) -> None:
        if self._heart is not None:
            self._heart.cancel()
        if self._session:
            url = f"{server.url}/v1/sessions/{self._session}"
            await self.client.send("DELETE", url, timeout=GOODBYE, again=False, retries=0)

    def _forget(self) -> None:
        self._session, self._heart = "", None

    async def _call(self, method: str, path: str, body: Any, *, timeout: float, again: bool) -> dict[str, Any]:
        if self._server is None:
            raise EnvironmentFailure(f"{type(self).__name__} has no session; reset it first")
        url = f"{self._server.url}/v1/sessions/{self._session}{path}"
        try:
            said = await self.client.json(method, url, json=body, timeout=timeout, again=again)
        except RolloutFailure as error:
            self._blame(error)
            raise
        if not isinstance(said, dict):
            raise EnvironmentFailure(f"{url} answered {shown(said)}; expected an object")
        return said

    async def _seen(self, value: Any, url: str = "") -> Observation:
        observation = read_observation(value)
        for shot in observation.images:
            await whole(shot.data, url or self.url)
        return observation

    # -- before there is a session -----------------------------------------------------------------------------------

    def _described(self, name: str, default: Any = ...) -> Any:
        """One entry of what the servers say of their environment; asked once. `default`: of servers that do not say."""
        if not self._known.description:
            said = self._ask("/v1/environment")
            if said.get("protocol") != PROTOCOL:
                raise ConfigError(
                    f"the server speaks protocol {shown(said.get('protocol'), 20)} and this client {PROTOCOL}; install "
                    "the same version of uirl on both sides"
                )
            if not said.get("grades") and not self._blind:
                raise ConfigError(
                    "the servers show no rewards to this token; give token_env the grader's token, or set blind to go "
                    "without rewards"
                )
            self._known.description = {"callable_tools": said.get("tool_schemas", ()), **said}
        found = self._known.description.get(name, default)
        if found is ...:
            raise ConfigError(
                f"the servers do not say {name} of their environment; install the same version of uirl on both sides"
            )
        return found

    def _ask(self, path: str) -> dict[str, Any]:
        """What the first server that answers says; waits for it, event loop or not. Raises EnvironmentFailure."""

        def read(said: Any) -> dict[str, Any]:
            if isinstance(said, dict):
                return said
            raise WireError(f"it said {shown(said)}; expected an object")

        problem = f"no server says what it serves (GET {path})"
        remedy = "Does `uirl serve` run there, and is token_env right?"
        return self.client.first_answer([server.url for server in self.pool.servers], path, read, problem, remedy)


async def _beat(owner: weakref.ref[NativeRemoteEnvironment], session: str, pause: float) -> None:
    """Renews the lease while somebody holds the environment and its session."""
    while True:
        await asyncio.sleep(pause)
        environment = owner()
        if environment is None or environment._session != session or environment._server is None:
            return
        with suppress(RolloutFailure):  # the next step finds out, and says so where it counts
            await environment._call("POST", "/heartbeat", {}, timeout=pause, again=True)
        del environment


@contextmanager
def understood(url: str) -> Iterator[None]:
    """A context in which an answer that makes no sense is a failure of the server that gave it."""
    try:
        yield
    except WireError as error:
        raise EnvironmentFailure(f"{url} answered something else than was asked for: {error}") from None
