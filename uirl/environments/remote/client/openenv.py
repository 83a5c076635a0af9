"""`OpenEnvEnvironment`: plays any environment behind OpenEnv's `/ws`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from uirl.environments.options import OptionsLike
from uirl.environments.remote.client.base import (
    GOODBYE,
    NoAnswer,
    Refused,
    RemoteEnvironment,
    Server,
    ServerLost,
    understood,
)
from uirl.environments.remote.client.options import OpenEnvOptions
from uirl.environments.remote.protocol.native import WireTask
from uirl.environments.remote.protocol.openenv import (
    ASK_FOR_TOOLS,
    ErrorData,
    Message,
    Schemas,
    action_fields,
    check_fields,
    read_frame,
    read_tools,
    takes_tool_calls,
)
from uirl.errors import ConfigError, EnvironmentFailure, EpisodeTimeout, RolloutFailure
from uirl.http.client import CONNECT, MAX_BYTES
from uirl.http.server import is_loopback
from uirl.http.wire import all_whole
from uirl.parsers import create_parser
from uirl.runtime.limits import shown
from uirl.runtime.wire import WireError, dumps, loads
from uirl.tools.definition import ToolDefinition
from uirl.types import Action, Observation, StepResult, Task

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

REFUSALS = ("CAPACITY_REACHED", "FACTORY_ERROR", "SESSION_ERROR")
"""What a server says instead of opening a session; any other error is one of the session that is open."""


class ErrorFrame(EnvironmentFailure):
    """An error frame."""

    code = ""


@dataclass(slots=True)
class _Servers:
    """What all instances know of the servers."""

    schema: dict[str, Any] | None = None
    """Of actions."""
    tools: tuple[ToolDefinition, ...] | None = None
    lowest: float = 0.0
    """Reward of a step so far, at most 0."""


class OpenEnvEnvironment(RemoteEnvironment):
    """One connection per instance, which is one session of the server.

    Where the server's actions are calls of tools (`call_tool`, as of `echo_env`), the policy calls them by their own
    names, and `tool_schemas` lists them: a call is nested on its way, and what the tool answers is its result. What
    the server's schema does not know (VALIDATION_ERROR) is the policy's mistake and is told to it; an exception in the
    server's environment (EXECUTION_ERROR) is a failure. A reward of null pays nothing.
    """

    _socket: ClientConnection | None = None

    options_class = OpenEnvOptions
    options: OpenEnvOptions

    def __init__(self, config: Any = None, options: OptionsLike = None, **keys: Any) -> None:
        """Asks no server yet. Raises ConfigError for options that do not fit `OpenEnvOptions`, and where the package
        websockets is missing."""
        try:
            import websockets  # noqa: F401  so that its absence is told before a run has begun
        except ImportError as error:
            raise ConfigError("OpenEnv needs the package websockets: pip install 'uirl[client]'") from error
        super().__init__(config, options, **keys)
        options = self.options
        self.action_format, self.max_turns = options.action_format, options.max_turns  # type: ignore[misc]
        self._fields = {"name": options.name_field, "text": options.text_field}
        self._servers = _Servers()
        self._forget()

    def get_prompt_prefix(self) -> str:
        """Return the prompt; with describe='prompt' the tools too, which a server is asked for the first time."""
        tools = self._tools() if self.options.describe == "prompt" else ()
        if not tools:
            return self.options.prompt
        format = create_parser(self.action_format).describe()
        return "\n\n".join(filter(None, [self.options.prompt, "\n".join(tool.describe() for tool in tools), format]))

    def tool_schemas(self) -> Sequence[Mapping[str, Any]]:
        """Return the server's tools, where its actions are calls of tools; asks a server the first time."""
        return tuple(tool.schema() for tool in self._tools()) if self.options.describe == "template" else ()

    def callable_tools(self) -> Sequence[Mapping[str, Any]]:
        """Return the server's tools, where the policy is told of them."""
        return () if self.options.describe == "none" else tuple(tool.schema() for tool in self._tools())

    def get_state_description(self) -> str:
        return self._last.text

    # -- an episode ------------------------------------------------------------------------------------------------

    async def reset(self, task: Task | None = None, seed: int | None = None) -> Observation:
        """Return the first observation, over a new connection where the old one is gone."""
        self._turns = 0
        if self._socket is None or self._socket.close_code is not None:
            await self.close()
        answer: dict[str, Any] | None = None
        if self._server is not None:
            try:
                answer = await self._begin(task, seed)
            except (ServerLost, ErrorFrame) as error:
                if isinstance(error, ErrorFrame) and error.code != "SESSION_ERROR":
                    raise
                await self.close()
        if answer is None:
            await self._lease()
            answer = await self._begin(task, seed)
        frame = read_frame(answer, self.url)
        self._last = await all_whole(frame.observation, self.url)
        return self._last

    async def step(self, action: Action | str) -> StepResult:
        """Return what the server answers. An act whose outcome is unknown raises, and is never sent again."""
        if isinstance(action, str):
            action = Action(text=action)
        schema = self._servers.schema or {}
        data = action_fields(action, schema, self._fields, self.action_format)
        try:
            if isinstance(data, str):
                return await self._mistaken(data)
            answer = await self._ask("step", data)
        except ErrorFrame as error:
            if error.code != "VALIDATION_ERROR":
                raise
            return await self._mistaken(f"this action is not possible: {error}")
        frame = read_frame(answer, self.url, action.call if takes_tool_calls(schema) else None)
        if frame.reward is None and self._ours and not self.options.blind:
            raise EnvironmentFailure(
                f"{self.url} shows no rewards to this token; give token_env the grader's, or set blind to go without"
            )
        last = self._last = await all_whole(frame.observation, self.url)
        self._servers.lowest = min(self._servers.lowest, frame.reward or 0.0)
        return await self._end(StepResult(last, frame.reward or 0.0, frame.terminated, frame.truncated))

    async def _mistaken(self, why: str) -> StepResult:
        return await self._end(StepResult(Observation(why, self._last.images), self.mistake_reward))

    @property
    def mistake_reward(self) -> float:  # type: ignore[override]
        """Reward of a reply that is no action: `invalid_reward`, else the lowest that the servers gave so far."""
        return self._servers.lowest if self.options.invalid_reward is None else self.options.invalid_reward

    async def _begin(self, task: Task | None, seed: int | None) -> dict[str, Any]:
        data: dict[str, Any] = {**(self.options.reset_options or {}), "seed": seed}
        if task is not None:
            data |= {"task": WireTask.of(task).write()} if self._ours else {"task_id": task.id, "task_name": task.id}
        return await self._ask("reset", {key: value for key, value in data.items() if value is not None})

    # -- the connection --------------------------------------------------------------------------------------------

    async def _open(self, server: Server) -> None:
        if self._servers.schema is None:
            answer = await self.client.json("GET", f"{server.url}/schema", timeout=CONNECT, again=True, retries=0)
            self._servers.schema = _read_schema(answer, f"{server.url}/schema")
        check_fields(self._servers.schema, self._fields, self.action_format)
        self._socket = await self._connected(server.url)
        try:
            # a full server says so only when it is spoken to
            await self._ask("state", None, url=server.url)
        except ErrorFrame as error:
            if error.code not in REFUSALS:
                return  # it has a session, and no state before the first reset
            raise Refused(str(error), 503 if error.code == "CAPACITY_REACHED" else 0) from None

    async def _connected(self, url: str) -> ClientConnection:
        from websockets.asyncio.client import connect
        from websockets.exceptions import InvalidHandshake, InvalidStatus

        address = "ws" + url.removeprefix("http") + "/ws"
        local = is_loopback(urlsplit(address).hostname or "")
        try:
            return await connect(
                address, additional_headers=self.client.headers(), open_timeout=CONNECT, max_size=MAX_BYTES,
                proxy=None if local else True, close_timeout=GOODBYE,
            )  # fmt: skip
        except InvalidStatus as error:
            status = error.response.status_code
            raise Refused(
                f"{address} was answered with {status} (token_env is {self.client.key_env})", status
            ) from None
        except TimeoutError:
            raise NoAnswer(f"{address}: no answer within {CONNECT:g} s") from None
        except (OSError, InvalidHandshake) as error:
            raise ServerLost(f"{address} cannot be reached: {type(error).__name__}: {error}") from None

    async def _ask(self, kind: str, data: Any, url: str = "") -> dict[str, Any]:
        """Return the data of the answer to one frame. Raises ErrorFrame for an error frame."""
        url = url or self.url
        socket = self._socket
        if socket is None:
            raise EnvironmentFailure(f"{type(self).__name__} has no session; reset it first")
        limit = self.options.reset_timeout if kind == "reset" else self.options.step_timeout
        try:
            answer = await self._exchange(socket, kind, data, limit, f"{url}/ws")
        except RolloutFailure as error:
            self._blame(error)
            raise
        if not isinstance(answer.data, dict):
            told = shown(answer.data, 80)
            raise EnvironmentFailure(f"{url}/ws answered {told} to {kind}; expected an object with data")
        if answer.type == "error":
            raise _failure(url, kind, answer.data)
        return answer.data

    async def _exchange(self, socket: ClientConnection, kind: str, data: Any, limit: float, url: str) -> Message:
        from websockets.exceptions import ConnectionClosed

        frame = {"type": kind} | ({} if data is None else {"data": data})
        try:
            async with asyncio.timeout(limit):
                with contextlib.suppress(ConnectionClosed):  # why it closed may be the next thing to read
                    await socket.send(dumps(frame).decode("ascii"))
                with understood(url):
                    return Message.read(loads(await socket.recv()), "the frame")
        except (TimeoutError, asyncio.CancelledError) as error:
            # an answer that comes late must not be taken for that to the next frame
            socket.transport.abort()
            self._socket = None
            if isinstance(error, asyncio.CancelledError):
                raise
            raise NoAnswer(f"{url}: no answer to {kind} within {limit:g} s") from None
        except ConnectionClosed as error:
            raise ServerLost(f"{url} broke off during {kind}: {error}") from None

    async def _leave(self, server: Server) -> None:
        socket, self._socket = self._socket, None
        if socket is not None:
            with contextlib.suppress(TimeoutError, OSError):
                async with asyncio.timeout(GOODBYE):
                    await socket.close()

    def _forget(self) -> None:
        self._socket, self._last = None, Observation()

    @property
    def _ours(self) -> bool:
        """Whether the server is a `uirl serve`, which takes whole actions and tasks."""
        return "tool_calls" in (self._servers.schema or {}).get("properties", {})

    def _tools(self) -> tuple[ToolDefinition, ...]:
        if self.action_format == "text":
            return ()
        servers, urls = self._servers, [server.url for server in self.pool.servers]
        remedy, ask = "Do the servers run, and are they OpenEnv's?", self.client.first_answer
        if servers.schema is None:
            servers.schema = ask(urls, "/schema", _read_schema, "no OpenEnv server says its schema", remedy)
        if servers.tools is None and takes_tool_calls(servers.schema):
            servers.tools = ask(urls, "/mcp", read_tools, "no OpenEnv server lists its tools", remedy, ASK_FOR_TOOLS)
        return servers.tools or ()


def _read_schema(value: Any, where: str = "/schema") -> dict[str, Any]:
    try:
        return Schemas.read(value, "answer").action
    except WireError as error:
        raise EnvironmentFailure(
            f"{where} answered {shown(value, 80)}, {error}; expected the schema of actions"
        ) from None


def _failure(url: str, kind: str, body: dict[str, Any]) -> RolloutFailure:
    with understood(f"{url}/ws"):
        answer = ErrorData.read(body, "error")
    # what pydantic found wrong, field by field
    details = [
        f"{'.'.join(map(str, error['loc']))}: {error.get('msg', '')}"
        for error in (answer.errors if isinstance(answer.errors, list) else ())
        if isinstance(error, Mapping) and isinstance(error.get("loc"), list)
    ]
    message = "; ".join([answer.message, *details])[:1000]
    if answer.kind == "timeout":
        return EpisodeTimeout(f"{url}: {message}")
    error = ErrorFrame(
        message if answer.code == "VALIDATION_ERROR" else f"{url}/ws answered {kind} with {answer.code}: {message}"
    )
    error.code = answer.code
    return error
