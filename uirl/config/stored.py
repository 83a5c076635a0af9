"""Configs stored with weights of possibly unknown origin: what would run code needs the user's consent."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from uirl.config.store import ConfigStore
from uirl.errors import ConfigError

_PROGRAMS = ("command", "executable", "executable_path")
"""Options whose value is a program that an environment starts."""


def override_stored(stored: ConfigStore, overrides: Sequence[str], folder: Path) -> ConfigStore:
    """Return `stored`, the config that was found at `folder`, with the changes that the user typed.

    Raises ConfigError, with what to type, if the config would run code and the user has not asked for it: Python
    that lies with the model (`model.trust_remote_code`), an environment inside the folder, a program in an option of
    the environment, an option of the engine that is no number.
    """
    config, typed = stored.override(overrides), _harmless(stored).override(overrides)
    if config.model.trust_remote_code and not typed.model.trust_remote_code:
        raise ConfigError(
            f"the config at {folder} asks to run the Python code that lies with its model. Type "
            "model.trust_remote_code=true if you trust where the folder came from, or =false to go without that code"
        )
    name = config.environment.name
    if name != typed.environment.name and _lies_in(folder, name):
        raise ConfigError(
            f"the config at {folder} names the environment {name!r}, which is code in that folder. Type "
            f"environment.name={name} if you trust where the folder came from"
        )
    for key, value in config.inference.engine_options.items():
        if not _is_number(value) and typed.inference.engine_options.get(key) != value:
            raise ConfigError(
                f"the config at {folder} gives the engine the option {key}={value!r:.80}, and such an option can name "
                f"code. If you trust where the folder came from, type inference.engine_options.{key}=..."
            )
    for section in ("options", "eval_options"):
        allowed = dict(_programs(getattr(typed.environment, section), section))
        for key, program in _programs(getattr(config.environment, section), section):
            if allowed.get(key) != program:
                raise ConfigError(
                    f"the config at {folder} would start the program {program!r} (environment.{key}). If you trust "
                    f"where the folder came from, type environment.{key}=..."
                )
    return config


def _harmless(stored: ConfigStore) -> ConfigStore:
    """Return `stored` without what could run code. What the user types on top of it is allowed."""
    copy = stored.model_copy(deep=True)
    copy.model.trust_remote_code = False
    copy.environment.name, copy.environment.options, copy.environment.eval_options = "screen", {}, {}
    copy.inference.engine_options = {}
    return copy


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _lies_in(folder: Path, name: str) -> bool:
    """Return whether the module of 'package.module:Class' would be found inside `folder`. Nothing is imported."""
    module, colon, _ = name.partition(":")
    if not colon:
        return False
    parts, inside = module.split("."), folder.resolve()
    for entry in sys.path:
        for depth in range(1, len(parts) + 1):
            place = Path(entry or ".").joinpath(*parts[:depth])
            found = place.exists() or place.with_name(f"{place.name}.py").exists()
            if found and place.resolve().is_relative_to(inside):
                return True
    return False


def _programs(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of every option at any depth that names a program."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if name in _PROGRAMS and inner:
                yield f"{key}.{name}", inner
            else:
                yield from _programs(inner, f"{key}.{name}")
    elif isinstance(value, list):
        for inner in value:
            yield from _programs(inner, key)
