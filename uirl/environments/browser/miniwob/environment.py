"""MiniWoB++ in a real browser: the instruction and a screenshot in, an action out."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Literal

from uirl.environments.browser.chromium.cdp import Refused
from uirl.environments.browser.environment import Judgement, PageEnvironment
from uirl.environments.browser.miniwob.pages import AREA, BEGIN, RELOADED, STATE, guard, page_names, page_url
from uirl.environments.browser.miniwob.tags import HANDS, LEVELS, NEEDS, page_tags
from uirl.environments.browser.options import ImageFormat
from uirl.environments.browser.page.page import Page
from uirl.environments.demonstrators import error_rate
from uirl.environments.ui.actions import Click, Coordinates, UIAction
from uirl.errors import ConfigError, did_you_mean
from uirl.types import Action, Observation, Task

Spot = tuple[float, float, str]
"""A position on the page, and the word for what is there."""


class MiniWobEnvironment(PageEnvironment):
    """Pages of MiniWoB++, one or several; the seed makes the instance of a page.

    The reward is the page's own without its decay over time: in [-1, 1], above 0 is success. It comes with the action
    that ends the episode; every other turn gives 0, so to a policy that is mostly wrong, a miss is worth more than a
    try (`reward="success"` mends that). A reply that cannot be read, an unknown action and a click outside the picture
    are the model's mistakes: the next observation says so and the turn is spent.
    """

    page_size = (160, 210)
    actions = ("click",)
    max_turns = 5

    def __init__(
        self,
        config: Any = None,
        *,
        task: str | Sequence[str] = "click-test",
        tags: Sequence[str] = (),
        width: int | None = None,
        height: int | None = None,
        zoom: float = 1.0,
        crop: Literal["area"] | Sequence[int] | None = None,
        image_size: int | Sequence[int] | None = None,
        image_format: ImageFormat = "png",
        quality: int | None = None,
        actions: Sequence[str] | None = None,
        coordinates: Coordinates = "pixels",
        say_target: bool = False,
        marks: bool = False,
        tree: int = 0,
        max_turns: int | None = None,
        settle: float = 0.0,
        reward: Literal["page", "success"] = "page",
        demonstrator: Literal["expert", "careless"] = "expert",
        carelessness: float | None = None,
    ) -> None:
        """An environment that opens its page at the first reset.

        What is not listed is described at `PageEnvironment`; without options only `click` is offered.

        Args:
            task: page name, or several, or 'all': an episode without a given task then draws one by its seed.
            tags: of these pages only those that carry every one of the tags, for example ('click', 'easy').
            width, height: of the page in pixels; the pages are made for 160 x 210.
            crop: 'area': the 160 x 160 below the instruction, which the text says anyway.
            reward: 'page': what the page gives, in [-1, 1]; 'success': 1 for a success, else 0.
            demonstrator: what `expert_action` plays: 'expert' clicks the right thing; 'careless' does so too, but with
                probability `carelessness` (None: 0.5) it clicks any of the things the page offers (or
                anywhere, where there is only one). With `say_target` both say the word of what they click,
                where the page has one.

        Raises:
            ConfigError: an option does not fit, there is no such page, no browser, or no package `miniwob`.
        """
        self._names = _chosen_pages(task, tags)
        if crop == "area":
            crop = AREA
        elif isinstance(crop, str):
            raise ConfigError(f"miniwob: crop must be 'area' or (left, top, width, height), got {crop!r}")
        super().__init__(
            config,
            width=width,
            height=height,
            zoom=zoom,
            crop=crop,
            image_size=image_size,
            image_format=image_format,
            quality=quality,
            actions=actions,
            coordinates=coordinates,
            say_target=say_target,
            marks=marks,
            tree=tree,
            max_turns=max_turns,
            settle=settle,
        )
        _check_choice("reward", reward, ("page", "success"))
        self._reward_kind = reward
        self._carelessness = error_rate("miniwob", demonstrator, carelessness)
        self.demonstrator_may_fail = self._carelessness > 0
        self._shown: str | None = None  # name of the page that is loaded
        self._guard = ""
        self._spots: list[Spot] = []  # the target, then the others
        self._random = random.Random(0)

    async def reset(self, task: Task | None = None, seed: int | None = None) -> Observation:
        """The instruction and the picture of a new episode.

        `task`: one of `tasks()`; None: by the seed. `seed`: the same seed gives the same page, pixel by pixel (but for
        those tagged 'moving'); None: the task's own, else a new one.
        """
        return await super().reset(task, seed)

    async def furnish(self, page: Page) -> None:
        self._shown = None

    async def begin(self, page: Page, task: Task | None, seed: int) -> str:
        self._random = random.Random(seed)
        name = self._name_of(task)
        if self._shown != name or name in RELOADED or self.space.names != ("click",):
            self._shown = None
            await page.goto(page_url(name))
            self._guard = await page.hold(guard(name))
            self._shown = name
        return str(await page.ask(self._guard, BEGIN, seed))

    async def judge(self, page: Page, action: UIAction | None) -> Judgement:
        try:
            state = await page.ask(self._guard, STATE)
        except Refused:  # its object is gone, so the page has left its document
            self._shown, state = None, {"ended": True, "reward": -1, "reason": "the page was left", "spots": []}
        self._spots = [(x, y, word) for x, y, word in state["spots"]]
        if action is None:
            return Judgement(info={"page": self._shown})
        raw = float(state["reward"]) if state["ended"] else 0.0
        reward = float(raw > 0) if self._reward_kind == "success" else raw
        return Judgement(reward, state["ended"], raw > 0, {"raw_reward": raw, "reason": state["reason"]})

    def lost(self, reason: str) -> Judgement:
        """The worst that a page gives."""
        self._shown = None
        return Judgement(0.0 if self._reward_kind == "success" else -1.0, True, info={"raw_reward": -1.0})

    def get_prompt_prefix(self) -> str:
        if self.space.names != ("click",) or self.space.marks or self.space.coordinates != "pixels":
            return super().get_prompt_prefix()
        width, height = self.picture_size
        form = (
            '{"action":"click","target":WORD,"x":X,"y":Y}' if self.space.targets else '{"action":"click","x":X,"y":Y}'
        )
        return f"Do what is asked. Reply {form} in pixels of the {width}x{height} picture."

    def tasks(self) -> list[Task]:
        """One task per page, named 'miniwob/<page>', with its tags."""
        return [Task(id=f"miniwob/{n}", environment="miniwob", tags=("browser", *page_tags()[n])) for n in self._names]

    def expert_action(self) -> Action | None:
        """The demonstrator's click; None where this page has no demonstrator or nothing is left to click."""
        if not self._spots:
            return None
        if self._random.random() < self._carelessness:
            if len(self._spots) == 1:
                width, height = self.picture_size
                return self.act(Click(self._random.randrange(width), self._random.randrange(height)), self._spots[0][2])
            return self.act_at(*self._random.choice(self._spots))
        return self.act_at(*self._spots[0])

    async def close(self) -> None:  # type: ignore[override]
        self._spots = []
        await super().close()

    def _name_of(self, task: Task | None) -> str:
        name = "" if task is None else task.id.removeprefix("miniwob/")
        if task is not None and (name != task.id or name in page_names()):
            return name
        return self._random.choice(self._names)


def _chosen_pages(task: str | Sequence[str], tags: Sequence[str]) -> tuple[str, ...]:
    if isinstance(tags, str):
        raise ConfigError(f"miniwob: tags is a list, got {tags!r}")
    known = (*HANDS, *NEEDS, *LEVELS)
    for tag in tags:
        if tag not in known:
            raise ConfigError(f"miniwob: no page has the tag {tag!r}; {did_you_mean(str(tag), known)}")
    names = page_names() if task == "all" else (task,) if isinstance(task, str) else tuple(task)
    if not names:
        raise ConfigError("miniwob: task is an empty list; expected a page name such as 'click-test'")
    for name in names:
        page_url(name)
    chosen = tuple(name for name in names if set(tags) <= set(page_tags()[name]))
    if not chosen:
        raise ConfigError(f"miniwob: none of the {len(names)} pages has all the tags {', '.join(tags)}")
    return chosen


def _check_choice(option: str, value: str, known: tuple[str, str]) -> None:
    if value not in known:
        raise ConfigError(f"miniwob: {option} must be {known[0]!r} or {known[1]!r}, got {value!r}")
