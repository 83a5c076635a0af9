"""A class of the user's own that chooses the tasks of a run in verl's terms. `TaskCurriculum` needs none of this."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from uirl.errors import ConfigError
from uirl.runtime.lazy import load


def create_curriculum(section: Mapping[str, Any]) -> Any | None:
    """Return the object of the class that a section `curriculum` names; None: it names none, or is not `enabled`.

    `class` is 'package.module:Class'; all other keys are its arguments. Raises ConfigError.
    """
    options = dict(section)
    enabled, named = options.pop("enabled", True), options.pop("class", None)
    if enabled not in (True, False):
        raise ConfigError(f"curriculum.enabled is {enabled!r}, expected true or false")
    if named is None or not enabled:
        return None
    curriculum = _class(str(named))
    try:
        return curriculum(**options)
    except TypeError as error:
        raise ConfigError(
            f"section curriculum: {error}; its keys are the arguments of {curriculum.__name__}"
        ) from error


def _class(name: str) -> Any:
    try:
        return load(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"curriculum.class={name!r}: {error}; expected 'package.module:Class'") from error
