"""Facts about the MiniWoB++ pages: where they are, which must be loaded anew, and where to click on the simple ones."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

from uirl.errors import ConfigError, did_you_mean
from uirl.runtime.assets import read_asset

AREA = (0, 50, 160, 160)
"""Left, top, width and height of the part below the instruction, in page pixels."""

RELOADED = frozenset({
    "book-flight", "book-flight-nodelay", "chase-circle", "choose-date", "choose-date-easy", "choose-date-medium",
    "choose-date-nodelay", "click-button", "click-collapsible", "click-collapsible-2", "click-collapsible-2-nodelay",
    "click-collapsible-nodelay", "click-dialog-2", "click-tab", "click-tab-2", "click-tab-2-easy", "click-tab-2-hard",
    "click-tab-2-medium", "drag-cube", "drag-shapes-2", "form-sequence", "moving-items", "multi-layouts",
    "simon-says", "social-media", "stock-market", "text-editor", "use-slider", "use-slider-2", "use-spinner",
})  # fmt: skip
"""Pages that a new seed alone does not clear: something of the last episode stays on the screen. On all others,
episodes of clicks after a new seed were equal, pixel by pixel, to episodes after a fresh load (8 seeds, 4 clicks each).
What typing, dragging and scrolling leave behind is another matter: with those every page is loaded anew."""

SOLVED_FROM = {
    "bisect-angle": 0.9, "chase-circle": 0.9, "circle-center": 0.9, "find-midpoint": 0.9, "moving-items": 0.9,
    "right-angle": 0.95, "use-colorwheel": 0.95, "use-colorwheel-2": 0.95,
}  # fmt: skip
"""Page -> reward of the page from which it is solved, where the page measures a distance, an angle, a colour or a time,
and no hand hits 1. On all others it is solved at 1: less is paid for a part."""

GUARD = read_asset(__package__, "guard.js")
"""JavaScript that keeps the score of a loaded page, and gives the object that begins episodes and tells how they stand.

The score board at the right is hidden: it is outside the picture, but a page that sets the focus can scroll to it, and
its clock repaints every second. The largest timer a page can set stands for 'no time limit'; the cover that appears at
the end loses its handler, so that no late click begins another episode over the reward.

jQuery's animations (a calendar that slides open) are over at once: how far they are after an action depends on how busy
the machine is.

What is read is the first call of the page's own `core.endEpisode` in an episode, kept where no script of the page can
reach or change it: its global variables count for nothing. What remains possible is that a script calls
`core.endEpisode` itself. A policy cannot bring one in: it has a mouse and a keyboard, `goto` leads nowhere, and from
here on the page runs no script that comes with text."""

BEGIN = "function (seed) { return this.start(seed); }"
STATE = "function () { return this.state(); }"
"""Functions for the object that `GUARD` gives."""

_TEXT = "e => e.textContent"
_NONE = "e => ''"
_DIALOG_BUTTON = "e => e.closest('.ui-dialog-titlebar') ? 'x' : e.textContent"
_SHAPE = """e => ['item', e.getBBox().height > 15 ? 'large' : 'small', e.getAttribute('fill'),
    !e.textContent ? 'shape' : e.textContent >= '0' && e.textContent <= '9' ? 'digit' : 'letter',
    e.textContent || {rect: 'rectangle', polygon: 'triangle', circle: 'circle'}[e.tagName]]"""
"""All words that 'Click on a large red circle' may use of a thing."""
_TARGETS = {
    "click-test": ("[one('#subbtn')]", _NONE),
    "click-test-2": ("[one('#subbtn'), one('#subbtn2')]", _TEXT),
    "click-test-transfer": ("[one('#subbtn'), one('#subbtn2')]", _TEXT),
    "click-dialog": ("[one('button.ui-button')]", _NONE),
    "click-button": ("first(all('#area button'), e => e.innerHTML === quoted)", _TEXT),
    "click-link": ("first(all('.alink'), e => e.innerHTML === quoted)", _TEXT),
    "click-color": (
        "first(all('#area .color'), e => goal.includes(' ' + e.dataset.color + ' '))",
        "e => e.dataset.color",
    ),
    "click-widget": ("first(all('#area [data-type]'), e => e.dataset.type === quoted)", "e => e.dataset.type"),
    "click-tab": ("first(all('#area ul a'), e => goal.includes(e.textContent))", _TEXT),
    "click-dialog-2": (f"first(all('.ui-dialog button'), e => ({_DIALOG_BUTTON})(e) === quoted)", _DIALOG_BUTTON),
    "click-shape": (f"first(all('#area_svg > *'), e => words.slice(3).every(w => ({_SHAPE})(e).includes(w)))", _NONE),
    "focus-text": ("[one('#tt')]", _NONE),
    "focus-text-2": ("first(all('#area input'), e => goal.includes(e.id.slice(2)))", _NONE),
    "grid-coordinate": ("first(all('#area circle'), e => goal.includes(e.id))", "e => e.id"),
}
"""Page -> JavaScript of the element to click first, then the others that a careless hand could mean; and of the word
for an element, as the instruction calls it."""

DEMONSTRATED = tuple(_TARGETS)
"""Pages with a demonstrator."""


def guard(name: str) -> str:
    """Return `GUARD` for a page."""
    elements, word = _TARGETS.get(name, ("[]", _NONE))
    return GUARD % f"({{goal, words, quoted, one, all, first}}) => [{elements}, {word}]"


def page_folder() -> Path:
    """Return the folder of the pages in the package `miniwob`, found without importing it (its import loads Selenium).

    Raises ConfigError where the package is not installed.
    """
    spec = importlib.util.find_spec("miniwob")
    folder = Path(spec.origin).parent / "html" / "miniwob" if spec and spec.origin else None
    if folder is None or not folder.is_dir():
        raise ConfigError("the MiniWoB++ pages are not installed; pip install 'uirl[browser]' (package 'miniwob')")
    return folder


@cache
def page_names() -> tuple[str, ...]:
    """Return the names of all pages, sorted: 'ascending-numbers', ..., 'visual-addition'."""
    return tuple(sorted(path.stem for path in page_folder().glob("*.html")))


def page_url(name: str) -> str:
    """Return the address of a page. Raises ConfigError with the nearest name where there is none of that name."""
    if name not in page_names():
        raise ConfigError(f"MiniWoB++ has no page {name!r}; {did_you_mean(name, page_names())}")
    return (page_folder() / f"{name}.html").as_uri()
