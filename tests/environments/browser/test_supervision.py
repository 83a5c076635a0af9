"""What goes wrong in a browser: each is a typed failure of the episodes it touches, and the next episode works."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from typing import Any

import pytest

from tests.environments.browser.miniwob_pages import contexts
from tests.environments.browser.test_chromium import ended, running
from tests.patience import PATIENCE
from tests.rollout.worlds import collector, play_with, scripted, specs
from uirl.environments.browser.miniwob import MiniWobEnvironment
from uirl.environments.browser.page import Page
from uirl.environments.browser.process import Chromium
from uirl.environments.browser.web import WebEnvironment
from uirl.environments.session import EnvironmentSession
from uirl.errors import EnvironmentFailure, EpisodeTimeout
from uirl.inference import LoadedModel
from uirl.rollout import EpisodeLimits
from uirl.rollout.samples import samples_of_all
from uirl.types import Action, RolloutData, StepResult


class Trouble(WebEnvironment):
    """Buttons that do what pages should not."""

    html = """<!doctype html><body style="margin:0">
      <style>button { position: absolute; left: 0; width: 90px; height: 20px }</style>
      <button style="top:0" onclick="count.textContent = +count.textContent + 1">count</button>
      <button style="top:20px" onclick="while (true);">hang</button>
      <button style="top:40px" onclick="alert('careful'); count.textContent = prompt('how many?', '7')">ask</button>
      <button style="top:60px" onclick="window.open('about:blank'); window.open('/other')">open</button>
      <button style="top:80px" onclick="onbeforeunload = e => { e.preventDefault(); e.returnValue = 1 }">stay</button>
      <button style="top:100px" onclick="location = '/?left'">leave</button>
      <button style="top:120px" onclick="while (true) alert('again')">nag</button>
      <button style="top:140px" onclick="count.textContent = confirm('sure?')">sure</button>
      <button style="top:160px" onclick="location = 'http://192.0.2.1/'">away</button>
      <button style="top:180px" onclick="window.close()">close</button>
      <p id="count" style="position:absolute;left:100px">0</p></body>"""
    goal = "Count to three."
    state = "({count: document.querySelector('#count').textContent, left: location.search})"
    actions = ("click", "wait", "goto", "back")
    page_size = (200, 200)

    def outcome(self, state: object) -> bool | None:
        return state["count"] == "3" or None  # type: ignore[index]


def button(number: int) -> Action:
    return Action.of("click", x=20, y=20 * number + 10)


COUNT, HANG, ASK, OPEN, STAY, LEAVE, NAG, SURE, AWAY, CLOSE = (button(number) for number in range(10))


async def solves(env: Trouble) -> bool:
    """Whether an episode can be played to its end."""
    await env.reset(seed=1)
    results = [await env.step(COUNT) for _ in range(3)]
    return results[-1].observation.info["success"] is True and results[-1].reward == 1.0


async def test_a_crash_fails_its_episode_alone_and_the_next_reset_works() -> None:
    crashed, fine = Trouble(), Trouble()
    sessions = [EnvironmentSession(env) for env in (crashed, fine)]
    await asyncio.gather(*(session.reset(seed=1) for session in sessions))
    with pytest.raises(EnvironmentFailure, match="crashed"):
        await crashed._page.first.call("Page.crash")
    lost = await sessions[0].step(COUNT)
    assert (lost.terminated, lost.reward, lost.observation.info["success"]) == (True, 0.0, False)
    assert "the page crashed" in lost.observation.text
    assert (await sessions[1].step(COUNT)).observation.info["state"]["count"] == "1"
    assert await solves(crashed)
    assert Chromium.shared().starts == 1


class Restless(Trouble):
    html = """<body style="margin:0"><button style="width:90px;height:20px"
        onclick="onbeforeunload = null; count.remove()">break</button><p id=count>0</p></body>"""


class Pages(Trouble):
    """An app of several addresses, of which the first alone has the elements that `state` asks for."""

    folder = ""
    files = {"/bare.html": "<body>nothing</body>", "/picture.svg": "<svg xmlns='http://www.w3.org/2000/svg'/>"}  # noqa: RUF012
    targets = {"count": "#count"}  # noqa: RUF012


async def test_a_page_that_closes_itself_after_an_action_is_a_lost_episode() -> None:
    session = EnvironmentSession(Trouble())
    await session.reset(seed=1)
    results = [await session.step(CLOSE)]
    while not results[-1].done:  # a window closes a moment after its script
        results.append(await session.step(Action.of("wait", seconds=0.05)))
    lost = results[-1]
    assert (lost.reward, lost.observation.info["success"]) == (0.0, False)
    assert lost.observation.info["lost"] in lost.observation.text
    assert not session.broken
    await session.reset(seed=1)
    assert not (await session.step(Action.of("wait", seconds=0.01))).done


async def test_a_page_that_was_killed_is_a_failure() -> None:
    env = Trouble()
    await env.reset(seed=1)
    group = Chromium.shared().pid
    listed = subprocess.run(["pgrep", "-g", str(group), "-f", "type=renderer"], capture_output=True, text=True)
    for renderer in listed.stdout.split():
        os.kill(int(renderer), signal.SIGKILL)
    with pytest.raises(EnvironmentFailure, match="the page was killed"):
        await env.step(COUNT)


@pytest.mark.parametrize("path", ["/bare.html", "/nothing", "/picture.svg"])
async def test_a_state_that_cannot_be_read_where_the_policy_went_is_no_failure(path: str) -> None:
    env = Pages(marks=True)
    await env.reset(seed=1)
    await env.step(COUNT)
    there = await env.step(Action.of("goto", url=f"http://app.localhost{path}"))
    assert (there.done, there.reward) == (False, 0.0)
    assert there.observation.info["state"]["count"] == "1", "the last that could be read"
    assert "threw" in there.observation.info["state_error"]
    back = await env.step(Action.of("back"))
    assert (back.done, back.observation.info["state"]["count"]) == (False, "0")
    assert "state_error" not in back.observation.info


async def test_a_state_that_an_action_broke_is_no_failure_and_at_the_beginning_it_is() -> None:
    env = Restless()
    await env.reset(seed=1)
    assert "threw" in (await env.step(COUNT)).observation.info["state_error"]
    env.state = "({count: nothing})"
    with pytest.raises(EnvironmentFailure, match="ReferenceError"):
        await env.reset(seed=1)


async def test_an_address_that_never_ends_loading_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    hang = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readline()).split()[1]
        if path == b"/slow":
            await hang.wait()
        body = b"<body style='margin:0'><a href='/slow' style='display:block'>slow</a><p id=count>1</p></body>"
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:

        class Slow(Trouble):
            html = ""
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

        env = Slow()
        await env.reset(seed=1)
        # from here on: the first load may take a busy machine longer
        monkeypatch.setattr(Page.goto, "__kwdefaults__", {"timeout": 0.5})
        monkeypatch.setattr(Page.settle, "__kwdefaults__", {"drawn": False, "timeout": 0.5})
        told = await env.step(Action.of("goto", url=f"{env.url}/slow"))
        assert (told.done, told.observation.info["state"]["count"]) == (False, "1")
        told = await env.step(Action.of("click", x=10, y=5))
        assert not told.done
        assert "had not finished loading after 0.5 s" in told.observation.text
        assert told.observation.info["state"]["count"] == "1"
        hang.set()
        await env.close()


async def test_dialogs_are_answered_and_told() -> None:
    env = Trouble()
    await env.reset(seed=1)
    asked = await env.step(ASK)
    assert asked.observation.text == "the page said: careful\nthe page said: how many?"
    assert asked.observation.info["state"]["count"] == "7", "the answer that the page proposed"
    sure = await env.step(SURE)
    assert (sure.observation.text, sure.observation.info["state"]["count"]) == ("the page said: sure?", "true")
    await env.step(STAY)
    left = await env.step(LEAVE)
    assert (left.observation.text, left.observation.info["state"]["left"]) == ("", "?left")
    assert await solves(env)


class Opener(Trouble):
    html = """<body style="margin:0"><button style="width:90px;height:20px"
        onclick="count.textContent = window.open('').confirm('sure?')">ask there</button><p id=count>0</p></body>"""
    actions = ("click", "wait", "dialog")


async def test_a_dialog_of_a_window_that_stops_the_page_which_opened_it_is_answered() -> None:
    env = Opener()
    await env.reset(seed=1)
    asked = await env.step(COUNT)
    assert "sure?" in asked.observation.text
    assert not asked.done
    await env.step(Action.of("dialog", choice="ok"))  # nothing to do where it came before the window was shown
    answered = await env.step(Action.of("wait", seconds=0))
    assert (answered.done, answered.observation.info["state"]["count"]) == (False, "true")
    await env.reset(seed=1)
    await env.step(COUNT)
    again = await env.reset(seed=1)
    assert "sure?" not in again.text, "the next episode begins without the dialog"
    assert (await env.step(Action.of("wait", seconds=0))).observation.info["state"]["count"] == "0"
    await env.close()


async def test_windows_become_tabs_and_are_gone_with_the_next_episode() -> None:
    env = Trouble()
    await env.reset(seed=1)
    told = (await env.step(OPEN)).observation.text
    assert told.splitlines()[-1] == "tabs: 1 http://app.localhost/, 2 about:blank, 3 (shown) http://app.localhost/other"
    page = env._page

    assert len(page.context.pages) == 3
    assert (await env.step(Action.of("back"))).observation.text.endswith("2 (shown) about:blank")
    assert (await env.step(Action.of("back"))).observation.text == ""
    assert (await env.step(COUNT)).observation.info["state"]["count"] == "1"
    await env.step(OPEN)
    await page.begin()
    async with asyncio.timeout(PATIENCE):  # they go when the browser finds the time
        while len(page.context.pages) > 1:
            await asyncio.sleep(0.01)
    await env.close()


async def test_a_page_that_is_out_of_reach_is_seen_and_left_again() -> None:
    env = Trouble()
    first = await env.reset(seed=1)
    await env.step(COUNT)
    away = await env.step(AWAY)
    assert away.observation.images[0] != first.images[0]
    assert away.observation.info["state"]["count"] == "1", "the last that could be read"
    back = await env.step(Action.of("back"))
    assert (back.observation.images[0], back.observation.info["state"]["count"]) == (first.images[0], "0")
    assert (await env.step(Action.of("back"))).observation.text == "there is no page to go back to"


async def test_a_browser_killed_under_six_sessions() -> None:
    base = MiniWobEnvironment(actions=["click", "wait"], max_turns=10**6)
    sessions = [EnvironmentSession(base.spawn()) for _ in range(6)]
    await asyncio.gather(*(session.reset(seed=1) for session in sessions))
    group = Chromium.shared().pid
    assert running(group)

    async def play(session: EnvironmentSession) -> StepResult:
        while True:
            await session.step(Action.of("click", x=2, y=205))

    playing = [asyncio.create_task(play(session)) for session in sessions]
    await asyncio.sleep(0.1)  # wherever in its step each of them is then
    os.killpg(group, signal.SIGKILL)
    outcomes = await asyncio.gather(*playing, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [EnvironmentFailure] * 6
    assert all(session.broken for session in sessions)
    await asyncio.gather(*(session.close() for session in sessions))
    again = [EnvironmentSession(base.spawn()) for _ in range(6)]
    firsts = await asyncio.gather(*(session.reset(seed=1) for session in again))
    assert len({first.images[0].hash for first in firsts}) == 1
    assert Chromium.shared().starts == 2
    assert ended(group)
    assert await contexts(Chromium.shared()) == 6
    await asyncio.gather(*(session.close() for session in again))
    assert await contexts(Chromium.shared()) == 0
    group = Chromium.shared().pid
    await Chromium.shared().close()
    assert ended(group)


async def test_16_trajectories_of_a_killed_browser_are_failures_and_are_played_again(vlm: LoadedModel) -> None:
    engine = scripted(vlm, '{"action":"click","x":2,"y":205}')
    generate, together, killed, calls = engine.generate, asyncio.Barrier(16), asyncio.Event(), 0

    async def kill_in_the_second_turn(request: Any) -> Any:
        nonlocal calls
        turn, calls = calls // 16, calls + 1
        if turn < 2 and await together.wait() == 0 and turn == 1:
            group = Chromium.shared().pid
            os.killpg(group, signal.SIGKILL)
            killed.set()
        if turn == 1:
            await killed.wait()
        return await generate(request)

    engine.generate = kill_in_the_second_turn  # type: ignore[method-assign]
    group = collector(vlm, MiniWobEnvironment(), retries=1, limits=EpisodeLimits(3), parallel=16)
    trajectories = await group.collect(specs(16), play_with(engine))
    done, attempts = trajectories[:16], trajectories[16:]
    assert [(t.failure, len(t)) for t in done] == [(None, 3)] * 16
    failures = [t.failure for t in attempts if t.failure is not None]
    assert [(failure.kind, failure.turn) for failure in failures] == [("environment", 1)] * 16
    assert [t.stop_reason for t in attempts] == ["failure"] * 16
    assert RolloutData(trajectories).usable == done
    assert samples_of_all(trajectories) == samples_of_all(done)
    await group.close()
    assert Chromium.shared().starts == 2
    assert await contexts(Chromium.shared()) == 0


async def test_a_browser_that_stops_answering_is_replaced() -> None:
    env, other = Trouble(), Trouble()
    await asyncio.gather(env.reset(seed=1), other.reset(seed=1))
    browser = Chromium.shared()
    usual, browser.timeout = browser.timeout, 0.5
    group = browser.pid
    os.killpg(group, signal.SIGSTOP)
    with pytest.raises(EpisodeTimeout):
        await env.step(COUNT)
    browser.timeout = usual
    assert await solves(env)
    assert await solves(other)
    assert browser.starts == 2
    assert browser.pid != group
