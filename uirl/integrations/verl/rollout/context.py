"""What an agent-loop worker of verl needs to play episodes: environments, the chat template as token ids, limits."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from uirl.config import ConfigStore, ModelConfig
from uirl.environments import BaseEnvironment, create_environment, environment_class
from uirl.errors import ConfigError
from uirl.images import ImageStore
from uirl.inference.models.chat import ChatRenderer
from uirl.inference.models.loading import LoadedModel, load_model
from uirl.integrations.verl.config.settings import Settings
from uirl.integrations.verl.rollout.coordinator import RunObjects, find_coordinator
from uirl.rollout.collector import Collector, chat_for
from uirl.rollout.conversation import ContextWindow
from uirl.rollout.episode import EpisodeLimits, EpisodeOptions
from uirl.rollout.reward import RewardFunction
from uirl.storage.records import pictures_of
from uirl.types import Trajectory
from uirl.verification.setup import verifier_of


class RolloutContext:
    """The environments of a run, ready to play, in one worker process (`context_of`)."""

    def __init__(self, config: Any, settings: Settings) -> None:
        """Load what the episodes of one worker share. `config`: verl's whole config."""
        self.settings = settings
        self.store: ConfigStore = settings.store()
        self.coordinator = find_coordinator(settings.coordinator) if settings.coordinator is not None else None
        self.images = ImageStore()
        self.loaded: LoadedModel = load_model(model_of(config), weights=False)
        self.picture_options = picture_options(config)
        """verl's `data.mm_processor_kwargs`, for the servers; our own processor has them too."""
        bound_pictures(self.loaded, self.picture_options)
        rollout = config.actor_rollout_ref.rollout
        self.sequence_tokens: int = rollout.prompt_length + rollout.response_length
        self._workers: int = rollout.agent.num_workers
        self._collectors: dict[tuple[str, str], Collector] = {}
        self._sent: set[str] = set()
        self.speakers: set[str] = set()
        """The environments that were heard here to say what success is: see `uirl.success`."""
        self._playing = 0
        self._environment_object: BaseEnvironment | None = None
        run = None if settings.directory is None else Path(settings.directory).name
        self._verifier = verifier_of(self.store, run)
        self._reward_fn: RewardFunction | None = self._verifier

    async def open(self) -> RolloutContext:
        """Fetch the environment and reward function that were given as objects, and return this context."""
        if self.coordinator is None:
            return self
        os.environ.update(await self.coordinator.env.remote())
        objects = RunObjects.unpack(await self.coordinator.worker_objects.remote())
        self._environment_object, self._reward_fn = objects.environment, objects.reward_fn or self._verifier
        return self

    def collector(self, name: str, split: str) -> Collector:
        """Return the collector that plays episodes of the environment `name` (empty: the run's own) with the options of
        `split`."""
        key = (name, split)
        if key not in self._collectors:
            self._collectors[key] = self._make(self._environment(name, split))
        return self._collectors[key]

    @contextmanager
    def playing(self) -> Iterator[None]:
        """Count an episode as being played and read inside the `with` block. Pictures are dropped when no episode is
        left: a worker lives as long as the run, and would keep all that was ever seen."""
        self._playing += 1
        try:
            yield
        finally:
            self._playing -= 1
            if self._playing == 0:
                self.images.clear()

    async def close(self) -> None:
        """Free the environments that are not being played."""
        for collector in self._collectors.values():
            await collector.close()

    async def record(self, trajectory: Trajectory, step: int, split: str, *, repeated: bool = False) -> None:
        """Send an episode to the coordinator; on return it is on the disk. `repeated`: an attempt that failed and was
        followed by another. Raises StorageError."""
        if self.coordinator is None:
            return
        shown = set(pictures_of(trajectory)) - self._sent
        pictures = {hash: self.images.get(hash).data for hash in sorted(shown)}
        if await self.coordinator.add.remote(trajectory, pictures, step, split, repeated):
            self._sent.update(pictures)

    def _environment(self, name: str, split: str) -> BaseEnvironment:
        settings = self.store.environment
        of_the_run = name in ("", settings.name)
        instance = self._environment_object
        if instance is not None and (of_the_run or isinstance(instance, environment_class(name))):
            return instance
        options = settings.options_for(split) if of_the_run else {}
        return create_environment(name or settings.name, options, settings)

    def _make(self, environment: BaseEnvironment) -> Collector:
        chat = chat_for(self.loaded, environment)
        limits, window = self._limits(chat)
        options = EpisodeOptions(limits, window, self._reward_fn, self.store.inference.system_prompt)
        return Collector.from_config(self.store, environment, chat, self.images, options=options, workers=self._workers)

    def _limits(self, chat: ChatRenderer) -> tuple[EpisodeLimits, ContextWindow]:
        """Return limits under which no sequence outgrows verl's. An episode that is one sequence ends before; one whose
        history may be rewritten forgets its oldest turns instead."""
        rollout, limit = self.store.rollout, self.sequence_tokens
        if rollout.max_images is None and rollout.token_budget is None and chat.incremental:
            tokens = min(rollout.max_tokens or limit, limit)
            return EpisodeLimits(self.store.turn_limit, tokens, rollout.max_seconds), ContextWindow()
        budget = limit - self.store.inference.max_tokens
        if budget < 1:
            raise ConfigError(
                f"inference.max_tokens={self.store.inference.max_tokens} leaves no room for a prompt in sequences of "
                f"{limit} tokens (data.max_prompt_length + data.max_response_length); raise one of them"
            )
        window = ContextWindow(rollout.max_images, min(rollout.token_budget or budget, budget), rollout.keep_images)
        return EpisodeLimits(self.store.turn_limit, rollout.max_tokens, rollout.max_seconds), window


