"""`GymnasiumEnvironment`: environments of the Gymnasium registry, or your own, behind our contract.

Needs the extra `gymnasium` (`pip install 'uirl[gymnasium]'`), which is imported when an environment is made.
"""

from __future__ import annotations

import copy
import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Literal, Self

from pydantic import model_validator

from uirl.config.section import Count
from uirl.environments.options import ConfigurableEnvironment, EnvironmentOptions, MistakeReward, Names, OptionsLike
from uirl.errors import ConfigError
from uirl.runtime.limits import in_words, is_finite, shown
from uirl.types import Observation

_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?", re.ASCII)
_ENDLESS = 1e30
"""Bounds beyond this are the ends of the type: nobody meant them."""
_WORDS = ("success", "is_success")
"""Where Gymnasium's environments say in their info whether they are solved."""
_TRIED = 500
"""Random steps that are tried to see what steps cost."""
_LOG = logging.getLogger(__name__)
_COLOUR = re.compile(r"\x1b\[([0-9;]*)m")


class GymnasiumOptions(EnvironmentOptions):
    """An environment of the Gymnasium registry."""

    key = "gymnasium"

    env: Any
    """Id of the environment, such as 'FrozenLake-v1'; in code also a function that makes one, or an environment."""
    view: Literal["auto", "text", "image", "ansi", "rgb"] = "auto"
    """What the agent sees: the observation as text, the observation as an image, or one of the two renderings. 'auto':
    an image where the observation space is one, else text."""
    action_names: Names | None = None
    """The actions of a Discrete space in order."""
    max_turns: Count | None = None
    """Turns after which an episode is cut; None: the limit of the registry, if any."""
    success_return: float | None = None
    """An episode of at least this return is a success, where the environment itself says nothing about success. A
    return above 0 counts from the step that reaches it, also where the run cuts the episode; one of 0 or less, which
    every episode has before its first step, only where the environment ends."""
    invalid_reward: MistakeReward | None = None
    """Reward of a reply that is no action; None: the lowest of the episode so far and of 500 random steps, which are
    tried elsewhere, at most 0."""
    make_options: dict[str, Any] | None = None
    """Arguments of `gymnasium.make`, so `env` is an id then."""
    describe: bool = True
    """A system prompt that says how to act."""

    @model_validator(mode="after")
    def _make_options_are_read(self) -> Self:
        if self.make_options and not isinstance(self.env, str):
            raise ConfigError(
                "gymnasium: make_options go to gymnasium.make, which is not asked where env is "
                f"{shown(self.env, 80)}, got {sorted(self.make_options)}; give the id of a registered environment, or "
                "leave make_options out"
            )
        return self


