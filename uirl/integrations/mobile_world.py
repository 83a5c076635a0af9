"""`MobileWorldAgentLoop`: whole tasks on phones with a model behind a server, for people with a loop of their own."""

from __future__ import annotations

import inspect
import itertools
import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from uirl.config import ModelConfig, Section
from uirl.config.section import Count, NonNegative, Positive
from uirl.environments import BaseEnvironment
from uirl.environments.mobile_world.environment import MobileWorldEnvironment
from uirl.environments.mobile_world.options import Prompt
from uirl.errors import ConfigError, did_you_mean
from uirl.images import ImageStore
from uirl.inference.base import InferenceEngine, SamplingParams
from uirl.inference.http import ModelServerClient
from uirl.inference.models.chat import ChatRenderer
from uirl.inference.models.loading import LoadedModel, load_model
from uirl.inference.openai.engine import OPENAI, OpenAIInferenceEngine
from uirl.parsers import create_parser
from uirl.rollout.collector import Collector
from uirl.rollout.conversation import ContextWindow, style_of
from uirl.rollout.episode import EngineAgent, EpisodeLimits, EpisodeOptions, EpisodeSpec
from uirl.rollout.reward import RewardFunction
from uirl.runtime.event_loop import EventLoopThread
from uirl.success import settle_outcomes
from uirl.training.tasks.curriculum import Curriculum
from uirl.types import Task, Trajectory

MAI_UI_AGENT = "mai_ui_agent"
"""The kind of agent whose replies and whose prompt on phones are those of MAI-UI."""

_numbers = itertools.count()


class AgentLoopOptions(Section):
    """How a `MobileWorldAgentLoop` samples, and how long it waits: keyword arguments of its constructor."""

    key = "MobileWorldAgentLoop"

    max_step: Count = 50
    """Replies per task. A phone is asked for its score after the last one."""
    max_tokens: Count = 2048
    """Of a reply."""
    temperature: NonNegative = 0.0
    """0 is greedy."""
    max_images: Count | None = 3
    """The model sees the newest so many screenshots; None: all."""
    prompt: Prompt | None = None
    """What it is told on a phone, and how ('mai_ui': MobileWorld's published protocol; 'own'); None: the environment's
    own choice, else that of the kind of agent: 'mai_ui' for mai_ui_agent."""
    step_timeout: Positive = 900.0
    """Seconds after which an action is given up."""
    reset_timeout: Positive = 1800.0
    """Seconds after which the set-up of a task is given up."""

    @classmethod
    def unknown_key(cls, name: str) -> str:
        known = [*inspect.signature(MobileWorldAgentLoop).parameters, *cls.model_fields]
        return f"{cls.key} has no argument {name!r}; {did_you_mean(name, known)}"


