"""`attack`: every attacker plays episodes as a policy does, through `run_episode`."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from uirl.config import ModelConfig
from uirl.environments import BaseEnvironment
from uirl.environments.adapters.calls import functions_of
from uirl.environments.browser.web import WebEnvironment
from uirl.environments.instances import takes_seed
from uirl.environments.scripted import play_episode
from uirl.environments.session import EnvironmentSession
from uirl.errors import ConfigError, RolloutFailure, UirlError, did_you_mean
from uirl.images import ImageStore
from uirl.inference.models.chat import ChatRenderer
from uirl.inference.models.loading import LoadedModel, load_model
from uirl.metrics import clopper_pearson
from uirl.parsers import ActionParser, create_parser
from uirl.rollout.attempts import play_all
from uirl.rollout.collector import Collector, chat_for
from uirl.rollout.conversation import Context
from uirl.rollout.episode import Agent, EpisodeLimits, EpisodeOptions, EpisodeSpec, ExpertAgent, Response, derive_seed
from uirl.rollout.reward import RewardFunction
from uirl.runtime.event_loop import EventLoopThread
from uirl.success import settle_outcomes
from uirl.tools.definition import ToolDefinition
from uirl.training.attack.attackers import ATTACKERS, Attacker, Reply, Scene
from uirl.training.attack.report import Attack, AttackReport, Through
from uirl.training.evaluation.evaluation import require_evidence, specs_of
from uirl.training.record.progress import doing
from uirl.training.tasks.sources import tasks_of
from uirl.types import Action, Failure, Task, Trajectory

AT_ONCE = 8
"""Episodes at a time."""
OFTEN, MORE = 3, 6
"""How often each reply of an attacker is said, and how many times as many episodes as were asked for that may take."""
ENDLESS, LONG = 2, 200
"""Episodes, and turns of each, by which it is told whether anybody ends one."""
DEMONSTRATED = 4
"""Demonstrations that tell what a solved episode is paid."""


def attack(
    environment: BaseEnvironment,
    *,
    tasks: Sequence[Task] | None = None,
    reward_fn: RewardFunction | None = None,
    episodes: int = 30,
    seed: int = 0,
    chance: float = 0.5,
    turns: int = 30,
    step_timeout: float = 30.0,
    only: Sequence[str] = (),
) -> AttackReport:
    """Return what scripted attackers get out of `environment`, or out of `reward_fn` where that judges its episodes.

    It plays `spawn()`s of `environment`, on `tasks` (None: its own), `episodes` of each attacker, or of those that
    `only` names. `chance`: share of episodes that blind play of valid actions may solve by luck. `turns`: most turns
    where the environment has no `max_turns`. `step_timeout` is seconds per call. Raises RolloutFailure where no
    episode begins, and ConfigError for an attacker that does not exist.
    """
    for name in only:
        if all(name != one.name for one in ATTACKERS):
            raise ConfigError(f"no attacker {name!r}; {did_you_mean(name, [one.name for one in ATTACKERS])}")
    options = EpisodeOptions(EpisodeLimits(environment.max_turns or turns), reward_fn=reward_fn)
    parser = create_parser(environment.action_format)
    collector = Collector(
        environment, chat_for(_reader(), environment), parser, ImageStore(), options, AT_ONCE, 0, step_timeout
    )
    played = list(tasks) if tasks is not None else tasks_of(environment)
    siege = _Siege(environment, collector, _functions_of(environment), played, episodes, seed, chance)
    loop = EventLoopThread()
    try:
        return loop.run(siege.run([one for one in ATTACKERS if not only or one.name in only]))
    finally:
        loop.close()


@lru_cache(maxsize=1)
def _reader() -> LoadedModel:
    """Return the model whose tokens carry what is said. Nobody samples from it."""
    return load_model(ModelConfig(model_name="uirl/tiny-vlm"))


def _functions_of(environment: BaseEnvironment) -> dict[str, ToolDefinition]:
    """Return what can be called; empty where replies are text, or nobody says what there is."""
    if environment.action_format == "text":
        return {}
    try:
        return {one.name: one for one in functions_of(environment, environment.callable_tools() or None)}
    except ConfigError:
        return {}


class _AttackAgent(Agent):
    """Says what an attacker says: of its replies the one that its episodes have said least often, so far."""

    def __init__(
        self,
        attacker: Attacker,
        seed: int,
        chat: ChatRenderer,
        functions: Mapping[str, ToolDefinition],
        counts: list[int],
    ) -> None:
        """Create one; `counts`: how often each reply was said, which the episodes of an attacker share."""
        self._attacker, self._seed = attacker, seed
        self._chat, self._functions, self._counts = chat, functions, counts
        self.said: list[str] = []

    async def act(self, context: Context, session: EnvironmentSession, seed: int | None, max_tokens: int) -> Response:
        parser = create_parser(session.env.action_format).for_tools(session.env.callable_tools())
        if self.said and self._attacker.steady:
            self.said.append(self.said[0])
        else:
            shown = tuple(message.text for message in context.messages if message.role != "assistant")
            rng = random.Random(derive_seed(self._seed, len(self.said)))
            addresses = tuple(session.env.destinations()) if isinstance(session.env, WebEnvironment) else ()
            scene = Scene(self._functions, shown or ("",), addresses, rng)
            reply = self._next(self._attacker.replies(scene) or [""])  # nothing here takes what it would say
            self.said.append(reply if isinstance(reply, str) else _written(parser, reply))
        return Response(tuple(self._chat.demonstration(self.said[-1], parser.control_words)))

    def _next(self, replies: Sequence[Reply]) -> Reply:
        self._counts += [0] * (len(replies) - len(self._counts))
        chosen = min(range(len(replies)), key=self._counts.__getitem__)
        self._counts[chosen] += 1
        return replies[chosen]


def _written(parser: ActionParser, action: Action) -> str:
    try:
        return parser.render(action)
    except (TypeError, ValueError, RecursionError):  # no reply reads as this
        return str([(call.name, dict(call.arguments)) for call in action.tool_calls])


@dataclass(slots=True)
class _Siege:
    """One environment, and what is tried on it."""

    environment: BaseEnvironment
    collector: Collector
    functions: Mapping[str, ToolDefinition]
    tasks: Sequence[Task]
    episodes: int
    seed: int
    chance: float
    worth: float | None = None
    """The least that a solved episode is paid; None: nobody shows one."""
    speakers: set[str] = field(default_factory=set)

    async def run(self, chosen: Sequence[Attacker]) -> AttackReport:
        not_tried: dict[str, str] = {}
        found: list[Attack] = []
        try:
            demonstrated = self.environment.has_demonstrator and await self._demonstrate()
            played: list[tuple[Attacker, list[tuple[Trajectory, _AttackAgent]]]] = []
            for one in chosen:
                why = one.why_not(self.functions, demonstrated=demonstrated)
                if one.name == "endless" and self.environment.max_turns is not None:
                    why = f"the environment has a limit of {self.environment.max_turns} turns"
                if why is not None:
                    not_tried[one.name] = why
                    continue
                with doing(f"attacker {one.name}"):
                    played.append((one, await self._play(one)))
            every = [episode for _, episodes in played for episode, agent in episodes]
            begun = [e for _, episodes in played for e, agent in episodes if e.failure is None or agent.said]
            if every and not begun:
                require_evidence(every, "of the attack")
            settle_outcomes(every, self.speakers)
            found = [self._came_to(one, episodes) for one, episodes in played]
        finally:
            await self.collector.close()
            self.collector.images.close()
        return AttackReport(type(self.environment).__name__, tuple(found), not_tried)

    def _specs(self, name: str, count: int) -> list[EpisodeSpec]:
        return specs_of(self.tasks, count, split="attack", seed=derive_seed(self.seed, name), label=name)

    async def _demonstrate(self) -> bool:
        """Play demonstrations; return whether one solved its task, and note what that is paid."""
        expert = ExpertAgent(self.collector.chat, self.collector.parser)
        shown = await self.collector.collect(self._specs("expert", DEMONSTRATED), lambda _: expert)
        settle_outcomes(shown, self.speakers)
        solved = [one.total_reward() for one in shown if one.success]
        self.worth = min(solved, default=None)
        return bool(solved)

    async def _play(self, one: Attacker) -> list[tuple[Trajectory, _AttackAgent]]:
        """Play the episodes of an attacker: as many as were asked for, or until all is said `OFTEN` times."""
        count = ENDLESS if one.name == "endless" else self.episodes
        specs, counts = self._specs(one.name, count * MORE), [0]
        collector = self.collector
        if one.name == "endless":
            collector = replace(collector, options=replace(collector.options, limits=EpisodeLimits(LONG)), _idle=[])
        played: list[tuple[Trajectory, _AttackAgent]] = []
        while specs and (not played or (min(counts) < OFTEN and len(counts) > 1)):
            batch, specs = specs[:count], specs[count:]
            agents = [self._agent(one, spec, counts) for spec in batch]
            if one.name == "leftover":  # each on the instance that has just been played
                found = []
                for spec, agent in zip(batch, agents, strict=True):
                    await collector.play_once(spec, ExpertAgent(collector.chat, collector.parser))
                    found.append(await self._play_once(collector, spec, agent))
            else:
                by_id = {spec.trajectory_id: agent for spec, agent in zip(batch, agents, strict=True)}
                play = self._beside_a_neighbour if one.name == "neighbour" else self._play_once
                found = await play_all(
                    batch,
                    lambda spec, of=by_id, play=play: play(collector, spec, of[spec.trajectory_id]),
                    slots=collector.slots,
                    retries=0,
                )
            played += zip(found, agents, strict=True)
        if collector is not self.collector:
            await collector.close()
        return played

    def _agent(self, one: Attacker, spec: EpisodeSpec, counts: list[int]) -> _AttackAgent:
        seed = derive_seed(self.seed, spec.trajectory_id)
        return _AttackAgent(one, seed, self.collector.chat, self.functions, counts)

    async def _play_once(self, collector: Collector, spec: EpisodeSpec, agent: _AttackAgent) -> Trajectory:
        try:
            return await collector.play_once(spec, agent)
        except UirlError as error:
            if not agent.said:
                raise
            # worse than a failure: what was said would have ended the run
            failure = Failure("contract", str(error), len(agent.said) - 1)
            return Trajectory(spec.trajectory_id, spec.task, [], "failure", spec.group_id, failure=failure)

    async def _beside_a_neighbour(self, collector: Collector, spec: EpisodeSpec, agent: _AttackAgent) -> Trajectory:
        """Play an episode while another instance is there, in which the demonstrator has just solved the same one."""
        session = EnvironmentSession(self.environment.spawn(), collector.step_timeout, collector.reset_timeout)
        try:
            with contextlib.suppress(RolloutFailure):
                await play_episode(session, None, task=spec.task, seed=spec.environment_seed)
            return await self._play_once(collector, spec, agent)
        finally:
            with contextlib.suppress(RolloutFailure):
                await session.close()

    def _came_to(self, one: Attacker, played: Sequence[tuple[Trajectory, _AttackAgent]]) -> Attack:
        evidence = [(episode, agent) for episode, agent in played if episode.failure is None or agent.said]
        through = [t for episode, agent in evidence if (t := self._through(one, episode)) is not None]
        different = {(_begin(episode, takes_seed(self.environment)), tuple(agent.said)) for episode, agent in evidence}
        solved = [episode for episode, _ in evidence if episode.success]
        if one.lucky and clopper_pearson(len(solved), len(evidence))[0] > self.chance:
            detail = f"blind play solves {len(solved)} of {len(evidence)}, more than a share of {self.chance:g}"
            through += [Through("solved", detail, episode) for episode in solved]
        return Attack(
            one.name,
            one.about,
            episodes=max(len(different), len(through)),
            through=tuple(through),
            excluded=len(played) - len(evidence),
            solved=len(solved),
            lucky=one.lucky,
        )

    def _through(self, one: Attacker, episode: Trajectory) -> Through | None:
        """Return how an episode got through; None: it lost, as it should."""
        paid = episode.total_reward()
        if episode.failure is not None:
            return Through("failure", f"{episode.failure.kind}: {episode.failure.message}", episode)
        if one.name == "endless" and episode.stop_reason == "max_turns":
            return Through("endless", f"not over after {LONG} turns, and there is no max_turns", episode)
        if episode.success:
            return None if one.lucky else Through("solved", f"counted as a success, paid {paid:g}", episode)
        if one.idle and paid > 0:
            return Through("paid", f"paid {paid:g} for nothing", episode)
        # luck solves a task; it does not pay for one that is not solved
        if self.worth is not None and paid >= self.worth:
            return Through("paid", f"paid {paid:g}; demonstrations that solve their task get {self.worth:g}", episode)
        return None


def _begin(episode: Trajectory, seeded: bool) -> object:
    """Return what tells instances apart: the seed or, where `reset` takes none, what the episode began with."""
    return (episode.task.id, episode.seed if seeded else episode.turns[0].observation.text if episode.turns else "")
