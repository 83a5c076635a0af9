"""Our episodes as verl's agent loop: any environment of ours, played through verl's rollout servers.

Importing this module registers the loops with verl. Our dataset does in every process that plays episodes; with a
dataset of your own set `actor_rollout_ref.model.external_lib` to this module.
"""

from __future__ import annotations

import asyncio
import math
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from ray.exceptions import RayError
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput, register

from uirl.config import ModelConfig
from uirl.environments import BaseEnvironment, create_environment, environment_class
from uirl.environments.session import EnvironmentSession
from uirl.errors import AlignmentError, ConfigError, ContractError, EngineFailure, RolloutFailure
from uirl.images import ImageStore, Screenshot
from uirl.inference.base import SamplingParams, max_reply_tokens
from uirl.inference.models.chat import ChatRenderer
from uirl.inference.models.loading import LoadedModel, load_model
from uirl.integrations.mobile_world import MobileWorldAgentLoop as AgentLoopAlone
from uirl.integrations.verl.placement import reads_several
from uirl.integrations.verl.record import RunObjects, find_coordinator
from uirl.integrations.verl.settings import Settings
from uirl.rollout.collector import Collector, chat_for
from uirl.rollout.conversation import Context, ContextWindow
from uirl.rollout.episode import Agent, EpisodeLimits, EpisodeOptions, EpisodeSpec, Response, derive_seed
from uirl.rollout.reward import RewardFunction
from uirl.rollout.samples import samples_of
from uirl.storage.records import pictures_of
from uirl.success import settle_outcomes
from uirl.types import Sample, Task, Trajectory
from uirl.verification.setup import verifier_of

AGENT, MOBILE_WORLD = "uirl", "mobile_world"
"""Names under which verl knows the loops (`agent_name` of a row, `rollout.agent.default_agent_loop`)."""
BAN = -1e9
"""Added to the logit of a token that may not be sampled: JSON has no infinity, and exp(-1e9) is 0."""


