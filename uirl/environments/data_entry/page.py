"""The page: a sheet (or a slip with the value to copy) and a form. Its scripts know no score."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from uirl.runtime.assets import read_asset

_PAGE = read_asset(__file__, "page.html")

WATCH = """const sent = [];
addEventListener('submit', event => {
  if (event.isTrusted && event.target.tagName === 'FORM')
    sent.push(Object.fromEntries([...event.target.querySelectorAll('input')].map(e => [e.name, e.value])));
}, true);"""
"""Runs apart from the page: what every submission held, at the moment it was made."""

STATE = read_asset(__file__, "state.js")
"""What was sent, and where the hand of a demonstrator must go."""


def render_page(task: Mapping[str, Any]) -> str:
    """Return the page as HTML. `task`: `labels` (field -> words), `rows`, `places` of slip, field, button, or None."""
    # Inside a script element '<' could end it.
    return _PAGE.replace("__TASK__", json.dumps(task).replace("<", "\\u003c"))
