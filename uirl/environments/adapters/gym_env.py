"""`GymEnv`: an environment of ours as a `gymnasium.Env`, for everything that plays one.

Needs the extra `gymnasium`. Importing this module registers `uirl/<name>` for every name in the table of environments.
"""

from __future__ import annotations

import copy
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

try:
    import gymnasium
    from gymnasium import spaces
    from gymnasium.utils import EzPickle
except ImportError as error:
    from uirl.errors import ConfigError

    raise ConfigError("GymEnv needs the extra 'gymnasium': pip install 'uirl[gymnasium]'") from error

from uirl.config.section import Count, Positive
from uirl.environments.adapters import gym_spaces
from uirl.environments.adapters.calls import CalledEpisode, EpisodeThread, environment_of, functions_of, words_of
from uirl.environments.base import BaseEnvironment
from uirl.environments.options import EnvironmentOptions, Names, Size
from uirl.environments.registry import ENVIRONMENTS
from uirl.errors import ConfigError, ContractError, EnvironmentFailure, did_you_mean
from uirl.images import screenshot
from uirl.parsers import create_parser
from uirl.runtime.limits import clip, shown
from uirl.types import Action, Observation, StepResult, Task

SERVED = ("remote", "ui_verifiers", "openenv", "mobile_world", "gymnasium")
"""What somebody else runs: the same seed need not give the same episode there."""
WAYS = ("auto", "text", "calls", "numbers")
Picture = np.ndarray[Any, np.dtype[np.uint8]]


class GymEnvOptions(EnvironmentOptions):
    """How an environment is shown to Gymnasium."""

    key = "GymEnv"

    view: Literal["all", "text", "image"] = "all"
    """'all' shows the text, and the picture where there is one; 'text' and 'image' one of them."""
    text: Literal["text", "bytes"] = "text"
    """How texts are shown: 'text', or 'bytes': `max_text` numbers, the UTF-8 bytes and then zeros."""
    actions: Any = "auto"
    """'text': what a policy writes; 'calls': a function and its arguments; 'numbers': the same as `MultiDiscrete`; or a
    list of actions, of which one is chosen by its number. 'auto': 'text' where the environment reads texts, else
    'calls'."""
    words: Names = ()
    """The texts that 'numbers' can choose as an argument."""
    read: Callable[[str], Action] | None = None
    """What makes an action of a text; None: the parser of the environment's format."""
    schemas: Any = None
    """JSON schemas of the functions, where the environment does not say itself what can be done."""
    picture_size: Size | None = None
    """Width and height of the pictures; None: asked of the environment, which is reset for it where it cannot say."""
    max_text: Count = 10_000
    """Characters (or bytes) of the longest text, shown or written. What is shown of a longer one is its beginning, and
    `info["text_length"]` says so."""
    render_mode: Literal["rgb_array", "ansi"] | None = None
    """'rgb_array': the picture, or the words drawn; 'ansi': the state and the last text."""
    step_timeout: Positive = 60.0
    """Seconds after which a step is given up."""
    reset_timeout: Positive = 120.0
    """Seconds after which a reset is given up."""


