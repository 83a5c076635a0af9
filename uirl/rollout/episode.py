"""One episode: observe, decide, act, until it ends. Training, evaluation, demonstrations and controls all run this."""

from __future__ import annotations

import hashlib
import inspect
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace

from uirl.environments.base import BaseEnvironment
from uirl.environments.session import EnvironmentSession
from uirl.errors import ContractError, EnvironmentFailure, JudgeFailure, RolloutFailure
from uirl.images import ImageStore
from uirl.inference.chat import ChatRenderer, Message
from uirl.inference.contract import GenerationRequest, InferenceEngine, SamplingParams
from uirl.parsers.base import ActionParser
from uirl.rollout.conversation import Context, ContextWindow, Conversation
from uirl.types import Failure, Observation, Task, Trajectory, Turn

RewardFunction = Callable[..., float]


@dataclass(frozen=True, slots=True)
class EpisodeSpec:
    """Which episode to run. Everything random in it follows from the two seeds."""

    task: Task
    environment_seed: int | None
    """Makes the instance of the task; the members of a group share it."""
    sampling_seed: int | None
    """Makes the policy's draws; every member has its own. None: not repeatable."""
    trajectory_id: str
    group_id: str = ""


@dataclass(frozen=True, slots=True)
class EpisodeLimits:
    """When an episode is cut off."""

    max_turns: int = 16
    max_tokens: int | None = None
    """Of all turns together, prompt and responses; None: no limit."""
    max_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Response:
    """What a player answered to one context."""

    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...] = ()
    """Empty: nobody sampled this (a demonstration); unfit for a policy gradient."""
    finish_reason: str = "stop"
    policy_version: int = 0
    cached_tokens: int = 0


class Player(ABC):
    """Whoever takes the decisions in an episode."""

    @abstractmethod
    async def respond(self, context: Context, session: EnvironmentSession, seed: int | None, room: int) -> Response:
        """The reply to `context`, at most `room` tokens."""

    def finished(self) -> None:
        """The episode is over."""


class EnginePlayer(Player):
    """The policy, through an engine."""

    def __init__(self, engine: InferenceEngine, sampling: SamplingParams, session_id: str) -> None:
        self._engine, self._sampling, self._session_id = engine, sampling, session_id

    async def respond(self, context: Context, session: EnvironmentSession, seed: int | None, room: int) -> Response:
        sampling = replace(self._sampling, seed=seed, max_tokens=min(self._sampling.max_tokens, room))
        request = GenerationRequest(context.prompt_ids, context.images, sampling, self._session_id)
        made = await self._engine.generate(request)
        if made.log_probs is None:
            raise ContractError("the engine returned no log-probs; this response is unfit for training")
        return Response(made.token_ids, made.log_probs, made.finish_reason, made.policy_version, made.cached_tokens)

    def finished(self) -> None:
        self._engine.release(self._session_id)


class ExpertPlayer(Player):
    """The environment's own demonstrator."""

    def __init__(self, chat: ChatRenderer, parser: ActionParser) -> None:
        self._chat, self._parser = chat, parser

    async def respond(self, context: Context, session: EnvironmentSession, seed: int | None, room: int) -> Response:
        action = await session.expert_action()
        if action is None:
            raise EnvironmentFailure(
                f"{type(session.env).__name__}.expert_action() returned None; a warm start needs a demonstrator "
                "(set training.warm_start.enabled=false to go without)"
            )
        return Response(tuple(self._chat.demonstration(self._parser.render(action))))


class ConstantPlayer(Player):
    """Says the same in every turn: a control that no environment should reward."""

    def __init__(self, chat: ChatRenderer, text: str) -> None:
        self._response = Response(tuple(chat.demonstration(text)))

    async def respond(self, context: Context, session: EnvironmentSession, seed: int | None, room: int) -> Response:
        return self._response


async def run_episode(
    session: EnvironmentSession,
    player: Player,
    chat: ChatRenderer,
    parser: ActionParser,
    spec: EpisodeSpec,
    *,
    images: ImageStore,
    limits: EpisodeLimits,
    window: ContextWindow,
    reward_fn: RewardFunction | None = None,
    system_prompt: str | None = None,
) -> Trajectory:
    """The record of one episode. A failure of the environment, the engine or the judge is on the record
    (`Trajectory.failure`) and does not raise; a broken contract does."""
    record = Trajectory(spec.trajectory_id, spec.task, group_id=spec.group_id, seed=spec.environment_seed)
    episode = _Episode(session, player, chat, parser, images, limits, Conversation(chat, window), record)
    started = time.perf_counter()
    try:
        await episode.play(spec, system_prompt)
        if reward_fn is not None:
            apply_reward(record, reward_fn, session.env)
    except RolloutFailure as error:
        record.failure = Failure(error.kind, str(error), len(record.turns))
        record.stop_reason = "failure"
    finally:
        player.finished()
    record.metrics["seconds"] = time.perf_counter() - started
    return record


