"""MiniWoB++ in a real browser: the instruction and a screenshot in, an action out."""

from __future__ import annotations

import random
from typing import Any

from uirl.environments.browser.environment import Judgement, PageEnvironment
from uirl.environments.browser.miniwob.options import MiniWobOptions
from uirl.environments.browser.miniwob.pages import (
    BEGIN,
    DEMONSTRATED,
    RELOADED,
    SOLVED_FROM,
    STATE,
    guard,
    page_names,
    page_url,
)
from uirl.environments.browser.miniwob.tags import HANDS, LEVELS, NEEDS, page_tags
from uirl.environments.browser.page.page import Page
from uirl.environments.browser.page.problems import Moved, Refused
from uirl.environments.options import OptionsLike
from uirl.environments.ui.vocabulary import Click, UIAction
from uirl.errors import ConfigError, did_you_mean
from uirl.types import Action, Observation, Task

Spot = tuple[float, float, str]
"""A position on the page, and the word for what is there."""


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

    def __init__(self, config: Any = None, options: OptionsLike = None, **keys: Any) -> None:
        """Create an environment that opens its page at the first reset. Options: see `MiniWobOptions`.

        Raises ConfigError where an option does not fit, or there is no such page, no browser, or no package `miniwob`.
        """
        super().__init__(config, options, **keys)
        self._names = _chosen_pages(self.options.task, self.options.tags)
        self._carelessness = self.options.error_rate
        self.demonstrator_may_fail = self._carelessness > 0
        self._shown: str | None = None  # name of the page that is loaded
        self._guard = ""
        self._spots: list[Spot] = []  # the target, then the others
        self._random = random.Random(0)

    async def reset(self, task: Task | None = None, seed: int | None = None) -> Observation:
        """Return the instruction and the picture of a new episode.

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
            self._guard = await page.tabs.first.hold(guard(name))
            self._shown = name
        return str(await page.tabs.first.ask(self._guard, BEGIN, seed))

    async def judge(self, page: Page, action: UIAction | None) -> Judgement:
        try:
            state = await page.tabs.first.ask(self._guard, STATE)
        except (Moved, Refused):  # its object is gone, so the page has left its document
            self._shown, state = None, {"ended": True, "reward": -1, "reason": "the page was left", "spots": []}
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
        if self.space.names != ("click",) or self.space.marks or self.space.coordinates != "pixels":
            return super().get_prompt_prefix()
        width, height = self.picture_size
        form = (
            '{"action":"click","target":WORD,"x":X,"y":Y}' if self.space.targets else '{"action":"click","x":X,"y":Y}'
        )
        return f"Do what is asked. Reply {form} in pixels of the {width}x{height} picture."

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


def _chosen_pages(task: str | tuple[str, ...], tags: tuple[str, ...]) -> tuple[str, ...]:
    all_tags = (*HANDS, *NEEDS, *LEVELS)
    for tag in tags:
        if tag not in all_tags:
            raise ConfigError(f"miniwob: no page has the tag {tag!r}; {did_you_mean(tag, all_tags)}")
    names = page_names() if task == "all" else (task,) if isinstance(task, str) else task
    if not names:
        raise ConfigError("miniwob: task is an empty list; expected a page name such as 'click-test'")
    for name in names:
        page_url(name)
    chosen = tuple(name for name in names if set(tags) <= set(page_tags()[name]))
    if not chosen:
        raise ConfigError(f"miniwob: none of the {len(names)} pages has all the tags {', '.join(tags)}")
    return chosen
