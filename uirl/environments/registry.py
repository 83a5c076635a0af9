"""The table of environments: a name in the config -> a class, loaded when asked for."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any

from uirl.environments.base import BaseEnvironment
from uirl.environments.options import ConfigurableEnvironment, EnvironmentOptions
from uirl.errors import ConfigError, did_you_mean
from uirl.runtime.lazy import load_class

ENVIRONMENTS = {
    "screen": "uirl.environments.screen:ScreenEnvironment",
    "screen_suite": "uirl.environments.screen:ScreenSuite",
    "guess_number": "uirl.environments.text.guess_number:GuessNumberEnvironment",
    "questions": "uirl.environments.text.questions:QuestionsEnvironment",
    "simple_game": "uirl.environments.text.simple_game:SimpleGameEnvironment",
    "calculator": "uirl.environments.tool_use.arithmetic:CalculatorEnvironment",
    "lookup": "uirl.environments.tool_use.arithmetic:LookupEnvironment",
    "errands": "uirl.environments.tool_use.errands:ErrandsEnvironment",
    "mixture": "uirl.environments.adapters.mixture:MixtureEnvironment",
    "gymnasium": "uirl.environments.adapters.gymnasium:GymnasiumEnvironment",
    "miniwob": "uirl.environments.browser.miniwob:MiniWobEnvironment",
    "data_entry": "uirl.environments.data_entry.environment:DataEntryEnvironment",
    "desktop": "uirl.environments.desktop.environment:DesktopEnvironment",
    "remote": "uirl.environments.remote.client.native:NativeRemoteEnvironment",
    "ui_verifiers": "uirl.environments.remote.client.ui_verifiers:UIVerifiersEnvironment",
    "openenv": "uirl.environments.remote.client.openenv:OpenEnvEnvironment",
    "apps": "uirl.environments.apps:AppsEnvironment",
    "mobile_world": "uirl.environments.mobile_world.environment:MobileWorldEnvironment",
}


def environment_class(name: str) -> type[BaseEnvironment]:
    """Return the class of that name, or your own as 'package.module:Class'. Raises ConfigError for what is neither."""
    target = name if ":" in name else ENVIRONMENTS.get(name)
    if target is None:
        raise ConfigError(
            f"unknown environment {name!r}; {did_you_mean(name, ENVIRONMENTS)} Your own is 'package.module:Class'."
        )
    hint = (
        ". A module of your own is looked for beside the config file that is named on the command line, in the current "
        "folder, and in PYTHONPATH"
    )
    return load_class(target, BaseEnvironment, f"environment {name!r}", hint)  # type: ignore[type-abstract]


def create_environment(name: str, options: Mapping[str, Any] | None = None, config: Any = None) -> BaseEnvironment:
    """Create an environment: `Class(config, **options)`.

    `config` (the environment section of a ConfigStore, or None) goes to the parameter called `config` where the class
    has one. Raises ConfigError for an unknown name or option, with the nearest known one, and for a missing option.
    """
    cls, options = environment_class(name), dict(options or {})
    names = option_names(cls)
    for option in options:
        if names is not None and option not in names:
            if issubclass(cls, ConfigurableEnvironment):
                raise ConfigError(cls.options_class.unknown_key(option, names))
            raise ConfigError(f"environment {name!r} has no option {option!r}; {did_you_mean(option, names)}")
    signature = inspect.signature(cls)
    if "config" in signature.parameters:
        options = {"config": config, **options}
    try:
        signature.bind(**options)
    except TypeError as error:
        raise ConfigError(
            f"environment {name!r}: {error}; options: {', '.join(sorted(names or ())) or 'none'}"
        ) from error
    try:
        return cls(**options)
    except TypeError as error:
        passed_on = re.fullmatch(r"(.+)\.__init__\(\) got an unexpected keyword argument '(.+)'", str(error))
        if passed_on is None or passed_on[2] not in options:
            raise
        raise ConfigError(
            f"environment {name!r} has no option {passed_on[2]!r}: it hands it on to {passed_on[1]}, which takes none "
            "of that name"
        ) from error


def option_names(cls: type[BaseEnvironment]) -> set[str] | None:
    """Return the options that a class of environments takes: parameters of its constructor, and fields of
    `options_class` where it passes keywords on. None: any, it does not say."""
    parameters = inspect.signature(cls).parameters.values()
    names = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)} - {"config"}
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        return names
    if not issubclass(cls, ConfigurableEnvironment):
        return None
    return (names - {"options"}) | set(cls.options_class.model_fields)


def option_sections() -> list[type[EnvironmentOptions]]:
    """Return the options of every named environment that declares them, in the order of the table."""
    classes = map(environment_class, ENVIRONMENTS)
    return [cls.options_class for cls in classes if issubclass(cls, ConfigurableEnvironment)]
