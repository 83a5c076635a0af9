"""One episode: observe, decide, act, until it ends. Training, evaluation, demonstrations and controls all run this."""

from __future__ import annotations

import hashlib
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any

from uirl.environments.session import EnvironmentSession
from uirl.errors import ContractError, EnvironmentFailure, EpisodeTimeout, PromptTooLong, RolloutFailure
from uirl.images import ImageStore
from uirl.inference.base import GenerationRequest, InferenceEngine, SamplingParams
from uirl.inference.messages import Message
from uirl.inference.models.chat import ChatRenderer
from uirl.parsers.base import ActionParser
from uirl.rollout.conversation import Context, ContextWindow, Conversation, style_of
from uirl.rollout.reward import EpisodeVerifier, RewardFunction, judge_episode, read_reward_function, warn
from uirl.types import Action, Failure, Observation, StepResult, Task, Trajectory, Turn


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
    level: str | None = None
    """Level of the task in the curriculum when it was drawn; None: there is none."""
    start: tuple[Turn, ...] = ()
    """Turns of an earlier episode of the same instance that are played first, reply for reply (`ReplayAgent`): the
    policy goes on behind them."""


@dataclass(frozen=True, slots=True)
class EpisodeLimits:
    """When an episode is cut off."""

    max_turns: int = 16
    max_tokens: int | None = None
    """Of all turns together, prompt and responses; None: no limit."""
    max_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class EpisodeOptions:
    """How the episodes of a run are played."""

    limits: EpisodeLimits = field(default_factory=EpisodeLimits)
    window: ContextWindow = field(default_factory=ContextWindow)
    reward_fn: RewardFunction | None = None
    """Judges the whole episode; None: the environment's rewards."""
    system_prompt: str | None = None
    """Replaces the environment's own prompt prefix; None: the environment's."""
    opening: str = ""
    """Comes before the text of the first observation."""
    fed_as_learner: bool = True
    """Pictures are processed for the policy as the learner's processor does it, so that the record can hold how; false:
    a server of another program processes them."""

    def __post_init__(self) -> None:
        """Raise ConfigError for a `reward_fn` that cannot be called."""
        if self.reward_fn is not None and not isinstance(self.reward_fn, EpisodeVerifier):
            read_reward_function(self.reward_fn)


@dataclass(frozen=True, slots=True)
class Response:
    """What an agent answered to one context."""

    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...] = ()
    """Empty: nobody sampled this (a demonstration); unfit for a policy gradient."""
    finish_reason: str = "stop"
    policy_version: int = 0


class Agent(ABC):
    """What takes the decisions in an episode: the policy, a demonstrator, a constant reply."""

    @property
    def sampling(self) -> SamplingParams | None:
        """How it samples from the policy; None: it does not."""
        return None

    @abstractmethod
    async def act(self, context: Context, session: EnvironmentSession, seed: int | None, max_tokens: int) -> Response:
        """Return the reply to `context`, at most `max_tokens` tokens."""

    def finished(self) -> None:
        """Free what is kept for the episode, which is over."""


class EngineAgent(Agent):
    """The policy, through an engine. `for_training`: replies without log-probs are refused."""

    def __init__(
        self, engine: InferenceEngine, sampling: SamplingParams, session_id: str, *, for_training: bool = True
    ) -> None:
        self._engine, self._sampling, self._session_id = engine, sampling, session_id
        self._for_training = for_training

    @property
    def sampling(self) -> SamplingParams:
        return self._sampling

    async def act(self, context: Context, session: EnvironmentSession, seed: int | None, max_tokens: int) -> Response:
        sampling = replace(self._sampling, seed=seed, max_tokens=min(self._sampling.max_tokens, max_tokens))
        request = GenerationRequest(
            context.prompt_ids, context.images, sampling, self._session_id, context.messages, context.starts_segment
        )
        generation = await self._engine.generate(request)
        if generation.log_probs is None and self._for_training:
            raise ContractError(
                "the engine returned no log-probs, so this reply is unfit for training; evaluate with it, or train "
                "with an engine that gives them (transformers, vllm, sglang)"
            )
        return Response(
            generation.token_ids, generation.log_probs or (), generation.finish_reason, generation.policy_version
        )

    def finished(self) -> None:
        self._engine.release(self._session_id)


class ExpertAgent(Agent):
    """The environment's own demonstrator."""

    def __init__(self, chat: ChatRenderer, parser: ActionParser) -> None:
        self._chat, self._parser = chat, parser

    async def act(self, context: Context, session: EnvironmentSession, seed: int | None, max_tokens: int) -> Response:
        action = await session.expert_action()
        if action is None:
            raise EnvironmentFailure(
                f"{type(session.env).__name__}.expert_action() returned None; a warm start needs a demonstrator "
                "(set training.warm_start.enabled=false to go without)"
            )
        reply = self._parser.for_tools(session.env.callable_tools()).render(action)
        return Response(tuple(self._chat.demonstration(reply, self._parser.control_words)))


