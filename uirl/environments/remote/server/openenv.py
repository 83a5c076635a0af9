"""OpenEnv over `/ws`: one connection is one session; text frames of JSON, one answer to each.

The stateless `/reset`, `/step` and `/state` of OpenEnv over HTTP are not served, as in its production mode: they play a
new environment with every call. A session that the reaper closes takes its socket with it.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, WebSocket, WebSocketDisconnect

from uirl.environments.remote.protocol.native import (
    Fields,
    WireError,
    dumps,
    loads,
    plain,
    read_action,
    read_task,
    write_result,
)
from uirl.environments.remote.server.access import may_grade
from uirl.environments.remote.server.native import describe_environment
from uirl.environments.remote.server.problems import Full, NotAllowed, Refusal, SessionOver
from uirl.environments.remote.server.sessions import Lease, Sessions
from uirl.errors import ContractError, RolloutFailure
from uirl.runtime.limits import shown
from uirl.types import Action, Observation, Task, ToolCall

_CALL = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "arguments": {"type": "object"}, "id": {"type": "string"}},
    "required": ["name"],
}
ACTION_SCHEMA: dict[str, Any] = {
    "title": "UirlAction",
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "text": {"type": "string", "description": "the reply as text: all there is for environments that take text"},
        "name": {"type": "string", "description": "one call, in short for tool_calls with one item"},
        "arguments": {"type": "object"},
        "tool_calls": {"type": "array", "items": _CALL},
        "thought": {"type": "string"},
        "parse_error": {"type": ["string", "null"]},
        "metadata": {"type": "object"},
    },
}
OBSERVATION_SCHEMA: dict[str, Any] = {
    "title": "UirlObservation",
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "images": {"type": "array", "items": {"type": "string", "contentEncoding": "base64"}},
        "tool_results": {"type": "array", "items": {"type": "object"}},
        "done": {"type": "boolean"},
        "terminated": {"type": "boolean"},
        "truncated": {"type": "boolean"},
        "reward": {"type": ["number", "null"]},
        "metadata": {"type": "object"},
    },
}
STATE_SCHEMA: dict[str, Any] = {
    "title": "UirlState",
    "type": "object",
    "properties": {"episode_id": {"type": ["string", "null"]}, "step_count": {"type": "integer"}},
}


class OpenEnv:
    """The handlers of OpenEnv over one set of sessions."""

    def __init__(self, sessions: Sessions) -> None:
        self.sessions = sessions

    def router(self) -> APIRouter:
        """The routes."""
        router = APIRouter()
        router.add_api_route("/metadata", self.metadata, methods=["GET"])
        router.add_api_route("/schema", self.schema, methods=["GET"])
        router.add_api_websocket_route("/ws", self.socket)
        return router

    async def metadata(self) -> dict[str, Any]:
        said = describe_environment(self.sessions.settings.environment, self.sessions.environment)
        words = (type(self.sessions.environment).__doc__ or "").strip().split("\n")[0]
        return {"name": said["name"], "description": words, "version": str(said["protocol"]), "uirl": said}

    async def schema(self) -> dict[str, Any]:
        return {"action": ACTION_SCHEMA, "observation": OBSERVATION_SCHEMA, "state": STATE_SCHEMA}

    async def socket(self, socket: WebSocket) -> None:
        """One session, from the first frame to the end of the connection."""
        await socket.accept()
        try:
            lease = self.sessions.open("openenv", graders=may_grade(socket), leased=False)
        except Full as full:
            more = {"active_sessions": full.active, "max_sessions": full.capacity}
            await _fail(socket, "CAPACITY_REACHED", str(full), **more)
            await socket.close(1000)
            return
        except RolloutFailure as failure:
            await _fail(socket, "FACTORY_ERROR", str(failure))
            await socket.close(1000)
            return
        conversation = Connection(socket, lease, self.sessions, may_grade(socket))
        lease.on_close = conversation.end_soon
        try:
            await conversation.run()
        except WebSocketDisconnect:
            pass
        finally:
            await self.sessions.close(lease, "client")


class Connection:
    """One socket and its session."""

    def __init__(self, socket: WebSocket, lease: Lease, sessions: Sessions, graded: bool) -> None:
        self._socket, self._lease, self._sessions, self._graded = socket, lease, sessions, graded
        self._episode: str | None = None
        self._ending: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Answers frames until the client says `close` or goes."""
        while True:
            frame = await self._socket.receive()
            if frame["type"] == "websocket.disconnect":
                return
            if not await self._answer(frame.get("text") or frame.get("bytes") or ""):
                await self._socket.close(1000)
                return

    def end_soon(self) -> None:
        """The session is over: the socket goes too, for a client must not play what is closed."""
        if self._lease.over != "client":
            self._ending = asyncio.ensure_future(self._end())

    async def _end(self) -> None:
        try:
            await _fail(self._socket, "SESSION_ERROR", f"the session is over: {self._lease.over}")
            await self._socket.close(1001)
        except (RuntimeError, WebSocketDisconnect, OSError):
            pass  # the client was faster

    async def _answer(self, data: str | bytes) -> bool:
        """Answers one frame; False: it said `close`."""
        try:
            frame = loads(data)
        except WireError as error:
            await _fail(self._socket, "INVALID_JSON", str(error))
            return True
        kind = frame.get("type") if isinstance(frame, Mapping) else None
        if kind == "close":
            return False
        handler = {"reset": self._reset, "step": self._step, "state": self._state, "mcp": self._mcp}.get(str(kind))
        if handler is None:
            known = "expected reset, step, state, mcp or close"
            await _fail(self._socket, "UNKNOWN_TYPE", f"unknown message type {shown(kind)}; {known}")
            return True
        try:
            reply = await handler(frame.get("data") or {})
        except WireError as error:
            errors = [{"type": "value_error", "loc": ["data"], "msg": str(error)}]
            await _fail(self._socket, "VALIDATION_ERROR", str(error), errors=errors)
        except SessionOver as over:
            await _fail(self._socket, "SESSION_ERROR", str(over))
            return False
        except (RolloutFailure, ContractError, Refusal) as error:
            await _fail(self._socket, "EXECUTION_ERROR", str(error), kind=getattr(error, "kind", "order"))
        else:
            await _send(self._socket, {"type": "observation" if kind in ("reset", "step") else kind, "data": reply})
        return True

    async def _reset(self, data: Any) -> dict[str, Any]:
        if not isinstance(data, Mapping):
            raise WireError(f"data is {shown(data)}; expected an object")
        wanted = Fields({key: data.get(key) for key in ("seed", "episode_id", "task", "task_id", "task_name")}, "data")
        seed = wanted.take("seed", int, None)
        self._episode = wanted.take("episode_id", str, None) or secrets.token_hex(8)
        task = self._task(wanted)
        observation = await self._sessions.reset(self._lease, task, seed)
        return self._shown(observation, None, False, False)

    async def _step(self, data: Any) -> dict[str, Any]:
        result = await self._sessions.step(self._lease, _read_action(data))
        return self._shown(result.observation, result.reward, result.terminated, result.truncated)

    async def _state(self, data: Any) -> dict[str, Any]:
        self._sessions.find(self._lease.id)
        return {"episode_id": self._episode, "step_count": self._lease.turns}

    async def _mcp(self, data: Any) -> dict[str, Any]:
        asked = data if isinstance(data, Mapping) else {}
        problem = {"code": -32601, "message": "this environment has no tools over MCP; step it"}
        return {"jsonrpc": "2.0", "id": asked.get("id"), "error": problem}

    def _task(self, wanted: Fields) -> Task | None:
        given = wanted.take("task", dict, None)
        name = wanted.take("task_id", str, None) or wanted.take("task_name", str, None)
        if given is not None:
            task = read_task(given, "data.task")
            if task.checks and not self._graded:
                raise NotAllowed("a task with checks needs the grader's token: who sets the checks grades itself")
            return task
        if name is None:
            return None
        for task in self._sessions.environment.tasks() or ():
            if task.id == name:
                return task
        raise WireError(f"the environment has no task {shown(name)}")

    def _shown(self, seen: Observation, reward: float | None, terminated: bool, truncated: bool) -> dict[str, Any]:
        ends = {"terminated": terminated, "truncated": truncated}
        observation = {
            "text": seen.text,
            "images": [base64.b64encode(shot.data).decode("ascii") for shot in seen.images],
            "tool_results": [write_result(result) for result in seen.tool_results],
            **ends,
        }
        metadata = {"metadata": plain(seen.info, "info")} if self._graded else {}
        earned = reward if self._graded else None
        return {"observation": observation, "reward": earned, "done": terminated or truncated, **ends, **metadata}


def _read_action(data: Any) -> Action:
    own = ("name", "arguments", "metadata")
    fields = Fields(data, "data")
    name, arguments = fields.take("name", str, None), fields.take("arguments", dict, {})
    fields.take("metadata", dict, {})
    action = read_action({key: value for key, value in data.items() if key not in own}, "data", also=own)
    if name is None:
        if arguments:
            raise WireError("data.arguments stands without data.name")
        return action
    if action.tool_calls:
        raise WireError("data.name and data.tool_calls are two ways to say one thing; expected one of them")
    return replace(action, tool_calls=(ToolCall(name, arguments),))


async def _send(socket: WebSocket, message: Mapping[str, Any]) -> None:
    await socket.send_text(dumps(message).decode("ascii"))


async def _fail(socket: WebSocket, code: str, message: str, **more: Any) -> None:
    await _send(socket, {"type": "error", "data": {"message": message, "code": code, **more}})
