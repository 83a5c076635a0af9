"""`NativeRemoteEnvironment`: plays an environment that `uirl serve` serves as if it were here."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Self, TypeVar

from uirl.environments.base import BaseEnvironment
from uirl.environments.options import OptionsLike
from uirl.environments.remote.client.base import GOODBYE, Refused, RemoteEnvironment, Server, ServerLost, understood
from uirl.environments.remote.client.options import NativeRemoteOptions
from uirl.environments.remote.protocol.native import (
    PROTOCOL,
    EnvironmentDescription,
    ExpertAnswer,
    Observed,
    OpenRequest,
    ResetRequest,
    ScoreAnswer,
    SessionOpened,
    StateAnswer,
    StepAnswer,
    StepRequest,
    TaskList,
    WireAction,
    WireObservation,
    WireTask,
)
from uirl.errors import ConfigError, EnvironmentFailure, RolloutFailure
from uirl.http.wire import all_whole
from uirl.runtime.limits import shown
from uirl.runtime.wire import WireAnswer, WireError, WireModel
from uirl.types import Action, Observation, StepResult, Task

A = TypeVar("A", bound=WireAnswer)
T = TypeVar("T")


def _described(name: str) -> Any:
    """Return a property of the environment that its servers describe."""
    return property(lambda self: getattr(self.description, name))


class NativeRemoteEnvironment(RemoteEnvironment):
    """One session of `uirl serve` per instance: same observations, rewards, tool results and ends as played locally.

    What the environment is (its action format, prompt, tasks, controls) is asked of the first server that answers, when
    it is first needed. All servers must serve the same, with the same options.
    """

    options_class = NativeRemoteOptions
    options: NativeRemoteOptions

    def __init__(self, config: Any = None, options: OptionsLike = None, **keys: Any) -> None:
        """Asks no server yet. Raises ConfigError for options that do not fit `NativeRemoteOptions`."""
        super().__init__(config, options, **keys)
        self._variant = self.options.variant
        self._description: list[EnvironmentDescription] = []
        """What the servers say of their environment, for all instances; empty: nobody asked yet."""
        self._episode = ResetRequest()
        """Task and seed of the episode that begins."""
        self._first: WireObservation | None = None
        """The observation that a session began with."""
        self._turn, self._state = 0, ""
        self._forget()

    _heart: asyncio.Task[None] | None = None
    """Renews the lease of the session."""

    def _max_sessions(self) -> int | None:
        return self.options.max_sessions

    # -- what the environment is -----------------------------------------------------------------------------------

    action_format = _described("action_format")
    max_turns: int | None = _described("max_turns")
    scored_at_end: bool = _described("scored_at_end")
    message_style: str = _described("message_style")
    mistake_reward: float = _described("mistake_reward")
    demonstrator_may_fail = _described("demonstrator_may_fail")

    def get_prompt_prefix(self) -> str:
        return self.description.prompt_prefix

    def tool_schemas(self) -> Sequence[Mapping[str, Any]]:
        return tuple(self.description.tool_schemas)

    def callable_tools(self) -> Sequence[Mapping[str, Any]]:
        tools = self.description.callable_tools
        return self.tool_schemas() if tools is None else tuple(tools)

    def tasks(self) -> Sequence[Task] | None:
        """Return the tasks of the served environment, with their checks where the token may see them."""
        tasks = self._ask("/v1/tasks", lambda value: TaskList.read(value, "answer")).tasks
        return None if tasks is None else [task.to_record() for task in tasks]

    def live_views(self) -> Sequence[str]:
        """Return the page of each server, asking none."""
        return [f"{server.url.rstrip('/')}/view" for server in self.pool.servers]

    def controls(self) -> dict[str, BaseEnvironment | Action | str]:
        """Return the controls of the served environment: actions as they are, variants as sessions of that variant."""
        controls: dict[str, BaseEnvironment | Action | str] = {}
        for name, control in self.description.controls.items():
            if control.action is not None:
                controls[name] = control.action.to_record()
            elif control.text is not None:
                controls[name] = control.text
            elif self._variant is None:
                variant = self.spawn()
                variant._variant = name
                controls[name] = variant
        return controls

    def spawn(self) -> Self:
        """Return another session on the same servers. Raises EnvironmentFailure where none of them ever answered."""
        _ = self.description
        return super().spawn()

    # -- an episode ------------------------------------------------------------------------------------------------

    async def reset(self, task: Task | None = None, seed: int | None = None) -> Observation:
        """Return the first observation. Nothing is lost with a session between two episodes: one that ran out, or whose
        server is gone, is replaced."""
        wire_task = None if task is None else WireTask.of(task)
        self._episode = ResetRequest.model_construct(task=wire_task, seed=seed)
        first = await self._reset() if self._server is not None else None
        if first is None:
            await self._lease()
            first = self._first
        if first is None:
            raise EnvironmentFailure(f"{self.url} opened a session and did not reset it; expected an observation")
        self._turn, self._state = 0, ""
        return await all_whole(first.to_record(), self.url)

    async def _reset(self) -> WireObservation | None:
        """Return the first observation of another episode of the session; None: it is no more."""
        limit = self.options.reset_timeout
        try:
            answer = await self._call("POST", "/reset", self._episode, Observed, timeout=limit, again=True)
        except (Refused, ServerLost) as error:
            if isinstance(error, Refused) and error.status not in (404, 410):
                raise
            await self.close()
            return None
        return answer.observation

    async def step(self, action: Action | str) -> StepResult:
        """Return what the served environment answers. An act whose outcome is unknown raises, and is never sent
        again."""
        if isinstance(action, str):
            action = Action(text=action)
        limit = self.max_turns
        # the session ends with the episode: others may be waiting for one
        close = "after" if limit is not None and self._turn + 1 >= limit else "done"
        request = StepRequest.model_construct(action=WireAction.of(action), turn=self._turn, close=close)
        url = self.url
        answer = await self._call("POST", "/step", request, StepAnswer, timeout=self.options.step_timeout, again=False)
        self._turn += 1
        if answer.state is not None:
            self._state, self._session = answer.state, ""
            await self.close()
        if answer.turn != self._turn:
            raise EnvironmentFailure(
                f"{url} counts {answer.turn} steps of the episode and this client {self._turn}: somebody else plays "
                "the same session"
            )
        if answer.reward is None and not self.options.blind:
            raise EnvironmentFailure(f"{url} shows no rewards to this token any more")
        return StepResult(
            observation=await all_whole(answer.observation.to_record(), url),
            reward=answer.reward or 0.0,
            terminated=answer.terminated,
            truncated=answer.truncated,
        )

    async def get_state_description(self) -> str:  # type: ignore[override]
        """Return the state as the served environment describes it: the last one of an episode that is over, empty
        before the first."""
        if self._server is None:
            return self._state
        answer = await self._call("GET", "/state", None, StateAnswer, timeout=self.options.step_timeout, again=True)
        return answer.text

    @property
    def has_demonstrator(self) -> bool:
        """Whether the served environment has one, and this client may ask it."""
        return self.description.demonstrator and not self.options.blind

    async def expert_action(self) -> Action | None:  # type: ignore[override]
        """Return what the served environment's demonstrator would do; needs a token with grader rights."""
        if self._server is None:
            return None
        limit = self.options.step_timeout
        answer = await self._call("POST", "/expert", WireModel(), ExpertAnswer, timeout=limit, again=True)
        return None if answer.action is None else answer.action.to_record()

    async def score_now(self) -> tuple[float, dict[str, Any]] | None:
        """Return what the served environment says of an episode that the run ends here; None: it does not know, its
        server is of a version without this call, or the token sees no rewards. The session ends with it."""
        if self._server is None or self.options.blind or not self.description.scores_now:
            return None
        limit = self.options.reset_timeout
        answer = await self._call("POST", "/score", WireModel(), ScoreAnswer, timeout=limit, again=False)
        self._session = ""
        await self.close()
        return None if answer.score is None else (answer.score.reward, answer.score.info)

    # -- the session -----------------------------------------------------------------------------------------------

    async def _open(self, server: Server) -> None:
        request = OpenRequest.model_construct(
            variant=self._variant, reset=True, task=self._episode.task, seed=self._episode.seed
        )
        url, limit = f"{server.url}/v1/sessions", self.options.reset_timeout
        answer = await self.client.json("POST", url, json=request.write(), timeout=limit, again=False, retries=0)
        with understood(server.url):
            opened = SessionOpened.read(answer, "answer")
        self._session, self._first = opened.session, opened.observation
        # a lost heartbeat or two must not end the session
        self._heart = asyncio.create_task(_beat(weakref.ref(self), self._session, opened.lease_seconds / 4))
        if opened.fingerprint != self.description.fingerprint:
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

    async def _call(
        self, method: str, path: str, request: WireModel | None, answer: type[A], *, timeout: float, again: bool
    ) -> A:
        """Return the answer to a request about the session."""
        url = f"{self.url}/v1/sessions/{self._session}{path}"
        body = None if request is None else request.write()
        with self._asking(url):
            return answer.read(await self.client.json(method, url, json=body, timeout=timeout, again=again), "answer")

    # -- before there is a session -----------------------------------------------------------------------------------

    @property
    def description(self) -> EnvironmentDescription:
        """What the servers say of their environment; asked once. Raises ConfigError for another version."""
        if not self._description:
            self._description.append(self._read_description(self._ask("/v1/environment", _object)))
        return self._description[0]

    def _read_description(self, value: dict[str, Any]) -> EnvironmentDescription:
        same_version = "install the same version of uirl on both sides"
        if value.get("protocol") != PROTOCOL:
            raise ConfigError(
                f"the server speaks protocol {shown(value.get('protocol'), 20)} and this client {PROTOCOL}; "
                f"{same_version}"
            )
        try:
            description = EnvironmentDescription.read(value, "environment")
        except WireError as error:
            raise ConfigError(f"the server's description cannot be used: {error}; {same_version}") from None
        if not (description.grades or self.options.blind):
            raise ConfigError(
                "the servers show no rewards to this token; give token_env the grader's token, or set blind to go "
                "without rewards"
            )
        return description

    def _ask(self, path: str, read: Callable[[Any], T]) -> T:
        """Return what the first server that answers says; waits for it, event loop or not."""
        problem = f"no server says what it serves (GET {path})"
        remedy = "Does `uirl serve` run there, and is token_env right?"
        return self.client.first_answer([server.url for server in self.pool.servers], path, read, problem, remedy)


def _object(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    raise WireError(f"it said {shown(value)}; expected an object")


async def _beat(owner: weakref.ref[NativeRemoteEnvironment], session: str, pause: float) -> None:
    """Renew the lease while somebody holds the environment and its session."""
    while True:
        await asyncio.sleep(pause)
        environment = owner()
        if environment is None or environment._session != session or environment._server is None:
            return
        with suppress(RolloutFailure):  # the next step finds out, and says so where it counts
            await environment._call("POST", "/heartbeat", WireModel(), WireAnswer, timeout=pause, again=True)
        del environment
