"""`trl_environment`: an environment of ours for the `environment_factory` of TRL's GRPOTrainer.

TRL is not imported here: it asks for a function that makes objects with `reset`, `get_reward` and one method per tool.
"""

from __future__ import annotations

import keyword
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from inspect import Parameter, Signature
from operator import or_
from typing import Any, Literal

from uirl.environments.adapters.calls import CalledEpisode, EpisodeThread, environment_of, functions_of, words_of
from uirl.environments.base import BaseEnvironment
from uirl.errors import ConfigError, EnvironmentFailure, RolloutFailure
from uirl.images import screenshot
from uirl.runtime.json_schema import types_of, without_null
from uirl.tools.definition import ToolDefinition
from uirl.types import Observation, Task

NOT_THERE = "The environment is not available; nothing can be done."

_HINTS: dict[str, Any] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "array": list,
    "object": dict,
    "null": None,
}
_TAKEN = ("reset", "get_reward")


class TRLEnvironment:
    """One environment as TRL sees it. Its class has a method per function of the environment, with a typed signature
    and a docstring, from which TRL makes the schemas; what begins with an underscore is no tool to it.
    """

    def __init__(self, owner: TRLEnvironmentFactory, episode: CalledEpisode) -> None:
        self._owner = owner
        self._episode = episode
        self._begun = False
        """An episode began, and its end was not reported yet."""

    def reset(
        self, seed: int | None = None, task: str | Mapping[str, Any] | None = None, **columns: Any
    ) -> str | list[dict[str, Any]]:
        """Return the first observation, which TRL appends to the prompt. `seed` and `task` are columns of the dataset.

        Where the environment fails this says so to the model, and the rollout has no reward: TRL leaves it out of its
        group's baseline and gives it no advantage. Raises EnvironmentFailure where many fail in a row.
        """
        chosen = _task(task)
        if seed is None and (chosen is None or chosen.seed is None):
            raise ConfigError(
                "the dataset has no column 'seed', so the rollouts of a group would each play another instance; use "
                "`factory.rows(...)`, or add the column"
            )
        if self._begun:
            self._begun = False
            self._owner._ended(self._episode.failure)
        try:
            first = self._owner._thread.run(self._episode.reset(chosen, None if seed is None else int(seed)))
        except RolloutFailure as failure:
            self._owner.failures += 1
            self._owner._ended(failure)
            return NOT_THERE
        self._begun = True
        return self._content(first)

    def get_reward(self) -> float | None:
        """Return the sum of the episode's rewards; None, which TRL takes for 'not scorable', where the environment
        failed."""
        return self._episode.reward

    @property
    def success(self) -> bool | None:
        """The environment's own word on the last episode; None: it said nothing, or the episode failed."""
        return self._episode.success

    @property
    def failure(self) -> RolloutFailure | None:
        """Why the last episode is no evidence; None: nothing broke."""
        return self._episode.failure

    def _call(self, name: str, arguments: Mapping[str, Any]) -> str | list[dict[str, Any]]:
        earlier = self._episode.failure
        try:
            seen, _ = self._owner._thread.run(self._episode.call(name, arguments))
        except RolloutFailure:
            if earlier is None:
                self._owner.failures += 1
            raise
        return self._content(seen)

    def _content(self, seen: Observation) -> str | list[dict[str, Any]]:
        text = words_of(seen, over=not self._episode.running)
        if not seen.images:
            return text
        pictures = [{"type": "image", "image": screenshot(picture).open()} for picture in seen.images]
        return [*pictures, {"type": "text", "text": text}] if text else pictures


