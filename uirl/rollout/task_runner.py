"""`TaskRunner`: episodes of one task on a server of user interfaces, for people with a loop of their own."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from uirl.environments.base import BaseEnvironment
from uirl.environments.registry import create_environment
from uirl.environments.session import EnvironmentSession
from uirl.errors import ContractError, RolloutFailure
from uirl.images import ImageStore
from uirl.inference.base import SamplingParams
from uirl.inference.embedded.engine import TransformersInferenceEngine
from uirl.inference.text_front import TextEngine
from uirl.parsers import create_parser
from uirl.rollout.conversation import ContextWindow
from uirl.rollout.episode import EngineAgent, EpisodeLimits, EpisodeOptions, EpisodeSpec, derive_seed, run_episode
from uirl.types import Failure, Task, Trajectory


class TrajectoryQueue(Protocol):
    """Anything to put trajectories into: `queue.Queue`, one of `multiprocessing`, ..."""

    def put(self, item: Trajectory) -> Any: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskRunnerOptions:
    """How a `TaskRunner` plays."""

    max_steps: int = 50
    """Replies per episode."""
    max_tokens: int = 256
    """Of one reply."""
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    """Makes instances and draws; None: not repeatable."""
    window: ContextWindow = field(default_factory=ContextWindow)
    """How much of the history a reply sees."""
    system_prompt: str | None = None
    """None: the environment's, with how to write a call where the format is not the environment's."""
    step_timeout: float = 120.0
    """Seconds."""
    reset_timeout: float = 300.0
    """Seconds."""


class TaskRunner:
    """Plays episodes of one task and puts their trajectories into a queue.

    An episode that failed (the server, the engine) is a trajectory too, with its `failure`: it has no reward, and must
    not be learned from (`RolloutData.usable` leaves it out). Each episode opens a session of its own and ends it.
    Runners on threads may share a model; share a `TextEngine` and their replies are sampled in one batch.
    """

    def __init__(
        self,
        ui_env_url: str,
        model: Any,
        trajectory_queue: TrajectoryQueue | None = None,
        task_prompt: str = "",
        session_type: str = "simple_data_entry",
        action_format: str = "json",
        options: TaskRunnerOptions | None = None,
        *,
        environment: str = "ui_verifiers",
        environment_options: Mapping[str, Any] | None = None,
        images: ImageStore | None = None,
    ) -> None:
        """Raise ConfigError or ContractError for what does not fit; the server is first asked by an episode.

        Args:
            ui_env_url: address of the server, 'http://host:8000'.
            model: a `VLMWrapper`, or a `TextEngine` (what `create_inference_engine` returns).
            trajectory_queue: where trajectories go; None: `run_episode` returns them alone.
            task_prompt: the goal, told with the first screenshot.
            session_type: which task a session of the server is, in the protocol of ui-verifiers.
            action_format: name of the parser of the replies.
            options: limits, sampling, seed and prompt; None: the defaults.
            environment: name in the table of environments; 'remote' and 'openenv' play other protocols.
            environment_options: further options of it.
            images: where the screenshots of the trajectories are kept; a `Trainer` needs the same store.
        """
        self.options = options or TaskRunnerOptions()
        arguments: dict[str, Any] = {"url": ui_env_url, **(environment_options or {})}
        if environment == "ui_verifiers":
            arguments = {"session_type": session_type, "max_turns": self.options.max_steps, **arguments}
        self.environment = create_environment(environment, arguments)
        self.engine = _text_engine(model)
        self.queue = trajectory_queue
        self.images = ImageStore() if images is None else images
        self._task = Task(session_type, goal=task_prompt)
        self._counter = itertools.count()
        self._parser = create_parser(action_format)
        self._action_format = action_format

    def run_episode(self) -> Trajectory:
        """Return the trajectory of one episode, which is in the queue by then. Ctrl-C ends the session on the server
        too."""
        trajectory = self.engine.run(self.play(self.next_spec()))
        if self.queue is not None:
            self.queue.put(trajectory)
        return trajectory

    async def play(self, spec: EpisodeSpec, spawn: Callable[[], BaseEnvironment] | None = None) -> Trajectory:
        """Return the trajectory of the episode `spec`, which is in no queue; for callers on the engine's event loop.
        `spawn` None: of the runner's environment."""
        options = self.options
        try:  # of `uirl serve` the environment is asked for here, also for what it says first
            instance = self.environment.spawn() if spawn is None else spawn()
            prompt = self._system_prompt()
        except RolloutFailure as error:
            return Trajectory(spec.trajectory_id, spec.task, [], "failure", failure=Failure(error.kind, str(error)))
        session = EnvironmentSession(instance, options.step_timeout, options.reset_timeout)
        sampling = SamplingParams(options.max_tokens, options.temperature, options.top_p)
        how = EpisodeOptions(EpisodeLimits(options.max_steps), options.window, system_prompt=prompt)
        agent = EngineAgent(self.engine.engine, sampling, spec.trajectory_id)
        try:
            return await run_episode(
                session, agent, self.engine.chat, self._parser, spec, images=self.images, options=how
            )
        finally:
            with suppress(RolloutFailure):
                await session.close()

    def next_spec(self) -> EpisodeSpec:
        """Return the next episode of the runner's task."""
        number, seed = next(self._counter), self.options.seed
        instance = None if seed is None else derive_seed(seed, "instance", number)
        draws = None if seed is None else derive_seed(seed, "draws", number)
        return EpisodeSpec(self._task, instance, draws, f"{self._task.id}-{uuid.uuid4().hex[:12]}")

    def _system_prompt(self) -> str | None:
        if self.options.system_prompt is not None or self._action_format == self.environment.action_format:
            return self.options.system_prompt
        return "\n\n".join(filter(None, [self.environment.get_prompt_prefix(), self._parser.describe()]))


def _text_engine(model: Any) -> TextEngine:
    """Return the engine of a model that samples with the very weights that are trained."""
    if isinstance(model, TextEngine):
        return model
    loaded = getattr(getattr(model, "policy", None), "loaded", None)
    if loaded is None:
        raise ContractError(
            f"a TaskRunner plays with a VLMWrapper or a TextEngine, got {type(model).__name__}; "
            "create_inference_engine(model_path) makes the latter"
        )
    return TextEngine(loaded, TransformersInferenceEngine(loaded, shared=True))
