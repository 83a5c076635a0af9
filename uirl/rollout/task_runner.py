"""`TaskRunner`: episodes of one task on a server of user interfaces, for people with a loop of their own."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Mapping
from typing import Any, Protocol

from uirl.environments.registry import create_environment
from uirl.errors import ContractError
from uirl.images import ImageStore
from uirl.inference.base import SamplingParams
from uirl.inference.embedded.engine import TransformersInferenceEngine
from uirl.inference.text_front import TextEngine
from uirl.parsers import create_parser
from uirl.rollout.collector import Collector
from uirl.rollout.conversation import ContextWindow
from uirl.rollout.episode import EngineAgent, EpisodeLimits, EpisodeOptions, EpisodeSpec, derive_seed
from uirl.types import Task, Trajectory


class TrajectoryQueue(Protocol):
    """Anything to put trajectories into: `queue.Queue`, one of `multiprocessing`, ..."""

    def put(self, item: Trajectory) -> Any: ...


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
        *,
        max_steps: int = 50,
        max_tokens: int = 256,
        temperature: float = 1.0,
        top_p: float = 1.0,
        seed: int | None = None,
        window: ContextWindow | None = None,
        system_prompt: str | None = None,
        environment: str = "ui_verifiers",
        environment_options: Mapping[str, Any] | None = None,
        images: ImageStore | None = None,
        step_timeout: float = 120.0,
        reset_timeout: float = 300.0,
    ) -> None:
        """Raises ConfigError or ContractError for what does not fit; the server is first asked by an episode.

        Args:
            ui_env_url: address of the server, 'http://host:8000'.
            model: a `VLMWrapper`, or a `TextEngine` (what `create_inference_engine` returns).
            trajectory_queue: where trajectories go; None: `run_episode` returns them alone.
            task_prompt: the goal, told with the first screenshot.
            session_type: which task a session of the server is, in the protocol of ui-verifiers.
            action_format: name of the parser of the replies.
            max_steps: replies per episode.
            seed: makes instances and draws; None: not repeatable.
            window: how much of the history a reply sees; None: all of it.
            system_prompt: None: the environment's, with how to write a call where the format is not the environment's.
            environment: name in the table of environments; 'remote' and 'openenv' play other protocols.
            environment_options: further options of it.
            images: where the screenshots of the trajectories are kept; a `Trainer` needs the same store.
        """
        options: dict[str, Any] = {"url": ui_env_url, **(environment_options or {})}
        if environment == "ui_verifiers":
            options = {"session_type": session_type, "max_turns": max_steps, **options}
        self.environment = create_environment(environment, options)
        self.engine = _text_engine(model)
        self.queue = trajectory_queue
        self.images = ImageStore() if images is None else images
        self._task = Task(session_type, goal=task_prompt)
        self._sampling = SamplingParams(max_tokens, temperature, top_p)
        self._seed, self._counter = seed, itertools.count()
        self._parser = create_parser(action_format)
        self._action_format, self._system_prompt = action_format, system_prompt
        self._limits, self._window = EpisodeLimits(max_steps), window or ContextWindow()
        self._timeouts = (step_timeout, reset_timeout)

    def run_episode(self) -> Trajectory:
        """The trajectory of one episode, which is in the queue by then. Ctrl-C ends the session on the server too."""
        trajectory = self.engine.run(self._play(self._spec()))
        if self.queue is not None:
            self.queue.put(trajectory)
        return trajectory

    async def _play(self, spec: EpisodeSpec) -> Trajectory:
        collector = Collector(
            environment=self.environment,
            chat=self.engine.chat,
            parser=self._parser,
            images=self.images,
            options=self._options(),
            retries=0,
            step_timeout=self._timeouts[0],
            reset_timeout=self._timeouts[1],
        )
        try:
            (trajectory,) = await collector.collect(
                [spec], lambda own: EngineAgent(self.engine.engine, self._sampling, own.trajectory_id)
            )
        finally:
            await collector.close()
        return trajectory

    def _options(self) -> EpisodeOptions:
        return EpisodeOptions(self._limits, self._window, system_prompt=self._prompt())

    def _prompt(self) -> str | None:
        if self._system_prompt is not None or self._action_format == self.environment.action_format:
            return self._system_prompt
        return "\n\n".join(filter(None, [self.environment.get_prompt_prefix(), self._parser.describe()]))

    def _spec(self) -> EpisodeSpec:
        number = next(self._counter)
        instance = None if self._seed is None else derive_seed(self._seed, "instance", number)
        draws = None if self._seed is None else derive_seed(self._seed, "draws", number)
        return EpisodeSpec(self._task, instance, draws, f"{self._task.id}-{uuid.uuid4().hex[:12]}")


def _text_engine(model: Any) -> TextEngine:
    """The engine of a model that samples with the very weights that are trained."""
    if isinstance(model, TextEngine):
        return model
    loaded = getattr(getattr(model, "policy", None), "loaded", None)
    if loaded is None:
        raise ContractError(
            f"a TaskRunner plays with a VLMWrapper or a TextEngine, got {type(model).__name__}; "
            "create_inference_engine(model_path) makes the latter"
        )
    return TextEngine(loaded, TransformersInferenceEngine(loaded, shared=True))
