"""The table of parsers: a name in the config or on an environment -> a class, loaded when asked for."""

from __future__ import annotations

from contextlib import suppress

from uirl.errors import ConfigError, did_you_mean
from uirl.parsers.base import ActionParser
from uirl.runtime.lazy import load_class

PARSERS = {
    "text": "uirl.parsers.base:TextParser",
    "json": "uirl.parsers.json_action:JSONActionParser",
    "react": "uirl.parsers.react:ReActActionParser",
    "function_calling": "uirl.parsers.function_calling:FunctionCallingParser",
    "qwen": "uirl.parsers.function_calling:FunctionCallingParser:qwen",
    "hermes": "uirl.parsers.function_calling:FunctionCallingParser:hermes",
    "qwen3-coder": "uirl.parsers.function_calling:FunctionCallingParser:qwen3-coder",
    "llama-3": "uirl.parsers.function_calling:FunctionCallingParser:llama-3",
    "mistral": "uirl.parsers.function_calling:FunctionCallingParser:mistral",
    "mai_ui": "uirl.parsers.mai_ui:MAIUIActionParser",
    "pyautogui": "uirl.parsers.pyautogui:PyAutoGUIParser",
    "computer": "uirl.parsers.computer:ComputerParser",
}
"""Name -> 'module:Class', or 'module:Class:word' where the class is made with that word."""


def create_parser(name: str) -> ActionParser:
    """Create a parser of that name, or of your own class as 'package.module:Class' or 'package.module:Class:word'.

    Raises ConfigError for a name that is neither, with the nearest known one.
    """
    target = name if ":" in name else PARSERS.get(name)
    if target is None:
        raise ConfigError(
            f"unknown action format {name!r}; {did_you_mean(name, PARSERS)} (or give 'package.module:Class')"
        )
    module, attribute, *words = target.split(":", 2)
    what = f"action format {name!r}"
    return load_class(f"{module}:{attribute}", ActionParser, what)(*words)  # type: ignore[type-abstract]


def format_of(parser: ActionParser) -> str:
    """Return the name under which `create_parser` makes an equal parser, for what crosses to other processes by name.

    Raises ConfigError for a parser that no name makes, as one of a class within a function.
    """
    kind = type(parser)
    for name in (*PARSERS, f"{kind.__module__}:{kind.__qualname__}"):
        with suppress(ConfigError, TypeError):
            same = create_parser(name)
            if type(same) is kind and vars(same) == vars(parser):
                return name
    raise ConfigError(f"no name makes this {kind.__name__}; use one of {', '.join(PARSERS)}, or a class of a module")
