"""Several environments in one run, each with a weight: a policy that learns them together.

A task says which member it is of (`Task.environment`, and the beginning of its id), so all that counts tasks, groups
and instances works as for one environment. The member plays in a session of its own, as behind a `ToolEnvironment`.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import random
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Annotated, Any, Self

from pydantic import Field

from uirl.config import EnvironmentConfig
from uirl.config.section import Options, Positive
from uirl.environments.base import BaseEnvironment
from uirl.environments.instances import signature_of, takes_seed, takes_task
from uirl.environments.options import ConfigurableEnvironment, EnvironmentOptions, OptionsLike
from uirl.environments.registry import create_environment
from uirl.environments.session import EnvironmentSession
from uirl.environments.tool_use.environment import ToolEnvironment
from uirl.errors import ConfigError, EnvironmentFailure, did_you_mean
from uirl.parsers import create_parser
from uirl.tools.registry import run_at_once
from uirl.types import Action, Observation, StepResult, Task


class MemberOptions(EnvironmentOptions):
    """One environment of a mixture."""

    key = "mixture.members"

    name: str
    """Name of the environment, or 'package.module:Class'."""
    label: Annotated[str, Field(pattern=r"^[\w.-]*$")] = ""
    """Name in ids of tasks, metrics and summary; empty: that of the environment."""
    weight: Positive = 1.0
    """Share of the groups, relative to the other members."""
    options: Options = Field(default_factory=dict)
    """Options of the environment."""


class MixtureOptions(EnvironmentOptions):
    """Several environments in one run."""

    key = "mixture"

    members: Annotated[tuple[MemberOptions, ...], Field(strict=False, min_length=1)]
    """The environments: of each `name`, `weight` (1), `options` and `label` (the name; needed where one environment is
    there twice)."""


class MixtureEnvironment(ConfigurableEnvironment):
    """Plays each task in the member that it names, by that member's own prompt, limits, demonstrator and rewards.

    All members share one parser and one list of tools in the chat template. Members that read text go with any format
    in which a reply may be without a call.
    """

    runs_inline = True  # nothing here blocks: members that do have threads of their sessions

    options_class = MixtureOptions
    options: MixtureOptions

    def __init__(self, config: Any = None, options: OptionsLike = None, **keys: Any) -> None:
        """Create the members. Options: see `MixtureOptions`. Raises ConfigError for members that cannot share a run,
        with the remedy."""
        super().__init__(config, options, **keys)
        members: dict[str, BaseEnvironment] = {}
        self._weights: dict[str, float] = {}
        for one in self.options.members:
            label = one.label or EnvironmentConfig(name=one.name).label
            if label in members:
                raise ConfigError(f"mixture: two members are called {label!r}; give one of them another `label`")
            members[label] = create_environment(one.name, one.options, config)
            self._weights[label] = one.weight
            _require_seeds_and_tasks(label, members[label])
        self._members = members
        self.action_format = _common_format(members)  # type: ignore[misc]
        self.message_style = _the_same("message_style", {k: m.message_style for k, m in members.items()}, "")
        self._tools = _the_same(
            "tools in the chat template",
            {label: member.tool_schemas() for label, member in members.items()},
            ": let members describe them in their own prompts (option describe: prompt)",
        )
        limits = [member.max_turns for member in members.values()]
        self.max_turns = None if None in limits else max(limit or 0 for limit in limits)
        at_once = [member.max_parallel for member in members.values() if member.max_parallel is not None]
        self.max_parallel = min(at_once, default=None)
        self.fixed_start = all(member.fixed_start for member in members.values())
        self.demonstrator_may_fail = any(member.demonstrator_may_fail for member in members.values())
        self._only: tuple[str, list[Task]] | None = None
        """Of a control: the member that plays, and its tasks."""
        self._says: Action | None = None
        """Of a control: what it does in every turn."""
        self._sessions: dict[str, EnvironmentSession] = {}
        self._playing = next(iter(members))

    # -- what it is asked before an episode ------------------------------------------------------------------------

    def tasks(self) -> list[Task]:
        """Return the tasks of all members, which share the weight of their member."""
        return [task for label in self._members for task in self._tasks_of(label)]

    def tool_schemas(self) -> Sequence[Mapping[str, Any]]:
        return self._tools

    @property
    def has_demonstrator(self) -> bool:
        """Whether every member has one: a warm start plays all tasks."""
        return all(member.has_demonstrator for member in self._members.values())

    def controls(self) -> Mapping[str, BaseEnvironment | Action | str]:
        """Return 'member/control': a variant that plays the control of a member in all episodes. A constant reply is
        put in the place of the policy's: other members may be won by it."""
        found: dict[str, BaseEnvironment | Action | str] = {}
        for label, member in self._members.items():
            for name, control in member.controls().items():
                variant = self.spawn()
                variant._only = label, self._tasks_of(label)
                if isinstance(control, BaseEnvironment):
                    variant._members = {**self._members, label: control}
                else:
                    parser = create_parser(member.action_format)
                    variant._says = parser.parse(control) if isinstance(control, str) else control
                found[f"{label}/{name}"] = variant
        return found

    def live_views(self) -> Sequence[str]:
        return [view for member in self._members.values() for view in member.live_views()]

    def spawn(self) -> Self:
        """Return another mixture of the same members. Instances of a member are made for its first episode."""
        made = copy.copy(self)
        made._sessions = {}
        return made

    # -- an episode ------------------------------------------------------------------------------------------------

    def reset(self, task: Task | None = None, seed: int | None = None) -> Any:
        """Return the first observation of the task in its member; None: of one by its weight. Raises ConfigError for
        a task of no member."""
        draws = random.Random(seed)
        if task is None:
            label = draws.choices(list(self._weights), list(self._weights.values()))[0]
            task = draws.choice(self._tasks_of(label))
        label, own = self._own(task)
        if self._only is not None:
            label, instead = self._only
            own = own if self._own(task)[0] == label else self._own(draws.choice(instead))[1]
        self._playing = label
        if label not in self._sessions:
            member = self._members[label].spawn()
            # the session around the mixture has the time limits, and cancels this one with it
            self._sessions[label] = EnvironmentSession(member, inf, inf, cuts=True)
            member._step_limit = self._step_limit
        return self._at_once(self._session.reset(own, seed))

    def step(self, action: Action | str) -> Any:
        """Return what the member answers; awaitable where it is."""
        chosen = self._says or (action if isinstance(action, Action) else Action(text=action))
        return self._at_once(self._session.step(chosen))

    async def get_state_description(self) -> str:  # type: ignore[override]
        """Return the state of the member that is played."""
        return await self._session.state_description()

    def get_prompt_prefix(self) -> str:
        return self._member.get_prompt_prefix()

    def prompt_prefix_of(self, task: Task) -> str:
        label, own = self._own(task)
        return self._members[label].prompt_prefix_of(own)

    def callable_tools(self) -> Sequence[Mapping[str, Any]]:
        return self._member.callable_tools()

    async def expert_action(self) -> Action | None:  # type: ignore[override]
        """Return what the demonstrator of the member would do."""
        return await self._session.expert_action()

    async def score_now(self) -> Any:
        """Return the score of an episode that is cut, where the member knows it."""
        return await self._session.score()

    @property
    def scored_at_end(self) -> bool:  # type: ignore[override]
        """Whether the member that is played is scored at its end."""
        return self._member.scored_at_end

    @property
    def mistake_reward(self) -> float:  # type: ignore[override]
        """What the member that is played pays for a reply that is no action."""
        return self._member.mistake_reward

    async def close(self) -> None:  # type: ignore[override]
        """Close the instances of all members. Raises the first failure, once all were told."""
        sessions, self._sessions = self._sessions, {}
        told = await asyncio.gather(*(one.close() for one in sessions.values()), return_exceptions=True)
        for failure in told:
            if failure is not None:
                raise failure

    # -- parts of it -----------------------------------------------------------------------------------------------

    @property
    def _session(self) -> EnvironmentSession:
        if self._playing not in self._sessions:
            raise EnvironmentFailure("MixtureEnvironment was asked outside of an episode; expected reset() before it")
        return self._sessions[self._playing]

    @property
    def _member(self) -> BaseEnvironment:
        """The instance that is played; before an episode the template."""
        session = self._sessions.get(self._playing)
        return self._members[self._playing] if session is None else session.env

    def _tasks_of(self, label: str) -> list[Task]:
        member, share = self._members[label], self._weights[label]
        if self._only is not None and self._only[0] == label:
            return self._only[1]
        own = list(member.tasks() or ())
        if not own:
            return [Task(label, label, weight=share)]
        total = sum(task.weight for task in own)
        return [
            replace(task, id=f"{label}/{task.id}", environment=label, weight=share * task.weight / total)
            for task in own
        ]

    def _own(self, task: Task) -> tuple[str, Task]:
        """Return (label, the task as the member knows it)."""
        first, _, rest = task.id.partition("/")
        label = first if first in self._members else task.environment
        if label not in self._members:
            raise ConfigError(
                f"task {task.id!r} is of no member of the mixture; write its `environment`, or begin its id with "
                f"'MEMBER/': {did_you_mean(first, self._members)}"
            )
        return label, replace(task, id=rest) if first == label and rest else task

    def _at_once(self, work: Coroutine[Any, Any, Observation | StepResult]) -> Any:
        """Return what `work` returns, where the member does not wait, as `ToolEnvironment` does."""
        env = self._session.env
        waits = env.may_wait() if isinstance(env, ToolEnvironment) else not env.runs_inline
        if waits or inspect.iscoroutinefunction(env.reset) or inspect.iscoroutinefunction(env.step):
            return work
        return run_at_once(work, f"{type(env).__name__}: waits; make reset and step `async def`, or runs_inline False")


