"""OpenEnv over `/ws`: one connection is one session; text frames of JSON, one answer to each.

The stateless `/reset`, `/step` and `/state` of OpenEnv over HTTP are not served, as in its production mode: they play a
new environment with every call. A session that the reaper closes takes its socket with it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Response, WebSocket, WebSocketDisconnect

from uirl.environments.remote.protocol.openenv import (
    ACTION_SCHEMA,
    OBSERVATION_SCHEMA,
    STATE_SCHEMA,
    ResetData,
    StepData,
    write_frame,
)
from uirl.environments.remote.server.native import answer, describe_environment, may_grade, task_of
from uirl.environments.remote.server.sessions import Full, Lease, SessionOver, Sessions
from uirl.errors import ContractError, RolloutFailure
from uirl.http.guard import Refusal
from uirl.runtime.limits import shown
from uirl.runtime.wire import WireError, dumps, loads
from uirl.types import Task


class OpenEnv:
    """The handlers of OpenEnv over one set of sessions."""

    def __init__(self, sessions: Sessions) -> None:
        self.sessions = sessions

    def router(self) -> APIRouter:
        """Return the routes."""
        router = APIRouter()
        router.add_api_route("/metadata", self.metadata, methods=["GET"])
        router.add_api_route("/schema", self.schema, methods=["GET"])
        router.add_api_websocket_route("/ws", self.socket)
        return router

    async def metadata(self) -> Response:
        description = describe_environment(self.sessions.settings.environment, self.sessions.environment)
        purpose = (type(self.sessions.environment).__doc__ or "").strip().split("\n")[0]
        about = {"name": description.name, "description": purpose, "version": str(description.protocol)}
        return answer({**about, "uirl": description.write()})

    async def schema(self) -> Response:
        return answer({"action": ACTION_SCHEMA, "observation": OBSERVATION_SCHEMA, "state": STATE_SCHEMA})

    async def socket(self, socket: WebSocket) -> None:
        """One session, from the first frame to the end of the connection."""
        await socket.accept()
        try:
            lease = self.sessions.open("openenv", graders=may_grade(socket), leased=False)
        except (Full, RolloutFailure) as error:
            if isinstance(error, Full):
                more = {"active_sessions": error.active, "max_sessions": error.capacity}
                await _fail(socket, "CAPACITY_REACHED", str(error), **more)
            else:
                await _fail(socket, "FACTORY_ERROR", str(error))
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
        """Answer frames until the client says `close` or goes."""
        while True:
            frame = await self._socket.receive()
            if frame["type"] == "websocket.disconnect":
                return
            if not await self._answer(frame.get("text") or frame.get("bytes") or ""):
                await self._socket.close(1000)
                return

    def end_soon(self) -> None:
        """Close the socket with its session: a client must not play what is closed."""
        if self._lease.over != "client":
            self._ending = asyncio.ensure_future(self._end())

    async def _end(self) -> None:
        try:
            await _fail(self._socket, "SESSION_ERROR", f"the session is over: {self._lease.over}")
            await self._socket.close(1001)
        except (RuntimeError, WebSocketDisconnect, OSError):
            pass  # the client was faster

    async def _answer(self, data: str | bytes) -> bool:
        """Answer one frame; False: it said `close`."""
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
            expected = "expected reset, step, state, mcp or close"
            await _fail(self._socket, "UNKNOWN_TYPE", f"unknown message type {shown(kind)}; {expected}")
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
            kind = "observation" if kind in ("reset", "step") else str(kind)
            await _send(self._socket, kind, reply)
        return True

    async def _reset(self, data: Any) -> dict[str, Any]:
        wanted = ResetData.read(data, "data")
        self._episode = wanted.episode_id or secrets.token_hex(8)
        observation = await self._sessions.reset(self._lease, self._task(wanted), wanted.seed)
        return write_frame(observation, None, (False, False), graded=self._graded)

    async def _step(self, data: Any) -> dict[str, Any]:
        result = await self._sessions.step(self._lease, StepData.read(data, "data").to_record())
        ends = (result.terminated, result.truncated)
        return write_frame(result.observation, result.reward, ends, graded=self._graded)

    async def _state(self, data: Any) -> dict[str, Any]:
        self._sessions.find(self._lease.id)
        return {"episode_id": self._episode, "step_count": self._lease.turns}

    async def _mcp(self, data: Any) -> dict[str, Any]:
        id = data.get("id") if isinstance(data, Mapping) else None
        problem = {"code": -32601, "message": "this environment has no tools over MCP; step it"}
        return {"jsonrpc": "2.0", "id": id, "error": problem}

    def _task(self, wanted: ResetData) -> Task | None:
        name = wanted.task_id or wanted.task_name
        if wanted.task is not None:
            return task_of(wanted.task, graded=self._graded)
        if name is None:
            return None
        for task in self._sessions.environment.tasks() or ():
            if task.id == name:
                return task
        raise WireError(f"the environment has no task {shown(name)}")


async def _send(socket: WebSocket, type: str, data: dict[str, Any]) -> None:
    await socket.send_text(dumps({"type": type, "data": data}).decode("ascii"))


async def _fail(socket: WebSocket, code: str, message: str, **more: Any) -> None:
    await _send(socket, "error", {"message": message, "code": code, **more})