class ConstantAgent(Agent):
    """Says the same in every turn: a control that no environment should reward."""

    def __init__(self, chat: ChatRenderer, text: str) -> None:
        self._response = Response(tuple(chat.demonstration(text)))

    async def act(self, context: Context, session: EnvironmentSession, seed: int | None, max_tokens: int) -> Response:
        return self._response


async def run_episode(
    session: EnvironmentSession,
    agent: Agent,
    chat: ChatRenderer,
    parser: ActionParser,
    spec: EpisodeSpec,
    *,
    images: ImageStore,
    options: EpisodeOptions | None = None,
) -> Trajectory:
    """Play one episode; return its record. `options` None: the defaults.

    A failure of the environment, the engine or the judge is on the record (`Trajectory.failure`) and does not raise; a
    broken contract does.
    """
    options = options or EpisodeOptions()
    episode = Episode(session, parser, spec, images, options.limits, fed_as_learner=options.fed_as_learner)
    episode.record.sampling = _sampling_of(agent, spec)
    conversation = Conversation(chat, options.window, style_of(session.env.message_style))
    try:
        observation = await episode.begin()
        if options.opening:
            text = "\n".join(filter(None, [options.opening, observation.text]))
            observation = episode.see(replace(observation, text=text))
        prefix = session.env.get_prompt_prefix() if options.system_prompt is None else options.system_prompt
        if prefix:
            conversation.add(Message("system", prefix))
        while episode.record.stop_reason is None:
            conversation.observe(observation)
            await chat.prepare(observation.images)
            observation = await play_turn(episode, conversation, agent, chat)
        episode.keep_final()
        if options.reward_fn is not None:
            await judge_episode(episode.record, options.reward_fn, session.env, images)
        elif session.env.scored_at_end:
            await episode.require_score()
    except RolloutFailure as error:
        episode.fail(error)
    finally:
        agent.finished()
    return episode.end()


async def play_turn(episode: Episode, conversation: Conversation, agent: Agent, chat: ChatRenderer) -> Observation:
    """Make one model call and one step; return the next observation.

    A prompt that leaves no room for a reply ends the episode ('token_budget'): what the policy did filled it. So does
    one that cannot be made of what its last action brought up ('unshowable'). Raises PromptTooLong, or what is wrong,
    where that is so before its first reply, which is nobody's doing.
    """
    try:
        context = conversation.context()
    except ContractError as error:
        if not episode.record.turns:
            raise
        # the first prompt could be shown: what came up later is the doing of this episode, and ends no run
        warn("after a reply the environment showed what cannot be made a prompt, which ends the episode", error)
        episode.record.stop_reason = "unshowable"
        return episode.observation
    try:
        max_tokens = episode.tokens_left(context)
        started = time.perf_counter()
        response = await agent.act(context, episode.session, episode.draw_seed(), max_tokens)
    except PromptTooLong:
        if not episode.record.turns:
            raise
        episode.record.stop_reason = "token_budget"
        return episode.observation
    episode.add("generate_seconds", time.perf_counter() - started)
    chat.check_sampled(response.token_ids)
    text = chat.decode(response.token_ids)
    conversation.reply(response.token_ids, text, ended=response.finish_reason == "stop")
    return await episode.act(text, response, context)


