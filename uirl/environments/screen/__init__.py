"""The embedded screen: pages drawn in memory, rules in Python, nothing to install."""

from __future__ import annotations

from typing import TYPE_CHECKING

from uirl.runtime.lazy import lazy_exports

if TYPE_CHECKING:
    from uirl.environments.screen.environment import ScreenEnvironment
    from uirl.environments.screen.suite import ScreenSuite

__getattr__, __all__ = lazy_exports(
    __name__,
    {"uirl.environments.screen.environment": "ScreenEnvironment", "uirl.environments.screen.suite": "ScreenSuite"},
)
