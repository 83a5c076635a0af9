"""Frames and tabs in a real Chromium, beyond the small pages: other processes, many of them, and those that go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import CDPSession

from tests.environments.browser.test_features import FeaturePage
from tests.patience import PATIENCE
from uirl.environments.browser import acting
from uirl.environments.browser import process as chromium
from uirl.environments.browser.web import WebEnvironment
from uirl.types import Action, Observation

OUTER = """<!doctype html><body style="margin:0"><p style="margin:0">above</p>
<iframe src="{}" style="width:200px;height:60px;border:5px solid;margin-left:7px"></iframe>
<script>addEventListener("message", e => {{ document.title = e.data; }});</script></body>"""
INNER = """<!doctype html><body style="margin:0"><button style="margin:9px"
onclick="parent.postMessage('done', '*')">inside</button><input oninput="parent.postMessage(this.value, '*')"></body>"""


@pytest_asyncio.fixture(loop_scope="package")
async def app() -> AsyncIterator[str]:
    """A page on 127.0.0.1 with a frame of localhost, which is another site."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readline()).split()[1]
        body = INNER if path == b"/inner" else OUTER.format(f"http://localhost:{port}/inner")
        head = f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write((head + body).encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        yield f"http://127.0.0.1:{port}"


class Framed(WebEnvironment):
    goal = "Get it done."
    state = "({title: document.title})"
    actions = ("click", "type", "fill", "back", "goto", "wait")
    page_size = (260, 120)

    def __init__(self, url: str) -> None:
        super().__init__(marks=True, tree=600)
        self.url = f"{url}/"
        self.origins = (url.replace("127.0.0.1", "localhost"),)


async def until(env: Framed, text: str, seen: Observation) -> Observation:
    """What is seen as soon as the tree holds the text: a frame of another process loads when it likes."""
    async with asyncio.timeout(PATIENCE):
        while text not in seen.text:
            seen = (await env.step(Action.of("wait", seconds=0))).observation
    return seen


async def titled(env: Framed, title: str, seen: Observation) -> Observation:
    """What is seen as soon as the page has the title: a message from a frame of another process comes when it likes."""
    async with asyncio.timeout(PATIENCE):
        while seen.info["state"] != {"title": title}:
            seen = (await env.step(Action.of("wait", seconds=0))).observation
    return seen


@pytest.mark.parametrize("flags", [(), ("--site-per-process",)], ids=["of its page", "of its own"])
async def test_a_frame_of_another_site_is_marked_read_clicked_and_filled_whatever_its_process(
    app: str, flags: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The headless shell keeps it in the process of its page, the full browser gives it one of its own."""
    monkeypatch.setattr(chromium, "FLAGS", (*chromium.FLAGS, *flags))
    env = Framed(app)
    env.max_turns = 10**6
    seen = await until(env, 'button "inside"', await env.reset(seed=1))
    assert 'button "inside" [1]' in seen.text
    typed = await env.step(Action.of("fill", mark=2, value="Ada"))
    assert await titled(env, "Ada", typed.observation)
    clicked = await env.step(Action.of("click", mark=1))
    assert await titled(env, "done", clicked.observation)
    await env.step(Action.of("goto", url=f"{app.replace('127.0.0.1', 'localhost')}/inner"))
    again = await until(env, "iframe", (await env.step(Action.of("back"))).observation)
    assert await until(env, 'button "inside"', again)
    await env.close()


async def test_a_page_of_many_frames_is_looked_into_as_far_as_it_is_sensible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acting, "MAX_FRAMES", 3)
    env = FeaturePage("below.html", marks=True, tree=500)
    await env.reset(seed=1)
    await env._page.evaluate("""void (() => {
      for (let i = 0; i < 5; i++) {
        const frame = document.createElement('iframe');
        frame.srcdoc = '<button>' + i + '</button>';
        document.body.prepend(frame);
      }
    })()""")
    result = await env.step(Action.of("wait", seconds=0))
    assert result.observation.info["success"] is False
    tab = env._page.first
    assert len(tab.page.frames) == 6
    assert len({thing.frame for thing in await acting.find_things(tab)}) == 4
    await env.close()


async def test_a_click_on_what_has_gone_since_is_told() -> None:
    env = FeaturePage("below.html", marks=True, tree=500)
    await env.reset(seed=1)
    await env._page.evaluate("void document.querySelector('button').remove()")
    result = await env.step(Action.of("click", mark=1))
    assert result.observation.text.startswith("mark 1: it is not drawn on the page")
    filled = await env.step(Action.of("fill", mark=1, value="a"))
    assert filled.observation.info["mistake"]
    await env.close()


async def test_a_window_whose_page_comes_before_its_events_is_a_tab(monkeypatch: pytest.MonkeyPatch) -> None:
    env = FeaturePage("tab_back.html")
    await env.reset(seed=1)
    send, told = CDPSession.send, False

    async def as_if_before(self: CDPSession, method: str, params: Any = None) -> Any:
        """The window is asked what it shows just before its page comes, and tells of its events just after."""
        nonlocal told
        if method == "Page.enable":
            await asyncio.sleep(0.3)
            told = True
        answer = await send(self, method, params)
        if method == "Target.getTargetInfo" and not told:
            answer["targetInfo"]["url"] = ""
        return answer

    monkeypatch.setattr(CDPSession, "send", as_if_before)
    result = await env.step(Action.of("click", x=20, y=20))
    assert "a new tab was opened: 2" in result.observation.text
    await env.close()


@pytest.mark.parametrize(
    "opened",
    [
        "'data:text/html,words'",
        "'mailto:ada@example.com'",
        "'javascript:1'",
        "'/report.bin'",
        "'/report.bin', '_blank', 'noopener'",
    ],
)
async def test_a_window_that_comes_to_no_page_is_closed_and_told(opened: str) -> None:
    """The browser draws nothing of it, and leaves whoever asks for a picture without an answer."""
    env = FeaturePage("below.html")
    await env.reset(seed=1)
    await env._page.evaluate(f"void (onclick = () => {{ onclick = null; open({opened}); }})")
    result = await env.step(Action.of("click", x=200, y=100))
    async with asyncio.timeout(PATIENCE):
        while "tab 2 came to no page, and was closed" not in result.observation.text:
            assert not result.done
            result = await env.step(Action.of("wait", seconds=0))
    assert len(env._page.tabs) == 1
    assert result.observation.images
    await env.close()
