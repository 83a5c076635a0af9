"""What a page can do to those who look at it, once an action has set it going: an outcome, and no way out of a loss."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import pytest_asyncio

from tests import stretches
from uirl.environments.browser.environment import PageEnvironment, run_within
from uirl.environments.browser.page import Page
from uirl.environments.browser.process import Chromium
from uirl.environments.browser.tab import PageLost
from uirl.environments.browser.web import WebEnvironment
from uirl.environments.session import EnvironmentSession
from uirl.errors import EpisodeTimeout
from uirl.types import Action, StepResult

TRICKS = {
    "an endless script": "while (true);",
    "an endless script later": "setTimeout(() => { while (true); })",
    "an endless script in the next document": "location = '/endless.html'",
    "questions without end": "while (true) alert('again')",
    "gigabytes of buffers and text": """let a = [];
        for (let i = 0; i < 70; i++) try { a.push(new Uint8Array(16e6).fill(1)) } catch {}
        for (let i = 0; i < 12e3; i++) document.body.append('z'.repeat(1e5) + i)""",
    "an array without end": "let a = []; while (true) a.push(new Array(1e6).fill(1.5))",
}


class Hostile(WebEnvironment):
    """One harmless button, and one that does what `trick` says."""

    goal = "Count."
    state = "({count: document.querySelector('#count').textContent})"
    actions = ("click", "type", "wait")
    page_size = (200, 200)
    trick = ""
    files = {"/endless.html": "<p id=count>0</p><script>while (true);</script>"}  # noqa: RUF012

    def prepare(self, rng: Any, task: Any) -> None:
        self.html = f"""<!doctype html><body style="margin:0">
          <style>button {{ position: absolute; left: 0; width: 90px; height: 20px }}</style>
          <button style="top:0" onclick="count.textContent = +count.textContent + 1">count</button>
          <button style="top:20px" onclick="{self.trick}">trick</button>
          <p id=count style="position:absolute;left:100px">0</p></body>"""


COUNT, TRICK = (Action.of("click", x=20, y=y) for y in (10, 30))


@pytest_asyncio.fixture(loop_scope="package", autouse=True)
async def patient() -> None:
    """The browser has time, however busy the machine is: these tests are about pages."""
    Chromium.shared().timeout = 100.0
    await Chromium.shared()._connected()


def hurry(env: PageEnvironment, monkeypatch: pytest.MonkeyPatch, seconds: float = 1.0) -> None:
    """Calls to the page of `env` are given up after `seconds`; those to the browser and to other pages are not."""
    env._page.first.limit = lambda: seconds
    monkeypatch.setattr(Page.settle, "__kwdefaults__", {"drawn": False, "timeout": seconds})


async def begun(trick: str) -> tuple[Hostile, EnvironmentSession]:
    """An environment after its first, harmless action."""
    env = Hostile()
    env.trick = trick
    session = EnvironmentSession(env, step_timeout=300.0)
    await session.reset(seed=1)
    assert (await session.step(COUNT)).observation.info["state"] == {"count": "1"}
    return env, session


async def ended(session: EnvironmentSession) -> StepResult:
    """The end that the trick makes, in its own step or in a later one."""
    result = await session.step(TRICK)
    while not result.done:
        result = await session.step(Action.of("wait", seconds=0.05))
    return result


@pytest.mark.parametrize("trick", TRICKS)
async def test_an_action_that_makes_a_page_unusable_has_lost(trick: str, monkeypatch: pytest.MonkeyPatch) -> None:
    env, session = await begun(TRICKS[trick])
    if trick not in ("gigabytes of buffers and text", "an array without end", "questions without end"):
        hurry(env, monkeypatch)
    lost = await ended(session)
    assert (lost.terminated, lost.reward, lost.observation.info["success"]) == (True, 0.0, False)
    assert lost.observation.info["lost"] in lost.observation.text
    assert not session.broken
    monkeypatch.undo()
    env.trick = ""
    await session.reset(seed=1)
    assert (await session.step(COUNT)).observation.info["state"] == {"count": "1"}
    assert Chromium.shared().starts == 1
    await session.close()


MANY = "for (let i = 0; i < 1e5; i++) document.body.append(document.createElement('b'), 'b')"


async def test_a_page_with_a_hundred_thousand_elements_costs_the_event_loop_little() -> None:
    env = Hostile(tree=2000)
    env.trick = MANY
    session = EnvironmentSession(env, step_timeout=300.0)
    await session.reset(seed=1)
    with stretches.watching() as seen:
        grown = await session.step(TRICK)
    assert not grown.done
    assert "(a page of more than 10000 elements and texts, too many to list)" in grown.observation.text
    assert (await session.step(COUNT)).observation.info["state"] == {"count": "1"}
    stretches.note("browser: an accessibility tree of 100 000 elements", seen.loop)
    assert stretches.units(seen.loop) <= stretches.BOUND
    await session.close()


@pytest.mark.parametrize(
    "much",
    [
        "'x'.repeat(1e8)",
        "new Array(1e6).fill(1)",
        "(() => { let a = []; for (let i = 0; i < 990; i++) a = [a]; return a })()",
    ],
    ids=["long", "many values", "deep"],
)
async def test_a_state_that_grows_beyond_what_can_be_read_is_no_failure(much: str) -> None:
    env = Hostile()
    env.trick = "window.much = true"
    env.trusts_page = True  # type: ignore[misc]
    env.state = f"({{count: window.much ? {much} : '0'}})"
    session = EnvironmentSession(env, step_timeout=300.0)
    await session.reset(seed=1)
    grown = await session.step(TRICK)
    assert (grown.done, grown.observation.info["state"]) == (False, {"count": "0"})
    assert "cannot be told" in grown.observation.info["state_error"]
    await session.close()


async def test_a_page_that_is_slow_at_everything_has_lost_too() -> None:
    """Every call ends in time; all of them together do not."""
    env, session = await begun("onkeydown = () => { const t = Date.now(); while (Date.now() < t + 200); }")
    await session.step(TRICK)
    env._step_limit = 3.0
    lost = await session.step(Action.of("type", text="a" * 150))
    assert (lost.terminated, lost.reward) == (True, 0.0)
    assert "took the page more than" in lost.observation.info["lost"]
    await session.close()


async def test_a_page_that_hangs_before_any_action_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    env = Hostile()
    await env.reset(seed=1)
    hurry(env, monkeypatch)
    endless = asyncio.ensure_future(env._page.first.session.send("Runtime.evaluate", {"expression": "while (true);"}))
    await asyncio.sleep(0)
    with pytest.raises(EpisodeTimeout, match="did not answer"):
        await env.step(COUNT)
    monkeypatch.undo()
    endless.cancel()
    await env.close()


async def test_where_no_other_page_answers_either_it_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    env, _ = await begun("while (true);")
    hurry(env, monkeypatch)

    async def starved(*_: object) -> Page:
        raise EpisodeTimeout("the browser opened no page within 10 s")

    monkeypatch.setattr(Page, "open", starved)
    with pytest.raises(EpisodeTimeout, match="the action click: the page did not answer"):
        await env.step(TRICK)
    monkeypatch.undo()
    await env.close()


async def test_a_page_that_answers_late_is_no_hang() -> None:
    """It was busy, as everything is on a busy machine: whoever waited for it gave up too early."""
    answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    assert await Chromium.shared().hangs(answer)
    answer.set_result({})
    assert not await Chromium.shared().hangs(answer)
    assert await Chromium.shared().hangs(), "it owes no answer, and is not done all the same"


async def test_a_page_that_answers_and_cannot_be_stopped_has_lost() -> None:
    async def stop() -> None:
        raise EpisodeTimeout("a navigation did not end, and could not be stopped")

    with pytest.raises(PageLost, match="could not be stopped"):
        await run_within(stop(), Chromium.shared(), 300.0)
