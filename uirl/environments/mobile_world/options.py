"""Checks of what a user asks of the phones."""

from __future__ import annotations

import math
from typing import Any

from uirl.errors import ConfigError

PROMPTS = ("own", "mai_ui")


def words(name: str, value: Any) -> tuple[str, ...]:
    """A list of words. Raises ConfigError."""
    if not isinstance(value, (list, tuple)) or not all(isinstance(word, str) for word in value):
        raise ConfigError(f"mobile_world: {name} is a list of words, got {value!r:.80}")
    return tuple(value)


def size(value: Any) -> tuple[int, int]:
    """Width and height. Raises ConfigError."""
    pair = tuple(value) if isinstance(value, (list, tuple)) else ()
    if len(pair) != 2 or not all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in pair):
        raise ConfigError(f"mobile_world: image_size is [width, height] in pixels, got {value!r:.60}")
    return pair


def turns(value: Any) -> int | None:
    """A limit of turns, or none. Raises ConfigError."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ConfigError(f"mobile_world: max_turns must be a positive int or null, got {value!r:.60}")
    return value


def wait(value: Any) -> float:
    """A pause in seconds. Raises ConfigError."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise ConfigError(f"mobile_world: step_wait_time must be seconds of at least 0, got {value!r:.60}")
    return float(value)


def prompt(value: Any) -> str | None:
    """The name of a prompt, or none. Raises ConfigError."""
    if value is not None and value not in PROMPTS:
        raise ConfigError(
            f"mobile_world: prompt is one of {', '.join(PROMPTS)}, or null for the first; got {value!r:.60}"
        )
    return value
