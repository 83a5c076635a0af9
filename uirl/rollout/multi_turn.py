"""Multi-turn interfaces to a model and an environment, without a trainer and without an event loop.

Both drive the same `Episode` and `run_episode` that training uses; what they leave is a `Trajectory` like any other.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from uirl.environments.base import BaseEnvironment
from uirl.environments.session import EnvironmentSession
from uirl.environments.tool_use import ToolEnvironment
from uirl.errors import ContractError
from uirl.images import ImageStore, screenshot
from uirl.inference.base import SamplingParams
from uirl.inference.messages import Message
from uirl.inference.models.chat import ChatRenderer
from uirl.inference.models.templates import TEMPLATES
from uirl.inference.text_front import TextEngine
from uirl.parsers import create_parser
from uirl.parsers.base import ActionParser
from uirl.parsers.registry import format_of
from uirl.results import read_observation
from uirl.rollout.conversation import ContextWindow, Conversation, messages_of
from uirl.rollout.episode import (
    EngineAgent,
    Episode,
    EpisodeLimits,
    EpisodeOptions,
    EpisodeSpec,
    play_turn,
    run_episode,
)
from uirl.runtime.event_loop import EventLoopThread
from uirl.tools import ToolRegistry
from uirl.types import Observation, Task, Trajectory, Turn


@dataclass(frozen=True, slots=True)
class ToolUsage:
    """How one tool was used in one episode."""

    calls: int
    successes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class EpisodeSummary(Sequence[str]):
    """One episode at a glance. As a sequence it is the model's replies."""

    trajectory: Trajectory
    responses: tuple[str, ...]
    total_reward: float
    success: bool | None
    """None: nobody said."""
    stop_reason: str | None
    """None: the episode is still running."""
    failure: str | None
    """Why the episode is no evidence; None: it is."""
    tools: dict[str, ToolUsage] = field(default_factory=dict)

    @staticmethod
    def of(trajectory: Trajectory) -> EpisodeSummary:
        """Return the summary of a trajectory."""
        results = [result for turn in trajectory.turns for result in turn.tool_results]
        tools = {}
        for name in sorted({result.name for result in results}):
            calls = [result for result in results if result.name == name]
            tools[name] = ToolUsage(len(calls), sum(r.success for r in calls), sum(r.seconds for r in calls))
        return EpisodeSummary(
            trajectory=trajectory,
            responses=tuple(trajectory.actions),
            total_reward=trajectory.total_reward(),
            success=trajectory.success,
            stop_reason=trajectory.stop_reason,
            failure=trajectory.failure.message if trajectory.failure else None,
            tools=tools,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, without the trajectory."""
        return {
            "turns": len(self.responses),
            "total_reward": self.total_reward,
            "success": self.success,
            "stop_reason": self.stop_reason,
            "failure": self.failure,
            "tools": {name: asdict(usage) for name, usage in self.tools.items()},
        }

    def __getitem__(self, index: Any) -> Any:
        return self.responses[index]

    def __len__(self) -> int:
        return len(self.responses)

    def __iter__(self) -> Iterator[str]:
        return iter(self.responses)


class MultiTurnManager:
    """Executes what a model wrote, turn by turn, and keeps the record. The replies come from you.

    Calls of tools are executed; a reply without a call goes to the environment. `step` may be handed an observation of
    an environment that you reset yourself; `reset` begins an episode of its own.
    """

    def __init__(
        self, registry: ToolRegistry, parser: ActionParser, env: BaseEnvironment | None = None, *, max_turns: int = 16
    ) -> None:
        self.registry, self.parser, self.env, self.max_turns = registry, parser, env, max_turns
        self._loop = EventLoopThread()
        self._episode: Episode | None = None
        self._messages: list[Message] = []

    def reset(self, seed: int | None = None) -> Observation:
        """Return the first observation of a new episode."""
        return self._loop.run(self._begin(seed))

    def step(self, model_output: str, observation: Any = None) -> Turn:
        """Return the turn that `model_output` made: `turn.tool_call.result`, `turn.reward`, `turn.done`.

        `observation` is what the model saw before it wrote; None: what `manager.observation` says. Raises ContractError
        after the end of the episode, RolloutFailure where a tool or the environment fails.
        """
        return self._loop.run(self._step(model_output, observation))

    @property
    def observation(self) -> Observation:
        """What the model sees next. Raises ContractError before the first step or reset."""
        return self._running().observation

    @property
    def trajectory(self) -> Trajectory:
        """The record so far."""
        return self._running().record

    @property
    def conversation(self) -> list[dict[str, Any]]:
        """All turns so far as chat messages; pictures by their content type alone."""
        return [message.as_hf() for message in self._messages]

    def summary(self) -> EpisodeSummary:
        """Return the episode at a glance, with tool statistics."""
        return EpisodeSummary.of(self.trajectory)

    def close(self) -> None:
        """End the event loop. The environment and the tools are yours to close."""
        self._loop.close()

    def _open(self, seed: int | None = None) -> tuple[ToolEnvironment, Episode]:
        """Return a new episode that has not begun."""
        environment = ToolEnvironment(registry=self.registry, environment=self.env, action_format=self.parser)
        spec = EpisodeSpec(Task("conversation"), seed, None, uuid.uuid4().hex)
        self._messages = []
        self._episode = Episode(
            EnvironmentSession(environment), self.parser, spec, ImageStore(), EpisodeLimits(self.max_turns)
        )
        return environment, self._episode

    async def _begin(self, seed: int | None) -> Observation:
        _, episode = self._open(seed)
        return self._see(await episode.begin())

    async def _step(self, model_output: str, observation: Any) -> Turn:
        observed = None if observation is None else read_observation(observation, "MultiTurnManager.step")
        if observed is None:
            if self._episode is None:
                await self._begin(None)
        elif self._episode is None:
            environment, episode = self._open()
            environment.adopt()
            episode.session.adopt()
            self._see(episode.see(observed))
        elif observed != self.observation:
            self._see(self._running().see(observed))
        episode = self._running()
        if episode.record.stop_reason is not None:
            raise ContractError(f"the episode is over ({episode.record.stop_reason}); call reset() for a new one")
        self._messages.append(Message("assistant", model_output))
        self._see(await episode.act(model_output))
        return episode.record.turns[-1]

    def _see(self, observation: Observation) -> Observation:
        self._messages += messages_of(observation)
        return observation

    def _running(self) -> Episode:
        if self._episode is None:
            raise ContractError("no episode has begun; call reset() or step(model_output, observation)")
        return self._episode


class MultiTurnInferenceEngine:
    """A model in a conversation, with a user or with an environment, with or without tools.

    `engine`: what `create_inference_engine` returned. `tool_manager` holds the tools and the parser; they are used
    where `enable_tools`.
    """

    def __init__(
        self,
        engine: TextEngine,
        max_turns: int = 5,
        system_prompt: str | None = None,
        tool_manager: MultiTurnManager | None = None,
        enable_tools: bool = False,
    ) -> None:
        if enable_tools and tool_manager is None:
            raise ContractError("enable_tools=True needs a tool_manager: MultiTurnManager(registry, parser, env)")
        self.engine, self.max_turns, self.system_prompt = engine, max_turns, system_prompt
        self.tool_manager = tool_manager
        self._tools = tool_manager if enable_tools else None
        self._images = ImageStore()
        self._id = ""
        self._conversation: Conversation | None = None
        self._chat: ChatRenderer | None = None
        self._episode: Episode | None = None

    # -- with a user -------------------------------------------------------------------------------------------

    def start_conversation(self, prompt: str, images: Sequence[Any] = (), *, seed: int | None = None) -> None:
        """Clear the history and open a conversation with the user message `prompt`; `seed` makes the draws."""
        self.engine.engine.release(self._id)
        self._id = uuid.uuid4().hex
        opening = Observation(prompt, tuple(screenshot(picture) for picture in images))
        environment, self._chat, parser, system = self._setting(_Person(opening))
        spec = EpisodeSpec(Task("conversation"), None, seed, self._id)
        limits = EpisodeLimits(self.max_turns)
        self._episode = Episode(EnvironmentSession(environment), parser, spec, self._images, limits)
        self._conversation = Conversation(self._chat, ContextWindow())
        if system:
            self._conversation.add(Message("system", system))
        self._conversation.observe(self.engine.run(self._episode.begin()))

    def step(
        self, message: str = "", *, max_tokens: int = 256, temperature: float = 1.0, top_p: float = 1.0, top_k: int = 0
    ) -> str:
        """Return the model's next reply. `message`: what the user says before it; empty after the opening and after
        tool calls, whose results are said then.

        Raises ContractError where there is nothing to reply to, after `max_turns` replies and where the model's context
        is full; PromptTooLong where the opening alone fills it.
        """
        conversation, episode, chat = self._conversation, self._episode, self._chat
        if conversation is None or episode is None or chat is None:
            raise ContractError("no conversation has begun; call start_conversation(prompt)")
        if episode.record.stop_reason is not None:
            raise ContractError(
                f"the conversation is over ({episode.record.stop_reason}, max_turns={self.max_turns}); start a new one"
            )
        if episode.record.turns:
            if not message and not episode.observation.tool_results:
                raise ContractError("it is the user's turn: step(message) needs a message")
            conversation.observe(episode.see(replace(episode.observation, text=message)))
        elif message:
            conversation.observe(episode.see(Observation(message)))
        sampling = SamplingParams(max_tokens, temperature, top_p, top_k)
        agent = EngineAgent(self.engine.engine, sampling, self._id, for_training=False)
        replies = len(episode.record.turns)
        self.engine.run(play_turn(episode, conversation, agent, chat))
        if len(episode.record.turns) == replies:
            full = episode.record.stop_reason == "token_budget"
            why = "it fills the context of the model" if full else "what it showed cannot be made a prompt"
            raise ContractError(f"the conversation is over ({episode.record.stop_reason}): {why}; start a new one")
        return episode.record.turns[-1].action.text

    @property
    def conversation(self) -> list[dict[str, Any]]:
        """All turns so far as chat messages."""
        return [message.as_hf() for message in (self._conversation.messages if self._conversation else ())]

    @property
    def trajectory(self) -> Trajectory:
        """The record of the conversation with a user. Raises ContractError before it began."""
        if self._episode is None:
            raise ContractError("no conversation has begun; call start_conversation(prompt)")
        return self._episode.record

    def format_conversation(
        self, messages: Sequence[Message | dict[str, Any]] | None = None, template: str | None = None
    ) -> str:
        """Return the conversation as the text a model reads, with the prompt for the next reply: to look at. In the
        text, content that spells a control token looks like one; the ids of a conversation are `ChatRenderer.whole`.

        `template`: 'chatml', 'llama-2', 'llama-3' or a Jinja string; None: the tokenizer's own. `messages` None: those
        of the current conversation.
        """
        plain = self.conversation if messages is None else [_as_dict(message) for message in messages]
        text: str = self.engine.loaded.tokenizer.apply_chat_template(
            plain,
            chat_template=None if template is None else TEMPLATES.get(template, template),
            tokenize=False,
            add_generation_prompt=True,
        )
        return text

    # -- with an environment -----------------------------------------------------------------------------------

    def run_episode(
        self,
        environment: BaseEnvironment,
        initial_prompt: str = "",
        max_turns: int | None = None,
        *,
        max_tokens: int = 256,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 0,
        seed: int | None = None,
    ) -> EpisodeSummary:
        """Play one episode in `environment`; return the replies, as a sequence, and what came of them.

        `initial_prompt` is said before the first observation. `max_turns` None: the engine's. `seed` makes the instance
        and the draws.
        """
        with_tools, chat, parser, system = self._setting(environment)
        spec = EpisodeSpec(Task("episode"), seed, seed, uuid.uuid4().hex)
        sampling = SamplingParams(max_tokens, temperature, top_p, top_k)
        agent = EngineAgent(self.engine.engine, sampling, spec.trajectory_id, for_training=False)
        episode = run_episode(
            EnvironmentSession(with_tools),
            agent,
            chat,
            parser,
            spec,
            images=self._images,
            options=EpisodeOptions(
                EpisodeLimits(max_turns or self.max_turns), system_prompt=system, opening=initial_prompt
            ),
        )
        return EpisodeSummary.of(self.engine.run(episode))

    def with_tools(self, environment: BaseEnvironment) -> tuple[BaseEnvironment, str | None]:
        """Return (environment with the tools in it, system prompt): what a trainer needs to play as `run_episode` does.

        The prompt is None where it is the environment's own. Raises ConfigError for a parser that has no name.
        """
        return self._equipped(environment, "" if self._tools is None else format_of(self._tools.parser))

    # -- parts of both -----------------------------------------------------------------------------------------

    def _equipped(
        self, environment: BaseEnvironment, action_format: str | ActionParser
    ) -> tuple[BaseEnvironment, str | None]:
        """Return (environment with the tools in it, system prompt, None where it is the environment's own). Tools are
        shown by the chat template where it knows how to, else described in the system prompt."""
        if self._tools is None:
            return environment, self.system_prompt
        registry = self._tools.registry
        shown = ChatRenderer.can_show(self.engine.loaded, registry.schemas())
        with_tools = ToolEnvironment(
            registry=registry,
            environment=environment,
            action_format=action_format,
            describe="template" if shown else "prompt",
        )
        if self.system_prompt is None or shown:
            return with_tools, self.system_prompt
        parts = (self.system_prompt, registry.describe(), self._tools.parser.describe())
        return with_tools, "\n\n".join(filter(None, parts))

    def _setting(self, environment: BaseEnvironment) -> tuple[BaseEnvironment, ChatRenderer, ActionParser, str]:
        """Return (environment with the tools in it, chat template, parser, system prompt)."""
        parser = create_parser(environment.action_format) if self._tools is None else self._tools.parser
        with_tools, prompt = self._equipped(environment, parser)
        chat = ChatRenderer(self.engine.loaded, with_tools.tool_schemas(), calls=parser)
        return with_tools, chat, parser, with_tools.get_prompt_prefix() if prompt is None else prompt


class _Person(BaseEnvironment):
    """An environment that stands for the user: it asks once and takes any reply."""

    runs_inline = True

    def __init__(self, opening: Observation) -> None:
        super().__init__()
        self._opening = opening

    def reset(self) -> Observation:
        return self._opening

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        return "", 0.0, False, {}

    def get_state_description(self) -> str:
        return self._opening.text


def _as_dict(message: Message | dict[str, Any]) -> dict[str, Any]:
    return message.as_hf() if isinstance(message, Message) else message
