"""Curriculum tags of the MiniWoB++ pages: what the hand does, what the eye or the head must do, and how hard it is."""

from __future__ import annotations

from functools import cache

import yaml

from uirl.runtime.assets import read_asset

HANDS = ("click", "type", "drag", "scroll", "hover")
"""What a page needs of the hand; at least one stands on every page."""
NEEDS = ("read", "look", "compute", "search", "steps", "moving")
"""What else: an instruction that says which ('read'), shapes, colours or places ('look'), numbers or an order to work
out ('compute'), something to be found by opening things ('search'), more than one action ('steps'), and a screen that
changes by itself ('moving'), whose pictures a seed does not repeat."""
LEVELS = ("easy", "medium", "hard")
"""One of them: one action; a few; many, or thought."""


@cache
def page_tags() -> dict[str, tuple[str, ...]]:
    """Return page name -> its tags."""
    pages = yaml.safe_load(read_asset(__package__, "tags.yaml"))
    return {name: tuple(tags.split()) for name, tags in pages.items()}
