"""What is imported when it is first used: names of a package (PEP 562), and classes named in a config."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, TypeVar

from uirl.errors import ConfigError

T = TypeVar("T")


def lazy_exports(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], list[str]]:
    """Return the `__getattr__` and the `__all__` of `package`, for names that live in other modules.

    `homes`: module -> the names that it defines, separated by blanks.
    """
    home_of = {name: home for home, names in homes.items() for name in names.split()}

    def __getattr__(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(home_of[name]), name)

    return __getattr__, sorted(home_of)


def load(target: str) -> Any:
    """Return what 'package.module:Name' names. Raises ImportError, AttributeError or ValueError."""
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)


def load_class(target: str, base: type[T], what: str, hint: str = "") -> type[T]:
    """Return the subclass of `base` that 'package.module:Class' names.

    Raises ConfigError, which begins with `what`, for a target that cannot be loaded (`hint`: what may help) and for
    what is no such class or lacks methods.
    """
    try:
        found = load(target)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{what} cannot be loaded: {error}; expected 'package.module:Class'{hint}") from error
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ConfigError(f"{what} is {found!r}; expected a subclass of uirl.{base.__name__}")
    if missing := sorted(getattr(found, "__abstractmethods__", ())):
        raise ConfigError(
            f"{what}: {found.__name__} has no {', '.join(missing)}; expected a uirl.{base.__name__} with all it needs"
        )
    return found
