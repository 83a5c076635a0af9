"""Facts about the MiniWoB++ pages: where they are, which must be loaded anew, and where to click on the simple ones."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

from uirl.errors import ConfigError, did_you_mean

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

GUARD = """(() => {
  // Nothing that a policy types may become a script: the pages load theirs before, and write no handlers into HTML.
  const rule = document.createElement('meta');
  rule.httpEquiv = 'Content-Security-Policy';
  rule.content = "script-src-elem 'none'; script-src-attr 'none'; connect-src 'none'; form-action 'none'";
  const style = document.createElement('style');
  style.textContent = '#reward-display, #click-canvas, #attention-canvas { display: none !important; }';
  document.head.append(rule, style);
  if (window.jQuery) jQuery.fx.off = true;

  // What counts the reward is taken while the page's own scripts alone have run.
  const {max, min} = Math, number = Number, text = String;
  const seedrandom = Math.seedrandom, startEpisode = core.startEpisodeReal, endEpisode = core.endEpisode;
  let goal = '', ended = false, reward = 0, reason = '';
  const end = (value, proportional, why) => {
    if (!ended && core.EP_TIMER !== null) {
      ended = true;
      reward = max(-1, min(1, number(value)));
      reason = why === undefined || why === null ? '' : text(why);
    }
    return endEpisode.call(core, value, proportional, why);
  };
  Object.defineProperty(core, 'endEpisode', {value: end, writable: false, configurable: false});

  const start = async seed => {
    if (document.activeElement) document.activeElement.blur();
    seedrandom.call(Math, seed);
    core.EPISODE_MAX_TIME = 2147483647;
    startEpisode.call(core);
    core.cover_div.onclick = null;
    while (!WOB_TASK_READY) await new Promise(again => setTimeout(again, 5));
    const utterance = core.getUtterance();
    goal = text(utterance && utterance.utterance || utterance);
    ended = false;
    return goal;
  };

  const one = selector => document.querySelector(selector);
  const all = selector => [...document.querySelectorAll(selector)];
  const first = (elements, wanted) => [...elements.filter(wanted), ...elements.filter(e => !wanted(e))];
  const spot = (element, word) => {
    const box = element.getBoundingClientRect();
    const places = [[.5, .5], [.25, .5], [.75, .5], [.5, .25], [.5, .75], [.1, .1], [.9, .1], [.1, .9], [.9, .9]];
    for (const [u, v] of places) {
      const x = box.left + u * box.width, y = box.top + v * box.height;
      const top = document.elementFromPoint(x, y);
      if (top && element.contains(top)) return [x, y, word(element)];
    }
    return null;
  };
  const targets = %s;
  const state = () => {
    const quoted = (goal.match(/"(.*)"/) || [])[1];
    const [elements, word] = ended ? [[]] : targets({goal, quoted, one, all, first});
    return {ended, reward, reason, spots: elements.filter(e => e).map(e => spot(e, word)).filter(s => s)};
  };
  return {start, state};
})()"""
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
    "focus-text": ("[one('#tt')]", _NONE),
    "grid-coordinate": ("first(all('#area circle'), e => goal.includes(e.id))", "e => e.id"),
}
"""Page -> JavaScript of the element to click first, then the others that a careless hand could mean; and of the word
for an element, as the instruction calls it."""

DEMONSTRATED = tuple(_TARGETS)
"""Pages with a demonstrator."""


def guard(name: str) -> str:
    """Return `GUARD` for a page."""
    elements, word = _TARGETS.get(name, ("[]", _NONE))
    return GUARD % f"({{goal, quoted, one, all, first}}) => [{elements}, {word}]"


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