class GymnasiumEnvironment(ConfigurableEnvironment):
    """A Gymnasium environment played by text: an action name or number, a list of numbers, or free text.

    A reply that is no action is the model's mistake: the environment is not stepped, the answer says which actions
    there are, and the turn counts and costs (`mistake_reward`). `info['success']` is the environment's own word
    (`success` or `is_success` in its info; a graded one is a success at 1), which a mistake leaves as it is; else, at
    every step, whether the return has reached `success_return`; with neither, nothing is said.
    """

    options_class = GymnasiumOptions
    options: GymnasiumOptions

    def __init__(self, env: Any = None, config: Any = None, options: OptionsLike = None, **keys: Any) -> None:
        """`env` is an id ('FrozenLake-v1'), a function that makes an environment, or an environment; the other options:
        see `GymnasiumOptions`.

        The underlying environment is made when it is first used. One handed over as an object serves this instance;
        `spawn()` makes others from its spec, or copies it where it has none. Raises ConfigError.
        """
        super().__init__(config, options, **(keys if env is None else {"env": env, **keys}))
        chosen = self.options
        self._make, self._env, spec = _read_source(chosen.env, chosen.view, dict(chosen.make_options or {}))
        self.max_turns = chosen.max_turns or getattr(spec, "max_episode_steps", None)
        self._names = chosen.action_names or ()
        self._tried: list[float] = []  # the lowest reward of random steps, once it is known; all instances share it
        self._said = False
        """The environment itself has said in this episode whether it is solved."""
        self._return, self._lowest, self._turns, self._steps = 0.0, 0.0, 0, 0
        self._last = Observation()
        if self._env is not None:
            self._check_spaces(self._env)

    def reset(self, *, seed: int | None = None) -> tuple[Observation, dict[str, Any]]:
        """Return the first observation. `seed` None: the generator of the underlying environment goes on."""
        value, info = self._opened().reset(seed=seed)
        self._return, self._lowest, self._turns, self._steps, self._said = 0.0, 0.0, 0, 0, False
        self._last = self._see(value)
        return self._last, dict(info)

    def step(self, action: str) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Return what the underlying environment answered, or why the reply is no action."""
        env = self._opened()
        self._turns += 1
        out_of_turns = self.max_turns is not None and self._turns >= self.max_turns
        try:
            chosen = read_action(env.action_space, action, self._names)
        except _NoAction as mistake:
            seen = Observation(f"{mistake}\n{self._last.text}".strip(), self._last.images)
            price = self.mistake_reward
            self._return += price
            # nothing was done: where the environment has said whether it is solved, its word stands
            return seen, price, False, out_of_turns, {} if self._said else self._reached(out_of_turns)
        value, reward, terminated, truncated, info = env.step(chosen)
        self._steps += 1
        self._return += float(reward)
        self._lowest = min(self._lowest, float(reward))
        self._last = self._see(value)
        truncated = bool(truncated) or (out_of_turns and not terminated)
        ended = bool(terminated) or truncated
        word = _word_of(info)
        self._said = self._said or bool(word)
        told = {key: value for key, value in info.items() if key not in _WORDS}
        return self._last, float(reward), bool(terminated), truncated, {**told, **(word or self._reached(ended))}

    @property
    def mistake_reward(self) -> float:  # type: ignore[override]
        """Reward of a reply that is no action: `invalid_reward`, else the lowest of the episode and of random steps."""
        if self.options.invalid_reward is not None:
            return self.options.invalid_reward
        if not self._tried:
            self._tried.append(self._try_elsewhere())
        return min(self._lowest, self._tried[0])

    def _try_elsewhere(self) -> float:
        """Return the lowest reward of random steps in another instance; 0 where there cannot be one."""
        try:
            other = self.spawn()
        except ConfigError as error:
            _LOG.warning("gymnasium: set invalid_reward: what a step costs cannot be tried: %s", in_words(error))
            return 0.0
        try:
            return _lowest_of_random_steps(other._opened())
        finally:
            other.close()

    def get_state_description(self) -> str:
        """Return the text of the last observation; a count of the turns where it is a picture."""
        return self._last.text or f"turn {self._turns}"

    def get_prompt_prefix(self) -> str:
        if not self.options.describe:
            return ""
        return f"You control an environment. Answer with {describe_actions(self._opened().action_space, self._names)}."

    def spawn(self) -> GymnasiumEnvironment:
        """Return another instance, made anew; a handed-over environment without a spec is copied."""
        other = copy.copy(self)
        other._env = None
        if self._make is None:
            try:
                other._env = copy.deepcopy(self._env)
            except (TypeError, ValueError, RuntimeError) as error:
                raise ConfigError(
                    f"gymnasium: {self._env} cannot be copied for a parallel episode ({error}); give its id, or a "
                    "function that makes it"
                ) from error
        return other

    def close(self) -> None:
        if self._env is not None:
            self._env.close()

    def _opened(self) -> Any:
        if self._env is None:
            assert self._make is not None  # spawn() leaves one of the two
            self._env = self._make()
            self._check_spaces(self._env)
        return self._env

    def _check_spaces(self, env: Any) -> None:
        seen = env.observation_space
        if self.options.view == "image" and not (str(seen.dtype) == "uint8" and len(seen.shape or ()) in (2, 3)):
            raise ConfigError(
                f"gymnasium: view 'image' needs observations that are uint8 pictures, got {shown(seen, 80)}; 'rgb' "
                "shows what the environment renders"
            )
        if self._names and len(self._names) != getattr(env.action_space, "n", None):
            raise ConfigError(
                f"gymnasium: got {len(self._names)} action_names, expected one per action of {env.action_space}"
            )

    def _see(self, value: Any) -> Observation:
        view = self.options.view if self.options.view != "auto" else "image" if _is_image(value) else "text"
        if view == "ansi":
            return Observation(_without_colours(str(self._opened().render())))
        if view == "rgb":
            return Observation(images=(self._opened().render(),))
        return Observation(images=(value,)) if view == "image" else Observation(_as_text(value))

    def _reached(self, ended: bool) -> dict[str, bool]:
        wanted = self.options.success_return
        if wanted is None:
            return {}
        # a sum of ten times 0.1 is a little less than 1
        there = self._return >= wanted or math.isclose(self._return, wanted)
        reached = self._steps > 0 and there
        return {"success": reached and (ended or wanted > 0)}


def _word_of(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the environment's own word on success, empty where it says nothing; a graded one is a success at 1."""
    for key in _WORDS:
        value = info.get(key)
        if value is not None:
            plain = value.item() if getattr(value, "size", None) == 1 else value
            return {"success": plain >= 1 if is_finite(plain) else plain}  # what is neither is refused by its type
    return {}