class EpisodeFailed(RolloutFailure):
    """An episode failed for good; `kind` says at which boundary. It can be sent between Ray's processes, whatever the
    environment raised."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(kind, message)
        self.kind, self.message = kind, message

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


def spec_of(row: Mapping[str, Any]) -> EpisodeSpec:
    """Return the episode of a row. Raises ConfigError where the row says nothing.

    `extra_info` may hold `environment` (a name; left out: the run's own), `task` (an id or the fields of a `Task`),
    `seed` (of the instance), `draws` (of the sampling), `group`, `level` (of the curriculum); `session_id` is the
    member that verl's V1 trainer plays.
    """
    info = row.get("extra_info")
    if not isinstance(info, Mapping):
        raise ConfigError(
            f"a row for the agent loop {AGENT!r} holds no mapping `extra_info` with environment, task and seed, got "
            f"{info!r:.80}; use CustomEnvironmentDataset, or write these into your rows"
        )
    task, split = _task(info), info.get("split", "train")
    index = row.get("index", info.get("index", 0))
    # verl's legacy trainer repeats rows without numbering them
    member = row.get("session_id", uuid.uuid4().hex[:8])
    group = str(info.get("group") or f"{split}-{index}")
    if split != "train":  # the same held-out rows come back at every validation
        group = f"{group}@{row.get('global_steps', uuid.uuid4().hex[:8])}"
    seed, draws = info.get("seed", task.seed), info.get("draws")
    return EpisodeSpec(
        task=task,
        environment_seed=None if seed is None else int(seed),
        sampling_seed=None if draws is None else derive_seed(int(draws), str(member)),
        trajectory_id=f"{group}-{member}",
        group_id=group,
        level=info.get("level"),
    )


def _task(info: Mapping[str, Any]) -> Task:
    task, environment = info.get("task"), str(info.get("environment") or "")
    if not isinstance(task, Mapping):
        return Task(id=str(task or environment or "unnamed"), environment=environment)
    fields: dict[str, Any] = {"environment": environment, **{str(key): value for key, value in task.items()}}
    try:
        return Task(**fields)
    except TypeError as error:
        raise ConfigError(f"the task of a row cannot be read: {error}; expected the fields of uirl.Task") from error


class ServerAgent(Agent):
    """Asks verl's server client, token ids in, token ids and log-probs out; every turn of an episode goes to the same
    server, which keeps its prefix cache."""

    def __init__(
        self,
        client: Any,
        sampling: Mapping[str, Any],
        *,
        max_tokens: int,
        end_ids: Sequence[int],
        max_context: int | None = None,
        seeded: bool = False,
        banned: Sequence[int] = (),
        picture_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Set up the agent of one episode. `sampling`: verl's parameters. `max_tokens`: of one reply. `end_ids` end a
        reply and belong to it. `max_context`: of prompt and reply together; None: what the server takes. `seeded`: the
        draws follow from the episode's seed. `banned`: tokens that the server does not ban itself. `picture_options`:
        of the server's processor (`min_pixels`, `max_pixels`)."""
        self._client, self._request_id = client, uuid.uuid4().hex
        self._sampling: dict[str, Any] = {**sampling, "stop_token_ids": list(end_ids)}
        if banned:
            self._sampling["logit_bias"] = {str(token): BAN for token in banned}
        self._max_context = max_context
        self._further = {"mm_processor_kwargs": dict(picture_options)} if picture_options else {}
        self._max_tokens, self._end_ids, self._seeded = max_tokens, frozenset(end_ids), seeded
        self.versions: list[int] = []
        """Global steps of the weights that sampled, one or two per reply."""

    @property
    def sampling(self) -> SamplingParams:
        said = self._sampling
        return SamplingParams(
            max_tokens=self._max_tokens,
            temperature=float(said.get("temperature", 1.0)),
            top_p=float(said.get("top_p", 1.0)),
            top_k=max(0, int(said.get("top_k", 0))),  # -1 is verl's word for no limit
        )

    async def act(self, context: Context, session: EnvironmentSession, seed: int | None, max_tokens: int) -> Response:
        if self._max_context is not None:
            source = "data.max_prompt_length + data.max_response_length"
            max_tokens = min(max_tokens, max_reply_tokens(context.prompt_ids, self._max_context, source))
        sampling = {**self._sampling, "max_tokens": min(self._max_tokens, max_tokens)}
        if self._seeded and seed is not None:
            sampling["seed"] = seed
        try:
            answer = await self._client.generate(
                request_id=self._request_id,
                prompt_ids=list(context.prompt_ids),
                sampling_params=sampling,
                image_data=[RemoteImage(screenshot) for screenshot in context.images] or None,
                **self._further,
            )
        except (RayError, RuntimeError, OSError) as error:
            said = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
            raise EngineFailure(f"verl's rollout server did not answer: {type(error).__name__}: {said[-1]}") from error
        if not answer.token_ids:
            raise EngineFailure(f"verl's rollout server answered with no token (stop reason {answer.stop_reason!r})")
        fields, ids = answer.extra_fields, tuple(answer.token_ids)
        versions = [fields[key] for key in ("min_global_steps", "max_global_steps") if fields.get(key) is not None]
        self.versions += versions
        reason = "stop" if ids[-1] in self._end_ids else "length"
        if answer.stop_reason in ("aborted", "abort"):
            reason = "abort"
        return Response(ids, tuple(answer.log_probs or ()), reason, min(versions, default=0))


class RemoteImage:
    """A picture on its way to a server in another process: it goes as it was captured and arrives as a PIL image. A
    screenshot of 1280 x 720 is 2.8 MB of pixels, every turn, and a few hundred kB encoded."""

    def __init__(self, screenshot: Screenshot) -> None:
        self._screenshot = screenshot

    def __reduce__(self) -> tuple[Any, ...]:
        return _decoded, (self._screenshot.data,)


def _decoded(data: bytes) -> Any:
    return Screenshot(data).open()


class RolloutContext:
    """The environments of a run, ready to play, in one worker process (`context_of`)."""

    def __init__(self, config: Any, settings: Settings) -> None:
        """Load what the episodes of one worker share. `config`: verl's whole config."""
        self.settings = settings
        self.store = settings.store()
        self.coordinator = find_coordinator(settings.coordinator) if settings.coordinator is not None else None
        self.images = ImageStore()
        model, rollout = config.actor_rollout_ref.model, config.actor_rollout_ref.rollout
        described = ModelConfig(
            local_path=str(model.tokenizer_path or model.path),
            device="cpu",
            trust_remote_code=bool(model.trust_remote_code),
            chat_template=model.custom_chat_template,
        )
        self.loaded: LoadedModel = load_model(described, weights=False)
        self.picture_options = dict(config.data.get("mm_processor_kwargs") or {})
        """For the servers; our own processor has them too."""
        _bound_pictures(self.loaded, self.picture_options)
        self.sequence_tokens: int = rollout.prompt_length + rollout.response_length
        self._workers: int = rollout.agent.num_workers
        self._collectors: dict[tuple[str, str], Collector] = {}
        self._sent: set[str] = set()
        self.speakers: set[str] = set()
        """The environments that were heard here to say what success is: see `uirl.success`."""
        self._playing = 0
        self._environment_object: BaseEnvironment | None = None
        verification, logging = self.store.verification, self.store.logging
        run = Path(settings.directory).name if settings.directory is not None else logging.run_name
        self._reward_fn: RewardFunction | None = verifier_of(verification, logging, run or self.store.environment.label)

    async def open(self) -> RolloutContext:
        """Fetch the environment and reward function that were given as objects, and return this context."""
        if self.coordinator is not None:
            packed, variables = await self.coordinator.given.remote()
            os.environ.update(variables)
            objects = RunObjects.unpack(packed)
            self._environment_object = objects.environment
            self._reward_fn = objects.reward_fn or self._reward_fn
        return self

    def collector(self, name: str, split: str) -> Collector:
        """Return what plays episodes of the environment `name` (empty: the run's own) with the options of `split`."""
        key = (name, split)
        if key not in self._collectors:
            environment = self._environment(name, split)
            chat = chat_for(self.loaded, environment)
            options = EpisodeOptions(*self._limits(chat), self._reward_fn, self.store.inference.system_prompt)
            rollout, settings = self.store.rollout, self.store.environment
            self._collectors[key] = Collector.from_config(
                rollout, settings, environment, chat, self.images, options, workers=self._workers
            )
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
        """Send an episode to the coordinator, which writes it down. `repeated`: an attempt that another followed."""
        if self.coordinator is None:
            return
        shown = set(pictures_of(trajectory)) - self._sent
        pictures = {hash: self.images.get(hash).data for hash in sorted(shown)}
        if await self.coordinator.add.remote(trajectory, pictures, step, split, repeated):
            self._sent.update(pictures)

    def _environment(self, name: str, split: str) -> BaseEnvironment:
        settings, instance = self.store.environment, self._environment_object
        of_the_run = name in ("", settings.name)
        if instance is not None and (of_the_run or isinstance(instance, environment_class(name))):
            return instance
        return create_environment(name or settings.name, settings.options_for(split) if of_the_run else {}, settings)

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


def _bound_pictures(loaded: LoadedModel, options: Mapping[str, Any]) -> None:
    """Give the image processor of `loaded` the bounds of `options` (`min_pixels`, `max_pixels`)."""
    if not options:
        return
    if loaded.vision is None:
        raise ConfigError(f"data.mm_processor_kwargs is set, but {loaded.name} sees no pictures; leave it empty")
    names = {"min_pixels": "shortest_edge", "max_pixels": "longest_edge"}
    processor = loaded.vision.processor
    # a copy: processors share the dict of their class
    processor.size = {**dict(processor.size), **{names[key]: int(value) for key, value in options.items()}}


_CONTEXT = "uirl_context"
"""Attribute of a worker's server client that holds its context: a worker has one client for its life and hands it to
every agent loop it makes, while a loop lives as long as its episode."""


async def context_of(config: Any, client: Any) -> RolloutContext:
    """Return the context of the worker that owns `client`, made when an episode first asks for it. `config`: verl's
    whole config."""
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


class EpisodeOutput(AgentLoopOutput):
    """An output whose rewards stand on the last token of the turn that earned them."""

    token_rewards: list[float] | None = None
    """One per response token; None: the score stands on the last token, verl's own way."""

    def as_dict(self) -> dict[str, Any]:
        """Return what verl's V1 trainer stores; its legacy trainer never asks and puts the whole score on the last
        token."""
        fields = super().as_dict()
        rewards = fields.pop("token_rewards", None)
        if rewards is not None:
            fields["rm_scores"] = torch.tensor(rewards, dtype=torch.float32)
        return fields


def outputs_of(
    trajectory: Trajectory, images: ImageStore, versions: Sequence[int], *, max_tokens: int
) -> list[EpisodeOutput]:
    """Return the sequences of an episode, in order: one, or one per stretch between rewritings of its history; each of
    several carries the score of the whole episode on its last token, as verl expects. `versions`: global steps of the
    weights that sampled it. Raises AlignmentError for a sequence of more than `max_tokens`."""
    samples = samples_of(trajectory)
    # a picture that stands in several sequences is decoded once
    opened = {hash: images.get(hash).open() for hash in {h: None for sample in samples for h in sample.images}}
    outputs = [_output(sample, trajectory, opened, versions) for sample in samples]
    for sample, output in zip(samples, outputs, strict=True):
        if len(sample.token_ids) > max_tokens:
            raise AlignmentError(
                f"a sequence of episode {trajectory.id} has {len(sample.token_ids)} tokens, more than the "
                f"{max_tokens} of data.max_prompt_length + data.max_response_length; raise one of them"
            )
        if len(samples) == 1:
            output.token_rewards = list(sample.rewards[len(output.prompt_ids) :])
    return outputs


def _output(
    sample: Sample, trajectory: Trajectory, opened: Mapping[str, Any], versions: Sequence[int]
) -> EpisodeOutput:
    start = sample.response_mask.index(True)
    log_probs = list(sample.rollout_log_probs[start:])
    pictures = [opened[hash] for hash in sample.images]
    return EpisodeOutput(
        prompt_ids=list(sample.token_ids[:start]),
        response_ids=list(sample.token_ids[start:]),
        response_mask=[int(sampled) for sampled in sample.response_mask[start:]],
        response_logprobs=None if any(map(math.isnan, log_probs)) else log_probs,
        reward_score=trajectory.total_reward(),
        multi_modal_data={"images": pictures} if pictures else {},
        num_turns=2 * len(trajectory.turns),
        metrics=AgentLoopMetrics(
            generate_sequences=trajectory.metrics.get("generate_seconds", 0.0),
            tool_calls=trajectory.metrics.get("environment_seconds", 0.0),
        ),
        extra_fields=_extra_fields(trajectory, versions),
    )


def _masked_output(trajectory: Trajectory, filler: int) -> EpisodeOutput:
    """Return one token that counts in no loss, in place of an episode that failed. Its score is a placeholder."""
    return EpisodeOutput(
        prompt_ids=[filler],
        response_ids=[filler],
        response_mask=[0],
        response_logprobs=[0.0],
        reward_score=0.0,
        multi_modal_data={},
        num_turns=0,
        metrics=AgentLoopMetrics(),
        extra_fields=_extra_fields(trajectory, [0]),
    )


def _extra_fields(trajectory: Trajectory, versions: Sequence[int]) -> dict[str, Any]:
    """Return what verl reads beside the tokens (versions, scores per turn), and `uirl`: how the episode went."""
    return {
        "min_global_steps": min(versions, default=None),
        "max_global_steps": max(versions, default=None),
        "turn_scores": trajectory.rewards,
        "tool_rewards": [],
        # not 'acc': verl counts a session that failed as one of accuracy 0
        "reward_extra_info": {"success": trajectory.success},
        "uirl": {
            "id": trajectory.id,
            "group": trajectory.group_id,
            "task": trajectory.task.id,
            "stop_reason": trajectory.stop_reason,
            "failure": None if trajectory.failure is None else trajectory.failure.kind,
        },
    }


@register(AGENT)
class EnvironmentAgentLoop(AgentLoopBase):
    """Plays the episode a row names in `extra_info`: environment, task, seed (see `CustomEnvironmentDataset`).

    The reward is computed here, by the environment or the run's reward function. An episode that fails is played again
    (`rollout.retries`); one that fails for good raises its failure, and verl then goes on with the rest of its group.
    """

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> Any:
        """Play one episode and return its sequences: an output, or a list of them where the history was rewritten.

        Raises RolloutFailure for an episode that is no evidence, ConfigError and AlignmentError for what the person
        must change.
        """
        context = await context_of(self.config, self.server_manager)
        with context.playing():
            trajectory, versions = await self._play(context, sampling_params, row)
            if trajectory.failure is not None:
                return self._failed(trajectory, context)
            # beside the event loop: it decodes every picture of the episode
            make = partial(outputs_of, trajectory, context.images, versions, max_tokens=context.sequence_tokens)
            outputs = await asyncio.to_thread(make)
        if len(outputs) == 1:
            return outputs[0]
        why = reads_several(self.config, credits_episodes=context.settings.credits_episodes)
        if why is not None:
            raise ConfigError(
                f"the context window rewrote the history of an episode, which makes it {len(outputs)} sequences; {why},"
                " or set rollout.max_images and rollout.token_budget to null"
            )
        return outputs

    async def _play(
        self, context: RolloutContext, sampling: Mapping[str, Any], row: Mapping[str, Any]
    ) -> tuple[Trajectory, list[int]]:
        """Play and record every attempt; return the last with the global steps of the weights that sampled it."""
        spec, split, step = spec_of(row), str(row["extra_info"].get("split", "train")), row.get("global_steps")
        store, server = context.store, str(self.rollout_config.name)
        if store.inference.seed is not None and server == "sglang":
            raise ConfigError("inference.seed is set, but verl's SGLang server takes no seed per request; leave it out")
        agents: dict[str, ServerAgent] = {}

        def make_agent(attempt: EpisodeSpec) -> ServerAgent:
            agents[attempt.trajectory_id] = ServerAgent(
                self.server_manager,
                sampling,
                max_tokens=store.inference.max_tokens,
                end_ids=context.loaded.end_ids,
                max_context=context.sequence_tokens,
                seeded=store.inference.seed is not None,
                # verl itself tells vLLM to leave placeholders of pictures out
                banned=context.loaded.banned_ids if server == "sglang" else (),
                picture_options=context.picture_options,
            )
            return agents[attempt.trajectory_id]

        trajectory, *attempts = await context.collector(spec.task.environment, split).collect([spec], make_agent)
        settle_outcomes([trajectory], context.speakers)
        for attempt in [*attempts, trajectory]:
            versions = agents[attempt.id].versions if attempt.id in agents else []
            # weights of global step n sample the episodes of step n + 1
            at = step if step is not None else max(versions, default=0) + 1
            await context.record(attempt, int(at), split, repeated=attempt is not trajectory)
        return trajectory, versions

    def _failed(self, trajectory: Trajectory, context: RolloutContext) -> AgentLoopOutput:
        """Raise the failure under the V1 trainer, which goes on with the rest of the group."""
        assert trajectory.failure is not None
        if self.config.trainer.use_v1:
            raise EpisodeFailed(trajectory.failure.kind, f"episode {trajectory.id}: {trajectory.failure.message}")
        return _masked_output(trajectory, context.loaded.end_ids[0])


@register(MOBILE_WORLD)
class MobileWorldAgentLoop(EnvironmentAgentLoop):
    """An `EnvironmentAgentLoop` that can also play without verl's trainer: `MobileWorldAgentLoop(env=...)`.

    Under verl a row names the environment ('mobile_world'), as for every loop of ours; the reply format is the
    environment's (`action_format`). On its own it is `uirl.MobileWorldAgentLoop`.
    """

    def __init__(
        self, *arguments: Any, env: BaseEnvironment | str | Sequence[str] | None = None, **options: Any
    ) -> None:
        """Take the options of `uirl.MobileWorldAgentLoop` with `env`, and without it what verl passes to an agent
        loop."""
        self.alone = None if env is None else AgentLoopAlone(env, *arguments, **options)
        if env is None:
            super().__init__(*arguments, **options)

    def run_full_interaction(
        self, interaction_id: str, task_name: str | None = None, *, seed: int | None = None
    ) -> dict[str, Any]:
        """Play one task and return how it went, see `uirl.MobileWorldAgentLoop`. Raises ContractError for a loop that
        verl made."""
        if self.alone is None:
            raise ContractError("this loop was made by verl, which calls run(); for whole interactions give it env=")
        return self.alone.run_full_interaction(interaction_id, task_name, seed=seed)
