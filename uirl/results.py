"""What environments may return -> the strict nouns. Nonsense is an `EnvironmentFailure` that says what was expected."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from uirl.errors import EnvironmentFailure
from uirl.images import Screenshot, screenshot
from uirl.runtime.limits import LARGEST_REWARD, is_finite, shown
from uirl.types import Observation, StepResult

RESET_SHAPES = "an observation or (observation, info)"
STEP_SHAPES = (
    "(observation, reward, done, info), (observation, reward, terminated, truncated, info) or an object with "
    "observation, reward, terminated, truncated and perhaps info, such as a uirl.types.StepResult"
)
LONGEST_TEXT = 1_000_000
"""Characters of an observation: a quarter of a million tokens or so. To count them takes seconds and gigabytes."""
OBSERVATION_SHAPES = "a str, an Observation, an image, or a dict with 'text' and 'image' or 'images'"


def read_reset(value: Any, where: str) -> Observation:
    """Read the first observation from what `reset` returned. `where` ('MyEnv.reset') begins failure messages."""
    if not isinstance(value, tuple):
        return read_observation(value, where)
    if len(value) != 2:
        raise EnvironmentFailure(f"{where} returned a tuple of {len(value)}; expected {RESET_SHAPES}")
    return _with_info(read_observation(value[0], where), value[1], where)


def read_step(value: Any, where: str) -> StepResult:
    """Read the step result from what `step` returned."""
    info: Any
    if isinstance(value, tuple) and len(value) == 4:
        (observation, reward, terminated, info), truncated = value, False
    elif isinstance(value, tuple) and len(value) == 5:
        observation, reward, terminated, truncated, info = value
    elif not isinstance(value, tuple) and all(hasattr(value, name) for name in ("observation", "reward", "terminated")):
        observation, reward, terminated = value.observation, value.reward, value.terminated
        truncated, info = getattr(value, "truncated", False), getattr(value, "info", {})
    else:
        got = f"a tuple of {len(value)}" if isinstance(value, tuple) else describe(value)
        raise EnvironmentFailure(f"{where} returned {got}; expected {STEP_SHAPES}")
    flag = "done" if isinstance(value, tuple) and len(value) == 4 else "terminated"
    return StepResult(
        observation=_with_info(read_observation(observation, where), info, where),
        reward=_read_reward(reward, where),
        terminated=_read_flag(terminated, flag, where),
        truncated=_read_flag(truncated, "truncated", where),
    )


def read_score(value: Any, where: str) -> tuple[float, dict[str, Any]] | None:
    """Read what `score_now` returned: a reward and an info, or None."""
    if value is None:
        return None
    if not isinstance(value, tuple) or len(value) != 2:
        raise EnvironmentFailure(f"{where} returned {describe(value)}; expected (reward, info), or None")
    return _read_reward(value[0], where), _read_info(value[1], where)


def read_text(value: Any, where: str) -> str:
    """Read what `get_state_description` returned."""
    if isinstance(value, str):
        return value
    raise EnvironmentFailure(f"{where} returned {describe(value)}; expected a str")


def read_observation(value: Any, where: str) -> Observation:
    """Return an observation whose images are screenshots, taken now: the environment may change its picture later."""
    if isinstance(value, str):
        return Observation(text=_read_shown(value, where))
    if isinstance(value, Observation):
        pictures = tuple(_read_image(i, where) for i in value.images)
        text = _read_shown(value.text, where)
        return replace(value, text=text, images=pictures, info=_read_info(value.info, where))
    if isinstance(value, Mapping):
        return _read_mapping(value, where)
    if _is_image(value):
        return Observation(images=(_read_image(value, where),))
    raise EnvironmentFailure(f"{where} returned {describe(value)} as observation; expected {OBSERVATION_SHAPES}")


def with_notes(observation: Observation, info: Mapping[str, Any], state_key: str | None) -> Observation:
    """Return the observation with other notes; what the agent sees stays. It is made twice per step, where
    `dataclasses.replace` would take longer than many an environment."""
    return Observation(observation.text, observation.images, info, observation.tool_results, state_key)


def _read_mapping(value: Mapping[str, Any], where: str) -> Observation:
    if not value or not set(value) <= {"text", "image", "images"}:
        raise EnvironmentFailure(
            f"{where} returned an observation dict with keys {shown(list(value), 200)}; expected only 'text', 'image', "
            "'images' (what the agent must not see belongs in info)"
        )
    text = value.get("text", "")
    if not isinstance(text, str):
        raise EnvironmentFailure(f"{where} returned {describe(text)} as observation text; expected a str")
    images = value.get("images", ())
    if not isinstance(images, (list, tuple)):
        raise EnvironmentFailure(f"{where} returned {describe(images)} as 'images'; expected a list (one: use 'image')")
    pictures = ([value["image"]] if "image" in value else []) + list(images)
    return Observation(_read_shown(text, where), tuple(_read_image(picture, where) for picture in pictures))


def _read_shown(text: str, where: str) -> str:
    """Return the text of an observation."""
    if len(text) > LONGEST_TEXT:
        raise EnvironmentFailure(
            f"{where} returned an observation of {len(text)} characters; expected at most {LONGEST_TEXT}: shorten it"
        )
    return text


def _is_image(value: Any) -> bool:
    return isinstance(value, (Screenshot, bytes, bytearray)) or hasattr(value, "__array_interface__")


def _read_image(value: Any, where: str) -> Screenshot:
    try:
        image = screenshot(value)
        if isinstance(value, (Screenshot, bytes, bytearray)):
            # the header alone: decoding every full screenshot twice would cost more than most environments
            image.read_size()
    except (TypeError, ValueError, OSError) as error:
        raise EnvironmentFailure(
            f"{where} returned an image that cannot be used: {error}; expected a PIL image, an array [H, W, 3] of "
            "uint8 or of floats from 0 to 1, or the bytes of a PNG, JPEG or WEBP"
        ) from error
    return image


def _read_reward(value: Any, where: str) -> float:
    plain = _plain(value)
    if isinstance(plain, bool) or (is_finite(plain) and abs(plain) <= LARGEST_REWARD):
        return float(plain)
    raise EnvironmentFailure(
        f"{where} returned the reward {describe(value)}; expected a finite number of at most {LARGEST_REWARD:g} "
        "(no reward yet is 0.0; a step that could not be judged is an exception)"
    )


def _read_flag(value: Any, name: str, where: str) -> bool:
    plain = _plain(value)
    if isinstance(plain, bool):
        return plain
    raise EnvironmentFailure(f"{where} returned {describe(value)} as {name}; expected True or False in {STEP_SHAPES}")


def _with_info(observation: Observation, info: Any, where: str) -> Observation:
    if not info and isinstance(info, Mapping):
        return observation
    return with_notes(observation, {**observation.info, **_read_info(info, where)}, observation.state_key)


def _read_info(info: Any, where: str) -> dict[str, Any]:
    if not isinstance(info, Mapping):
        raise EnvironmentFailure(
            f"{where} returned {describe(info)} as info; expected a dict, {{}} where there is none"
        )
    read = dict(info)
    if "success" in read:
        read["success"] = _read_flag(read["success"], "info['success']", where)
    return read


def _plain(value: Any) -> Any:
    """Return the Python number of a NumPy or tensor scalar; anything else as it is."""
    return value.item() if getattr(value, "shape", None) == () and hasattr(value, "item") else value


def describe(value: Any) -> str:
    """Return a value and its type, for a message."""
    return f"{shown(value)} ({type(value).__name__})"