def model_of(config: Any) -> ModelConfig:
    """Return the model of verl's config as a `ModelConfig`, on the CPU."""
    model = config.actor_rollout_ref.model
    return ModelConfig(
        local_path=str(model.tokenizer_path or model.path),
        device="cpu",
        trust_remote_code=bool(model.trust_remote_code),
        chat_template=model.custom_chat_template,
    )


def picture_options(config: Any) -> dict[str, Any]:
    """Return `data.mm_processor_kwargs` of verl's config. Raises ConfigError for what servers, verl's workers and our
    own rendering would not all do."""
    options = dict(config.data.get("mm_processor_kwargs") or {})
    for key in options:
        if key not in ("min_pixels", "max_pixels"):
            raise ConfigError(
                f"data.mm_processor_kwargs.{key} has no place here: prompts are rendered with min_pixels and "
                "max_pixels alone; put it into the model's preprocessor_config.json, which every process reads"
            )
    if options and config.actor_rollout_ref.rollout.name == "sglang":
        raise ConfigError(
            "verl's SGLang server takes no data.mm_processor_kwargs; put the sizes into the model's "
            "preprocessor_config.json, which every process reads"
        )
    return options


def bound_pictures(loaded: LoadedModel, options: Mapping[str, Any]) -> None:
    """Give the image processor of `loaded` the bounds of `options` (`min_pixels`, `max_pixels`)."""
    if options and loaded.vision is None:
        raise ConfigError(f"data.mm_processor_kwargs is set, but {loaded.name} sees no pictures; leave it empty")
    if options:
        processor = loaded.vision.processor  # type: ignore[union-attr]
        names = {"min_pixels": "shortest_edge", "max_pixels": "longest_edge"}
        # a copy: processors share the dict of their class
        processor.size = {**dict(processor.size), **{names[key]: int(value) for key, value in options.items()}}


_CONTEXT = "uirl_context"
"""Attribute of a worker's server client that holds its context."""


async def context_of(config: Any, client: Any) -> RolloutContext:
    """Return the context of the worker that owns `client`, made when an episode first asks for it.

    `config`: verl's whole config. `client`: verl's server client. A worker has one for its life and hands it to every
    agent loop it makes, while a loop lives as long as its episode: the client is what carries the context.
    """
    opening = getattr(client, _CONTEXT, None)
    if opening is None:
        opening = asyncio.ensure_future(RolloutContext(config, Settings.read(config.data)).open())
        setattr(client, _CONTEXT, opening)
    context: RolloutContext = await opening
    return context


def close_context(worker: Any, seconds: float = 60.0) -> None:
    """Close the environments of an agent-loop worker, in at most `seconds`. Ray calls it inside the worker, beside the
    event loop in which episodes are played."""
    opening = getattr(getattr(worker, "llm_client", None), _CONTEXT, None)
    if opening is not None and opening.done() and not opening.cancelled() and opening.exception() is None:
        asyncio.run_coroutine_threadsafe(opening.result().close(), opening.get_loop()).result(seconds)


def close_environments(manager: Any, seconds: float = 60.0) -> None:
    """Close the environments in the workers of verl's agent-loop manager, which verl ends without a word: an instance
    may hold a phone or a browser somewhere else. A worker that is gone, or needs more than `seconds`, is left alone.
    """
    import ray

    workers = getattr(manager, "agent_loop_workers", ())
    for answer in [worker.__ray_call__.remote(close_context, seconds) for worker in workers]:
        with suppress(ray.exceptions.RayActorError, TimeoutError):
            ray.get(answer, timeout=seconds)
