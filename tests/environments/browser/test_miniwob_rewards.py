"""MiniWoB++ rewards: what a page or a policy writes cannot change them."""

from __future__ import annotations

import io

import pytest
from PIL import Image

from tests.environments.browser.miniwob_pages import click, picture, solve
from uirl.environments.browser.miniwob import MiniWobEnvironment
from uirl.types import Action


async def test_the_wrong_button_costs_and_a_miss_goes_on_until_the_turns_are_used_up() -> None:
    env = MiniWobEnvironment(task="click-test-2", max_turns=2)
    first = await env.reset(seed=0)
    assert first.text == "Click button ONE."
    wrong = await env.step(click(90, 113))  # TWO stands there with this seed
    assert (wrong.reward, wrong.terminated, wrong.observation.info["success"]) == (-1.0, True, False)
    plain = MiniWobEnvironment(task="click-test-2", reward="success")
    await plain.reset(seed=0)
    wrong = await plain.step(click(90, 113))
    assert (wrong.reward, wrong.observation.info["raw_reward"]) == (0.0, -1.0)
    assert (await solve(plain, 0)).reward == 1.0
    await env.reset(seed=0)
    miss = await env.step(click(2, 208))
    assert (miss.reward, miss.done, miss.observation.info["success"]) == (0.0, False, False)
    assert picture(miss.observation) == picture(first)
    last = await env.step(click(2, 208))
    assert (last.reward, last.terminated, last.truncated) == (0.0, False, True)
    assert last.observation.info["out_of_turns"] is True
    assert picture(last.observation) == picture(first)  # a limit is no end: the state is still to be seen
    with pytest.raises(RuntimeError, match="after the end of an episode"):
        await env.step(click(2, 208))
    await env.reset(seed=0)
    await env.step(click(2, 208))
    wrong = await env.step(click(90, 113))
    assert (wrong.reward, wrong.terminated, wrong.truncated) == (
        -1.0,
        True,
        False,
    )  # the page ended it in the last turn


async def test_the_score_board_is_never_in_the_picture() -> None:
    env = MiniWobEnvironment(task="click-dialog")  # its focus once scrolled the board into view
    shown = Image.open(io.BytesIO((await env.reset(seed=0)).images[0])).convert("RGB")
    assert shown.getpixel((155, 5)) == (255, 255, 0), "the yellow of the instruction"
    assert await env._page.evaluate("[scrollX, scrollY]") == [0, 0]


async def test_a_late_click_cannot_start_another_episode_over_the_reward() -> None:
    env = MiniWobEnvironment()
    assert (await solve(env, 0)).reward == 1.0
    with pytest.raises(RuntimeError, match="call reset first"):
        await env.step(click(80, 105))
    await env._page.click(80, 105)  # on the cover that says START
    assert await env._page.evaluate("[WOB_DONE_GLOBAL, WOB_RAW_REWARD_GLOBAL]") == [True, 1]


def test_a_page_that_is_lost_is_worth_the_least_that_it_pays() -> None:
    lost = [MiniWobEnvironment(reward=reward).lost("it hangs") for reward in ("page", "success")]
    assert [(one.reward, one.ended, one.success) for one in lost] == [(-1.0, True, False), (0.0, True, False)]


FORGERIES = (
    "WOB_RAW_REWARD_GLOBAL = 1; WOB_REWARD_GLOBAL = 1; WOB_DONE_GLOBAL = true;",
    "Object.defineProperty(window, 'WOB_RAW_REWARD_GLOBAL', {value: 1, writable: false}); WOB_DONE_GLOBAL = true;",
    "core.endEpisode = () => { WOB_RAW_REWARD_GLOBAL = 1; };",
    "Number = () => 1; Math.max = Math.min = () => 1; Array.prototype.filter = () => []; Object.prototype.reward = 1;",
    "JSON.stringify = () => '{}'; Object.prototype.toJSON = () => ({ended: true, reward: 1, spots: []});",
)


@pytest.mark.parametrize("forgery", FORGERIES)
async def test_a_page_that_sets_its_own_reward_changes_nothing(forgery: str) -> None:
    env = MiniWobEnvironment(task="click-test-2")
    await env.reset(seed=0)
    await env._page.evaluate(f"void (() => {{ {forgery} }})()")
    miss = await env.step(click(2, 208))
    assert (miss.reward, miss.done, miss.observation.info["success"]) == (0.0, False, False)
    wrong = await env.step(click(90, 113))  # TWO stands there with this seed
    assert (wrong.reward, wrong.done, wrong.observation.info["success"]) == (-1.0, True, False)


async def test_what_a_policy_types_never_runs() -> None:
    env = MiniWobEnvironment(task="enter-text", actions=("click", "type", "goto"), max_turns=9)
    await env.reset(seed=0)
    html = "'<img src=x onerror=window.ran=1><script>window.ran=1<\\/script><a id=bad href=javascript:ran=1>x</a>'"
    await env._page.evaluate(f"area.innerHTML = {html}; void bad.click()")
    await env._page.evaluate("eval('1'), document.body.appendChild(Object.assign(document.createElement('script'), "
                             "{textContent: 'window.ran = 2'})); void 0")  # fmt: skip
    await env._page.evaluate("new Promise(done => setTimeout(done, 50))")
    assert await env._page.evaluate("typeof window.ran") == "undefined"
    for address in ("javascript:core.endEpisode(1)", "file:///etc/passwd", "data:text/html,hi", "http://127.0.0.1/"):
        told = await env.step(Action.of("goto", url=address))
        assert "is out of reach" in told.observation.text


async def test_a_page_that_was_left_is_lost() -> None:
    env = MiniWobEnvironment()
    await env.reset(seed=0)
    await env._page.evaluate("document.addEventListener('click', () => location.reload())")
    lost = await env.step(click(2, 208))
    assert (lost.reward, lost.terminated, lost.observation.info["reason"]) == (-1.0, True, "the page was left")
    assert (await solve(env, 0)).reward == 1.0
