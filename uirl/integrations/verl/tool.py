"""Environments of ours as tools of verl's own tool agent loop: `EnvironmentTool`, the rows and the reward it needs.

For those who keep verl's loop, dataset and reward manager. `EnvironmentAgentLoop` plays whole episodes without them.
"""

from __future__ import annotations

import asyncio
import json
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from verl.tools.base_tool import BaseTool
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse

from uirl.config import Section
from uirl.config.section import Positive
from uirl.environments.adapters.calls import CalledEpisode, environment_of, functions_of, words_of
from uirl.environments.base import BaseEnvironment
from uirl.environments.session import EnvironmentSession
from uirl.errors import ConfigError, ContractError, RolloutFailure, did_you_mean
from uirl.images import screenshot
from uirl.integrations.verl.agent_loop import EpisodeFailed
from uirl.runtime.files import write_atomically
from uirl.tools.definition import ToolDefinition
from uirl.types import Observation, Task

_EPISODES = "uirl_episodes"
"""Attribute of verl's record of a trajectory in progress that holds its episodes, by environment: all functions of one
environment share it."""


class ToolConfig(Section):
    """The keys of one tool in verl's `tool_config_path`."""

    key = "EnvironmentTool"

    type: str = "native"
    """verl's own key."""
    environment: str
    """A name of the table, or 'package.module:Class'."""
    options: dict[str, Any] | None = None
    """Options of the environment."""
    function: str | None = None
    """Which of its functions the tool is; None: the only one."""
    schemas: list[dict[str, Any]] | None = None
    """JSON schemas of the functions, where the environment does not say itself what can be done."""
    step_timeout: Positive | None = None
    """Seconds; None: that of `CalledEpisode`."""
    reset_timeout: Positive | None = None
    """Seconds; None: that of `CalledEpisode`."""


@dataclass
class _Instance:
    task: Task | None
    seed: int | None
    episode: CalledEpisode | None = None
    """None: begun at the first `execute`."""
    lent: bool = False
    """The episode belongs to a trajectory of verl's loop, and stays when the instance is released."""


