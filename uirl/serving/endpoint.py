"""The policy behind an OpenAI-compatible address: for agents that were written for the `openai` client."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import secrets
import uuid
from collections.abc import Callable
from contextlib import AsyncExitStack
from types import ModuleType, TracebackType
from typing import Self

from uirl.errors import ConfigError, ContractError, EngineFailure, EpisodeTimeout, UirlError
from uirl.images import ImageStore
from uirl.inference.base import InferenceEngine, SamplingParams
from uirl.inference.models.loading import LoadedModel
from uirl.inference.models.token_bytes import TokenBytes
from uirl.parsers import ActionParser, create_parser
from uirl.rollout.episode import EpisodeLimits
from uirl.serving.problems import APIProblem
from uirl.serving.renderers import Renderers
from uirl.serving.service import ModelService
from uirl.serving.session import NO_LIMITS, AgentSession
from uirl.types import Task, Trajectory

_AS_ASKED = SamplingParams()
_log = logging.getLogger("uirl.endpoint")


class ModelEndpoint:
    """Serves an engine on an address of its own, in the event loop of the caller.

    `async with ModelEndpoint(engine, loaded) as endpoint:` serves `endpoint.base_url`; `endpoint.session(...)` gives an
    agent an address whose calls become a trajectory. The engine stays the caller's, and open, when the endpoint closes.
    """

    def __init__(
        self,
        engine: InferenceEngine,
        loaded: LoadedModel,
        *,
        parser: str | ActionParser = "qwen",
        images: ImageStore | None = None,
        model_name: str | None = None,
        sampling: SamplingParams = _AS_ASKED,
        host: str = "127.0.0.1",
        port: int = 0,
        api_key: str | None = None,
        max_context: int | None = None,
        max_body: int = 64 << 20,
        max_pending: int = 1024,
        max_sessions: int = 4096,
        max_tool_sets: int = 64,
        idle_seconds: float = 600.0,
        any_model: bool = False,
        remote_sessions: bool = False,
        for_training: bool = True,
        on_finished: Callable[[Trajectory], None] | None = None,
    ) -> None:
        """Nothing is opened before `start`.

        Args:
            engine: Whatever keeps the engine contract.
            loaded: The model, for its tokenizer, chat template and pictures.
            parser: Reads the tool calls in replies to requests with `tools`.
            images: Where pictures are kept for the learner; None: a store of its own, `endpoint.images`.
            model_name: What clients call the model; None: the model's own name.
            sampling: What holds where a client asks for nothing.
            host: Address to bind. Others than this machine's own need an `api_key`.
            port: 0 takes a free one.
            api_key: The operator's: it opens the model, every session's too, and opens sessions. Agents get the key of
                their session instead. None: nothing is asked, and only this machine is answered.
            max_context: Tokens of prompt and reply; None: what the model's positions allow.
            max_body: Bytes of a request; more is a 413.
            max_pending: Calls on their way at a time; more are a 429.
            max_sessions: Open at a time; more are a 429.
            max_tool_sets: Different `tools` whose templates are kept.
            idle_seconds: A session without a call for so long expires: its record is a failure.
            any_model: Answer whatever model a client names, also outside of sessions.
            remote_sessions: Let the operator open sessions over HTTP (`POST /sessions`), and graders finish them; needs
                an `api_key`, for whoever opens sessions gives rewards.
            for_training: Sessions refuse replies without log-probs.
            on_finished: Hears of every record when it is finished, expired ones included.

        Raises:
            ConfigError: A public address or remote sessions without a key, an unknown parser.
        """
        self.loaded, self.api_key = loaded, api_key
        self.token_bytes = TokenBytes(loaded)
        self.images = images if images is not None else ImageStore()
        self.model_name = model_name or loaded.name
        self.max_body, self.any_model, self.remote_sessions = max_body, any_model, remote_sessions
        self.service = ModelService(
            engine=engine,
            loaded=loaded,
            parser=create_parser(parser) if isinstance(parser, str) else parser,
            images=self.images,
            sampling=sampling,
            max_context=min(max_context or 1 << 30, _positions(loaded)),
            max_pending=max_pending,
            renderers=Renderers(loaded, max_tool_sets),
        )
        self._host, self._port = host, port
        self._max_sessions, self._idle_seconds, self._for_training = max_sessions, idle_seconds, for_training
        self._hear = on_finished
        self._sessions: dict[str, AgentSession] = {}
        self._stack: AsyncExitStack | None = None
        self._url: str | None = None
        if api_key == "":
            raise ConfigError("the API key is empty; give one, or None for none")
        if api_key is None and remote_sessions:
            raise ConfigError(
                "sessions over HTTP are rewarded by whoever opens them, and no API key is set: an agent could do so "
                "itself. Give an api_key (uirl serve-model: --api-key-env NAME) that agents do not know"
            )
        self._grading = secrets.token_bytes(32)

    @property
    def url(self) -> str:
        """Where the server listens, e.g. 'http://127.0.0.1:41234'. Raises ContractError before `start`."""
        if self._url is None:
            raise ContractError("the endpoint is not started; use 'async with endpoint:' or await endpoint.start()")
        return self._url

    @property
    def base_url(self) -> str:
        """For clients without a session: `openai.OpenAI(base_url=...)`."""
        return f"{self.url}/v1"

    async def start(self) -> None:
        """Begins to listen. Raises ConfigError for an address that cannot be had, or must not be without a key."""
        server = _server()
        if self.api_key is None and not server.is_loopback(self._host):
            raise ConfigError(
                f"{self._host} can be reached by others, and no API key is set: anybody could use the model. Give an "
                "api_key (uirl serve-model: --api-key-env NAME), or bind to 127.0.0.1"
            )
        stack = AsyncExitStack()
        port = await stack.enter_async_context(server.serving(server.build_app(self), self._host, self._port))
        self._stack, self._url = stack, f"http://{_reachable(self._host)}:{port}"
        sweeper = asyncio.create_task(self._sweep())
        stack.callback(sweeper.cancel)

    async def close(self) -> None:
        """Ends open sessions as failures and stops listening. Calling it twice is fine."""
        for session in list(self._sessions.values()):
            session.fail(EngineFailure("the endpoint was closed before the session was finished"))
            self._end(session)
        if self._stack is not None:
            stack, self._stack, self._url = self._stack, None, None
            await stack.aclose()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def session(
        self,
        id: str | None = None,
        task: Task | str | None = None,
        *,
        group_id: str = "",
        environment_seed: int | None = None,
        sampling_seed: int | None = None,
        sampling: SamplingParams | None = None,
        limits: EpisodeLimits = NO_LIMITS,
    ) -> AgentSession:
        """A new session: an address for one agent, whose calls become one trajectory.

        Args:
            id: Of the trajectory; None: a random one.
            task: What the agent is at; a str is the id of a task.
            group_id: Of episodes that are compared with each other.
            environment_seed: Of the instance of the task, for the record.
            sampling_seed: Every draw follows from it, and a seed that the agent asks for only varies it; None: the
                agent's own seeds hold, and without them nothing is repeatable.
            sampling: Rules whatever the agent asks, which may only want fewer tokens: the learner computes log-probs at
                one temperature. None: the agent's wishes.
            limits: Calls and tokens after which the agent is refused with a 400 (`max_seconds` is for `run_agent`).
        """
        if len(self._sessions) >= self._max_sessions:
            raise APIProblem(
                429,
                f"{len(self._sessions)} sessions are open, which is the limit; finish some",
                code="too_many_sessions",
            )
        session = AgentSession(
            id or uuid.uuid4().hex,
            task if isinstance(task, Task) else Task(task or "agent"),
            self.url,
            group_id=group_id,
            environment_seed=environment_seed,
            sampling_seed=sampling_seed,
            sampling=sampling,
            limits=limits,
            for_training=self._for_training,
        )
        self._sessions[session.token] = session
        session.on_finished(self._finished)
        return session

    @property
    def open_sessions(self) -> list[AgentSession]:
        """The sessions that nobody has finished."""
        return list(self._sessions.values())

    def open_session(self, token: str) -> AgentSession | None:
        """The session with that token in its address; None: it is over or never was."""
        return self._sessions.get(token)

    def grader_key(self, token: str) -> str:
        """The secret that finishes the session with that token in its address, and opens nothing else."""
        return hmac.new(self._grading, token.encode(), hashlib.sha256).hexdigest()

    def end_idle_sessions(self) -> None:
        """Ends, as failures, the sessions that nobody has used for `idle_seconds`. A started endpoint does so by itself
        several times in that span."""
        for session in list(self._sessions.values()):
            if session.idle_seconds > self._idle_seconds:
                session.fail(EpisodeTimeout(f"no call for {self._idle_seconds:g} s, and nobody finished the session"))
                self._end(session)

    def _finished(self, session: AgentSession, record: Trajectory) -> None:
        self._sessions.pop(session.token, None)
        for cache in session.cache_ids:
            self.service.engine.release(cache)
        if self._hear is not None:
            self._hear(record)

    def _end(self, session: AgentSession) -> None:
        """Finishes a session that nobody waits for; what goes wrong is told in the log."""
        try:
            session.end()
        except UirlError as error:
            _log.error("session %s ended badly: %s", session.id, error)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(min(self._idle_seconds / 4, 30.0))
            self.end_idle_sessions()


def _server() -> ModuleType:
    """The file that knows the web framework. Raises ConfigError where that is not installed."""
    try:
        from uirl.serving import server
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("fastapi", "starlette", "uvicorn"):
            raise
        raise ConfigError(f"the endpoint needs {error.name}: pip install 'uirl[server]'") from error
    return server


def _positions(loaded: LoadedModel) -> int:
    config = getattr(loaded.config, "text_config", loaded.config)
    return int(getattr(config, "max_position_embeddings", 4096))


def _reachable(host: str) -> str:
    """The host that a client on this machine uses for a bound one."""
    local = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host)
    return f"[{local}]" if ":" in local and not local.startswith("[") else local