class MobileWorldAgentLoop:
    """Plays tasks with a model behind an OpenAI-compatible server, one after the other: `run_full_interaction`.

    Made for phones; any environment can stand in their place. Needs no verl, which has a loop of the same name that its
    own trainers drive (`uirl.integrations.verl`).
    """

    def __init__(
        self,
        env: BaseEnvironment | str | Sequence[str],
        agent_type: str = MAI_UI_AGENT,
        model_name: str | None = None,
        llm_base_url: str | None = None,
        api_key: str | None = None,
        max_step: int = 50,
        task_curriculum: Curriculum | None = None,
        reward_calculator: RewardFunction | None = None,
        *,
        engine: Callable[[LoadedModel], InferenceEngine] | None = None,
        **options: Any,
    ) -> None:
        """Configure the loop; no server is asked yet. Raises ConfigError for an unknown agent type and for options that
        do not fit.

        Args:
            env: the environment, or the addresses of MobileWorld servers.
            agent_type: 'mai_ui_agent', or the name of a parser: how replies are read.
            model_name: the model's name at its server; None: the only one it serves.
            llm_base_url: address of that server ('http://host:8000/v1'); None: OpenAI's.
            api_key: its key, kept in the environment of this process until `close`, where the HTTP client reads it;
                None: the environment variable OPENAI_API_KEY.
            max_step: replies per task. A phone is asked for its score after the last one.
            task_curriculum: asked for a task where none is named, and told how it went.
            reward_calculator: total reward of a trajectory; None: what the environment pays, for phones the score.
            engine: makes another engine than that of the server.
            options: the other fields of `AgentLoopOptions` by name.
        """
        settings = AgentLoopOptions.build({"max_step": max_step, **options})
        self.env = env if isinstance(env, BaseEnvironment) else _phones(env)
        if isinstance(self.env, MobileWorldEnvironment):
            # a copy: the environment may be used elsewhere
            published: Prompt | None = "mai_ui" if agent_type == MAI_UI_AGENT else None
            self.env = self.env.with_prompt(settings.prompt or self.env.prompt or published)
            # whoever counts the turns asks for the score at the end
            self.env.max_turns = min(max_step, self.env.max_turns or max_step)
        elif settings.prompt is not None:
            raise ConfigError(
                f"prompt is for phones, and {type(self.env).__name__} has its own; got {settings.prompt!r}"
            )
        if reward_calculator is not None and not callable(reward_calculator):
            raise ConfigError(
                f"reward_calculator takes a trajectory and returns a number, got {reward_calculator!r:.60}"
            )
        self._curriculum = task_curriculum
        self._sampling = SamplingParams(max_tokens=settings.max_tokens, temperature=settings.temperature)
        self._played = 0
        self._speakers: set[str] = set()
        self.images = ImageStore()
        """The screenshots that the trajectories name."""
        # the record needs some tokenizer; the server is asked with messages and samples in tokens of its own
        loaded = load_model(ModelConfig(model_name="uirl/tiny-vlm", device="cpu"), seed=0)
        self._collector = Collector(
            environment=self.env,
            chat=ChatRenderer(loaded, self.env.tool_schemas()),
            parser=create_parser("mai_ui" if agent_type == MAI_UI_AGENT else agent_type),
            images=self.images,
            options=EpisodeOptions(EpisodeLimits(max_step), ContextWindow(settings.max_images), reward_calculator),
            retries=0,
            step_timeout=settings.step_timeout,
            reset_timeout=settings.reset_timeout,
        )
        self._key = f"UIRL_AGENT_LOOP_KEY_{next(_numbers)}"  # two loops may have different keys
        variable = "OPENAI_API_KEY" if api_key is None else self._key
        self._engine = engine(loaded) if engine else self._server(loaded, model_name, llm_base_url, variable)
        self._loop = EventLoopThread()
        self._finalizer = weakref.finalize(self, _abandon, self._loop, self._engine, self._key)
        self._finalizer.atexit = False  # the process ends its threads itself
        if api_key is not None:
            os.environ[self._key] = api_key

    def run_full_interaction(
        self, interaction_id: str, task_name: str | None = None, *, seed: int | None = None
    ) -> dict[str, Any]:
        """Play one task and return how it went: `interaction_id`, `task_name`, `success`, `score` (the environment's, 0
        to 1), `reward`, `steps`, `stop_reason`, `failure` (None: none) and the `trajectory`.

        An episode that failed, by a phone or by the model's server, has no reward and no score (None), and the
        curriculum does not hear of it. `task_name` None asks the curriculum, or takes the first task. Raises
        ConfigError for a task that the environment does not have, EnvironmentFailure where no server lists its tasks.
        """
        task = self._task(task_name)
        trajectory = self._loop.run(self._play(EpisodeSpec(task, seed, None, interaction_id, interaction_id)))
        self._played += 1
        settle_outcomes([trajectory], self._speakers)
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
        """Free the connections and forget the key. Calling it twice is fine."""
        if self._finalizer.detach() is not None:
            os.environ.pop(self._key, None)
            try:
                self._loop.run(self._engine.close())
            finally:
                self._loop.close()

    def __enter__(self) -> MobileWorldAgentLoop:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _play(self, spec: EpisodeSpec) -> Trajectory:
        def agent(spec: EpisodeSpec) -> EngineAgent:
            return EngineAgent(self._engine, self._sampling, spec.trajectory_id, for_training=False)

        try:
            (trajectory,) = await self._collector.collect([spec], agent)
        finally:
            await self._collector.close()
        return trajectory

    def _task(self, name: str | None) -> Task:
        tasks = {task.id: task for task in self.env.tasks() or ()}
        if name is None and self._curriculum is not None:
            name = self._curriculum.sample_task()
        if name is None:
            return next(iter(tasks.values()), Task(id=type(self.env).__name__))
        if tasks and name not in tasks:
            raise ConfigError(f"{type(self.env).__name__} has no task {name!r}; {did_you_mean(name, tasks)}")
        return tasks.get(name) or Task(id=name)

    def _server(self, loaded: LoadedModel, model: str | None, url: str | None, key_variable: str) -> InferenceEngine:
        client = ModelServerClient(url or OPENAI, api_key_env=key_variable)
        text_parts = style_of(self.env.message_style).text_parts
        tools = self.env.tool_schemas()
        return OpenAIInferenceEngine(loaded, client, model=model, tools=tools, text_parts=text_parts)


def _phones(urls: Any) -> MobileWorldEnvironment:
    addresses = [urls] if isinstance(urls, str) else urls
    if not isinstance(addresses, (list, tuple)) or not addresses:
        raise ConfigError(f"env is an environment or the addresses of MobileWorld servers, got {urls!r:.80}")
    return MobileWorldEnvironment(urls=addresses)


def _abandon(loop: EventLoopThread, engine: InferenceEngine, key: str) -> None:
    os.environ.pop(key, None)
    loop.close_after(engine.close())
