"""Names of a package that are imported when they are first used (PEP 562), so that importing it loads little."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


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
