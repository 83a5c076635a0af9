"""MiniWoB++ in a real browser: the instruction and a screenshot in, a click out."""

from __future__ import annotations

import asyncio
import copy
import io
import json
import math
import random
from collections.abc import Sequence
from typing import Any, Literal

from uirl.environments.base import BaseEnvironment
from uirl.environments.browser.chromium import Chromium, find_executable
from uirl.environments.browser.miniwob_pages import AREA, PREPARE, RELOADED, START, STATE, TARGETS, page_url
from uirl.environments.browser.page import Page
from uirl.errors import ConfigError
from uirl.types import Action, Observation, StepResult, Task

Box = tuple[int, int, int, int]


class MiniWobEnvironment(BaseEnvironment):
    """Pages of MiniWoB++, one or several; the seed makes the instance of a page.

    The reward is the page's own without its decay over time: in [-1, 1], above 0 is success. It comes with the click
    that ends the episode; every other turn gives 0, so to a policy that is mostly wrong, a miss is worth more than a
    try (`reward="success"` mends that). A reply that cannot be read, an unknown action and a click
    outside the picture are the model's mistakes: the next observation says so and the turn is spent.

    Spending the last turn is an end of the task (terminated), not a cut: a critic that bootstraps from cut episodes
    would pay for clicking nothing until the turns are over.
    """

    action_format = "json"

    def __init__(
        self,
        config: Any = None,
        *,
        task: str | Sequence[str] = "click-test",
        width: int = 160,
        height: int = 210,
        crop: Literal["area"] | Sequence[int] | None = None,
        image_size: int | Sequence[int] | None = None,
        max_turns: int = 5,
        settle: float = 0.0,
        reward: Literal["page", "success"] = "page",
        demonstrator: Literal["expert", "careless"] = "expert",
        carelessness: float = 0.5,
    ) -> None:
        """An environment that opens its page at the first reset.

        Args:
            config: the environment section of the run's configuration; not read.
            task: page name, or several: an episode without a given task then draws one by its seed.
            width, height: of the page in pixels; the pages are made for 160 x 210.
            crop: part of the page that becomes the picture, as (left, top, width, height) in page pixels; 'area': the
                160 x 160 below the instruction, which the text says anyway; None: all of it.
            image_size: the picture is resized to this (width, height), or square of this side; None: as it is. Clicks
                are in pixels of the picture, whatever its size.
            max_turns: clicks per episode.
            settle: seconds to wait after a click, for pages that move.
            reward: 'page': what the page gives, in [-1, 1]; 'success': 1 for a success, else 0.
            demonstrator: what `expert_action` plays: 'expert' clicks the right thing; 'careless' does so too, but with
                probability `carelessness` it clicks any of the things the page offers (or anywhere, where there is
                only one).

        Raises:
            ConfigError: an option does not fit, there is no such page, no browser, or no package `miniwob`.
        """
        super().__init__(config)
        self._names = (task,) if isinstance(task, str) else tuple(task)
        if not self._names:
            raise ConfigError("miniwob: task is an empty list; expected a page name such as 'click-test'")
        for name in self._names:
            page_url(name)
        find_executable()
        for option, value, known in (
            ("reward", reward, ("page", "success")),
            ("demonstrator", demonstrator, ("expert", "careless")),
        ):
            if value not in known:
                raise ConfigError(f"miniwob: {option} must be {known[0]!r} or {known[1]!r}, got {value!r}")
        self.max_turns = max_turns
        self._page_size = (width, height)
        self._crop = _crop_box(crop, width, height)
        self.picture_size = _picture_size(image_size, self._crop)
        """Width and height of the picture the agent sees, and of the coordinates it answers in."""
        self._settle = settle
        self._reward_kind = reward
        self._carelessness = carelessness if demonstrator == "careless" else 0.0
        self.demonstrator_may_fail = self._carelessness > 0
        self._page: Page | None = None
        self._shown: str | None = None  # name of the page that is loaded
        self._goal = ""
        self._turns = 0
        self._picture: Any = None
        self._spots: list[tuple[float, float]] = []  # page pixels: the target, then the others
        self._random = random.Random(0)

    async def reset(self, task: Task | None = None, seed: int | None = None) -> Observation:
        """The instruction and the picture of a new episode.

        `task`: one of `tasks()`; None: by the seed. `seed`: the same seed gives the same page, pixel by pixel (but for
        the few pages that animate); None: the task's own, else a new one.
        """
        if seed is None:
            seed = task.seed if task is not None and task.seed is not None else random.SystemRandom().getrandbits(31)
        self._random = random.Random(seed)
        name = self._name_of(task)
        page = await self._open(name)
        self._done = False
        self._turns = 0
        self._goal = _utterance(await page.evaluate(START % seed))
        await page.move(0, 0)  # where the last episode left the pointer must not show
        await self._read_state(page)
        self._picture = await self._look(page)
        return Observation(self._goal, (self._picture,), {"page": name, "seed": seed, "success": False})

    async def step(self, action: Action) -> StepResult:
        """Clicks, and gives the new picture; no picture where the episode ended."""
        if self._done or self._page is None:
            raise RuntimeError("step after the end of an episode; call reset first")
        self._turns += 1
        self._done = self._turns >= (self.max_turns or math.inf)
        mistake = self._mistake(action)
        if mistake is not None:
            images = () if self._done else (self._picture,)
            return StepResult(Observation(mistake, images, {"success": False}), terminated=self._done)
        call = action.call
        assert call is not None
        await self._page.click(*self._on_page(float(call.arguments["x"]), float(call.arguments["y"])))
        if self._settle:
            await asyncio.sleep(self._settle)
        state = await self._read_state(self._page)
        raw = float(state["reward"]) if state["ended"] else 0.0
        info = {"success": raw > 0, "raw_reward": raw, "reason": state["reason"]}
        self._done = self._done or bool(state["ended"])
        if not self._done:
            self._picture = await self._look(self._page)
            return StepResult(Observation(images=(self._picture,), info=info))
        reward = float(raw > 0) if self._reward_kind == "success" else raw
        return StepResult(Observation(info=info), reward, terminated=True)

    def get_state_description(self) -> str:
        return self._goal

    def get_prompt_prefix(self) -> str:
        width, height = self.picture_size
        return f'Do what is asked. Reply {{"action":"click","x":X,"y":Y}} in pixels of the {width}x{height} picture.'

    def tasks(self) -> list[Task]:
        """One task per page, named 'miniwob/<page>'."""
        return [Task(id=f"miniwob/{name}", environment="miniwob", tags=("browser",)) for name in self._names]

    def expert_action(self) -> Action | None:
        """The demonstrator's click; None where this page has no demonstrator or nothing is left to click."""
        if not self._spots:
            return None
        if self._random.random() < self._carelessness:
            if len(self._spots) == 1:
                width, height = self.picture_size
                return Action.of("click", x=self._random.randrange(width), y=self._random.randrange(height))
            return self._click_on(self._random.choice(self._spots))
        return self._click_on(self._spots[0])

    def spawn(self) -> MiniWobEnvironment:
        """Another environment with the same options and a page of its own in the same browser."""
        twin = copy.copy(self)
        twin._page = twin._shown = None
        twin._spots = []
        return twin

    async def close(self) -> None:  # type: ignore[override]
        """Frees the page and its browser context; the browser itself stays for the others."""
        page, self._page, self._shown = self._page, None, None
        self._spots = []
        if page is not None:
            await page.close()

    def _name_of(self, task: Task | None) -> str:
        if task is None:
            return self._random.choice(self._names)
        name = task.id.removeprefix("miniwob/")
        return name if len(self._names) > 1 or name in self._names else self._names[0]

    async def _open(self, name: str) -> Page:
        """This environment's page, showing `name`: reused where it can be, replaced where it broke."""
        if self._page is not None and self._page.broken:
            await self.close()
        if self._page is None:
            self._page = await Chromium.shared().new_page(*self._page_size)
        if self._shown != name or name in RELOADED:
            self._shown = None
            await self._page.goto(page_url(name))
            await self._page.evaluate(PREPARE)
            self._shown = name
        return self._page

    async def _read_state(self, page: Page) -> dict[str, Any]:
        targets = TARGETS.get(self._shown or "", "[]")
        state: dict[str, Any] = await page.evaluate(STATE % (json.dumps(self._goal), targets))
        self._spots = [(x, y) for x, y in state["spots"]]
        return state

    async def _look(self, page: Page) -> Any:
        """The picture: PNG bytes of the page as it is, or a PIL image where it is cropped or resized."""
        png = await page.screenshot()
        if self._crop == (0, 0, *self._page_size) and self.picture_size == self._page_size:
            return png
        from PIL import Image

        left, top, width, height = self._crop
        whole = Image.open(io.BytesIO(png)).convert("RGB")
        part = whole.crop((left, top, left + width, top + height))
        return part.resize(self.picture_size, Image.Resampling.BOX)

    def _mistake(self, action: Action) -> str | None:
        """What is wrong with an action, in words for the model; None: it can be played."""
        if action.parse_error is not None:
            return action.parse_error
        call = action.call
        if call is None:
            return 'no action; expected {"action":"click","x":X,"y":Y}'
        if call.name != "click":
            return f"unknown action {call.name!r:.40}; expected 'click'"
        for axis, size in zip("xy", self.picture_size, strict=True):
            value = call.arguments.get(axis)
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                return f"click needs numbers x and y; got {axis}={value!r:.40}"
            if not 0 <= value < size:
                return f"{axis}={value} is outside the picture; expected 0 to {size - 1}"
        return None

    def _on_page(self, x: float, y: float) -> tuple[float, float]:
        """Page position of the middle of a picture pixel."""
        left, top, width, height = self._crop
        return left + (x + 0.5) * width / self.picture_size[0], top + (y + 0.5) * height / self.picture_size[1]

    def _click_on(self, spot: tuple[float, float]) -> Action:
        left, top, width, height = self._crop
        x = math.floor((spot[0] - left) * self.picture_size[0] / width)
        y = math.floor((spot[1] - top) * self.picture_size[1] / height)
        return Action.of("click", x=x, y=y)


def _crop_box(crop: Literal["area"] | Sequence[int] | None, width: int, height: int) -> Box:
    if crop is None:
        return 0, 0, width, height
    box = AREA if crop == "area" else tuple(crop)
    if len(box) != 4 or (isinstance(crop, str) and crop != "area"):
        raise ConfigError(f"miniwob: crop must be 'area' or (left, top, width, height), got {crop!r}")
    left, top, w, h = (int(part) for part in box)
    if left < 0 or top < 0 or w < 1 or h < 1 or left + w > width or top + h > height:
        raise ConfigError(f"miniwob: crop {box} reaches outside the page of {width} x {height} pixels")
    return left, top, w, h


def _picture_size(image_size: int | Sequence[int] | None, crop: Box) -> tuple[int, int]:
    if image_size is None:
        return crop[2], crop[3]
    size = (image_size, image_size) if isinstance(image_size, int) else tuple(image_size)
    if len(size) != 2 or min(size) < 1:
        raise ConfigError(f"miniwob: image_size must be one side or (width, height) in pixels, got {image_size!r}")
    return int(size[0]), int(size[1])


def _utterance(said: Any) -> str:
    """The instruction in words; some pages give it with its fields."""
    return str(said["utterance"] if isinstance(said, dict) else said)
