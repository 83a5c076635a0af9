"""What the policy wrote -> what it decided. Names load when they are first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from uirl.runtime.lazy import lazy_exports

if TYPE_CHECKING:
    from uirl.parsers.base import ANSWER, ActionParser, TextParser
    from uirl.parsers.conformance import check_parser
    from uirl.parsers.function_calling import FunctionCallingParser
    from uirl.parsers.json_action import JSONActionParser
    from uirl.parsers.mai_ui import MAIUIActionParser, grid_to_pixel, pixel_to_grid
    from uirl.parsers.react import ReActActionParser
    from uirl.parsers.registry import PARSERS, create_parser

_EXPORTS = {
    "ANSWER": "uirl.parsers.base",
    "ActionParser": "uirl.parsers.base",
    "TextParser": "uirl.parsers.base",
    "check_parser": "uirl.parsers.conformance",
    "FunctionCallingParser": "uirl.parsers.function_calling",
    "JSONActionParser": "uirl.parsers.json_action",
    "MAIUIActionParser": "uirl.parsers.mai_ui",
    "grid_to_pixel": "uirl.parsers.mai_ui",
    "pixel_to_grid": "uirl.parsers.mai_ui",
    "ReActActionParser": "uirl.parsers.react",
    "PARSERS": "uirl.parsers.registry",
    "create_parser": "uirl.parsers.registry",
}

__all__ = [
    "ANSWER",
    "PARSERS",
    "ActionParser",
    "FunctionCallingParser",
    "JSONActionParser",
    "MAIUIActionParser",
    "ReActActionParser",
    "TextParser",
    "check_parser",
    "create_parser",
    "grid_to_pixel",
    "pixel_to_grid",
]

__getattr__ = lazy_exports(__name__, _EXPORTS)