class GymEnv(gymnasium.Env[Any, Any], EzPickle):
    """One environment, one episode at a time, as Gymnasium means it.

    Observations are `{"text": ..., "image": ...}`, or one of the two alone (`view`). An image is a uint8 array
    [height, width, 3] of the size that the agent sees; where an episode ends without a new picture the last one stays.
    `reset(seed=n)` plays instance n; without a seed the instance is drawn from `np_random`, so a seed given once makes
    all later episodes repeatable. `reset(options={"task": id})` chooses a task; without, an environment that has tasks
    draws one by the seed. An environment's own limit of turns is `truncated`.

    `info` is the environment's, with `is_success` where that says whether the task is solved. The model's mistakes are
    observations. A failure of the environment is raised, typed, and is never a reward; the next `reset` takes a fresh
    instance. A pickle is the way it was made, not the episode it plays: what is loaded wants a `reset`.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array", "ansi"], "render_fps": 4}  # noqa: RUF012 (as its base)

    def __init__(self, environment: str | BaseEnvironment, options: Mapping[str, Any] | None = None, **keys: Any):
        """Make an environment for Gymnasium.

        `environment`: a name from the table of environments, 'package.module:Class', or an environment; `options`: of
        the named environment; `keys`: fields of `GymEnvOptions`. Raises ConfigError for what does not fit.
        """
        EzPickle.__init__(self, environment, options, **keys)
        settings = GymEnvOptions.from_arguments(None, keys)
        env = environment_of(environment, options)
        self.render_mode = settings.render_mode
        self._view, self._bytes, self._max_text = settings.view, settings.text == "bytes", settings.max_text
        limits = {"step_timeout": settings.step_timeout, "reset_timeout": settings.reset_timeout}
        self._episode = CalledEpisode(env, settings.schemas, **limits, cuts=True)
        self._thread = EpisodeThread(self._episode)
        self._task_list: Sequence[Task] | None = None
        self._text = ""
        self._picture: Picture | None = None
        self._size = self._find_size(settings.picture_size)
        self.observation_space = self._seen_space()
        self.action_space, self._read = self._action_space(env, settings)

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Return the first observation and info of a new episode. Raises EnvironmentFailure, EpisodeTimeout, or
        ConfigError for an unknown task or option."""
        super().reset(seed=seed)
        instance = int(self.np_random.integers(2**31)) if seed is None else int(seed)
        first = self._thread.run(self._episode.reset(self._task(instance, options or {}), instance))
        self._picture = None
        return self._observe(first), self._info(first)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """(Observation, reward, terminated, truncated, info) after an element of `action_space`.

        Raises ContractError for anything else, and after the end; EnvironmentFailure or EpisodeTimeout.
        """
        if not self._episode.running and self._episode.failure is None:
            raise ContractError("step without an episode, or after its end; call reset first")
        if not self.action_space.contains(action):
            raise ContractError(f"got the action {shown(action, 200)}; expected an element of {self.action_space}")
        result: StepResult = self._thread.run(self._episode.act(self._read(action)))
        seen = result.observation
        return self._observe(seen), float(result.reward), result.terminated, result.truncated, self._info(seen)

    def render(self) -> Any:
        """Return the picture as [height, width, 3], or the state and the last text; None without a render mode. Of an
        environment that shows no pictures, 'rgb_array' draws the words."""
        if self.render_mode is None:
            return None
        if self.render_mode == "rgb_array" and self._size is not None:
            return self._shown_picture()
        state = self._thread.run(self._episode.state_description())
        words = "\n".join(part for part in (state, self._text) if part)
        return words if self.render_mode == "ansi" else _drawn(words)

    def close(self) -> None:
        """Free the environment. Calling it twice is fine; so is another `reset`."""
        self._thread.close()

    def _find_size(self, chosen: tuple[int, int] | None) -> tuple[int, int] | None:
        """Return width and height of the pictures; None: there are none, or they are not shown."""
        if chosen is not None:
            return chosen
        if self._view == "text" and self.render_mode != "rgb_array":
            return None
        declared = getattr(self._episode.env, "picture_size", None)
        if declared is not None:
            return int(declared[0]), int(declared[1])
        try:
            first = self._thread.run(self._episode.reset(self._task(0, {}), 0))
        finally:
            self.close()
        return screenshot(first.images[-1]).read_size() if first.images else None

    def _seen_space(self) -> spaces.Space[Any]:
        length = self._max_text
        text = spaces.Box(0, 255, (length,), np.uint8) if self._bytes else gym_spaces.AnyText(length)
        if self._size is None:
            if self._view == "image":
                name = type(self._episode.env).__name__
                raise ConfigError(f"{name} shows no pictures; expected view 'all' or 'text'")
            return text if self._view == "text" else spaces.Dict({"text": text})
        image = spaces.Box(0, 255, (self._size[1], self._size[0], 3), np.uint8)
        alone = {"text": text, "image": image}.get(self._view)
        return spaces.Dict({"text": text, "image": image}) if alone is None else alone

    def _action_space(
        self, env: BaseEnvironment, options: GymEnvOptions
    ) -> tuple[spaces.Space[Any], gym_spaces.Reader]:
        actions, read, schemas = options.actions, options.read, options.schemas
        if not isinstance(actions, str):
            return gym_spaces.menu(actions)
        if actions not in WAYS:
            raise ConfigError(f"actions is one of {WAYS} or a list of actions; {did_you_mean(actions, WAYS)}")
        reads_text = env.action_format == "text"
        if actions == "text" or (actions == "auto" and schemas is None and (reads_text or read is not None)):
            if read is None and not reads_text:
                read = create_parser(env.action_format).parse
            return gym_spaces.texts(self._max_text, read or (lambda text: Action(text=text)))
        functions = functions_of(env, schemas)
        if actions == "numbers":
            return gym_spaces.numbers(functions, options.words)
        return gym_spaces.calls(functions, self._max_text)

    def _task(self, instance: int, options: Mapping[str, Any]) -> Task | None:
        unknown = set(options) - {"task"}
        if unknown:
            raise ConfigError(f"reset takes the option 'task', got {sorted(map(str, unknown))}")
        if self._task_list is None:
            self._task_list = list(self._episode.env.tasks() or ())
        task_id = options.get("task")
        if task_id is None:
            if not self._task_list:
                return None
            return self._task_list[int(np.random.default_rng(instance).integers(len(self._task_list)))]
        named = [task for task in self._task_list if task.id == task_id]
        if not named:
            ids = [task.id for task in self._task_list]
            raise ConfigError(f"there is no task {task_id!r}; {did_you_mean(str(task_id), ids)}")
        return named[0]

    def _observe(self, seen: Observation) -> Any:
        self._text = words_of(seen)
        if self._size is not None:
            self._take_picture(seen)
        shown_parts: dict[str, Callable[[], Any]] = {"text": self._shown_text, "image": self._shown_picture}
        if isinstance(self.observation_space, spaces.Dict):
            return {name: shown_parts[name]() for name in self.observation_space.spaces}
        return shown_parts[self._view]()

    def _take_picture(self, seen: Observation) -> None:
        name = type(self._episode.env).__name__
        if len(seen.images) > 1:
            raise ContractError(f"{name} showed {len(seen.images)} pictures at once; Gymnasium is shown one")
        if seen.images:  # an episode that ended may have no new picture: the last one stays
            picture = np.asarray(screenshot(seen.images[0]).open().convert("RGB"))
            if (picture.shape[1], picture.shape[0]) != self._size:
                raise EnvironmentFailure(
                    f"{name} showed a picture of {picture.shape[1]} x {picture.shape[0]} pixels; expected "
                    f"{self._size}: give picture_size, or an environment whose pictures are of one size"
                )
            self._picture = picture

    def _shown_picture(self) -> Picture:
        if self._picture is None:
            raise EnvironmentFailure(f"{type(self._episode.env).__name__} showed no picture at the start of an episode")
        return self._picture.copy()

    def _shown_text(self) -> Any:
        if self._bytes:
            return gym_spaces.text_bytes(self._text, self._max_text)
        return clip(self._text, self._max_text)

    def _info(self, seen: Observation) -> dict[str, Any]:
        info = copy.deepcopy(dict(seen.info))
        if "success" in info:
            info["is_success"] = bool(info["success"])
        length = len(self._text.encode("utf-8", "replace")) if self._bytes else len(self._text)
        if length > self._max_text and self._view != "image":
            info["text_length"] = length
        return info


def _drawn(words: str) -> Picture:
    """Return the first lines of a text, black on white."""
    from PIL import Image, ImageDraw

    page = Image.new("RGB", (480, 320), "white")
    lines = [part for line in words.splitlines() for part in textwrap.wrap(line, 78) or [""]]
    ImageDraw.Draw(page).multiline_text((6, 6), "\n".join(lines[:24]), "black")
    return np.asarray(page).copy()


for _name in ENVIRONMENTS:
    gymnasium.register(
        id=f"uirl/{_name}",
        entry_point=f"{__name__}:GymEnv",
        kwargs={"environment": _name},
        nondeterministic=_name in SERVED,
    )
