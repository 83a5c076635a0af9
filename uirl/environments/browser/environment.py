"""`PageEnvironment`: what every environment in the browser does alike; a subclass says how episodes begin and end."""

from __future__ import annotations

import asyncio
import copy
import logging
import math
import os
import random
from abc import abstractmethod
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import Field, model_validator

from uirl.config.section import Count, Index, NonNegative
from uirl.environments.base import BaseEnvironment
from uirl.environments.browser.acting import Thing, find_things, origin_of, perform
from uirl.environments.browser.page import Page
from uirl.environments.browser.picture import Viewport, draw_marks
from uirl.environments.browser.process import Chromium, find_executable
from uirl.environments.browser.tab import Blocked, PageLost, Tab, TabClosed, Unanswered
from uirl.environments.browser.tree import number_things, read_tree, tree_text
from uirl.environments.options import ConfigurableEnvironment, EnvironmentOptions, Names, OptionsLike, Size
from uirl.environments.ui.actions import ACTIONS, ActionSpace
from uirl.environments.ui.vocabulary import CLICKS, ActionFormat, Answer, Click, Coordinates, Terminate, UIAction
from uirl.environments.ui.words_read import reader, words_read
from uirl.errors import ConfigError, EpisodeTimeout
from uirl.images import screenshot
from uirl.runtime.memory import free_memory
from uirl.types import Action, Observation, StepResult, Task

MOST_MARKS = 200
MOST_NAMED = 2000
"""Elements that have a number: in the picture, and in the picture or the tree."""
PAGES_PER_CORE = 8
"""More pages than this wait for the processor, not for the policy."""
PAGE_BYTES = 100 << 20
"""Memory of a page without its pixels, with its share of the browser: from 25 MB to 100 MB for a heavy one."""
BYTES_PER_PIXEL = 40
"""Layers, tiles and the screenshot on its way out."""
LONGEST_STEP = 60.0
"""Seconds that a step may take, or fewer where the caller allows less."""
STEP_SHARE = 0.7
"""Of that, for the action and what comes of it; the rest is to find out whose doing it is that it takes longer."""
Crop = Annotated[tuple[Index, Index, Count, Count], Field(strict=False)]
"""Left, top, width and height."""
T = TypeVar("T")
_LOG = logging.getLogger(__name__)


def pages_that_fit(width: int, height: int, zoom: float = 1.0) -> int:
    """Return how many pages of `width` x `height` CSS pixels, drawn at `zoom`, this machine can hold; at least 1.

    They share half of the memory that is free now and the cores that this process may use.
    """
    page = PAGE_BYTES + round(width * height * zoom * zoom) * BYTES_PER_PIXEL
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = free_memory()
    by_memory = PAGES_PER_CORE * cores if memory is None else memory // 2 // page
    return max(1, min(by_memory, PAGES_PER_CORE * cores))


async def run_within(work: Coroutine[Any, Any, T], browser: Chromium, step_timeout: float) -> T:
    """Return what `work` with a page gives, within its share of the `step_timeout` seconds.

    Raises PageLost where the page leaves a call without an answer, does not stop where it is told to, or takes too long
    for all of it, and another page of the browser does in time what pages do; EpisodeTimeout where that does not
    either, or the answer has come by then.
    """
    limit = STEP_SHARE * min(step_timeout, LONGEST_STEP)
    try:
        async with asyncio.timeout(limit):
            return await work
    except EpisodeTimeout as error:
        if await browser.hangs(error.late if isinstance(error, Unanswered) else None):
            raise PageLost(f"the page hangs, and others of the browser do not: {error}") from error
        raise
    except TimeoutError as error:
        slow = f"the action and what came of it took the page more than {limit:g} s"
        raise (PageLost if await browser.hangs() else EpisodeTimeout)(slow) from error


