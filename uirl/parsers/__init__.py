"""What the policy wrote -> what it decided. Names load when they are first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from uirl.parsers.base import ActionParser, TextParser
    from uirl.parsers.contract import check_parser
    from uirl.parsers.json_action import JSONActionParser
    from uirl.parsers.table import PARSERS, create_parser

_EXPORTS = {
    "ActionParser": "uirl.parsers.base",
    "TextParser": "uirl.parsers.base",
    "check_parser": "uirl.parsers.contract",
    "JSONActionParser": "uirl.parsers.json_action",
    "PARSERS": "uirl.parsers.table",
    "create_parser": "uirl.parsers.table",
}

__all__ = ["PARSERS", "ActionParser", "JSONActionParser", "TextParser", "check_parser", "create_parser"]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_EXPORTS[name]), name)
