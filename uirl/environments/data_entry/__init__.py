"""Simple data entry: a sheet at the left, a form at the right, rows to copy. One page, no server, no network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from uirl.runtime.lazy import lazy_exports

if TYPE_CHECKING:
    from uirl.environments.data_entry.environment import DataEntryEnvironment

__getattr__, __all__ = lazy_exports(__name__, {"uirl.environments.data_entry.environment": "DataEntryEnvironment"})