class PageOptions(EnvironmentOptions):
    """A page in the browser: what is shown of it, and what can be done."""

    key = "page"

    width: Count | None = None
    """Of the page in CSS pixels; None: that of the environment."""
    height: Count | None = None
    """Of the page in CSS pixels; None: that of the environment."""
    zoom: float = Field(1.0, ge=0.1, le=4)
    """Pixels of the picture per CSS pixel: below 1 the browser draws the page small. Each value has a browser of its
    own."""
    crop: Crop | None = None
    """Part of the page that becomes the picture, as [left, top, width, height] in CSS pixels; None: all."""
    image_size: Count | Size | None = None
    """The picture is resized to this [width, height], or square of this side; None: as it is. Positions are in pixels
    of the picture, whatever its size."""
    image_format: Literal["png", "jpeg"] = "png"
    """How the browser encodes the picture. One that is cropped, resized or marked afterwards is handed on as it then
    is, without loss."""
    quality: Annotated[int, Field(ge=1, le=100)] | None = None
    """Of 'jpeg'; None: 80."""
    actions: Names | None = None
    """Names of the actions that are offered; None: those of the environment."""
    coordinates: Coordinates = "pixels"
    """'pixels', or 'grid_999': 0 to 999 along each side."""
    action_format: ActionFormat = "json"
    """Parser of the replies: 'json', 'pyautogui' (calls in Python, as in OSWorld) or 'computer' (calls of the
    computer-use tool)."""
    say_target: bool = False
    """The prompt asks for the word `target` before the coordinates of a click, and demonstrators give one where they
    know a word."""
    marks: bool = False
    """Numbers are drawn on what can be clicked, and `click` takes a mark in place of x and y."""
    tree: Index = 0
    """Characters of the accessibility tree that follow the text of every observation; 0: none."""
    max_turns: Count | None = None
    """Actions after which an episode is cut ('truncated'); None: that of the environment."""
    ocr: Index = 0
    """Characters of the words on the picture, each with its place, that follow the text of every observation, as
    rapidocr reads them (extra `ocr`; half a second a picture and more); 0: none."""
    picture: bool = True
    """Show the page; false: the words alone, for models that read (with `tree` and `marks`, or `ocr`)."""
    settle: NonNegative = 0.0
    """Seconds to wait after an action, for pages that move."""

    @model_validator(mode="after")
    def _something_is_shown(self) -> Self:
        if not self.picture and not self.tree and not self.ocr:
            raise ConfigError(f"{self.key}: picture=false shows nothing; set tree, or ocr, to e.g. 500")
        if self.quality is not None and self.image_format == "png":
            raise ConfigError(
                f"{self.key}: PNG has no quality, got {self.quality}; set image_format to 'jpeg', or leave quality "
                "out (null)"
            )
        return self

    @property
    def crop_box(self) -> Crop | None:
        """`crop` in CSS pixels."""
        return self.crop

    def viewport(self, page_size: tuple[int, int]) -> Viewport:
        """Return the page and what is shown of it; `page_size`: width and height where the options say nothing.

        Raises ConfigError for a crop that reaches outside.
        """
        side = self.image_size
        size = (side, side) if isinstance(side, int) else side
        return Viewport.of(self.width or page_size[0], self.height or page_size[1], self.zoom, self.crop_box, size)

    def space(self, picture_size: tuple[int, int], actions: tuple[str, ...]) -> ActionSpace:
        """Return the actions that are offered; `actions`: where the options say nothing.

        Raises ConfigError for options of clicks and positions where no action has any.
        """
        offered = actions if self.actions is None else self.actions
        if not offered:
            raise ConfigError(f"{self.key}: actions is an empty list; expected names such as 'click'")
        space = ActionSpace(
            *picture_size,
            offered,
            self.coordinates,
            self.marks,
            self.say_target,
            modifiers=True,
            format=self.action_format,
        )
        none = f"and the actions {', '.join(space.names)} have none; leave it out"
        if self.say_target and not any(name in CLICKS for name in space.names):
            raise ConfigError(f"say_target is about clicks, {none}")
        if self.coordinates != "pixels" and not any({"x", "y"} & set(ACTIONS[name].arguments) for name in space.names):
            raise ConfigError(f"coordinates={self.coordinates!r} is about positions, {none}")
        return space


@dataclass(frozen=True, slots=True)
class Judgement:
    """How an episode stands after an action."""

    reward: float = 0.0
    """For the last action."""
    ended: bool = False
    success: bool = False
    info: Mapping[str, Any] = field(default_factory=dict)