class EnvironmentTool(BaseTool):
    """One function of an environment as a tool of verl; several share the episode of their trajectory.

    `config`: the fields of `ToolConfig`.

    verl's loop makes and releases an instance around every call. The episode therefore belongs to the trajectory: it
    begins at its first call with the `seed` and `task` of the row (`create_kwargs`), and is closed when it is over,
    when it fails, and with the trajectory at the latest. A failure of the environment is raised by `execute`, of which
    verl makes a text, and again by `release`, which ends the trajectory: verl goes on without it, as after any other
    that raises. Without verl's loop an instance has an episode of its own, which `release` closes.
    """

    def __init__(self, config: dict[str, Any], tool_schema: OpenAIFunctionToolSchema | None = None) -> None:
        """Build the environment and the tool of one function. Raises ConfigError for a key, an environment or a
        function that does not exist."""
        keys = ToolConfig.build(config)
        self._env = environment_of(keys.environment, keys.options)
        functions = {one.name: one for one in functions_of(self._env, keys.schemas)}
        name = next(iter(functions)) if keys.function is None and len(functions) == 1 else keys.function
        if name not in functions:
            raise ConfigError(f"EnvironmentTool: `function` is {name!r}; {did_you_mean(str(name), functions)}")
        self._definition = functions[name]
        self._arguments = keys.model_dump(include={"schemas", "step_timeout", "reset_timeout"}, exclude_none=True)
        self._key = keys.model_dump_json(exclude={"type", "function"})
        self._instances: dict[str, _Instance] = {}
        self._closing: set[asyncio.Task[None]] = set()
        super().__init__(config, tool_schema or schema_of(self._definition))

    async def create(self, instance_id: str | None = None, **kwargs: Any) -> tuple[str, ToolResponse]:
        """Create an instance and return (its id, the first observation).

        `seed` and `task` (an id, or the fields of a `Task`) choose the episode. Given within `create_kwargs`, as verl's
        loop does, which drops the answer, the episode begins later and the observation is empty.
        """
        create_kwargs = kwargs.get("create_kwargs")
        chosen = {**(create_kwargs or {}), **{key: value for key, value in kwargs.items() if key in ("seed", "task")}}
        seed = chosen.get("seed")
        instance = _Instance(_task(chosen.get("task")), None if seed is None else int(seed))
        identity = instance_id or str(uuid4())
        self._instances[identity] = instance
        if create_kwargs is not None:
            return identity, ToolResponse()
        return identity, response_of(await self._begin(instance))

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        """Call the function and return what is seen after the call, its reward, and `success` where the environment
        says so.

        A call that cannot be carried out answers with what was wrong. Raises `EpisodeFailed` where the environment
        failed.
        """
        episode = await self._episode_of(self._instance(instance_id), kwargs.get("agent_data"))
        try:
            seen, reward = await episode.call(self._definition.name, parameters)
        except ValueError as mistake:
            return ToolResponse(text=str(mistake)), episode.mistake_reward if episode.running else 0.0, {}
        except RolloutFailure as failure:
            raise _typed(failure) from failure
        metrics = {} if episode.success is None else {"success": float(episode.success)}
        return response_of(seen, over=not episode.running), reward, metrics

    async def calc_reward(self, instance_id: str, **kwargs: Any) -> float:
        """Return the sum of the episode's rewards. Raises `EpisodeFailed`, and gives no 0, where it failed."""
        episode = self._instance(instance_id).episode
        if episode is not None and episode.failure is not None:
            raise _typed(episode.failure)
        return 0.0 if episode is None else episode.total

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        """Free the instance. Raises `EpisodeFailed`, when everything is closed, where the environment failed."""
        instance = self._instances.pop(instance_id, None)
        if instance is None or instance.episode is None:
            return
        if not instance.lent or not instance.episode.running:
            await instance.episode.close()
        if instance.episode.failure is not None:
            raise _typed(instance.episode.failure)

    def _instance(self, instance_id: str) -> _Instance:
        if instance_id not in self._instances:
            raise ContractError(f"no tool instance {instance_id!r}; expected one that `create` gave and none released")
        return self._instances[instance_id]

    async def _begin(self, instance: _Instance, trajectory: Any = None) -> Observation:
        """Begin the instance's episode, lent by `trajectory` if any, and return what is seen first."""
        episode = instance.episode = CalledEpisode(self._env, **self._arguments)
        if trajectory is not None:
            vars(trajectory)[_EPISODES][self._key] = episode
            # nobody tells a tool that the trajectory ended: verl just lets go of its record
            weakref.finalize(trajectory, self._close_on, asyncio.get_running_loop(), episode)
        try:
            return await episode.reset(instance.task, instance.seed)
        except RolloutFailure as failure:
            raise _typed(failure) from failure

    async def _episode_of(self, instance: _Instance, trajectory: Any) -> CalledEpisode:
        """Return the instance's episode: that of the trajectory where there is one, begun where it has not."""
        if instance.episode is None and trajectory is not None:
            instance.lent = True
            instance.episode = vars(trajectory).setdefault(_EPISODES, {}).get(self._key)
        if instance.episode is None:
            await self._begin(instance, trajectory)
        assert instance.episode is not None
        return instance.episode

    def _close_on(self, loop: asyncio.AbstractEventLoop, episode: CalledEpisode) -> None:
        def begin() -> None:
            task = loop.create_task(episode.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

        if not loop.is_closed():
            loop.call_soon_threadsafe(begin)


def tool_rows(
    environment: str | BaseEnvironment,
    options: Mapping[str, Any] | None = None,
    *,
    count: int,
    seed: int = 0,
    instructions: str = "",
) -> list[dict[str, Any]]:
    """Return rows for verl's dataset (a parquet file): `count` episodes with seeds from `seed`, tasks in turn.

    The prompt is the first observation, which the environment gives here: verl's loop shows no policy what `create`
    answers. `instructions` are the system message. Not for use inside an event loop.
    """
    env = environment_of(environment, options)
    functions = [one.name for one in functions_of(env)]
    return asyncio.run(_rows(env, functions, count, seed, instructions))


async def _rows(
    env: BaseEnvironment, functions: Sequence[str], count: int, seed: int, instructions: str
) -> list[dict[str, Any]]:
    session, tasks, rows = EnvironmentSession(env.spawn()), list(env.tasks() or ()), []
    try:
        for index in range(count):
            task = tasks[index % len(tasks)] if tasks else None
            first = await session.reset(task, seed + index)
            opening: dict[str, Any] = {"seed": seed + index} | ({"task": task.id} if task else {})
            pictures = [{"bytes": screenshot(picture).plain()} for picture in first.images]
            system = [{"role": "system", "content": instructions}] if instructions else []
            opening_message = {"role": "user", "content": "<image>" * len(pictures) + words_of(first)}
            kwargs = {name: {"create_kwargs": opening} for name in functions}
            rows.append(
                {
                    "data_source": type(env).__name__,
                    "agent_name": "tool_agent",
                    "prompt": [*system, opening_message],
                    **({"images": pictures} if pictures else {}),
                    "reward_model": {"style": "rule", "ground_truth": ""},
                    "extra_info": {"index": index, "need_tools_kwargs": True, "tools_kwargs": kwargs},
                }
            )
    finally:
        await session.close()
    return rows


def tool_config(environment: str, options: Mapping[str, Any] | None = None, **limits: float) -> dict[str, Any]:
    """Return the content of the file `actor_rollout_ref.rollout.multi_turn.tool_config_path`: a tool per function."""
    env = environment_of(environment, options)
    shared = {"type": "native", "environment": environment, "options": dict(options or {}), **limits}
    name = f"{__name__}.{EnvironmentTool.__name__}"
    return {"tools": [{"class_name": name, "config": {**shared, "function": f.name}} for f in functions_of(env)]}


def write_tool_config(path: str | Path, environment: str, options: Mapping[str, Any] | None = None) -> Path:
    """Write the file that `tool_config_path` names, and return its path; JSON, which is YAML too."""
    write_atomically(Path(path), json.dumps(tool_config(environment, options), indent=2) + "\n")
    return Path(path)


def reward_of_calls(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: Mapping[str, Any], **_: Any
) -> float:
    """Return the sum of the rewards of the calls of a trajectory: a `reward.custom_reward_function` of verl.

    verl's loop keeps these and pays nothing for them by itself. Raises ContractError where they are missing.
    """
    if extra_info.get("tool_rewards") is None:
        raise ContractError(
            "no 'tool_rewards' in extra_info; expected a trajectory of verl's tool agent loop (agent_name 'tool_agent')"
        )
    return float(sum(extra_info["tool_rewards"]))


def schema_of(definition: ToolDefinition) -> OpenAIFunctionToolSchema:
    """Return a definition in verl's form, which keeps of an argument its type, its choices and a description."""
    properties = {name: _property(name, kind) for name, kind in definition.parameters.get("properties", {}).items()}
    parameters = {"type": "object", "properties": properties, "required": definition.parameters.get("required", [])}
    function = {**definition.schema()["function"], "parameters": parameters}
    return OpenAIFunctionToolSchema.model_validate({"type": "function", "function": function})


def _property(name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    words = str(schema.get("description", ""))
    if "minimum" in schema and "maximum" in schema:
        words = f"{words} ({schema['minimum']} to {schema['maximum']})".strip()
    kept = {key: schema[key] for key in ("type", "enum") if key in schema}
    return {"type": "string", **kept, "description": words or name}


def response_of(seen: Observation, over: bool = False) -> ToolResponse:
    """Return an observation as verl's loop takes it: text, and PIL pictures."""
    pictures = [screenshot(picture).open() for picture in seen.images]
    return ToolResponse(text=words_of(seen, over), **({"image": pictures} if pictures else {}))


def _task(value: Any) -> Task | None:
    if value is None or value == "":
        return None
    return Task(**value) if isinstance(value, Mapping) else Task(id=str(value))


def _typed(failure: RolloutFailure) -> EpisodeFailed:
    return EpisodeFailed(failure.kind, str(failure))
