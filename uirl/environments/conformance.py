"""`check_environment`: what every environment must keep, as a suite for your own tests, with messages that teach."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from uirl.environments.base import BaseEnvironment
from uirl.environments.scripted import Play, play_episode
from uirl.environments.session import EnvironmentSession, reset_arguments
from uirl.errors import ContractError, RolloutFailure
from uirl.types import Action, Observation, Task

SAMPLE_TEXTS = ("1", "look", "go north", "", "help", "3", "no such word")
SAMPLE_CALLS = (
    Action.of("click", x=1, y=1),
    Action.of("click", x=30, y=30),
    Action.of("type", text="1"),
    Action.of("no_such_action", x="?"),
    Action.of("click", x=-5, y=10**30),
    Action(text="words", parse_error="no JSON object"),
)


@dataclass(slots=True)
class EnvironmentReport:
    """What `check_environment` found in an environment that keeps the contract."""

    environment: str
    episodes: int = 0
    turns: int = 0
    seeded: bool = False
    """Whether `reset` takes a seed: only then repeatability was checked."""
    expert_success: float | None = None
    """Share of episodes the demonstrator solved; None: there is no demonstrator."""
    notes: list[str] = field(default_factory=list)
    """What could not be checked, and why."""


def check_environment(
    env: BaseEnvironment,
    *,
    episodes: int = 3,
    actions: Sequence[Action | str] | None = None,
    tasks: Sequence[Task] | None = None,
    seed: int = 0,
    timeout: float = 60.0,
    turn_limit: int = 200,
) -> EnvironmentReport:
    """Return a report on an environment that keeps the contract; raise ContractError with all violations otherwise.

    It plays `spawn()`s of `env`, never `env` itself, on `tasks` (None: its own), with `actions` over and over (None:
    samples of the usual forms, right and wrong ones) and with the environment's demonstrator. `timeout` is seconds per
    call. An environment without `max_turns` must end within `turn_limit` turns. Call it outside of an event loop.
    """
    suite = _Suite(env, episodes, sample_actions(env, actions), seed, timeout, turn_limit)
    suite.tasks = tasks or suite.tasks
    asyncio.run(suite.run())
    if suite.violations:
        lines = "\n".join(f"- {violation}" for violation in suite.violations)
        raise ContractError(f"{type(env).__name__} breaks the environment contract:\n{lines}")
    return suite.report


def sample_actions(env: BaseEnvironment, actions: Sequence[Action | str] | None = None) -> tuple[Action, ...]:
    """Return `actions`; None: samples of the forms that `env` takes, right and wrong ones."""
    chosen = actions if actions is not None else SAMPLE_TEXTS if env.action_format == "text" else SAMPLE_CALLS
    if not chosen:
        raise ContractError("check_environment got no actions; expected at least one, or None for samples")
    return tuple(action if isinstance(action, Action) else Action(text=action) for action in chosen)


class _Suite:
    """The checks, and what they found."""

    def __init__(
        self, env: BaseEnvironment, episodes: int, actions: tuple[Action, ...], seed: int, timeout: float, limit: int
    ) -> None:
        self.env, self.episodes, self.actions, self.seed = env, episodes, actions, seed
        self.timeout, self.limit = timeout, limit
        self.name = type(env).__name__
        self.violations: list[str] = []
        self.report = EnvironmentReport(self.name, seeded="seed" in reset_arguments(env, None, seed))
        self.tasks: Sequence[Task | None] = [None]

    async def run(self) -> None:
        for check in (
            self.check_words_and_tasks,
            self.check_episodes,
            self.check_repeatability,
            self.check_independence,
            self.check_expert,
            self.check_close,
        ):
            try:
                await check()
            except RolloutFailure as failure:
                self.violate(str(failure))
        if not self.report.seeded:
            self.report.notes.append("reset takes no seed: that the same seed gives the same episode was not checked")

    def violate(self, message: str) -> None:
        if message not in self.violations:
            self.violations.append(message)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[EnvironmentSession]:
        """Yield a session on a fresh spawn, closed at the end."""
        spawned = self.env.spawn()
        if spawned is self.env or not isinstance(spawned, BaseEnvironment):
            got = "itself" if spawned is self.env else repr(spawned)
            raise RolloutFailure(f"{self.name}.spawn returned {got}; expected another, independent instance")
        session = EnvironmentSession(spawned, self.timeout, self.timeout)
        try:
            yield session
        finally:
            for name, value in getattr(spawned, "__dict__", {}).items():
                if callable(getattr(type(spawned), name, None)) and not callable(value):
                    self.violate(f"{self.name} sets self.{name}, which is a method of it; choose another name")
            await session.close()

    def choose(self, turn: int) -> Action:
        return self.actions[turn % len(self.actions)]

    def task(self, episode: int) -> Task | None:
        return self.tasks[episode % len(self.tasks)]

    async def play(self, session: EnvironmentSession, episode: int, choose: Callable[[int], Action] | None) -> Play:
        played = await play_episode(
            session, choose, task=self.task(episode), seed=self.seed + episode, turn_limit=self.limit
        )
        self.report.episodes += 1
        self.report.turns += len(played.actions)
        return played

    async def check_words_and_tasks(self) -> None:
        prefix = self.env.get_prompt_prefix()
        if not isinstance(prefix, str):
            self.violate(f"{self.name}.get_prompt_prefix returned {prefix!r:.60}; expected a str, '' for none")
        limit = self.env.max_turns
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
            self.violate(
                f"{self.name}.max_turns is {limit!r}; expected a positive int, or None for no limit of its own"
            )
        for name, control in self.env.controls().items():
            if not isinstance(control, (BaseEnvironment, Action, str)):
                self.violate(
                    f"{self.name}.controls holds {name!r}: {control!r:.60}; expected an environment, an Action or a str"
                )
        tasks = self.env.tasks()
        if tasks is None:
            return
        tasks = list(tasks)
        problems = list(_task_problems(self.name, tasks))
        for problem in problems:
            self.violate(problem)
        if not problems and self.tasks == [None]:
            self.tasks = tasks

    async def check_episodes(self) -> None:
        ended = False
        async with self.session() as session:
            for episode in range(self.episodes):
                played = await self.play(session, episode, self.choose)
                ended = ended or played.done
                for turn, observation in enumerate(played.observations):
                    self.check_images(observation, turn)
                await session.state_description()
            # A reset in mid-episode must work as well as one after the end.
            await session.reset(self.task(0), self.seed)
            await session.step(self.choose(0))
            await session.reset(self.task(0), self.seed)
        if not ended and self.env.max_turns is None:
            self.violate(
                f"{self.name}: no episode ended within {self.limit} turns and max_turns is None; return done=True at "
                "an end, set max_turns, or give check_environment actions that lead to an end"
            )

    def check_images(self, observation: Observation, turn: int) -> None:
        for i, image in enumerate(observation.images):
            try:
                image.open()
            except ValueError as error:
                self.violate(f"{self.name}: image {i} of observation {turn} is no picture: {error}")

    async def check_repeatability(self) -> None:
        if not self.report.seeded:
            return
        async with self.session() as one, self.session() as other:
            for episode in range(self.episodes):
                plays = [await self.play(session, episode, self.choose) for session in (one, one, other)]
                self.compare(plays[0], plays[1], f"seed {self.seed + episode} twice on the same instance")
                self.compare(plays[0], plays[2], f"seed {self.seed + episode} on two instances")

    def compare(self, a: Play, b: Play, how: str) -> None:
        difference = _first_difference(a, b)
        if difference:
            self.violate(
                f"{self.name}: {how} and the same actions gave different episodes: {difference}; draw everything from "
                "a generator made in reset(seed), never from global or shared state"
            )

    async def check_independence(self) -> None:
        async with self.session() as one, self.session() as other:
            await one.reset(self.task(0), self.seed)
            await other.reset(self.task(0), self.seed)
            before = await other.state_description()
            played = await _step_through(one, self.actions, self.limit)
            after = await other.state_description()
            if before != after:
                self.violate(
                    f"{self.name}: stepping one spawn() changed another: its state was {before!r:.80}, then "
                    f"{after!r:.80}; keep the state on the instance; override spawn() where a copy shares something"
                )
            if self.report.seeded and played != await _step_through(other, self.actions, self.limit):
                self.violate(
                    f"{self.name}: two spawn()s with seed {self.seed} and the same actions went apart while played "
                    "side by side; keep the state on the instance"
                )

    async def check_expert(self) -> None:
        solved, refused = 0, ""
        async with self.session() as session:
            for episode in range(self.episodes):
                played = await self.play(session, episode, None)
                refused = next((str(o.info["mistake"]) for o in played.observations if "mistake" in o.info), refused)
                if not played.actions:
                    self.report.notes.append("no expert_action: no demonstrator to check")
                    return
                solved += played.success is True
                if played.success is not True and not session.env.demonstrator_may_fail:
                    reported = "info has no 'success'" if played.success is None else "info['success'] is False"
                    self.violate(
                        f"{self.name}: expert_action does not solve the task of seed {self.seed + episode}: after "
                        f"{len(played.actions)} turns the last {reported}; expected True"
                    )
        self.report.expert_success = solved / self.episodes
        if solved < self.episodes:
            why = refused and f", and an action of it was refused: {refused}"
            self.report.notes.append(f"the demonstrator solved {solved} of {self.episodes} episodes{why}")

    async def check_close(self) -> None:
        async with self.session() as session:
            await session.reset(self.task(0), self.seed)
        close: Callable[[], Any] = session.env.close
        try:
            again = close()
            if inspect.isawaitable(again):
                await again
        except Exception as error:
            self.violate(f"{self.name}.close raised {type(error).__name__}: {error} on a second call; expected nothing")


async def _step_through(session: EnvironmentSession, actions: Sequence[Action], limit: int) -> list[Any]:
    """Return what an episode that is already reset shows for the actions, each once."""
    seen = []
    for action in actions[:limit]:
        result = await session.step(action)
        seen.append((text_and_images(result.observation), result.reward, result.done))
        if result.done:
            break
    return seen


def _task_problems(name: str, tasks: list[Task]) -> Iterator[str]:
    if not tasks:
        yield f"{name}.tasks returned no task; expected at least one, or None where the seed makes the instances"
    for task in tasks:
        if not isinstance(task, Task):
            yield f"{name}.tasks holds {task!r:.60}; expected uirl.types.Task"
            return
    seen: set[str] = set()
    for task in tasks:
        if task.id in seen:
            yield f"{name}.tasks has the id {task.id!r} twice; ids must be unique: results are counted per id"
        seen.add(task.id)


def _first_difference(a: Play, b: Play) -> str:
    """Return the first difference between two episodes, in words; empty where they are the same."""
    for turn, (left, right) in enumerate(zip(a.observations, b.observations, strict=False)):
        if left.text != right.text:
            return f"the text of observation {turn} is {left.text!r:.60}, then {right.text!r:.60}"
        if text_and_images(left) != text_and_images(right):
            return f"the images of observation {turn} differ"
    for turn, (before, after) in enumerate(zip(a.results, b.results, strict=False)):
        if (before.reward, before.done) != (after.reward, after.done):
            got = (before.reward, before.done), (after.reward, after.done)
            return f"turn {turn} gave (reward, done) = {got[0]}, then {got[1]}"
    return "" if len(a.results) == len(b.results) else f"they took {len(a.results)}, then {len(b.results)} turns"


def text_and_images(observation: Observation) -> tuple[str, tuple[str, ...]]:
    """Return what the agent sees, in plain values: the text, and the hash of every image."""
    return observation.text, tuple(image.hash for image in observation.images)