class PageEnvironment(ConfigurableEnvironment):
    """One page in a real browser: a picture in, an action of the vocabulary out.

    A subclass writes `begin` and `judge`. A reply that cannot be read, an unknown action and a position outside of the
    picture are the model's mistakes: the next observation says so and the turn is spent. A page that crashes, closes
    itself or hangs after an action ends the episode as lost (`lost`), since an action can bring that about. A hang is
    told from a busy machine by another page of the same browser, which answers in time; where that does not, it is an
    `EpisodeTimeout`. So is a page that hangs before the first action, and one that is killed or loses its browser is an
    `EnvironmentFailure`; the next `reset` has a page again.

    Spending the last turn is an end of the task (terminated), not a cut: a critic that bootstraps from cut episodes
    would pay for clicking nothing until the turns are over. So are `answer` and `terminate`, where they are offered.
    """

    action_format = "json"
    page_size: tuple[int, int] = (640, 480)
    """Width and height of the page in CSS pixels, where the options say nothing."""
    actions: tuple[str, ...] = ("click", "type", "keys", "scroll")
    """What is offered, where the options say nothing."""
    max_turns: int | None = 20
    origins: tuple[str, ...] = ()
    """Addresses (scheme://host:port) that the page may reach over the network, and `goto` may lead to."""
    keeps_page: ClassVar[bool] = True
    """One page serves several episodes. False: every episode has a context of its own, without cookies and storage of
    an earlier one."""
    uploads: Mapping[str, str | bytes] = MappingProxyType({})
    """Files by name that a policy may choose where the page asks for one (`upload`)."""
    keeps_downloads: ClassVar[bool] = False
    """Downloads are kept for the episode, see `downloads`. False: they are refused, and the policy is told."""
    options_class = PageOptions
    options: PageOptions

    _page: Page | None = None
    _reach: frozenset[str] = frozenset()  # of that page
    _turns = 0
    _goal = ""
    _named: Sequence[Thing] = ()
    _seen = Observation()
    _hidden: Literal["", "page", "goal"] = ""

    def __init__(self, config: Any = None, options: OptionsLike = None, **keys: Any) -> None:
        """Create an environment that opens its page at the first reset. Options: see `PageOptions`.

        Raises ConfigError for an option that does not fit, and where there is no browser.
        """
        super().__init__(config, options, **keys)
        find_executable()
        if self.options.ocr:
            reader()
        self._viewport = self.options.viewport(self.page_size)
        self.picture_size = self._viewport.size
        """Width and height of the picture the agent sees."""
        self.space = self.options.space(self.picture_size, tuple(self.actions))
        """The actions that are offered, and how they are written."""
        self.action_format = self.options.action_format  # type: ignore[misc]
        self.max_turns = self.options.max_turns or self.max_turns

    @property
    def max_parallel(self) -> int:  # type: ignore[override]
        """The pages for which this machine has memory and cores."""
        return pages_that_fit(*self._viewport.page, self._viewport.zoom)

    def plan(self, task: Task | None, seed: int) -> None:
        """Prepare the instance of an episode, before it has a page: what the page may reach can depend on it."""

    @abstractmethod
    async def begin(self, page: Page, task: Task | None, seed: int) -> str:
        """Bring the page to the first state of an episode, the same for the same `seed`; return the goal in words."""

    @abstractmethod
    async def judge(self, page: Page, action: UIAction | None) -> Judgement:
        """Judge how the episode stands after an action; `action` None: at its beginning (the result is not used)."""

    def lost(self, reason: str) -> Judgement:
        """Return the judgement where the page crashed, closed itself or cannot be read after an action. Default: what a
        mistake is worth."""
        return Judgement(self.mistake_reward, ended=True)

    async def furnish(self, page: Page) -> None:
        """Prepare a new page, before its first episode: what it serves, scripts that run in every document."""

    def reachable(self) -> frozenset[str]:
        """Return the origins that the page may ask over the network. Different sets have different browsers.

        Raises ConfigError for what is no origin: no page could ever reach it.
        """
        for origin in self.origins:
            if origin_of(origin) != origin:
                raise ConfigError(f"origins are written as in 'http://example.com:8000', got {origin!r}")
        return frozenset(self.origins)

    def destinations(self) -> frozenset[str]:
        """Return the origins that `goto` may lead to."""
        return self.reachable()

    async def reset(self, task: Task | None = None, seed: int | None = None) -> Observation:
        """Return the goal and the picture of a new episode.

        `seed`: the same seed gives the same page; None: the task's own, else a new one.
        """
        if seed is None:
            seed = task.seed if task is not None and task.seed is not None else random.SystemRandom().getrandbits(31)
        self._done, self._turns = False, 0
        self.plan(task, seed)
        page = await self._usable_page()
        await page.begin(self.uploads, self.keeps_downloads)
        self._goal = await self.begin(page, task, seed)
        await page.move(0, 0)  # where the last episode left the pointer must not show
        page.take_notices()
        judgement = await self.judge(page, None)
        goal = "" if self._hidden == "goal" else self._goal
        first = await self._look(page, [goal], {"seed": seed, "success": False, **judgement.info})
        page.asks_policy = not {"dialog", "keys"}.isdisjoint(self.space.names)
        return first

    @property
    def downloads(self) -> Mapping[str, Path]:
        """Name -> file of the downloads of this episode, where they are kept; gone with the next reset."""
        return {} if self._page is None else dict(self._page.files.downloads)

    async def step(self, action: Action) -> StepResult:
        """Carry out the action and return the new picture; no picture where the task is over.

        `max_turns` cuts the episode: the state is no end then, and is shown.
        """
        page = self._page
        if self._done or page is None:
            raise RuntimeError("step after the end of an episode; call reset first")
        self._turns += 1
        if self._turns == 1:
            await page.answers()  # one that hangs before any action does not by the policy's doing
        try:
            result = await run_within(self._step(page, action), self._browser(), self._step_limit)
        except PageLost as error:
            _LOG.warning("%s: an action lost the page: %s", type(self).__name__, error)
            lost = self.lost(str(error))
            info = {"success": False, **lost.info, "lost": str(error)}
            result = StepResult(Observation(f"the page is gone: {error}", (), info), lost.reward, terminated=True)
        if not result.terminated and self._last_turn:
            seen = result.observation
            seen = replace(seen, info={**seen.info, "out_of_turns": True})
            result = replace(result, observation=seen, truncated=True)
        self._done = result.done
        return result

    @property
    def _last_turn(self) -> bool:
        return self._turns >= (self.max_turns or math.inf)

    async def _step(self, page: Page, action: Action) -> StepResult:
        ui_action = self.space.read(action)
        if isinstance(ui_action, str):
            return self._tell(ui_action)
        page.acted()
        try:
            problem = await perform(page, ui_action, self._viewport, marks=self._named, origins=self.destinations())
            if problem is not None:
                return self._tell(problem)
            if self.options.settle:
                await asyncio.sleep(self.options.settle)
            return await self._outcome(page, ui_action)
        except TabClosed:
            return await self._outcome(page, ui_action)
        except Blocked:
            if isinstance(ui_action, (Answer, Terminate)) or self._last_turn:
                page.asks_policy = False  # nobody is there to answer
                await page.shown.answer(agree=False)
                return await self._outcome(page, ui_action)
            return self._tell("", *page.take_notices())

    async def _outcome(self, page: Page, ui_action: UIAction) -> StepResult:
        """Return the result of an action that was carried out. Raises `Blocked` where a dialog stops the page."""
        await page.settle(drawn=True)
        judgement = await self.judge(page, ui_action)
        ended = judgement.ended or isinstance(ui_action, (Answer, Terminate))
        info = {"success": judgement.success, **judgement.info}
        notices = [*page.take_notices(), page.tabs_in_words()]
        if ended:
            return StepResult(Observation(_lines(*notices), (), info), judgement.reward, terminated=True)
        try:
            seen = await self._look(page, notices, info)
        except TabClosed:  # another one is shown
            await page.settle()
            seen = await self._look(page, [*notices, *page.take_notices()], info)
        return StepResult(seen, judgement.reward)

    @property
    def tabs(self) -> tuple[list[tuple[str, str]], int]:
        """Address and title of each open tab, and which is shown, from 0."""
        if self._page is None:
            return [("", "")], 0
        return [(tab.page.url, tab.title) for tab in self._page.tabs], self._page.tabs.index(self._page.shown)

    @property
    def accessibility(self) -> str:
        """What can be read of the page as it was seen last: the accessibility tree, and words that `ocr` found; empty
        where neither is wanted."""
        return self._seen.text

    def get_state_description(self) -> str:
        return self._goal

    def get_prompt_prefix(self) -> str:
        return f"Do what is asked. {self.space.ask()}"

    def spawn(self) -> Self:
        """Return another environment with the same options and a page of its own in the same browser."""
        other = copy.copy(self)
        other._page, other._named = None, ()
        return copy.deepcopy(other)

    def controls(self) -> dict[str, BaseEnvironment | Action | str]:
        """Return these pages without what shows them, and without the goal in words (the page may show it)."""
        blank, untold = self.spawn(), self.spawn()
        blank._hidden, untold._hidden = "page", "goal"
        return {"blank_image" if self.options.picture else "blank_page": blank, "no_instruction": untold}

    async def close(self) -> None:  # type: ignore[override]
        """Free the page and its browser context; the browser itself stays for the others."""
        page, self._page = self._page, None
        if page is not None:
            await page.close()

    def act_at(self, x: float, y: float, target: str = "") -> Action | None:
        """Return a click on a page position, as a policy writes it: for demonstrators. None: outside of the picture."""
        pixel = self._viewport.in_picture(x, y)
        return None if pixel is None else self.act(Click(*pixel), target)

    def act(self, action: UIAction, target: str = "") -> Action:
        """Return an action as a policy writes it, with its `target` where the options ask for one."""
        return Action(tool_calls=(self.space.write(action, target if self.space.targets else ""),))

    async def _usable_page(self) -> Page:
        """Return this environment's page: reused where it may be, replaced where it broke."""
        reach = self.reachable()
        if self._page is not None and (self._page.broken or not self.keeps_page or self._reach != reach):
            await self.close()
        if self._page is None:
            self._reach = reach
            self._page = await self._browser().new_page(*self._viewport.page, downloads=self.keeps_downloads)
            await self.furnish(self._page)
        return self._page

    def _browser(self) -> Chromium:
        return Chromium.shared(self._reach, self._viewport.zoom)

    async def _look(self, page: Page, words: Sequence[str], info: Mapping[str, Any]) -> Observation:
        """Return the picture and the text of the observation: words, and the accessibility tree where it is wanted."""
        options, text = self.options, ""
        picture: Any = None
        if options.picture or options.ocr:
            picture = await page.screenshot(format=options.image_format, quality=options.quality or 80)
        seen = await self._number(page.shown) if self.space.marks else []
        if picture is not None:
            picture = self._as_shown(picture, seen)
        if options.tree and self._hidden != "page":
            text = await self._read_tree(page.shown)
        if options.ocr:
            text = _lines(text, await asyncio.to_thread(words_read, screenshot(picture).open(), options.ocr))
        pictures = (picture,) if options.picture else ()
        self._seen = Observation(text, pictures, dict(info))
        return Observation(_lines(*words, text), pictures, dict(info))

    def _as_shown(self, captured: bytes, seen: Sequence[Thing]) -> Any:
        """Return the picture of what was captured, with numbers on what can be clicked where these are wanted."""
        if self._hidden == "page":
            from PIL import Image

            return Image.new("RGB", self.picture_size, "white")
        if self._viewport.is_capture and not self.space.marks:
            return captured
        boxes = [self._viewport.box(*thing.mark) for thing in seen if thing.mark]
        picture = self._viewport.shown(screenshot(captured).open())
        return draw_marks(picture, boxes) if self.space.marks else picture

    async def _number(self, tab: Tab) -> list[Thing]:
        """Return what can be clicked and seen, and keep its order; further numbers are for the tree."""
        things = await find_things(tab)
        seen = [thing for thing in things if thing.place and self._viewport.in_picture(*thing.place)][:MOST_MARKS]
        marked = {id(thing) for thing in seen}
        self._named = [*seen, *(thing for thing in things if id(thing) not in marked)]
        return seen

    async def _read_tree(self, tab: Tab) -> str:
        """Return the tree as text. With marks it has their numbers, and more for what the picture does not show."""
        nodes = await read_tree(tab)
        if not self.space.marks:
            return tree_text(nodes, self.options.tree)
        named = list(self._named)
        numbers = await number_things(tab, nodes, named, MOST_NAMED)
        listed = set(numbers.values())
        more = [(number, thing.words) for number, thing in enumerate(self._named, start=1) if number not in listed]
        self._named = named
        return tree_text(nodes, self.options.tree, numbers, more)

    def _tell(self, problem: str, *notices: str) -> StepResult:
        """Return the same state with a message on what was wrong, and on the dialog that is open."""
        question = self._page.shown.question("dialog" in self.space.names) if self._page is not None else ""
        info = {"success": False, **({"mistake": problem} if problem else {})}
        told = Observation(_lines(*notices, problem, question, self._seen.text), self._seen.images, info)
        return StepResult(told, self.mistake_reward)


def _lines(*parts: str) -> str:
    return "\n".join(part for part in parts if part)
