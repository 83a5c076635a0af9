"""What tests of the MiniWoB++ pages share."""

from __future__ import annotations

from typing import Any

from uirl.environments.browser.miniwob import MiniWobEnvironment
from uirl.environments.browser.process import Chromium
from uirl.images import screenshot
from uirl.types import Action, Observation, StepResult


def click(x: Any, y: Any) -> Action:
    return Action.of("click", x=x, y=y)


def picture(observation: Observation) -> str:
    """The hash of the one picture of an observation."""
    (image,) = observation.images
    return screenshot(image).hash


async def solve(env: MiniWobEnvironment, seed: int) -> StepResult:
    """What the demonstrator's one click on the instance of `seed` gives."""
    await env.reset(seed=seed)
    action = env.expert_action()
    return await env.step(action)


async def contexts(browser: Chromium) -> int:
    """How many contexts the browser has: one for each page that is open."""
    return len((await browser._session.send("Target.getBrowserContexts"))["browserContextIds"])
