"""MiniWoB++ pages that pay for a part: what is solved in part is not solved."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from uirl.environments.browser.miniwob import SOLVED_FROM, MiniWobEnvironment, page_folder
from uirl.environments.browser.process import Chromium
from uirl.types import Action

PLAYS = Path(__file__).with_name("graded.js").read_text()
PAGES = tuple(dict.fromkeys(re.findall(r"'([a-z0-9-]+)': (?:\{lazy|checkboxes|wheel)", PLAYS)))
PAYS_OR_COSTS_ONE = {"click-shape", "count-shape", "generate-number", "identify-shape"}
"""Pages that pay 1 or -1, which `_grades` does not see: by a parameter or a function, or another `r` is there too."""
SEEDS = (2, 3)
"""Instances of which something is asked: 'Select nothing' is solved by Submit alone."""


def _grades(page: str) -> bool:
    """Whether a page may end with another reward than -1, 0 or 1, as its own JavaScript says."""
    text = (page_folder() / f"{page}.html").read_text()
    for paid in re.findall(r"endEpisode\(\s*((?:[^(),]|\([^()]*\))+)", text):
        values = re.findall(rf"\b{paid}\s*[-+]?=(?!=)\s*([^;]+)", text) if paid.isidentifier() else [paid]
        for value in values or [paid]:
            if not re.search(r"(^|\?\s*1(\.0)?\s*:\s*)-?[01](\.0)?\s*($|\n)", value.strip()):
                return True
    return False


def test_every_page_that_grades_is_played_here() -> None:
    names = {path.stem for path in page_folder().glob("*.html")}
    assert {name for name in names if _grades(name)} - PAYS_OR_COSTS_ONE == set(PAGES)
    assert set(SOLVED_FROM) <= set(PAGES)


async def _play(page: str, policy: str, seed: int, **options: Any) -> tuple[float, float, bool]:
    """Return reward, the page's own reward, and the verdict."""
    env = MiniWobEnvironment(task=page, actions=("click", "wait"), max_turns=10_000, **options)
    await env.reset(seed=seed)
    await env._page.evaluate(f"void ({PLAYS})[{page!r}][{policy!r}]()")
    for _ in range(1000):
        result = await env.step(Action.of("wait", seconds=0.2))
        if result.done:
            break
    await env.close()
    assert result.done, f"{page} went on after the policy {policy!r}"
    return result.reward, result.observation.info["raw_reward"], result.observation.info["success"]


@pytest.mark.parametrize(
    "policy", ["wrong", *(pytest.param(policy, marks=pytest.mark.slow) for policy in ("lazy", "right"))]
)
async def test_a_page_is_solved_by_what_is_asked_and_not_by_a_part_of_it(policy: str) -> None:
    pages = [page for page in PAGES if policy == "lazy" or page != "tic-tac-toe"]
    ways = [(page, seed) for page in pages for seed in SEEDS]
    Chromium.shared().timeout = 100.0  # the pages have time, however busy the machine is
    few = asyncio.Semaphore(12)

    async def play(page: str, seed: int) -> tuple[float, float, bool]:
        async with few:
            return await _play(page, policy, seed)

    played = await asyncio.gather(*(play(*way) for way in ways))
    for way, (reward, raw, success) in zip(ways, played, strict=True):
        assert success == (raw == 1 if way[0] == "tic-tac-toe" else policy == "right"), (way, raw)  # luck may win it
        assert reward == raw
        if policy == "wrong" and way[0] != "buy-ticket":
            assert 0 < raw < 1, (way, raw)  # what is paid for a part is above 0 and no verdict


@pytest.mark.parametrize("page", ["find-greatest", "click-checkboxes", "chase-circle", "circle-center"])
async def test_the_reward_of_success_is_that_of_the_verdict(page: str) -> None:
    rewards = [(await _play(page, policy, 1, reward="success"))[0] for policy in ("wrong", "right")]
    assert rewards == [0.0, 1.0]