def _lowest_of_random_steps(env: Any) -> float:
    """Return the lowest reward of `_TRIED` random steps, at most 0; the same in every process."""
    env.action_space.seed(0)
    lowest, episodes, ended = 0.0, 0, True
    try:
        for _ in range(_TRIED):
            if ended:
                env.reset(seed=episodes)
                episodes += 1
            _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            lowest = min(lowest, float(reward))
            ended = terminated or truncated
    except Exception as error:  # an action of its own space breaks it: what was seen until then counts
        _LOG.warning("gymnasium: %s: a random action failed: %s", env, in_words(error))
    return lowest


class _NoAction(ValueError):
    """Why a reply is no action, in words for the model."""


def describe_actions(space: Any, names: Sequence[str] = ()) -> str:
    """Return the actions of a space in words: 'one of: left, right'."""
    kind = type(space).__name__
    if kind == "Discrete":
        first, count = int(space.start), int(space.n)
        return f"one of: {', '.join(names)}" if names else f"a number from {first} to {first + count - 1}"
    if kind in ("Box", "MultiDiscrete", "MultiBinary"):
        count = math.prod(space.shape)
        words = "one number" if count == 1 else f"{count} numbers, with spaces between them"
        return words + _ranges(space)
    if kind == "Text":
        return f"a text of {space.min_length} to {space.max_length} characters"
    raise ConfigError(
        f"gymnasium: no text form for the action space {space}; expected Discrete, Box, MultiDiscrete, MultiBinary "
        "or Text"
    )


def _ranges(space: Any) -> str:
    """Return between what the numbers of a space lie: ' from -2 to 2', one range for each where they differ."""
    import numpy as np

    kind = type(space).__name__
    if kind == "Box":
        lows, highs = space.low, space.high
    else:
        lows = space.start if kind == "MultiDiscrete" else np.zeros(space.shape, int)
        highs = lows + space.nvec - 1 if kind == "MultiDiscrete" else np.ones(space.shape, int)
    ranges = [_range(low, high) for low, high in zip(np.ravel(lows), np.ravel(highs), strict=True)]
    if len(set(ranges)) == 1:
        return f", each{ranges[0]}" if len(ranges) > 1 and ranges[0] else ranges[0]
    return ": " + "; ".join(f"number {i}{words or ' any'}" for i, words in enumerate(ranges, 1))


def _range(low: Any, high: Any) -> str:
    least, most = (None if abs(float(end)) > _ENDLESS else f"{float(str(end)):.12g}" for end in (low, high))
    if least is None:
        return "" if most is None else f" of at most {most}"
    return f" of at least {least}" if most is None else f" from {least} to {most}"


