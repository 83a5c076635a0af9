"""The embedded screen: pages drawn in memory, rules in Python, nothing to install."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from uirl.environments.screen.environment import ScreenEnvironment

__all__ = ["ScreenEnvironment"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from uirl.environments.screen.environment import ScreenEnvironment

    return ScreenEnvironment