def _require_seeds_and_tasks(label: str, member: BaseEnvironment) -> None:
    """Raise ConfigError for a member that cannot be told its instance or its task: the mixture always can."""
    if not (takes_seed(member) or member.fixed_start):
        raise ConfigError(
            f"mixture: member {label!r} takes no seed: {signature_of(member)}; write reset(self, task=None, seed=None) "
            "and draw from it, or say fixed_start = True"
        )
    if len(member.tasks() or ()) > 1 and not takes_task(member):
        raise ConfigError(f"mixture: member {label!r} has tasks, and {signature_of(member)} takes no `task`")


def _common_format(members: Mapping[str, BaseEnvironment]) -> str:
    """Return the format that all members can be played in. Raises ConfigError where there is none."""
    formats = {label: member.action_format for label, member in members.items() if member.action_format != "text"}
    if not formats:
        return "text"
    chosen = _the_same("action_format", formats, ", which the loop reads by one parser: set the option action_format")
    texts = [label for label, member in members.items() if member.action_format == "text"]
    if texts and create_parser(chosen).parse("word").parse_error is not None:
        raise ConfigError(
            f"mixture: {', '.join(texts)} take text, and in the format {chosen!r} of {', '.join(formats)} a reply "
            "without a call is an error; set the option action_format of these to one that allows it ('qwen', "
            "'function_calling'), or train them apart"
        )
    return chosen


def _the_same(what: str, values: Mapping[str, Any], remedy: str) -> Any:
    """Return the value that all members have. Raises ConfigError that names two that differ."""
    (first, value), *others = values.items()
    for label, other in others:
        if _plain(other) != _plain(value):
            raise ConfigError(
                f"mixture: members {first!r} and {label!r} have unlike {what} ({_shown(value)}, {_shown(other)})"
                f"{remedy}, or train them apart"
            )
    return value


def _plain(value: Any) -> Any:
    return value if isinstance(value, str) else list(value)


def _shown(value: str | Iterable[Mapping[str, Any]]) -> str:
    if isinstance(value, str):
        return value
    return ", ".join(str(schema.get("function", schema).get("name")) for schema in value) or "none"
