"""The native API, `/v1`: sessions with leases, whole actions in, everything an environment shows out.

Agent rights play: create, reset, step, look, heartbeat, close. Grader rights also see rewards and `info`, verdicts,
seeds, demonstrations and the checks of tasks, and may send such checks. A session that a grader opened can be played by
an agent who is told its id, and is reset and closed by graders alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, TypeVar

from fastapi import APIRouter, Request, Response
from starlette.requests import HTTPConnection

from uirl.environments.base import BaseEnvironment
from uirl.environments.remote.protocol.native import (
    PROTOCOL,
    EnvironmentDescription,
    OpenRequest,
    ResetRequest,
    StepRequest,
    WireAction,
    WireControl,
    WireTask,
    show,
    write_step,
)
from uirl.environments.remote.server.sessions import Lease, Sessions
from uirl.http.guard import Refusal, rights_of
from uirl.http.wire import plain
from uirl.images import media_type
from uirl.runtime.wire import WireError, WireModel, dumps, loads
from uirl.types import Action, Task

M = TypeVar("M", bound=WireModel)


class Native:
    """The handlers of the native API over one set of sessions."""

    def __init__(self, sessions: Sessions) -> None:
        self.sessions = sessions
        self.description = describe_environment(sessions.settings.environment, sessions.environment)

    def router(self) -> APIRouter:
        """Return the routes."""
        router = APIRouter(prefix="/v1")
        one = "/sessions/{id}"
        for method, path, handler in (
            ("GET", "/environment", self.environment),
            ("GET", "/tasks", self.tasks),
            ("GET", "/sessions", self.overview),
            ("POST", "/sessions", self.create),
            ("POST", one + "/reset", self.reset),
            ("POST", one + "/step", self.step),
            ("POST", one + "/score", self.score),
            ("POST", one + "/heartbeat", self.heartbeat),
            ("GET", one + "/observation", self.observation),
            ("GET", one + "/images/{hash}", self.image),
            ("GET", one + "/state", self.state),
            ("POST", one + "/expert", self.expert),
            ("GET", one + "/verdict", self.verdict),
            ("DELETE", one, self.close),
        ):
            router.add_api_route(path, handler, methods=[method])
        return router

    async def environment(self, request: Request) -> Response:
        """Return what is served, and whether the caller may see rewards."""
        graded = may_grade(request)
        price = {"mistake_reward": self.sessions.environment.mistake_reward} if graded else {}
        return answer(self.description.write() | {"grades": graded, "scores_now": True, **price})

    async def tasks(self, request: Request) -> Response:
        """Return the environment's tasks; their checks for graders alone."""
        tasks, hidden = self.sessions.environment.tasks(), () if may_grade(request) else ("checks",)
        return answer({"tasks": None if tasks is None else [WireTask.of(task, hidden).write() for task in tasks]})

    async def create(self, request: Request) -> Response:
        """Open a session; it is reset at once where `reset` is true or `task` or `seed` is given."""
        wanted = await _read(OpenRequest, request)
        task = task_of(wanted.task, graded=may_grade(request))
        lease = self.sessions.open("native", graders=may_grade(request), variant=wanted.variant)
        opened: dict[str, Any] = {
            "session": lease.id,
            "number": lease.number,
            "lease_seconds": self.sessions.settings.lease,
            "idle_seconds": self.sessions.settings.idle,
            "fingerprint": self.description.fingerprint,
        }
        if wanted.reset or task is not None or wanted.seed is not None:
            try:
                await self.sessions.reset(lease, task, wanted.seed)
                opened["observation"] = _shown(lease, request)
            except BaseException:  # nobody is told its id: it would only wait for its lease to run out
                await self.sessions.close(lease, "reset: it failed")
                raise
        return answer(opened, 201)

    async def overview(self, request: Request) -> Response:
        """Return the sessions; their ids, with which one could play them, and what they earned for graders alone."""
        graded = may_grade(request)
        return answer({"sessions": [describe_lease(lease, graded=graded) for lease in self.sessions.active]})

    async def reset(self, id: str, request: Request) -> Response:
        """Return the first observation of a new episode."""
        lease = self._lease(id)
        require_owner(request, lease.graders)
        wanted = await _read(ResetRequest, request)
        await self.sessions.reset(lease, task_of(wanted.task, graded=may_grade(request)), wanted.seed)
        return answer({"observation": _shown(lease, request)})

    async def step(self, id: str, request: Request) -> Response:
        """Return the answer to an action. `close`: 'never' (default), 'done' ends the session with the
        episode, 'after' with this step; the answer then has the last `state`."""
        lease = self._lease(id)
        wanted = await _read(StepRequest, request)
        if wanted.close != "never":
            require_owner(request, lease.graders)
        inline = _inline(request)
        result = await self.sessions.step(lease, wanted.action.to_record(), wanted.turn)
        stepped = write_step(result, lease.turns, graded=may_grade(request), inline=inline)
        if wanted.close == "after" or (wanted.close == "done" and result.done):
            stepped["state"] = await self.sessions.state_description(lease)
            await self.sessions.close(lease, "client")
        return answer(stepped)

    async def score(self, id: str, request: Request) -> Response:
        """End the episode where it stands, and its session: `score` has `reward` and `info`, or is null where the
        environment does not know."""
        require_grader(request)
        lease = self._lease(id)
        scored = await self.sessions.score(lease)
        score = None if scored is None else {"reward": scored[0], "info": plain(scored[1], "info")}
        await self.sessions.close(lease, "client")
        return answer({"score": score})

    async def heartbeat(self, id: str) -> Response:
        """Renew the lease."""
        self._lease(id)
        return answer({"lease_seconds": self.sessions.settings.lease})

    async def observation(self, id: str, request: Request) -> Response:
        """Return what the agent sees now, again."""
        lease = self._lease(id)
        self.sessions.touch(lease)
        return answer({"observation": _shown(lease, request), "turn": lease.turns})

    async def image(self, id: str, hash: str) -> Response:
        """Return the bytes of a picture of the current observation."""
        lease = self._lease(id)
        self.sessions.touch(lease)
        for picture in lease.observation.images if lease.observation else ():
            if picture.hash == hash:
                return Response(picture.data, media_type=media_type(picture.data))
        raise Refusal(404, "session", "the current observation has no such picture")

    async def state(self, id: str) -> Response:
        """Return the environment's state as text."""
        return answer({"text": await self.sessions.state_description(self._lease(id))})

    async def expert(self, id: str, request: Request) -> Response:
        """Return what a demonstrator would do now."""
        require_grader(request)
        action = await self.sessions.expert_action(self._lease(id))
        return answer({"action": None if action is None else WireAction.of(action).write()})

    async def verdict(self, id: str, request: Request) -> Response:
        """Return how the episode stands."""
        require_grader(request)
        lease = self._lease(id)
        info = lease.observation.info if lease.observation else {}
        return answer({**describe_lease(lease, graded=True), "info": plain(info, "info")})

    async def close(self, id: str, request: Request) -> Response:
        """End a session."""
        lease = self._lease(id)
        require_owner(request, lease.graders)
        await self.sessions.close(lease, "client")
        return answer({"closed": id})

    def _lease(self, id: str) -> Lease:
        lease = self.sessions.find(id)
        if lease.protocol != "native":
            raise Refusal(404, "session", "no such session")
        return lease