def read_action(space: Any, reply: str, names: Sequence[str] = ()) -> Any:
    """Return the action that `reply` names. Raises a ValueError with words for the model where it names none."""
    expected = describe_actions(space, names)
    kind, reply = type(space).__name__, reply.strip()
    if kind == "Text":
        chosen: Any = reply
    elif kind == "Discrete":
        chosen = _read_discrete(space, reply, names)
    else:
        size = math.prod(space.shape)
        numbers = [float(found[0]) for found in islice(_NUMBER.finditer(reply), size + 1)]
        chosen = _as_array(space, numbers) if len(numbers) == size else None
    if chosen is None or not space.contains(chosen):
        raise _NoAction(f"No action {reply[:40]!r}; answer with {expected}.")
    return chosen


def _read_discrete(space: Any, reply: str, names: Sequence[str]) -> Any:
    import numpy as np

    folded = [name.casefold() for name in names]
    if reply.casefold() in folded:
        return np.int64(space.start + folded.index(reply.casefold()))
    # Nine digits at most: what is longer would not fit the integer of the space.
    return np.int64(int(reply)) if re.fullmatch(r"-?[0-9]{1,9}", reply) else None


def _as_array(space: Any, numbers: list[float]) -> Any:
    import numpy as np

    array = np.asarray(numbers)
    with np.errstate(over="ignore"):
        if not np.isfinite(array.astype(space.dtype)).all():  # 1e400 would break an environment without bounds
            return None
    if np.issubdtype(space.dtype, np.integer) and not np.array_equal(array, np.round(array)):
        return None
    return array.astype(space.dtype).reshape(space.shape)


def _read_source(env: Any, view: str, options: dict[str, Any]) -> tuple[Callable[[], Any] | None, Any, Any]:
    """Return how to make one, one that is there already, and the spec; each None where there is none."""
    try:
        import gymnasium
    except ImportError as error:
        raise ConfigError("GymnasiumEnvironment needs the extra 'gymnasium': pip install 'uirl[gymnasium]'") from error
    mode = {"ansi": "ansi", "rgb": "rgb_array"}.get(view)
    if mode is not None:
        options = {"render_mode": mode, **options}
    if isinstance(env, str):
        try:
            spec = gymnasium.spec(env)
        except gymnasium.error.Error as error:
            raise ConfigError(f"gymnasium: no environment {env!r}: {error}") from error
        return partial(gymnasium.make, env, **options), None, spec
    if isinstance(env, gymnasium.Env):
        if mode is not None and env.render_mode != mode:
            raise ConfigError(
                f"gymnasium: view {view!r} needs an environment made with render_mode={mode!r}, got {env}"
            )
        return (partial(gymnasium.make, env.spec) if env.spec is not None else None), env, env.spec
    if callable(env):
        return env, None, None
    raise ConfigError(f"gymnasium: expected an id, a function or a gymnasium.Env, got {shown(env, 80)}")


def _is_image(value: Any) -> bool:
    return getattr(value, "ndim", 0) in (2, 3) and str(getattr(value, "dtype", "")) == "uint8"


def _without_colours(text: str) -> str:
    """Return the text with [brackets] around what a terminal would highlight: often that alone says where the player
    is."""
    return "\n".join(map(_marked, text.split("\n"))).strip("\n")


def _marked(line: str) -> str:
    """Return one line with brackets from a code to the next reset; a highlight that is not reset is none."""
    first, *rest = _COLOUR.split(line)
    written = [first]
    opened: int | None = None
    for code, piece in zip(rest[::2], rest[1::2], strict=True):
        resets = code in ("", "0")
        if resets == (opened is not None):
            opened = None if resets else len(written)
            written.append("]" if resets else "[")
        written.append(piece)
    if opened is not None:
        written[opened] = ""
    return "".join(written)


def _as_text(value: Any) -> str:
    """Return short text of an observation: numbers to four digits, lists without brackets, 'name: value' for dicts."""
    if isinstance(value, Mapping):
        return "; ".join(f"{name}: {_as_text(item)}" for name, item in value.items())
    if isinstance(value, (tuple, list)):
        return " ".join(_as_text(item) for item in value)
    if getattr(value, "ndim", 0):
        return _as_text(value.tolist())
    if isinstance(value, str):
        return value
    plain = value.item() if hasattr(value, "item") else value
    return f"{plain:.4g}" if isinstance(plain, float) else str(plain)
