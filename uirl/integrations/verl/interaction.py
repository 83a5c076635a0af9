"""Whole episodes against a model behind an OpenAI-compatible server, without verl's trainer around them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from uirl.config import ModelConfig
from uirl.environments import BaseEnvironment, EnvironmentSession
from uirl.errors import ConfigError, RolloutFailure, did_you_mean
from uirl.event_loop import EventLoopThread
from uirl.images import ImageStore
from uirl.inference.chat import ChatRenderer
from uirl.inference.contract import InferenceEngine, SamplingParams
from uirl.inference.models import LoadedModel, load_model
from uirl.parsers import create_parser
from uirl.rollout.conversation import ContextWindow
from uirl.rollout.episode import EnginePlayer, EpisodeLimits, EpisodeSpec, RewardFunction, run_episode
from uirl.types import Task, Trajectory

AGENT_TYPES = {"mai_ui_agent": "mai_ui"}
"""Name of a kind of agent -> the parser of its replies; any other name is that of a parser."""
_KEY = "UIRL_INTERACTION_API_KEY"


class Interaction:
    """Plays episodes of one environment with a model behind a server, one after the other."""

    def __init__(
        self,
        env: BaseEnvironment,
        *,
        agent_type: str = "mai_ui_agent",
        model_name: str | None = None,
        llm_base_url: str | None = None,
        api_key: str | None = None,
        max_step: int = 50,
        task_curriculum: Any | None = None,
        reward_calculator: RewardFunction | None = None,
        max_tokens: int = 1024,
        temperature: float = 0.0,
        max_images: int | None = 3,
        engine: Callable[[LoadedModel], InferenceEngine] | None = None,
    ) -> None:
        """Args:
        env: The environment.
        agent_type: Kind of agent (`AGENT_TYPES`) or name of a parser: how replies are read.
        model_name: The model's name at the server; None: the only one it serves.
        llm_base_url: Address of the server ('http://host:8000/v1'); None: OpenAI's.
        api_key: The server's key, kept in the environment of this process, where the HTTP client reads it; None: the
            environment variable OPENAI_API_KEY.
        max_step: Turns after which an episode is cut.
        task_curriculum: Asked for tasks where none is named, and told how episodes went; None: none.
        reward_calculator: Total reward of an episode; None: what the environment pays.
        max_tokens: Longest reply.
        temperature: 0 is greedy.
        max_images: Newest pictures that the model sees; None: all.
        engine: Makes another engine than that of the server.

        Raises ConfigError for an unknown agent type.
        """
        self.env, self.max_step = env, max_step
        self._parser = create_parser(AGENT_TYPES.get(agent_type, agent_type))
        self._curriculum, self._reward_fn = task_curriculum, reward_calculator
        # the record needs some tokenizer; the server is asked with messages and samples in tokens of its own
        self._loaded = load_model(ModelConfig(model_name="uirl/tiny-vlm", device="cpu"), seed=0)
        self._chat = ChatRenderer(self._loaded, env.tool_schemas())
        self._engine = engine(self._loaded) if engine else self._server(model_name, llm_base_url, api_key)
        self._sampling = SamplingParams(max_tokens=max_tokens, temperature=temperature)
        self._window = ContextWindow(max_images)
        self._loop = EventLoopThread()
        self._played = 0
        self._closed = False
        self.images = ImageStore()
        """The screenshots that the trajectories name."""

    def run(self, interaction_id: str, task_name: str | None = None, *, seed: int | None = None) -> dict[str, Any]:
        """How one episode went: `success`, `reward`, `steps`, `stop_reason`, `failure` (None: none), `trajectory`.

        `task_name` None asks the curriculum, or takes the first task. Raises ConfigError for a task the environment
        does not have.
        """
        task = self._task(task_name)
        trajectory = self._loop.run(self._play(EpisodeSpec(task, seed, None, interaction_id, interaction_id)))
        self._played += 1
        if self._curriculum is not None and trajectory.failure is None and trajectory.success is not None:
            self._curriculum.update_success_rate(task.id, trajectory.success, self._played)
        return {
            "interaction_id": interaction_id,
            "task_name": task.id,
            "success": trajectory.success,
            "reward": None if trajectory.failure else trajectory.total_reward(),
            "steps": len(trajectory),
            "stop_reason": trajectory.stop_reason,
            "failure": None if trajectory.failure is None else trajectory.failure.message,
            "trajectory": trajectory,
        }

    def close(self) -> None:
        """Frees the connection. Calling it twice is fine."""
        if not self._closed:
            self._closed = True
            self._loop.run(self._engine.close())
            self._loop.close()

    async def _play(self, spec: EpisodeSpec) -> Trajectory:
        session = EnvironmentSession(self.env.spawn())
        player = EnginePlayer(self._engine, self._sampling, spec.trajectory_id, for_training=False)
        try:
            return await run_episode(
                session,
                player,
                self._chat,
                self._parser,
                spec,
                images=self.images,
                limits=EpisodeLimits(self.max_step),
                window=self._window,
                reward_fn=self._reward_fn,
            )
        finally:
            try:
                await session.close()
            except RolloutFailure:
                if not session.broken:
                    raise

    def _task(self, name: str | None) -> Task:
        own = {task.id: task for task in self.env.tasks() or ()}
        if name is None and self._curriculum is not None:
            name = self._curriculum.sample_task()
        if name is None:
            return next(iter(own.values()), Task(id=type(self.env).__name__))
        if own and name not in own:
            raise ConfigError(f"{type(self.env).__name__} has no task {name!r}; {did_you_mean(name, own)}")
        return own.get(name) or Task(id=name)

    def _server(self, model_name: str | None, base_url: str | None, api_key: str | None) -> InferenceEngine:
        from uirl.inference.http_client import HTTPClient
        from uirl.inference.openai_engine import OPENAI, OpenAIInferenceEngine

        if api_key is not None:
            os.environ[_KEY] = api_key
        client = HTTPClient(base_url or OPENAI, api_key_env="OPENAI_API_KEY" if api_key is None else _KEY)
        return OpenAIInferenceEngine(self._loaded, client, model=model_name, tools=self.env.tool_schemas())
