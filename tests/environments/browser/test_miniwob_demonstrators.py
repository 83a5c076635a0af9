"""MiniWoB++ demonstrators: right in every size, careless where they are told to be."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from tests.environments.browser.miniwob_pages import click, solve
from uirl.environments.browser.miniwob import DEMONSTRATED, MiniWobEnvironment
from uirl.images import screenshot


@pytest.mark.slow
async def test_the_expert_solves_every_page_it_knows_also_in_small_pictures() -> None:
    async def score(page: str, options: dict[str, Any]) -> list[float]:
        env = MiniWobEnvironment(task=page, **options)
        rewards = [(await solve(env, seed)).reward for seed in range(4)]
        await env.close()
        return rewards

    whole = await asyncio.gather(*(score(page, {}) for page in DEMONSTRATED))
    # Exactly 1: the page's own figure decays with the clock, this one does not.
    assert dict(zip(DEMONSTRATED, whole, strict=True)) == {page: [1.0] * 4 for page in DEMONSTRATED}
    pages = ("click-test", "click-color", "focus-text")
    small = await asyncio.gather(*(score(page, {"crop": "area", "image_size": 56}) for page in pages))
    assert small == [[1.0] * 4] * 3


@pytest.mark.slow
async def test_it_finds_a_shape_by_whatever_words_the_instruction_has() -> None:
    env = MiniWobEnvironment(task="click-shape")
    kinds = {"item", "shape", "letter", "digit", "circle", "rectangle", "triangle"}
    asked: Counter[str] = Counter()
    for seed in range(32):
        *_, last = (await env.reset(seed=seed)).text.split(" ")
        asked[last if last in kinds else "itself"] += 1
        action = env.expert_action()
        assert (await env.step(action)).reward == 1.0
    assert {"item", "shape", "letter", "digit", "itself"} <= set(asked)
    await env.close()


async def test_a_careless_demonstrator_clicks_any_of_the_things() -> None:
    env = MiniWobEnvironment(task="click-color", demonstrator="careless", carelessness=1.0)
    places: Counter[tuple[int, int]] = Counter()
    for seed in range(12):
        await env.reset(seed=seed)
        for _ in range(10):
            action = env.expert_action()
            places[(action.call.arguments["x"], action.call.arguments["y"])] += 1
    # 120 clicks on 4 boxes: 30 each, standard deviation 4.7
    assert len(places) == 4
    assert min(places.values()) >= 12


@pytest.mark.parametrize(
    ("options", "size"),
    [
        ({"coordinates": "grid_999"}, (160, 210)),
        ({"zoom": 0.5}, (80, 105)),
        ({"zoom": 0.35, "crop": "area"}, (56, 56)),
        ({"zoom": 2.0, "coordinates": "grid_999", "crop": "area"}, (320, 320)),
        ({"zoom": 0.5, "image_size": [40, 60], "image_format": "jpeg"}, (40, 60)),
        ({"say_target": True}, (160, 210)),
        ({"actions": ["click", "type"], "coordinates": "grid_999", "say_target": True}, (160, 210)),
    ],
)
async def test_the_demonstrator_is_right_in_every_size_and_coordinates(options: dict[str, Any], size: Any) -> None:
    env = MiniWobEnvironment(task=["click-color", "click-test-2"], **options)
    for seed in range(4):
        first = await env.reset(seed=seed)
        assert screenshot(first.images[0]).open().size == size == env.picture_size
        action = env.expert_action()
        assert (await env.step(action)).reward == 1.0


async def test_a_small_page_is_drawn_small_not_shrunk() -> None:
    env = MiniWobEnvironment(zoom=0.5)
    await env.reset(seed=0)
    assert await env._page.evaluate("[innerWidth, innerHeight, devicePixelRatio]") == [160, 210, 0.5]
    await env._page.evaluate("addEventListener('mousedown', e => window.at = [e.clientX, e.clientY])")
    await env.step(click(10, 4))
    assert await env._page.evaluate("at") == [21, 9]  # (10 + 0.5) / 0.5, (4 + 0.5) / 0.5


@pytest.mark.parametrize(
    ("page", "seed", "target"),
    [
        ("click-color", 0, "white"),
        ("click-test-2", 0, "ONE"),
        ("click-widget", 0, None),
        ("grid-coordinate", 0, None),
        ("click-tab", 0, None),
        ("click-dialog-2", 3, "x"),
        ("click-test", 0, ""),
    ],
)
async def test_the_demonstrator_says_the_word_of_the_instruction_first(
    page: str, seed: int, target: str | None
) -> None:
    env = MiniWobEnvironment(task=page, say_target=True)
    first = await env.reset(seed=seed)
    action = env.expert_action()
    if target == "":  # the page has no word for it
        assert list(action.call.arguments) == ["x", "y"]
        return
    assert list(action.call.arguments) == ["target", "x", "y"]
    said = action.call.arguments["target"]
    assert said == (target or said)
    assert said in first.text
    assert '"target":WORD' in env.get_prompt_prefix()
    assert (await env.step(action)).reward == 1.0


async def test_a_careless_demonstrator_says_what_it_clicks() -> None:
    env = MiniWobEnvironment(task="click-color", say_target=True, demonstrator="careless", carelessness=1.0)
    said = set()
    for seed in range(6):
        first = await env.reset(seed=seed)
        action = env.expert_action()
        right = action.call.arguments["target"] in first.text
        said.add(right)
        assert ((await env.step(action)).reward > 0) == right, "the word is that of the place"
    assert said == {True, False}
