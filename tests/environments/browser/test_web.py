"""`WebEnvironment`: a web app as a task, what the agent sees of it, and where it may go."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from uirl.environments.browser.process import Chromium
from uirl.environments.browser.web import WebEnvironment
from uirl.environments.conformance import check_environment
from uirl.errors import ConfigError, EnvironmentFailure
from uirl.images import screenshot
from uirl.types import Action, Task

FORM = """<!doctype html><body style="margin:0"><form>
  <input name="word" autofocus style="position:absolute;left:10px;top:10px">
  <button style="position:absolute;left:10px;top:50px;width:80px">Send</button></form>
  <a href="/help" style="position:absolute;left:10px;top:90px">help</a>
  <p style="position:absolute;left:10px;top:120px">WORD</p>
  <script>
    document.forms[0].onsubmit = e => { e.preventDefault(); tries = (window.tries || 0) + 1; localStorage.n = tries; };
  </script></body>"""


class Copy(WebEnvironment):
    """Type the word and send it."""

    state = "({sent, stored: localStorage.n || null, path: location.pathname})"
    watch = """let sent = [];
      addEventListener('submit', e => { if (e.isTrusted) sent.push(e.target.elements.word.value); }, true);"""
    actions = ("click", "type", "keys", "answer", "terminate", "goto", "back")
    page_size = (200, 160)
    max_turns = 5

    def prepare(self, rng: random.Random, task: Task | None) -> None:
        self.word = rng.choice(["red", "green", "blue", "black", "white"])
        self.html = FORM.replace("WORD", self.word)
        self.goal = "Copy the word and send it."

    def outcome(self, state: Mapping[str, Any]) -> bool | None:
        if self.answer is not None:
            return self.answer == self.word
        return state["sent"][-1] == self.word if state["sent"] else None

    def expert_action(self) -> Action | None:
        typed = getattr(self, "_typed", None)
        self._typed = None if typed else self.word
        return Action.of("keys", keys="enter") if typed else Action.of("type", text=self.word)


class Shop(WebEnvironment):
    """A folder for the app, content per episode, and a demonstrator that knows where to click."""

    actions = ("click", "scroll")
    page_size = (200, 100)
    goal = "Buy what is on the list."
    state = "({list: document.title, bought: document.body.dataset.bought === 'yes'})"

    def __init__(self, folder: Path) -> None:
        super().__init__(say_target=True)
        self.folder = folder
        self.targets = {"buy": "#buy", "hidden": "#hidden", "absent": "#absent"}

    def prepare(self, rng: random.Random, task: Task | None) -> None:
        self.wanted = rng.choice(["apples", "pears"])
        self.files = {"/list.js": f"document.title = '{self.wanted}'"}

    def outcome(self, state: Mapping[str, Any]) -> bool | None:
        return True if state["bought"] and state["list"] == self.wanted else None

    def expert_action(self) -> Action | None:
        return None if self.page_state["bought"] else self.click_on("buy")


SEND, TYPE_RED = Action.of("click", x=20, y=60), Action.of("type", text="red")


async def seed_of(env: Copy, word: str) -> int:
    """A seed whose word it is."""
    for seed in range(100):
        await env.reset(seed=seed)
        if env.word == word:
            return seed
    raise AssertionError(word)


@pytest.mark.usefixtures("one_browser")
def test_it_keeps_the_environment_contract() -> None:
    report = check_environment(Copy(), episodes=2)
    assert report.seeded
    assert report.expert_success == 1.0


async def test_an_app_is_played_and_judged() -> None:
    env = Copy()
    seed = await seed_of(env, "red")
    first = await env.reset(seed=seed)
    assert first.text == "Copy the word and send it."
    assert screenshot(first.images[0]).open().size == (200, 160)
    assert first.info["state"] == {"sent": [], "stored": None, "path": "/"}
    typed = await env.step(TYPE_RED)
    assert (typed.reward, typed.done, typed.observation.info["success"]) == (0.0, False, False)
    sent = await env.step(SEND)
    assert (sent.reward, sent.terminated, sent.observation.info["success"]) == (1.0, True, True)
    assert sent.observation.info["state"] == {"sent": ["red"], "stored": "1", "path": "/"}
    await env.reset(seed=seed)
    wrong = await env.step(SEND)
    assert (wrong.reward, wrong.terminated, wrong.observation.info["success"]) == (0.0, True, False)
    assert wrong.observation.info["state"]["stored"] == "1", "1 again: nothing is left of an earlier episode"


async def test_an_error_of_a_page_is_told_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("uirl.environments.browser.page._told", set())  # pages of other tests have errors too
    env = Copy()
    prepare = env.prepare
    env.prepare = lambda rng, task: (prepare(rng, task), setattr(env, "html", env.html + "<script>sav(1)</script>"))  # type: ignore[method-assign]
    try:
        for _ in range(2):
            await env.reset(seed=3)
    finally:
        await env.close()
    (told,) = [record.getMessage() for record in caplog.records if "script of the page" in record.getMessage()]
    assert "sav is not defined" in told


async def test_answers_and_terminations_end_the_episode_and_are_judged() -> None:
    env = Copy()
    seed = await seed_of(env, "red")
    for text, success in (("red", True), ("blue", False)):
        await env.reset(seed=seed)
        said = await env.step(Action.of("answer", text=text))
        assert (said.terminated, said.observation.info["success"], said.reward) == (True, success, float(success))
    await env.reset(seed=seed)
    ended = await env.step(Action.of("terminate", status="success"))
    assert (ended.terminated, ended.observation.info["success"]) == (True, False), "a claim is not a success"
    assert env.claim == "success"
    assert env.answer is None


async def test_scripts_of_the_page_cannot_change_what_is_read() -> None:
    env = Copy()
    seed = await seed_of(env, "red")
    await env.reset(seed=seed)
    await env._page.evaluate("""void (() => {
      sent = ['red']; window.sent = ['red']; JSON.stringify = () => '{}'; Array.prototype.push = () => 0;
      Object.defineProperty(HTMLInputElement.prototype, 'value', {get: () => 'red'});
      document.forms[0].dispatchEvent(new Event('submit', {bubbles: true}));
      Object.defineProperty(Event.prototype, 'isTrusted', {get: () => true});
    })()""")
    result = await env.step(Action.of("type", text="x"))
    assert result.observation.info["state"]["sent"] == []
    sent = await env.step(SEND)
    assert sent.observation.info["state"]["sent"] == ["x"]
    assert sent.observation.info["success"] is False


async def test_goto_and_back_stay_on_the_site() -> None:
    env = Copy(max_turns=20)
    await env.reset(seed=1)
    assert (await env.step(Action.of("back"))).observation.text == "there is no page to go back to"
    for address in ("http://example.com/", "file:///etc/passwd", "javascript:sent=['red']", "about:blank", "/help"):
        told = await env.step(Action.of("goto", url=address))
        assert told.observation.text == f"{address} is out of reach; expected an address under http://app.localhost"
    state = "({sent, path: location.pathname, stored: null})"
    env.state = state
    there = await env.step(Action.of("goto", url="http://app.localhost/help?x"))
    assert there.observation.info["state"]["path"] == "/help"
    back = await env.step(Action.of("back"))
    assert (back.observation.info["state"]["path"], back.observation.text) == ("/", "")
    linked = await env.step(Action.of("click", x=20, y=100))
    assert linked.observation.info["state"]["path"] == "/help"
    await env.step(Action.of("back"))
    again = await env.step(Action.of("back"))
    assert again.observation.text == "there is no page to go back to"


async def test_the_tree_and_the_marks_follow_what_is_shown() -> None:
    env = Copy(tree=500, marks=True)
    first = await env.reset(seed=await seed_of(env, "red"))
    assert first.text.splitlines()[:2] == ["Copy the word and send it.", "page"]
    assert '  button "Send" [2]' in first.text, "its number in the picture"
    result = await env.step(Action.of("click", mark=9))
    assert result.observation.text.splitlines()[:2] == ["there is no mark 9; the picture has 1 to 3", "page"]
    assert result.observation.images == first.images
    await env.step(Action.of("click", mark=1))
    typed = await env.step(TYPE_RED)
    assert 'textbox = "red" (focused)' in typed.observation.text
    sent = await env.step(Action.of("click", mark=2))
    assert sent.observation.info["success"] is True
    assert '"mark":3' in env.get_prompt_prefix()


class Served(Copy):
    """The same from a folder."""

    def prepare(self, rng: random.Random, task: Task | None) -> None:
        self.word, self.goal = "red", "Copy."


@pytest.fixture
def servers() -> Iterator[tuple[str, str, list[str]]]:
    """Two web servers on this machine, and the requests that reached the second."""
    visited: list[str] = []

    class App(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.server is running[1]:
                visited.append(self.path)
            time.sleep(0.5 if self.path == "/help" else 0)
            if self.path == "/silent":
                return  # the connection is closed without an answer
            self.send_response({"/none": 204, "/away": 302}.get(self.path, 200))
            if self.path == "/away":
                self.send_header("location", f"http://127.0.0.1:{running[1].server_port}/away")
            self.send_header("content-type", "text/html")
            self.send_header("access-control-allow-origin", "*")
            self.end_headers()
            self.wfile.write(FORM.encode())

        def log_message(self, *_: object) -> None:
            pass

    running = [HTTPServer(("127.0.0.1", 0), App) for _ in range(2)]
    threads = [threading.Thread(target=server.serve_forever) for server in running]
    for thread in threads:
        thread.start()
    app, other = (f"http://127.0.0.1:{server.server_port}" for server in running)
    yield app, other, visited
    for server, thread in zip(running, threads, strict=True):
        server.shutdown()
        thread.join()
        server.server_close()


class Running(Served):
    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url


async def test_a_running_server_is_reached_and_no_other_and_by_no_page_without_one(
    servers: tuple[str, str, list[str]],
) -> None:
    app, other, visited = servers
    env = Running(f"{app}/start")
    first = await env.reset(seed=1)
    assert first.info["state"]["path"] == "/start"
    page = env._page
    fetch = "fetch('{}').then(() => 'reached', () => 'refused')"
    assert await page.evaluate(fetch.format(f"{app}/more")) == "reached"
    assert await page.evaluate(fetch.format(f"{other}/steal")) == "refused"
    address = f"{other}/image"
    image = f"new Promise(r => {{ const i = new Image; i.onload = i.onerror = e => r(e.type); i.src = '{address}' }})"
    assert await page.evaluate(image) == "error"
    closed = Copy()
    await closed.reset(seed=1)
    for script, refused in ((fetch.format(f"{other}/closed"), "refused"), (image, "error")):
        assert await closed._page.evaluate(script) == refused
    with pytest.raises(EnvironmentFailure, match="ERR_PROXY_CONNECTION_FAILED"):
        await closed._page.goto(f"{other}/closed")
    socket = f"new Promise(r => {{ new WebSocket('{other}'.replace('http', 'ws')).onerror = () => r('refused') }})"
    assert await page.evaluate(socket) == "refused"
    assert "is out of reach" in (await env.step(Action.of("goto", url=f"{other}/goto"))).observation.text
    there = await env.step(Action.of("goto", url=f"{app}/there"))
    assert there.observation.info["state"]["path"] == "/there"
    await page.evaluate(f"void (location = '{other}/leave')")
    left = await env.step(Action.of("keys", keys="shift"))
    assert left.observation.info["state"]["path"] == "/there"
    assert visited == []
    assert env._browser() is not Chromium.shared(), "the closed browser is another one"


async def test_a_server_may_be_named_with_the_instance(servers: tuple[str, str, list[str]]) -> None:
    class Drawn(Served):
        keeps_page = True

        def prepare(self, rng: random.Random, task: Task | None) -> None:
            super().prepare(rng, task)
            self.url = f"{servers[0]}/first" if rng.random() < 0.5 else f"{servers[1]}/second"

    env = Drawn()
    paths = [(await env.reset(seed=seed)).info["state"]["path"] for seed in range(6)]
    assert set(paths) == {"/first", "/second"}


@pytest.mark.parametrize("path", ["none", "away"])
async def test_where_goto_leads_nowhere_the_episode_goes_on(path: str, servers: tuple[str, str, list[str]]) -> None:
    env = Running(f"{servers[0]}/start")
    await env.reset(seed=1)
    told = await env.step(Action.of("goto", url=f"{servers[0]}/{path}"))
    assert (told.done, told.observation.info["state"]["path"]) == (False, "/start")
    there = await env.step(Action.of("goto", url=f"{servers[0]}/there"))
    assert there.observation.info["state"]["path"] == "/there"
    assert servers[2] == []


async def test_an_address_of_the_app_that_gives_no_answer_is_the_policys_choice(
    servers: tuple[str, str, list[str]],
) -> None:
    env = Running(f"{servers[0]}/start")
    for lead in (Action.of("goto", url=f"{servers[0]}/silent"), Action.of("click", x=20, y=100)):
        await env.reset(seed=1)
        await env._page.evaluate("void (document.links[0].href = '/silent')")
        told = await env.step(lead)
        assert (told.done, told.observation.info["state"]["path"]) == (False, "/start")
        assert told.observation.info["state_error"].endswith("/silent cannot be opened")


async def test_an_app_that_stops_answering_is_a_failure_and_no_zero() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\n\r\n<p>here")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    env = Running(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/start")
    await env.reset(seed=1)
    server.close()
    with pytest.raises(EnvironmentFailure, match=r"the app does not answer: http.*/next cannot be opened"):
        await env.step(Action.of("goto", url=env.url.replace("start", "next")))
    with pytest.raises(EnvironmentFailure, match="cannot be opened"):
        await env.reset(seed=1)


async def test_what_a_click_leads_to_is_waited_for(servers: tuple[str, str, list[str]]) -> None:
    slow = Running(f"{servers[0]}/start")
    await slow.reset(seed=1)
    helped = await slow.step(Action.of("click", x=20, y=100))
    assert helped.observation.info["state"]["path"] == "/help"


async def test_what_is_wrong_with_an_app_is_told() -> None:
    class Nothing(WebEnvironment):
        pass

    with pytest.raises(ConfigError, match="needs one of html, folder and url; got none"):
        await Nothing().reset(seed=1)
    env = Nothing()
    env.html, env.url = "<p>", "http://127.0.0.1:9"
    with pytest.raises(ConfigError, match=r"got \['html', 'url'\]"):
        await env.reset(seed=1)
    env.html, env.url, env.files = "", "http://127.0.0.1:9", {"/data.json": ""}
    with pytest.raises(ConfigError, match="the server at url has its own"):
        await env.reset(seed=1)
    env.url, env.files = "ftp://127.0.0.1", {}
    with pytest.raises(ConfigError, match="must be an http address"):
        await env.reset(seed=1)
    env.html, env.url, env.state = "<p>", "", "[1]"
    with pytest.raises(EnvironmentFailure, match="expected an object"):
        await env.reset(seed=1)
    env.html, env.url = "<p>\ud800", ""
    with pytest.raises(UnicodeEncodeError):
        await env.reset(seed=1)
    env.html = "<p>"
    for origin in ("http://Example.com", "http://example.com/", "http://example.com:80", "example.com"):
        env.origins = (origin,)
        with pytest.raises(ConfigError, match=f"origins are written as .* got '{origin}'"):
            await env.reset(seed=1)
    env.origins = ()
    env.state = "document.querySelector('#none').value"
    with pytest.raises(EnvironmentFailure, match="Cannot read properties of null"):
        await env.reset(seed=1)
    env.html, env.url = "", "http://127.0.0.1:9"
    with pytest.raises(EnvironmentFailure, match="cannot be opened: net::ERR_"):
        await env.reset(seed=1)


async def test_a_folder_takes_content_per_episode_and_a_demonstrator_finds_its_targets(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(
        """<button id=buy style="position:absolute;left:120px;top:60px;width:60px;height:20px"
        onclick="document.body.dataset.bought = 'yes'">Buy</button>
        <p id=hidden style="display:none">no</p><script src="/list.js"></script>"""
    )
    (tmp_path / "list.js").write_text("document.title = 'the file of the folder'")
    env = Shop(tmp_path)
    for seed in (1, 2, 3):
        await env.reset(seed=seed)
        assert env.page_state["list"] == env.wanted
        assert env.click_on("hidden") is None
        assert env.click_on("absent") is None
        action = env.expert_action()
        assert action.tool_calls[0].arguments == {"target": "buy", "x": 150, "y": 70}
        result = await env.step(action)
        assert result.observation.info["success"] is True
        assert env.expert_action() is None
    with pytest.raises(ConfigError, match="did you mean 'buy'"):
        env.click_on("by")
    await env.close()


async def test_a_file_is_there_under_the_name_it_was_given() -> None:
    names = ("data.js", "/one.js", "./two.js", "deep/er/d\u00e4ta 1.js", "/a.b-c_d~e.js", "a%20b.js")

    class Filed(WebEnvironment):
        html = "".join(f"<script src={json.dumps(name, ensure_ascii=False)}></script>" for name in names)
        state = "({title: document.title})"
        files: ClassVar[dict[str, Any]] = {name: f"document.title += '{i}'" for i, name in enumerate(names)}

    env = Filed()
    await env.reset(seed=0)
    assert env._state == {"title": "012345"}
    await env.close()


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"../data.js": ""}, "no page can ask for"),
        ({"a//b.js": ""}, "no page can ask for"),
        ({"a.js?v=1": ""}, "no page can ask for"),
        ({"http://app.localhost/data.js": ""}, "no page can ask for"),
        ({"data.js": "", "/data.js": ""}, "twice"),
        ({"/": "<p>"}, "beside html"),
        ({"": "<p>"}, "beside html"),
        ({"data.json": {"n": 1}}, "expected text or bytes"),
        ({3: ""}, "no page can ask for"),
    ],
)
async def test_files_that_nobody_could_read_are_refused(files: Any, words: str) -> None:
    class Filed(WebEnvironment):
        html = "<!doctype html>"

    env = Filed()
    env.files = files
    with pytest.raises(ConfigError, match=words):
        await env.reset(seed=0)
    await env.close()


async def test_a_model_that_reads_sees_words_alone() -> None:
    class Two(WebEnvironment):
        page_size = (200, 100)
        actions = ("click",)
        goal = "Press second."
        html = "<title>none</title>" + "".join(
            f"<button onclick='document.title={number}'>{word}</button>"
            for number, word in ((1, "first"), (2, "second"))
        )
        state = "({pressed: document.title})"

        def outcome(self, state: Any) -> bool | None:
            return None if state["pressed"] == "none" else state["pressed"] == "2"

    env = Two(picture=False, tree=200, marks=True)
    first = await env.reset(seed=1)
    assert first.images == ()
    assert first.text.splitlines() == ["Press second.", 'page "none"', '  button "first" [1]', '  button "second" [2]']
    result = await env.step(Action.of("click", mark=2))
    assert (result.reward, result.observation.info["success"]) == (1.0, True)
    controls = env.controls()
    assert sorted(controls) == ["blank_page", "no_instruction"]
    blank, untold = (controls[name] for name in ("blank_page", "no_instruction"))
    assert (await blank.reset(seed=1)).text == "Press second."
    assert "second" not in (await untold.reset(seed=1)).text.splitlines()[0]
    for each in (env, blank, untold):
        await each.close()


def test_a_page_of_which_nothing_is_shown_is_refused() -> None:
    with pytest.raises(ConfigError, match="set tree, or ocr, to"):
        WebEnvironment(picture=False)
