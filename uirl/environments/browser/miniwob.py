"""MiniWoB++ in a real browser: the environment, facts about its pages, and their curriculum tags."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml

from uirl.environments.browser.environment import Crop, Judgement, PageEnvironment, PageOptions
from uirl.environments.browser.page import Page
from uirl.environments.browser.tab import Moved, Refused
from uirl.environments.demonstrators import DemonstratorOptions
from uirl.environments.options import Names, OptionsLike
from uirl.environments.ui.vocabulary import Click, UIAction
from uirl.errors import ConfigError, did_you_mean
from uirl.runtime.assets import read_asset
from uirl.types import Action, Task

Spot = tuple[float, float, str]
"""A position on the page, and the word for what is there."""
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
GUARD = read_asset(__file__, "miniwob.js")
"""JavaScript that keeps the score of a loaded page, and gives the object that begins episodes and tells how they stand.

The score board is hidden: a page that sets the focus can scroll to it, and its clock repaints every second. The largest
timer stands for 'no time limit'; the cover at the end loses its handler: no late click begins another episode.
Animations are over at once: how far they are after an action depends on how busy the machine is.

The first call of the page's own `core.endEpisode` in an episode counts, kept where no script of the page can reach or
change it. What remains possible is that a script calls it. A policy cannot bring one in: `goto` leads nowhere, and from
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
    "click-color": ("first(all('#area .color'), e => goal.includes(` ${e.dataset.color} `))", "e => e.dataset.color"),
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
    """Return the names of all pages, sorted."""
    return tuple(sorted(path.stem for path in page_folder().glob("*.html")))


def page_url(name: str) -> str:
    """Return the address of a page. Raises ConfigError with the nearest name where there is none of that name."""
    if name not in page_names():
        raise ConfigError(f"MiniWoB++ has no page {name!r}; {did_you_mean(name, page_names())}")
    return (page_folder() / f"{name}.html").as_uri()


@cache
def page_tags() -> dict[str, tuple[str, ...]]:
    """Return page name -> its tags, which `miniwob.yaml` explains."""
    return {name: tuple(tags.split()) for name, tags in yaml.safe_load(read_asset(__file__, "miniwob.yaml")).items()}


class MiniWobOptions(DemonstratorOptions, PageOptions):
    """Pages of MiniWoB++. They are made for 160 x 210 pixels; without options only `click` is offered."""

    key = "miniwob"

    task: str | Names = "click-test"
    """Name of a page, or of several, or 'all': an episode without a given task then draws one by its seed."""
    tags: Names = ()
    """Of these pages only those that carry every one of the tags, for example ['click', 'easy']."""
    crop: Literal["area"] | Crop | None = None  # type: ignore[assignment]
    """Part of the page that becomes the picture: [left, top, width, height] in CSS pixels, or 'area', the 160 x 160
    below the instruction, which the text says anyway; None: all."""
    reward: Literal["page", "success"] = "page"
    """'page': what the page gives, in [-1, 1]; 'success': 1 for a success, else 0."""
    demonstrator: Literal["expert", "careless"] = "expert"
    """'expert' clicks the right thing; 'careless' does so too, but with probability `carelessness` it clicks any of the
    things the page offers (or anywhere, where there is only one)."""

    @property
    def crop_box(self) -> Crop | None:
        return AREA if self.crop == "area" else self.crop