class TRLEnvironmentFactory:
    """What `GRPOTrainer(environment_factory=...)` takes: each call makes an environment with an instance of its own.

    A context manager: `close` frees every environment that was made. The episode's reward is the environment's own
    (`get_reward`); a failed episode has none. TRL goes on asking the model after the episode's end: such calls change
    nothing and are told so.
    """

    def __init__(
        self,
        environment: str | BaseEnvironment,
        options: Mapping[str, Any] | None = None,
        *,
        schemas: Sequence[Mapping[str, Any]] | None = None,
        step_timeout: float = 60.0,
        reset_timeout: float = 120.0,
        give_up_after: int = 32,
    ) -> None:
        """Prepare a factory.

        Args:
            environment: a name from the table of environments, 'package.module:Class', or an environment.
            options: of the named environment.
            schemas: JSON schemas of the functions, where the environment does not say itself what can be done.
            step_timeout, reset_timeout: seconds after which a call is given up, and the episode counts as failed.
            give_up_after: failed episodes in a row after which `reset` ends the run.
        """
        self._env = environment_of(environment, options)
        self._schemas = schemas
        self._limits: dict[str, Any] = {"step_timeout": step_timeout, "reset_timeout": reset_timeout}
        self._give_up_after, self._in_a_row = give_up_after, 0
        self._thread = EpisodeThread()
        methods = {one.name: _method(one) for one in functions_of(self._env, schemas)}
        # TRL logs the reward under the name of the class
        self._class = type(type(self._env).__name__, (TRLEnvironment,), methods)
        self.failures = 0
        """Episodes so far that failed."""

    def __call__(self) -> TRLEnvironment:
        """Return another environment."""
        episode = CalledEpisode(self._env, self._schemas, **self._limits)
        self._thread.episodes.append(episode)
        environment: TRLEnvironment = self._class(self, episode)
        return environment

    def rows(self, count: int, *, seed: int = 0, instructions: str = "") -> list[dict[str, Any]]:
        """Return rows of a dataset (`datasets.Dataset.from_list`): prompt, seed and task of `count` episodes.

        Tasks of the environment are taken in turn. `instructions` are the system message; the user message is the first
        observation, which `reset` gives.
        """
        tasks = [task.id for task in self._env.tasks() or ()]
        system = [{"role": "system", "content": instructions}] if instructions else []
        prompt = [*system, {"role": "user", "content": ""}]
        named = [{"task": tasks[i % len(tasks)]} if tasks else {} for i in range(count)]
        return [{"prompt": prompt, "seed": seed + i, **named[i]} for i in range(count)]

    def close(self) -> None:
        """Free all environments; raises EnvironmentFailure, once all were asked, where one does not close in order.
        Calling it twice is fine."""
        self._thread.close()

    def __enter__(self) -> TRLEnvironmentFactory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ended(self, failure: RolloutFailure | None) -> None:
        """Count the episodes that fail in a row; raise where they are too many. For `reset` alone: what a tool raises
        becomes an answer to the model.
        """
        self._in_a_row = 0 if failure is None else self._in_a_row + 1
        if failure is not None and self._in_a_row >= self._give_up_after:
            raise EnvironmentFailure(
                f"{self._in_a_row} episodes in a row failed, the last one: {failure}; mend the environment, or raise "
                "give_up_after"
            ) from failure


trl_environment = TRLEnvironmentFactory
"""`GRPOTrainer(environment_factory=trl_environment("guess_number"), ...)`."""


def _task(row: str | Mapping[str, Any] | None) -> Task | None:
    if row is None or isinstance(row, str):
        return Task(id=row) if row else None
    return Task(**row)


def _method(definition: ToolDefinition) -> Callable[..., Any]:
    """Return a method that is called with the arguments of a function, with the signature and the words of its
    schema."""
    name = definition.name
    properties = definition.parameters.get("properties", {})
    for word in (name, *properties):
        if not word.isidentifier() or keyword.iskeyword(word) or word.startswith("_") or word in _TAKEN:
            raise ConfigError(f"TRL calls tools as methods, and {word!r} cannot be a name in one; give it another name")

    required = set(definition.parameters.get("required", ()))
    ordered = sorted(properties, key=lambda argument: argument not in required)

    # what is missing or unknown is for the environment to say, in the words it says it to every policy
    def method(self: TRLEnvironment, *positional: Any, **arguments: Any) -> Any:
        return self._call(name, dict(zip(ordered, positional, strict=False)) | arguments)

    hints = {argument: _hint(properties[argument], definition.parameters) for argument in ordered}
    parameters = [Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)]
    for argument in ordered:
        default = Parameter.empty if argument in required else None
        if argument not in required:
            hints[argument] = hints[argument] | None
        parameters.append(
            Parameter(argument, Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=hints[argument])
        )
    method.__name__ = name
    method.__qualname__ = f"TRLEnvironment.{name}"
    method.__signature__ = Signature(parameters, return_annotation=str)  # type: ignore[attr-defined]
    method.__annotations__ = {**hints, "return": str}
    method.__doc__ = _docstring(definition, ordered)
    return method


def _docstring(definition: ToolDefinition, arguments: Sequence[str]) -> str:
    properties = definition.parameters.get("properties", {})
    lines = [definition.description or definition.name.replace("_", " "), ""]
    if arguments:
        lines += ["Args:", *(f"    {name}: {_describe(name, properties[name])}" for name in arguments), ""]
    return "\n".join([*lines, "Returns:", "    What is seen after it."])


def _describe(name: str, schema: Mapping[str, Any]) -> str:
    if schema.get("description"):
        return " ".join(str(schema["description"]).split())
    if "minimum" in schema and "maximum" in schema:
        return f"{name}, {schema['minimum']} to {schema['maximum']}."
    return f"{name}."


def _hint(schema: Any, root: Mapping[str, Any]) -> Any:
    """Return a type hint with the same JSON form as `schema`, a part of `root`."""
    one = without_null(schema, root)
    found: list[Any]
    if "enum" in one:
        found = [Literal[tuple(one["enum"])]]  # type: ignore[valid-type]
    elif one.get("type") == "array" and isinstance(one.get("items"), Mapping):
        found = [list[_hint(one["items"], root)]]  # type: ignore[misc]
    else:
        found = [_HINTS[kind] for kind in types_of(one, root) if kind in _HINTS]
    if found and "null" in types_of(schema, root):
        found.append(None)
    return reduce(or_, found) if found else Any