class Episode:
    """The environment's side of one episode: what a reply does, what came of it, and the record of both.

    `begin`, then `act` until `record.stop_reason` is set, then `end`. The caller decides where replies come
    from: `run_episode` samples them, `MultiTurnManager` is given them.
    """

    def __init__(
        self,
        session: EnvironmentSession,
        parser: ActionParser,
        spec: EpisodeSpec,
        images: ImageStore,
        limits: EpisodeLimits,
        *,
        fed_as_learner: bool = True,
    ) -> None:
        self.session, self.limits = session, limits
        self.observation = Observation()
        """What the agent sees now."""
        self.record = Trajectory(
            spec.trajectory_id, spec.task, group_id=spec.group_id, seed=spec.environment_seed, level=spec.level
        )
        self._parser, self._spec, self._images = parser, spec, images
        self._fed_as_learner = fed_as_learner
        self._started = time.perf_counter()
        self._earlier = session.seconds
        self._max_turns = min(limits.max_turns, session.env.max_turns or limits.max_turns)

    async def begin(self) -> Observation:
        """Return the first observation. Raises RolloutFailure where the environment fails."""
        first = await self.session.reset(self._spec.task, self._spec.environment_seed)
        self._parser = self._parser.for_tools(self.session.env.callable_tools())
        return self.see(first)

    def see(self, observation: Observation) -> Observation:
        """Return the observation as the current one, its pictures in the store."""
        images = tuple(self._images.put(image) for image in observation.images)
        self.observation = replace(observation, images=images) if images else observation
        return self.observation

    async def act(self, text: str, response: Response = Response(()), context: Context | None = None) -> Observation:
        """Return the next observation, after the reply `text` was executed and its turn recorded.

        `response` and `context` are its tokens; without them the turn is a record that cannot be learned from.
        """
        action = self._parser.parse(text)
        result = await self.session.step(action)
        self.add("response_tokens", len(response.token_ids))
        self.add("parse_errors", float(action.parse_error is not None))
        self.record.turns.append(self._turn_of(action, result, response, context))
        if result.done:
            self.record.stop_reason = _why(result)
        success = result.observation.info.get("success")
        if success is not None:
            self.record.metrics["success"] = float(success)
        if self.record.stop_reason is None:
            self.record.stop_reason = self._limit_reached()
        return self.see(result.observation)

    async def require_score(self) -> None:
        """Ask for the score of an episode that a limit of the run ended; it is added to the last reward. Raises
        EpisodeTimeout where the environment has none."""
        turns = self.record.turns
        if turns and turns[-1].done:
            return
        scored = await self.session.score() if turns else None
        if scored is None:
            raise EpisodeTimeout(
                f"the run cut the episode after {len(turns)} turns ({self.record.stop_reason}) and its score was never "
                f"known; keep the environment's own limit (max_turns={self.session.env.max_turns}) below the run's "
                "(inference.max_turns, rollout.max_tokens, rollout.max_seconds), or write its score_now"
            )
        reward, info = scored
        turns[-1] = replace(turns[-1], reward=turns[-1].reward + reward, info={**turns[-1].info, **info})
        if info.get("success") is not None:
            self.record.metrics["success"] = float(info["success"])

    def fail(self, error: RolloutFailure) -> None:
        """Record that the episode is no evidence."""
        self.record.failure = Failure(error.kind, str(error), len(self.record.turns))
        self.record.stop_reason = "failure"

    def end(self) -> Trajectory:
        """Return the record, with what stands there now and the numbers of the whole episode."""
        self.keep_final()
        self.record.metrics["seconds"] = time.perf_counter() - self._started
        self.record.metrics["environment_seconds"] = self.session.seconds - self._earlier
        return self.record

    def keep_final(self) -> None:
        """Record what stands there after the last turn."""
        self.record.final = _by_hash(self.observation) if self.record.turns else None

    def draw_seed(self) -> int | None:
        """Return the seed of the draws of the next reply; None: not repeatable."""
        seed = self._spec.sampling_seed
        return None if seed is None else derive_seed(seed, len(self.record.turns))

    def tokens_left(self, context: Context) -> int:
        """Return how many tokens the next reply may take, at least 1. Raises PromptTooLong where none is left."""
        if self.limits.max_tokens is None:
            return 1 << 30
        used = sum(len(turn.context_ids) + len(turn.response_ids) for turn in self.record.turns)
        left = self.limits.max_tokens - used - len(context.new_ids)
        if left < 1:
            raise PromptTooLong(
                f"the prompt of turn {len(self.record.turns)} adds {len(context.new_ids)} tokens to {used}, and an "
                f"episode may have {self.limits.max_tokens} (rollout.max_tokens; under verl data.max_prompt_length + "
                "data.max_response_length); raise the limit, or show less"
            )
        return left

    def add(self, name: str, value: float) -> None:
        """Add to one of the episode's numbers."""
        self.record.metrics[name] = self.record.metrics.get(name, 0.0) + value

    def _turn_of(self, action: Action, result: StepResult, response: Response, context: Context | None) -> Turn:
        return Turn(
            observation=_by_hash(self.observation),
            context_ids=context.new_ids if context else (),
            response_ids=response.token_ids,
            rollout_log_probs=response.log_probs,
            action=action,
            reward=result.reward,
            policy_version=response.policy_version,
            starts_segment=context.starts_segment if context else not self.record.turns,
            context_images=tuple(image.hash for image in context.new_images) if context else (),
            pictures=context.pictures if context and self._fed_as_learner else (),
            finish_reason=response.finish_reason,
            terminated=result.terminated,
            truncated=result.truncated,
            info=result.observation.info,
            tool_results=result.observation.tool_results,
        )

    def _limit_reached(self) -> str | None:
        if len(self.record.turns) >= self._max_turns:
            return "max_turns"
        if self.limits.max_seconds is not None and time.perf_counter() - self._started > self.limits.max_seconds:
            return "wall_time"
        return None


def _sampling_of(agent: Agent, spec: EpisodeSpec) -> dict[str, Any] | None:
    """Return the sampling parameters for the record; None: no policy is sampled."""
    sampling = agent.sampling
    if sampling is None:
        return None
    named = {name: getattr(sampling, name) for name in ("temperature", "top_p", "top_k", "max_tokens")}
    return {**named, "seed": spec.sampling_seed}


def _by_hash(observation: Observation) -> Observation:
    """Return the observation as it is recorded, with the hashes of its pictures."""
    hashes = tuple(image.hash for image in observation.images)
    return replace(observation, images=hashes) if hashes else observation


def _why(result: StepResult) -> str:
    """Return why the environment ended the episode: a limit of turns that it holds itself is one like the run's."""
    if result.terminated:
        return "terminated"
    return "max_turns" if result.observation.info.get("out_of_turns") is True else "truncated"


def derive_seed(*parts: int | str) -> int:
    """Return a 63-bit seed that depends on every part: the same parts give the same seed on every machine."""
    text = "/".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
