"""The policy behind an OpenAI-compatible address: for agents that were written for the `openai` client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from types import ModuleType, TracebackType
from typing import Any, Self

from uirl.errors import ConfigError
from uirl.http.server import address_of, is_loopback
from uirl.images import ImageStore
from uirl.inference.base import InferenceEngine, SamplingParams
from uirl.inference.models.loading import LoadedModel
from uirl.parsers import ActionParser, create_parser
from uirl.rollout.episode import EpisodeLimits
from uirl.serving.options import EndpointOptions
from uirl.serving.rendering import Renderers
from uirl.serving.service import ModelService
from uirl.serving.session import NO_LIMITS, AgentSession, OpenSessions
from uirl.types import Task, Trajectory

_LOCAL = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}
"""The address by which a client on this machine reaches a server that is bound to all of them."""


class ModelEndpoint:
    """Serves an engine on an address of its own, in the event loop of the caller.

    `async with ModelEndpoint(engine, loaded) as endpoint:` serves `endpoint.base_url`; `endpoint.session(...)` gives an
    agent an address whose calls become a trajectory. The engine stays the caller's, and open, when the endpoint closes.
    """

    def __init__(
        self,
        engine: InferenceEngine,
        loaded: LoadedModel,
        options: EndpointOptions | None = None,
        *,
        parser: str | ActionParser = "qwen",
        images: ImageStore | None = None,
        sampling: SamplingParams = SamplingParams(),  # noqa: B008 (it is frozen)
        on_finished: Callable[[Trajectory], None] | None = None,
        **settings: Any,
    ) -> None:
        """Nothing is opened before `start`.

        Args:
            engine: Whatever keeps the engine contract.
            loaded: The model, for its tokenizer, chat template and pictures.
            options: How it is reached and what it accepts; None: the defaults.
            parser: Reads the tool calls in replies to requests with `tools`.
            images: Where pictures are kept for the learner; None: a store of its own, `endpoint.images`.
            sampling: What holds where a client asks for nothing.
            on_finished: Hears of every record when it is finished, expired ones included.
            settings: Fields of `EndpointOptions` by name (`port=8000`), in place of those of `options`.

        Raises:
            ConfigError: A public address or remote sessions without a key, an unknown parser, an unknown option.
        """
        values: dict[str, Any] = {"model_name": loaded.name}
        values |= {} if options is None else options.model_dump(exclude_unset=True)
        options = EndpointOptions(**values | settings)
        if options.api_key == "":
            raise ConfigError("the API key is empty; give one, or None for none")
        if options.api_key is None and options.remote_sessions:
            raise ConfigError(
                "sessions over HTTP are rewarded by whoever opens them, and no API key is set: an agent could do so "
                "itself. Give an api_key (uirl serve-model: --api-key-env NAME) that agents do not know"
            )
        self.loaded, self.options = loaded, options
        self.images = images if images is not None else ImageStore()
        calls = create_parser(parser) if isinstance(parser, str) else parser
        self.service = ModelService(
            engine=engine,
            loaded=loaded,
            parser=calls,
            images=self.images,
            sampling=sampling,
            max_context=min(options.max_context or 1 << 30, _positions(loaded)),
            max_pending=options.max_pending,
            renderers=Renderers(loaded, options.max_tool_sets, calls),
        )
        self.sessions = OpenSessions(options, lambda cache: engine.release(cache), on_finished)
        self._stack: AsyncExitStack | None = None

    @property
    def api_key(self) -> str | None:
        """The operator's key; None: none is asked for."""
        return self.options.api_key

    @property
    def model_name(self) -> str:
        """What clients call the model."""
        return self.options.model_name or self.loaded.name

    @property
    def url(self) -> str:
        """Where the server listens, e.g. 'http://127.0.0.1:41234'. Raises ContractError before `start`."""
        return self.sessions.url

    @property
    def base_url(self) -> str:
        """For clients without a session: `openai.OpenAI(base_url=...)`."""
        return f"{self.url}/v1"

    async def start(self) -> None:
        """Begins to listen. Raises ConfigError for an address that cannot be had, or must not be without a key."""
        server = _server()
        options = self.options
        if options.api_key is None and not is_loopback(options.host):
            raise ConfigError(
                f"{options.host} can be reached by others, and no API key is set: anybody could use the model. Give an "
                "api_key (uirl serve-model: --api-key-env NAME), or bind to 127.0.0.1"
            )
        stack = AsyncExitStack()
        app = server.build_app(self.service, self.sessions, options)
        port = await stack.enter_async_context(server.serving(app, options.host, options.port))
        self._stack, self.sessions.address = stack, address_of(_LOCAL.get(options.host, options.host), port)
        sweeper = asyncio.create_task(self._sweep())
        stack.callback(sweeper.cancel)

    async def close(self) -> None:
        """End open sessions as failures and stop listening. Calling it twice is fine."""
        self.sessions.end_all()
        if self._stack is not None:
            stack, self._stack, self.sessions.address = self._stack, None, None
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
        """Open a new session: an address for one agent, whose calls become one trajectory.

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
        return self.sessions.open(
            id,
            task,
            group_id=group_id,
            environment_seed=environment_seed,
            sampling_seed=sampling_seed,
            sampling=sampling,
            limits=limits,
        )

    async def _sweep(self) -> None:
        """End, as failures, the sessions that nobody has used for `idle_seconds`, several times in that span."""
        while True:
            await asyncio.sleep(min(self.options.idle_seconds / 4, 30.0))
            self.sessions.end_idle()


def _server() -> ModuleType:
    """Import the file that knows the web framework. Raises ConfigError where that is not installed."""
    try:
        from uirl.serving import server
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "fastapi":
            raise
        raise ConfigError(f"the endpoint needs {error.name}: pip install 'uirl[server]'") from error
    return server


def _positions(loaded: LoadedModel) -> int:
    config = getattr(loaded.config, "text_config", loaded.config)
    return int(getattr(config, "max_position_embeddings", 4096))