def may_grade(connection: HTTPConnection) -> bool:
    """Return whether the request may see rewards, progress and checks."""
    return "grader" in rights_of(connection)


def require_grader(connection: HTTPConnection) -> None:
    """Raise a Refusal (403) unless the request has grader rights."""
    if not may_grade(connection):
        raise Refusal(
            403,
            "rights",
            "this needs the grader's token: rewards, progress, verdicts, demonstrations and the checks of a task are "
            "not the agent's to see (serve --grader-token-env names it)",
        )


def require_owner(connection: HTTPConnection, opened_by_grader: bool) -> None:
    """Raise a Refusal (403) where an agent would reset or close the session of a grader."""
    if opened_by_grader and not may_grade(connection):
        raise Refusal(
            403,
            "rights",
            "a grader opened this session: only a grader resets or closes it, for its verdict is about the instance "
            "that the grader chose; open a session of your own",
        )


def answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return an answer in JSON."""
    return Response(dumps(value), status, headers, media_type="application/json")


def task_of(wire: WireTask | None, *, graded: bool) -> Task | None:
    """Return the task that a client asks for. Raises a Refusal (403) where an agent sends checks."""
    task: Task | None = None if wire is None else wire.to_record()
    if task is not None and task.checks and not graded:
        raise Refusal(403, "rights", "a task with checks needs the grader's token: who sets the checks grades itself")
    return task


def describe_environment(name: str, environment: BaseEnvironment) -> EnvironmentDescription:
    """Say what a client must know to stand in for the environment."""
    description = EnvironmentDescription.model_construct(
        protocol=PROTOCOL,
        name=name,
        action_format=environment.action_format,
        max_turns=environment.max_turns,
        scored_at_end=environment.scored_at_end,
        message_style=environment.message_style,
        prompt_prefix=environment.get_prompt_prefix(),
        tool_schemas=plain(list(environment.tool_schemas()), "tool_schemas"),
        callable_tools=plain(list(environment.callable_tools()), "callable_tools"),
        demonstrator=environment.has_demonstrator,
        demonstrator_may_fail=environment.demonstrator_may_fail,
        controls={key: _control(value) for key, value in environment.controls().items()},
    )
    fingerprint = hashlib.sha256(dumps(description.write())).hexdigest()[:16]
    return description.model_copy(update={"fingerprint": fingerprint})


def describe_lease(lease: Lease, *, graded: bool) -> dict[str, Any]:
    """Return a session at a glance; `graded`: with its id, its seed, whose it is and what it earned."""
    fields: dict[str, Any] = {
        "number": lease.number,
        "door": lease.protocol,
        "opened": lease.opened.isoformat(timespec="seconds"),
        "episodes": lease.episodes,
        "turns": lease.turns,
        "task": lease.task.id if lease.task else None,
        "seed": lease.seed if graded else None,  # with it an agent could play the instance beforehand
        "terminated": lease.terminated,
        "truncated": lease.truncated,
        "broken": lease.session.broken,
        "hash": lease.picture.hash if lease.picture else None,
        "text": lease.observation.text[:500] if lease.observation else "",
    }
    if graded:
        fields |= {"session": lease.id, "opened_by": "grader" if lease.graders else "agent"}
        fields |= {"total_reward": lease.total_reward, "success": lease.success}
    return fields


def _control(control: BaseEnvironment | Action | str) -> WireControl:
    """Return a control as clients play it: an action as it is, an environment as the name of a variant."""
    if isinstance(control, BaseEnvironment):
        return WireControl.model_construct(variant=True)
    if isinstance(control, Action):
        return WireControl.model_construct(action=WireAction.of(control))
    return WireControl.model_construct(text=control)


async def _read(model: type[M], request: Request) -> M:
    body = await request.body()
    return model.read(loads(body) if body.strip() else {}, "body")


def _shown(lease: Lease, request: Request) -> dict[str, Any]:
    if lease.observation is None:
        raise Refusal(409, "order", "there is no observation yet; reset the session first")
    return show(lease.observation, info=may_grade(request), inline=_inline(request))


def _inline(request: Request) -> bool:
    wanted = request.query_params.get("images", "base64")
    if wanted not in ("base64", "hash"):
        raise WireError(f"images={wanted[:40]!r}; expected 'base64', or 'hash' to fetch the bytes on their own")
    return wanted == "base64"
