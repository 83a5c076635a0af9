"""Facts about the MiniWoB++ pages: where they are, which must be loaded anew, and where to click on the simple ones."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

from uirl.errors import ConfigError, did_you_mean

AREA = (0, 50, 160, 160)
"""Left, top, width and height of the part below the instruction, in page pixels."""

RELOADED = frozenset(
    {
        "book-flight",
        "book-flight-nodelay",
        "chase-circle",
        "choose-date",
        "choose-date-easy",
        "choose-date-medium",
        "choose-date-nodelay",
        "click-button",
        "click-collapsible",
        "click-collapsible-2",
        "click-collapsible-2-nodelay",
        "click-collapsible-nodelay",
        "click-dialog-2",
        "click-tab",
        "click-tab-2",
        "click-tab-2-easy",
        "click-tab-2-hard",
        "click-tab-2-medium",
        "drag-cube",
        "drag-shapes-2",
        "form-sequence",
        "moving-items",
        "multi-layouts",
        "simon-says",
        "social-media",
        "stock-market",
        "text-editor",
        "use-slider",
        "use-slider-2",
        "use-spinner",
    }
)
"""Pages that a new seed alone does not clear: something of the last episode stays on the screen. On all others,
episodes after a new seed were equal, pixel by pixel, to episodes after a fresh load (8 seeds, 4 clicks each)."""

PREPARE = """(() => {
  const style = document.createElement('style');
  style.textContent = '#reward-display, #click-canvas, #attention-canvas { display: none !important; }';
  document.head.appendChild(style);
})()"""
"""Hides the score board at the right of the task. It is outside the picture, but a page that sets the focus can scroll
to it, and its clock repaints every second."""

START = """(seed => {
  if (document.activeElement) document.activeElement.blur();
  Math.seedrandom(seed);
  core.EPISODE_MAX_TIME = 2147483647;
  core.startEpisodeReal();
  core.cover_div.onclick = null;
  return new Promise(done => {
    const look = () => WOB_TASK_READY ? done(core.getUtterance()) : setTimeout(look, 5);
    look();
  });
})(%d)"""
"""Begins an episode and gives its instruction. The largest timer a page can set stands for 'no time limit'; the cover
that appears at the end loses its handler, so that no late click begins another episode over the reward."""

TARGETS = {
    "click-test": "[one('#subbtn')]",
    "click-test-2": "[one('#subbtn'), one('#subbtn2')]",
    "click-test-transfer": "[one('#subbtn'), one('#subbtn2')]",
    "click-dialog": "[one('button.ui-button')]",
    "click-button": "first(all('#area button'), e => e.innerHTML === quoted)",
    "click-link": "first(all('.alink'), e => e.innerHTML === quoted)",
    "click-color": "first(all('#area .color'), e => goal.includes(' ' + e.dataset.color + ' '))",
    "click-widget": "first(all('#area [data-type]'), e => e.dataset.type === quoted)",
    "focus-text": "[one('#tt')]",
    "grid-coordinate": "first(all('#area circle'), e => goal.includes(e.id))",
}
"""JavaScript per page: the element to click first, then the others that a careless hand could mean."""

STATE = """(() => {
  const goal = %s, quoted = (goal.match(/"(.*)"/) || [])[1];
  const one = selector => document.querySelector(selector);
  const all = selector => [...document.querySelectorAll(selector)];
  const first = (elements, wanted) => [...elements.filter(wanted), ...elements.filter(e => !wanted(e))];
  const spot = element => {
    const box = element.getBoundingClientRect();
    const places = [[.5, .5], [.25, .5], [.75, .5], [.5, .25], [.5, .75], [.1, .1], [.9, .1], [.1, .9], [.9, .9]];
    for (const [u, v] of places) {
      const x = box.left + u * box.width, y = box.top + v * box.height;
      const top = document.elementFromPoint(x, y);
      if (top && element.contains(top)) return [x, y];
    }
    return null;
  };
  const ended = WOB_DONE_GLOBAL;
  return {
    ended, reward: WOB_RAW_REWARD_GLOBAL, reason: WOB_REWARD_REASON || '',
    spots: ended ? [] : %s.filter(e => e).map(spot).filter(s => s),
  };
})()"""
"""Reads how the episode stands and where the targets are; a spot is a point of the element that nothing covers."""


def page_folder() -> Path:
    """The folder of the pages in the package `miniwob`, found without importing it (its import loads Selenium).

    Raises ConfigError where the package is not installed.
    """
    spec = importlib.util.find_spec("miniwob")
    folder = Path(spec.origin).parent / "html" / "miniwob" if spec and spec.origin else None
    if folder is None or not folder.is_dir():
        raise ConfigError("the MiniWoB++ pages are not installed; pip install 'uirl[browser]' (package 'miniwob')")
    return folder


@cache
def page_names() -> tuple[str, ...]:
    """Names of all pages, sorted: 'ascending-numbers', ..., 'visual-addition'."""
    return tuple(sorted(path.stem for path in page_folder().glob("*.html")))


def page_url(name: str) -> str:
    """Address of a page. Raises ConfigError with the nearest name where there is none of that name."""
    if name not in page_names():
        raise ConfigError(f"MiniWoB++ has no page {name!r}; {did_you_mean(name, page_names())}")
    return (page_folder() / f"{name}.html").as_uri()
