"""`MobileWorldAgentLoop`: whole tasks on phones with a model behind a server, for people with a loop of their own."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from uirl.config import ModelConfig
from uirl.environments import BaseEnvironment, EnvironmentSession
from uirl.environments.mobile_world.environment import MobileWorldEnvironment
from uirl.errors import ConfigError, RolloutFailure, did_you_mean
from uirl.images import ImageStore
from uirl.inference.base import InferenceEngine, SamplingParams
from uirl.inference.http import HTTPClient
from uirl.inference.models.chat import ChatRenderer
from uirl.inference.models.loading import LoadedModel, load_model
from uirl.inference.openai.engine import OPENAI, OpenAIInferenceEngine
from uirl.parsers import create_parser
from uirl.rollout.conversation import ContextWindow, style_of
from uirl.rollout.episode import EngineAgent, EpisodeLimits, EpisodeOptions, EpisodeSpec, run_episode
from uirl.rollout.reward import RewardFunction
from uirl.runtime.event_loop import EventLoopThread
from uirl.types import Task, Trajectory

AGENT_TYPES = {"mai_ui_agent": "mai_ui"}
"""Name of a kind of agent -> the parser of its replies, and the prompt of phones; any other name is a parser's."""

_KEY = "UIRL_AGENT_LOOP_KEY_{}"
_numbers = itertools.count()


class Curriculum(Protocol):
    """What is asked of a curriculum here."""

    def sample_task(self) -> str: ...

    def update_success_rate(self, task_name: str, success: bool, step: int) -> Any: ...


