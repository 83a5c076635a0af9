"""Simple data entry: a sheet at the left, a form at the right, rows to copy. One page, no server, no network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from uirl.environments.data_entry.environment import DataEntryEnvironment

__all__ = ["DataEntryEnvironment"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from uirl.environments.data_entry.environment import DataEntryEnvironment

    return DataEntryEnvironment
