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

_HOMES = {
    "uirl.parsers.base": "ANSWER ActionParser TextParser",
    "uirl.parsers.conformance": "check_parser",
    "uirl.parsers.function_calling": "FunctionCallingParser",
    "uirl.parsers.json_action": "JSONActionParser",
    "uirl.parsers.mai_ui": "MAIUIActionParser grid_to_pixel pixel_to_grid",
    "uirl.parsers.react": "ReActActionParser",
    "uirl.parsers.registry": "PARSERS create_parser",
}

__getattr__, __all__ = lazy_exports(__name__, _HOMES)
