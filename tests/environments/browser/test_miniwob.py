"""MiniWoB++ in the real browser: the contract, the seeds, the mistakes, and failures that are never a zero."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from tests.environments.browser.miniwob_pages import click, contexts, picture, solve
from uirl.environments.browser.miniwob import DEMONSTRATED, RELOADED, MiniWobEnvironment, page_names, page_tags
from uirl.environments.browser.page import Page
from uirl.environments.browser.process import Chromium
from uirl.environments.conformance import check_environment
from uirl.environments.registry import create_environment
from uirl.environments.session import EnvironmentSession
from uirl.errors import ConfigError
from uirl.images import screenshot
from uirl.types import Action, Task


@pytest.mark.usefixtures("one_browser")
def test_it_keeps_the_environment_contract() -> None:
    options = {"task": "click-color", "crop": "area", "image_size": 56, "max_turns": 2}
    report = check_environment(create_environment("miniwob", options), episodes=2)
    assert report.seeded
    assert report.expert_success == 1.0


STEADY = ("click-test-2", "click-color", "click-tab-2", "click-checkboxes", "grid-coordinate", "click-dialog-2")


async def test_twenty_four_replays_are_equal_pixel_by_pixel() -> None:
    """4 seeds of 6 pages: fresh pages and pages that were played, with others played at the same time."""

    async def play(env: MiniWobEnvironment, page: str, seed: int) -> list[Any]:
        rng = random.Random(f"{page} {seed}")
        seen: list[Any] = [picture(await env.reset(Task(f"miniwob/{page}"), seed))]
        for _ in range(3):
            result = await env.step(click(rng.randrange(160), rng.randrange(50, 210)))
            seen.append((result.reward, result.done, [screenshot(image).hash for image in result.observation.images]))
            if result.done:
                break
        return seen

    async def play_all(order: list[tuple[str, int]]) -> dict[tuple[str, int], list[Any]]:
        env = MiniWobEnvironment()
        seen = {(page, seed): await play(env, page, seed) for page, seed in order}
        await env.close()
        return seen

    order = [(page, seed) for page in STEADY for seed in range(4)]
    first, second = await asyncio.gather(play_all(order), play_all(order[::-1]))
    assert first == second
    assert len({seen[0] for seen in first.values()}) == 24, "every one is another instance"


async def test_where_the_last_click_was_does_not_show() -> None:
    env = MiniWobEnvironment()
    first = picture(await env.reset(seed=3))
    assert (await solve(env, 3)).terminated
    # A pointer left there is over the button of the same seed, which the browser notices after some frames.
    assert picture(await env.reset(seed=3)) == first
    await asyncio.sleep(0.3)
    assert await env._page.evaluate("document.querySelector('#subbtn').matches(':hover')") is False


async def test_without_a_seed_every_episode_is_another() -> None:
    env = MiniWobEnvironment()
    assert len({picture(await env.reset()) for _ in range(4)}) > 1
    one = await env.reset(task=Task("miniwob/click-test", seed=5))
    assert picture(one) == picture(await env.reset(seed=5))


@pytest.mark.parametrize(
    ("action", "told"),
    [
        (click(160, 5), "x=160 is outside the picture; expected 0 to 159"),
        (click(5, -1), "y=-1 is outside the picture; expected 0 to 209"),
        (click(5, float("nan")), "y=nan is outside the picture"),
        (click(True, 5), "click needs numbers x and y; got x=True"),
        (click("5", 5), "click needs numbers x and y; got x='5'"),
        (Action.of("click", x=5), "click needs numbers x and y; got y=None"),
        (Action.of("type", text="hi"), "unknown action 'type'; expected 'click'"),
        (Action(text="the button!", parse_error="no JSON object in the reply"), "no JSON object in the reply"),
        (Action(text="the button!"), "no action; expected"),
    ],
)
async def test_a_mistake_of_the_model_is_told_and_costs_a_turn(action: Action, told: str) -> None:
    env = MiniWobEnvironment(max_turns=2)
    first = await env.reset(seed=1)
    result = await env.step(action)
    assert result.observation.text.startswith(told)
    assert (result.reward, result.done, result.observation.info["success"]) == (0.0, False, False)
    assert picture(result.observation) == picture(first)
    last = await env.step(action)
    assert (last.terminated, last.truncated) == (False, True)


async def test_clicks_are_in_pixels_of_the_picture() -> None:
    env = MiniWobEnvironment(crop="area", image_size=[56, 28])
    first = await env.reset(seed=1)
    assert first.images[0].size == (56, 28)
    page = env._page
    await page.evaluate("addEventListener('mousedown', e => window.at = [e.clientX, e.clientY])")
    await env.step(click(10, 4))
    # x: (10 + 0.5) * 160 / 56 = 30; y: 50 + (4 + 0.5) * 160 / 28 = 75.71, which the page rounds down
    assert await page.evaluate("at") == [30, 75]


async def test_eight_sessions_at_once() -> None:
    base = MiniWobEnvironment()
    await base.reset(seed=0)
    before = await contexts(Chromium.shared())
    sessions = [EnvironmentSession(base.spawn()) for _ in range(8)]

    async def play(session: EnvironmentSession, seed: int) -> list[float]:
        rewards = []
        for episode in range(2):
            await session.reset(seed=seed + 8 * episode)
            action = await session.expert_action()
            rewards.append((await session.step(action)).reward)
        return rewards

    assert await asyncio.gather(*(play(session, i) for i, session in enumerate(sessions))) == [[1.0, 1.0]] * 8
    browser = Chromium.shared()
    assert browser.starts == 1
    assert await contexts(browser) == before + 8
    for session in sessions:
        await session.close()
    await base.close()
    assert await contexts(browser) == before - 1


def test_an_environment_outlives_its_event_loop() -> None:
    env = MiniWobEnvironment()
    assert asyncio.run(solve(env, 1)).reward == 1.0
    assert asyncio.run(solve(env, 1)).reward == 1.0
    asyncio.run(env.close())


async def test_several_pages_are_tasks() -> None:
    env = MiniWobEnvironment(task=["click-test", "click-color"])
    assert [task.id for task in env.tasks()] == ["miniwob/click-test", "miniwob/click-color"]
    for task, words in zip(env.tasks(), ("Click the button.", "colored box"), strict=True):
        assert words in (await env.reset(task=task, seed=0)).text
    drawn = {(await env.reset(seed=seed)).info["page"] for seed in range(8)}
    assert drawn == {"click-test", "click-color"}
    with pytest.raises(ConfigError, match="click-colour"):
        await env.reset(task=Task("miniwob/click-colour"))


async def uncaught(page: Page) -> list[str]:
    """Every exception, from now on, that a script of the page leaves uncaught."""
    found: list[str] = []

    def note(event: Mapping[str, Any]) -> None:
        details = event["exceptionDetails"]
        found.append(details.get("exception", {}).get("description") or details["text"])

    page.first.session.on("Runtime.exceptionThrown", note)
    await page.first.call("Runtime.enable")
    return found


@pytest.mark.slow
async def test_all_130_pages_start_and_take_a_click_without_an_error_of_their_scripts() -> None:
    waiting, errors, moved = list(page_names()), list[str](), list[str]()

    async def work() -> None:
        env = MiniWobEnvironment(max_turns=3)
        await env.reset(seed=1)
        found = await uncaught(env._page)
        await env._page.evaluate("setTimeout(() => { throw new TypeError('seen') })")
        await env._page.evaluate("new Promise(done => setTimeout(done, 5))")
        assert [error.splitlines()[0] for error in found] == ["TypeError: seen"]
        found.clear()
        while waiting:
            name = waiting.pop()
            first = await env.reset(Task(f"miniwob/{name}"), seed=1)
            result = await env.step(click(80, 130))
            errors.extend(f"{name}: {error}" for error in found)
            found.clear()
            assert first.text, f"{name} has no instruction"
            assert result.done or result.observation.images
            if result.done or picture(result.observation) != picture(first):
                moved.append(name)
        await env.close()

    await asyncio.gather(*(work() for _ in range(6)))
    assert errors == []
    assert len(moved) > 40, "a click in the middle does something on many pages"


async def test_text_is_entered_with_the_whole_action_space() -> None:
    env = MiniWobEnvironment(task="enter-text", actions=("click", "type", "keys"), max_turns=9)
    first = await env.reset(seed=0)
    word = first.text.split('"')[1]
    await env.step(click(30, 70))
    await env.step(Action.of("type", text="no"))
    await env.step(Action.of("keys", keys="ctrl+a"))
    await env.step(Action.of("type", text=word))
    button = await env._page.evaluate("(b => [b.left + 5, b.top + 5])(subbtn.getBoundingClientRect())")
    assert (await env.step(click(*button))).reward == 1.0
    assert (await env.reset(seed=0)).text == first.text
    assert await env._page.evaluate("tt.value") == "", "what was typed is gone"


def test_tasks_carry_their_tags() -> None:
    every = MiniWobEnvironment(task="all")
    assert len(every.tasks()) == 130
    tags = {task.id: task.tags for task in every.tasks()}
    assert {"browser", "click", "easy"} <= set(tags["miniwob/click-test"])
    assert {"drag", "click"} <= set(tags["miniwob/drag-box"])
    hands, levels = {"click", "type", "drag", "scroll", "hover"}, {"easy", "medium", "hard"}
    for name, own in page_tags().items():
        assert set(own) & hands, name
        assert len(set(own) & levels) == 1, name
        assert set(own) <= {*hands, *levels, "read", "look", "compute", "search", "steps", "moving"}, name
    easy = MiniWobEnvironment(task="all", tags=["click", "easy"])
    assert {task.id for task in easy.tasks()} >= {"miniwob/click-test", "miniwob/click-color"}
    assert all({"click", "easy"} <= set(task.tags) for task in easy.tasks())


def test_there_are_130_pages_and_the_tables_name_only_them() -> None:
    assert len(page_names()) == 130
    assert set(page_names()) >= RELOADED
    assert set(page_names()) >= set(DEMONSTRATED)
    assert set(page_names()) == set(page_tags())


def test_pages_are_demonstrated_where_each_of_them_is() -> None:
    assert MiniWobEnvironment(task=list(DEMONSTRATED)).has_demonstrator
    assert not MiniWobEnvironment(task=[*DEMONSTRATED, "login-user"]).has_demonstrator


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"task": "click-tset"}, "did you mean 'click-test'"),
        ({"task": []}, "task is an empty list"),
        ({"crop": "query"}, r"crop: got 'query', expected 'area' or \["),
        ({"demonstrator": "lazy"}, "got 'lazy', expected 'expert' or 'careless'"),
        ({"reward": "time"}, "got 'time', expected 'page' or 'success'"),
        ({"task": "all", "tags": ["klick"]}, "did you mean 'click'"),
        ({"tags": ["drag"]}, "none of the 1 pages has all the tags drag"),
        ({"tags": "click"}, "tags: got 'click', expected list of text"),
        ({"actions": ["tap"]}, "no user interface action 'tap'"),
        ({"actions": []}, "actions is an empty list"),
        ({"image_format": "jpeg", "quality": 0}, "quality: got 0, expected whole number >= 1 and <= 100"),
        ({"pictures": 3}, "no option 'pictures'"),
    ],
)
def test_options_that_do_not_fit(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        create_environment("miniwob", options)


def test_importing_it_loads_neither_selenium_nor_torch_nor_the_browser_packages() -> None:
    program = (
        "import sys; from uirl.environments.browser.miniwob import MiniWobEnvironment as E; E(); "
        "print([m for m in ('torch', 'selenium', 'miniwob', 'websockets', 'PIL') if m in sys.modules])"
    )
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert child.stdout.strip() == "[]"


def test_without_the_pages_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    page_names.cache_clear()
    with pytest.raises(ConfigError, match=r"pip install 'uirl\[browser\]'"):
        MiniWobEnvironment()
    page_names.cache_clear()


async def test_the_controls_see_nothing_or_are_told_nothing() -> None:
    env = MiniWobEnvironment(task="click-color", crop="area", image_size=56)
    first = await env.reset(seed=4)
    blank, untold = env.controls().values()
    told = [first, await blank.reset(seed=4), await untold.reset(seed=4)]
    seen = [screenshot(one.images[0]).open().convert("RGB") for one in told]
    assert blank.get_state_description() == first.text == untold.get_state_description()
    assert len(seen[0].getcolors()) > 4
    assert seen[1].getcolors() == [(56 * 56, (255, 255, 255))]
    assert seen[2].tobytes() == seen[0].tobytes()
    assert [one.text for one in told] == [first.text, first.text, ""]
    for control in (blank, untold):
        action = control.expert_action()
        assert (await control.step(action)).reward == 1.0, "what is solved is the same page"
        await control.close()