class MiniWobEnvironment(PageEnvironment):
    """Pages of MiniWoB++, one or several; the seed makes the instance of a page.

    The reward is the page's own without its decay over time, in [-1, 1]. It comes with the action that ends the
    episode; every other turn gives 0, so to a policy that is mostly wrong, a miss is worth more than a try
    (`reward="success"` mends that). Some pages pay for a part; success is all that is asked: a reward of 1, or what
    `SOLVED_FROM` says. A reply that cannot be read, an unknown action and a click outside the picture are the model's
    mistakes: the next observation says so and the turn is spent.
    """

    page_size = (160, 210)
    actions = ("click",)
    max_turns = 5

    options_class = MiniWobOptions
    options: MiniWobOptions
    _shown: str | None = None  # name of the page that is loaded
    _guard = ""
    _spots: Sequence[Spot] = ()  # the target, then the others

    def __init__(self, config: Any = None, options: OptionsLike = None, **keys: Any) -> None:
        """Create an environment that opens its page at the first reset. Options: see `MiniWobOptions`.

        Raises ConfigError where an option does not fit, or there is no such page, no browser, or no package `miniwob`.
        """
        super().__init__(config, options, **keys)
        self._names = _chosen_pages(self.options.task, self.options.tags)
        self.demonstrator_may_fail = self.options.error_rate > 0

    async def furnish(self, page: Page) -> None:
        self._shown = None

    async def begin(self, page: Page, task: Task | None, seed: int) -> str:
        self._random = random.Random(seed)
        name = "" if task is None else task.id.removeprefix("miniwob/")
        if task is None or (name == task.id and name not in page_names()):
            name = self._random.choice(self._names)
        if self._shown != name or name in RELOADED or self.space.names != ("click",):
            self._shown = None
            await page.goto(page_url(name))
            self._guard = await page.first.hold(guard(name))
            self._shown = name
        return str(await page.first.ask(self._guard, BEGIN, seed))

    async def judge(self, page: Page, action: UIAction | None) -> Judgement:
        left: dict[str, Any] = {"ended": True, "reward": -1, "reason": "the page was left", "spots": []}
        try:
            state = await page.first.ask(self._guard, STATE)
        except (Moved, Refused):  # its object is gone, so the page has left its document
            self._shown, state = None, left
        self._spots = [(x, y, word) for x, y, word in state["spots"]]
        if action is None:
            return Judgement(info={"page": self._shown})
        raw = float(state["reward"]) if state["ended"] else 0.0
        solved = raw >= SOLVED_FROM.get(self._shown or "", 1.0)
        reward = float(solved) if self.options.reward == "success" else raw
        return Judgement(reward, state["ended"], solved, {"raw_reward": raw, "reason": state["reason"]})

    def lost(self, reason: str) -> Judgement:
        """Return the lowest reward that a page gives."""
        self._shown = None
        return Judgement(0.0 if self.options.reward == "success" else -1.0, True, info={"raw_reward": -1.0})

    def get_prompt_prefix(self) -> str:
        usual = (("click",), False, "pixels", "json")
        if (self.space.names, self.space.marks, self.space.coordinates, self.space.format) != usual:
            return super().get_prompt_prefix()
        width, height = self.picture_size
        form = '"target":WORD,"x":X,"y":Y' if self.space.targets else '"x":X,"y":Y'
        return f'Do what is asked. Reply {{"action":"click",{form}}} in pixels of the {width}x{height} picture.'

    def tasks(self) -> list[Task]:
        """Return one task per page, named 'miniwob/<page>', with its tags."""
        return [Task(id=f"miniwob/{n}", environment="miniwob", tags=("browser", *page_tags()[n])) for n in self._names]

    @property
    def has_demonstrator(self) -> bool:
        """Whether every chosen page has one."""
        return set(self._names) <= set(DEMONSTRATED)

    def expert_action(self) -> Action | None:
        """Return the demonstrator's click; None where this page has no demonstrator or nothing is left to click."""
        if not self._spots:
            return None
        if self._random.random() < self.options.error_rate:
            if len(self._spots) == 1:
                width, height = self.picture_size
                return self.act(Click(self._random.randrange(width), self._random.randrange(height)), self._spots[0][2])
            return self.act_at(*self._random.choice(self._spots))
        return self.act_at(*self._spots[0])


def _chosen_pages(task: str | tuple[str, ...], tags: tuple[str, ...]) -> tuple[str, ...]:
    known = sorted({tag for of_page in page_tags().values() for tag in of_page})
    for tag in tags:
        if tag not in known:
            raise ConfigError(f"miniwob: no page has the tag {tag!r}; {did_you_mean(tag, known)}")
    names = page_names() if task == "all" else (task,) if isinstance(task, str) else task
    if not names:
        raise ConfigError("miniwob: task is an empty list; expected a page name such as 'click-test'")
    for name in names:
        page_url(name)
    chosen = tuple(name for name in names if set(tags) <= set(page_tags()[name]))
    if not chosen:
        raise ConfigError(f"miniwob: none of the {len(names)} pages has all the tags {', '.join(tags)}")
    return chosen
