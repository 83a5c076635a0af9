"""Real web applications with a store one can compare: started here, on loopback, in a sandbox."""

from __future__ import annotations

from typing import TYPE_CHECKING

from uirl.runtime.lazy import lazy_exports

if TYPE_CHECKING:
    from uirl.environments.apps.environment import AppsEnvironment

__getattr__, __all__ = lazy_exports(__name__, {"uirl.environments.apps.environment": "AppsEnvironment"})