class MobileWorldAgentLoop:
    """Plays tasks with a model behind an OpenAI-compatible server, one after the other: `run_full_interaction`.

    Made for phones; any environment can stand in their place. Needs no verl, which has a loop of the same name that its
    own trainers drive (`uirl.integrations.verl`).
    """

    def __init__(
        self,
        env: BaseEnvironment | str | Sequence[str],
        agent_type: str = "mai_ui_agent",
        model_name: str | None = None,
        llm_base_url: str | None = None,
        api_key: str | None = None,
        max_step: int = 50,
        task_curriculum: Curriculum | None = None,
        reward_calculator: RewardFunction | None = None,
        *,
        max_tokens: int = 2048,
        temperature: float = 0.0,
        max_images: int | None = 3,
        prompt: str | None = None,
        step_timeout: float = 900.0,
        reset_timeout: float = 1800.0,
        engine: Callable[[LoadedModel], InferenceEngine] | None = None,
    ) -> None:
        """Asks no server yet. Raises ConfigError for an unknown agent type and for options that do not fit.

        Args:
            env: the environment, or the addresses of MobileWorld servers.
            agent_type: kind of agent (`AGENT_TYPES`) or name of a parser: how replies are read.
            model_name: the model's name at its server; None: the only one it serves.
            llm_base_url: address of that server ('http://host:8000/v1'); None: OpenAI's.
            api_key: its key, kept in the environment of this process until `close`, where the HTTP client reads it;
                None: the environment variable OPENAI_API_KEY.
            max_step: replies per task. A phone is asked for its score after the last one.
            task_curriculum: asked for a task where none is named, and told how it went.
            reward_calculator: total reward of a trajectory; None: what the environment pays, for phones the score.
            max_tokens, temperature: of a reply; 0 is greedy.
            max_images: the model sees the newest so many screenshots; None: all.
            prompt: what it is told on a phone, and how ('mai_ui': MobileWorld's published protocol; 'own'); None: the
                environment's own choice, else that of the kind of agent: 'mai_ui' for mai_ui_agent.
            step_timeout, reset_timeout: seconds after which an action, or the set-up of a task, is given up.
            engine: makes another engine than that of the server.
        """
        self.env = env if isinstance(env, BaseEnvironment) else _phones(env)
        if isinstance(self.env, MobileWorldEnvironment):
            # a copy: the environment may be used elsewhere
            self.env = self.env.with_prompt(prompt or self.env.prompt or AGENT_TYPES.get(agent_type))
        elif prompt is not None:
            raise ConfigError(f"prompt is for phones, and {type(self.env).__name__} has its own; got {prompt!r:.60}")
        if isinstance(max_step, bool) or not isinstance(max_step, int) or max_step < 1:
            raise ConfigError(f"max_step must be a positive int, got {max_step!r}")
        if reward_calculator is not None and not callable(reward_calculator):
            raise ConfigError(
                f"reward_calculator takes a trajectory and returns a number, got {reward_calculator!r:.60}"
            )
        self.max_step = max_step
        self._parser = create_parser(AGENT_TYPES.get(agent_type, agent_type))
        self._curriculum, self._reward_fn = task_curriculum, reward_calculator
        self._key = _KEY.format(next(_numbers))
        # the record needs some tokenizer; the server is asked with messages and samples in tokens of its own
        self._loaded = load_model(ModelConfig(model_name="uirl/tiny-vlm", device="cpu"), seed=0)
        self._chat = ChatRenderer(self._loaded, self.env.tool_schemas())
        self._engine = engine(self._loaded) if engine else self._server(model_name, llm_base_url, api_key)
        self._sampling = SamplingParams(max_tokens=max_tokens, temperature=temperature)
        self._window = ContextWindow(max_images)
        self._timeouts = (step_timeout, reset_timeout)
        self._loop = EventLoopThread()
        self._played = 0
        self._closed = False
        self.images = ImageStore()
        """The screenshots that the trajectories name."""

    def run_full_interaction(
        self, interaction_id: str, task_name: str | None = None, *, seed: int | None = None
    ) -> dict[str, Any]:
        """How one task went: `interaction_id`, `task_name`, `success`, `score` (the environment's, 0 to 1), `reward`,
        `steps`, `stop_reason`, `failure` (None: none) and the `trajectory`.

        An episode that failed, by a phone or by the model's server, has no reward and no score (None), and the
        curriculum does not hear of it. `task_name` None asks the curriculum, or takes the first task. Raises
        ConfigError for a task that the environment does not have, EnvironmentFailure where no server lists its tasks.
        """
        task = self._task(task_name)
        trajectory = self._loop.run(self._play(EpisodeSpec(task, seed, None, interaction_id, interaction_id)))
        self._played += 1
        failed = trajectory.failure is not None
        if self._curriculum is not None and not failed and trajectory.success is not None:
            self._curriculum.update_success_rate(task.id, trajectory.success, self._played)
        last = trajectory.turns[-1].info if trajectory.turns else {}
        return {
            "interaction_id": interaction_id,
            "task_name": task.id,
            "success": None if failed else trajectory.success,
            "score": None if failed else last.get("score"),
            "reward": None if failed else trajectory.total_reward(),
            "steps": len(trajectory),
            "stop_reason": trajectory.stop_reason,
            "failure": None if trajectory.failure is None else trajectory.failure.message,
            "trajectory": trajectory,
        }

    def close(self) -> None:
        """Frees the connections and forgets the key. Calling it twice is fine."""
        if not self._closed:
            self._closed = True
            try:
                self._loop.run(self._engine.close())
            finally:
                self._loop.close()
                os.environ.pop(self._key, None)

    def __enter__(self) -> MobileWorldAgentLoop:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _play(self, spec: EpisodeSpec) -> Trajectory:
        instance = self.env.spawn()
        if isinstance(instance, MobileWorldEnvironment):
            # whoever counts the turns asks for the score at the end
            instance.max_turns = min(self.max_step, instance.max_turns or self.max_step)
        session = EnvironmentSession(instance, *self._timeouts)
        agent = EngineAgent(self._engine, self._sampling, spec.trajectory_id, for_training=False)
        try:
            return await run_episode(
                session,
                agent,
                self._chat,
                self._parser,
                spec,
                images=self.images,
                options=EpisodeOptions(EpisodeLimits(self.max_step), self._window, self._reward_fn),
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
        variable = "OPENAI_API_KEY"
        if api_key is not None:
            variable = self._key  # two loops may have different keys
            os.environ[variable] = api_key
        client = HTTPClient(base_url or OPENAI, api_key_env=variable)
        return OpenAIInferenceEngine(
            self._loaded,
            client,
            model=model_name,
            tools=self.env.tool_schemas(),
            text_parts=style_of(self.env.message_style).text_parts,
        )


def _phones(urls: Any) -> MobileWorldEnvironment:
    addresses = [urls] if isinstance(urls, str) else urls
    if not isinstance(addresses, (list, tuple)) or not addresses:
        raise ConfigError(f"env is an environment or the addresses of MobileWorld servers, got {urls!r:.80}")
    return MobileWorldEnvironment(urls=addresses)