@dataclass(slots=True)
class _Episode:
    session: EnvironmentSession
    player: Player
    chat: ChatRenderer
    parser: ActionParser
    images: ImageStore
    limits: EpisodeLimits
    conversation: Conversation
    record: Trajectory

    async def play(self, spec: EpisodeSpec, system_prompt: str | None) -> None:
        started = time.perf_counter()
        observation = self._keep(await self.session.reset(spec.task, spec.environment_seed))
        prefix = self.session.env.get_prompt_prefix() if system_prompt is None else system_prompt
        if prefix:
            self.conversation.add(Message("system", prefix))
        max_turns = min(self.limits.max_turns, self.session.env.max_turns or self.limits.max_turns)
        while self.record.stop_reason is None:
            observation = await self.turn(observation, spec)
            if self.record.stop_reason is None:
                self.record.stop_reason = self._limit_reached(max_turns, started)

    async def turn(self, observation: Observation, spec: EpisodeSpec) -> Observation:
        """One model call and one step; the next observation."""
        self.conversation.add(Message("user", observation.text, observation.images))
        context = self.conversation.context()
        room = self._room(context)
        if room < 1:
            self.record.stop_reason = "token_budget"
            return observation
        index = len(self.record.turns)
        seed = None if spec.sampling_seed is None else derive_seed(spec.sampling_seed, index)
        clock = time.perf_counter()
        response = await self.player.respond(context, self.session, seed, room)
        generated = time.perf_counter()
        text = self.chat.decode(response.token_ids)
        self.conversation.reply(response.token_ids, text, ended=response.finish_reason == "stop")
        action = self.parser.parse(text)
        result = await self.session.step(action)
        self._add("generate_seconds", generated - clock)
        self._add("environment_seconds", time.perf_counter() - generated)
        self._add("response_tokens", len(response.token_ids))
        self._add("parse_errors", float(action.parse_error is not None))
        self.record.turns.append(
            Turn(
                observation=replace(observation, images=tuple(shot.hash for shot in observation.images)),
                context_ids=context.new_ids,
                response_ids=response.token_ids,
                rollout_log_probs=response.log_probs,
                action=action,
                reward=result.reward,
                policy_version=response.policy_version,
                starts_segment=context.starts_segment,
                context_images=tuple(shot.hash for shot in context.new_images),
                finish_reason=response.finish_reason,
                terminated=result.terminated,
                truncated=result.truncated,
                info=result.observation.info,
            )
        )
        if result.done:
            self.record.stop_reason = "terminated" if result.terminated else "truncated"
        success = result.observation.info.get("success")
        if success is not None:
            self.record.metrics["success"] = float(success)
        return self._keep(result.observation)

    def _keep(self, observation: Observation) -> Observation:
        return replace(observation, images=tuple(self.images.put(picture) for picture in observation.images))

    def _room(self, context: Context) -> int:
        """Tokens the next reply may take."""
        if self.limits.max_tokens is None:
            return 1 << 30
        used = sum(len(turn.context_ids) + len(turn.response_ids) for turn in self.record.turns)
        return self.limits.max_tokens - used - len(context.new_ids)

    def _limit_reached(self, max_turns: int, started: float) -> str | None:
        if len(self.record.turns) >= max_turns:
            return "max_turns"
        if self.limits.max_seconds is not None and time.perf_counter() - started > self.limits.max_seconds:
            return "wall_time"
        return None

    def _add(self, name: str, value: float) -> None:
        self.record.metrics[name] = self.record.metrics.get(name, 0.0) + value


def apply_reward(record: Trajectory, reward_fn: RewardFunction, environment: BaseEnvironment) -> None:
    """Makes the episode's total reward what `reward_fn(trajectory)` or `reward_fn(trajectory, environment)` says.

    The rewards of the turns keep their shape: what the function adds or takes stands on the last turn. Raises
    JudgeFailure where it raises or returns something that is not a finite number.
    """
    wants = len(inspect.signature(reward_fn).parameters)
    try:
        value = reward_fn(record, environment) if wants >= 2 else reward_fn(record)
        total = float(value)
    except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RuntimeError) as error:
        raise JudgeFailure(f"the reward function failed: {type(error).__name__}: {error}") from error
    if not math.isfinite(total):
        raise JudgeFailure(f"the reward function returned {total}; expected a finite number")
    if record.turns:
        last = record.turns[-1]
        record.turns[-1] = replace(last, reward=last.reward + total - record.total_reward())


def derive_seed(*parts: int | str) -> int:
    """A 63-bit seed that depends on every part: the same parts give the same seed on every machine."""
    text = "/".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
