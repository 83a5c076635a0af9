"""1 MB and 100 000 items to every public entry: nothing keeps the thread of the event loop for long.

The entries come from the tables they stand in, so that a new parser, tool or route is asked as well. What is measured
is CPU time of the thread in units of the machine (`tests/stretches.py`). `pytest -s` prints the longest of each kind.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.stretches import BOUND, TRIES, note, table, units, watching
from tests.stretches import call as call_within
from uirl.environments.adapters.browsergym_actions import read_actions
from uirl.environments.remote.protocol import native as wire
from uirl.environments.remote.server.app import create_app
from uirl.environments.remote.server.settings import ServerSettings
from uirl.environments.ui.actions import ActionSpace
from uirl.errors import UirlError
from uirl.parsers import PARSERS, create_parser
from uirl.runtime.wire import loads
from uirl.serving.protocol.chat_requests import read_chat_call, read_completion_call
from uirl.serving.protocol.fields import read_json
from uirl.tools import CalculatorTool, LookupTool, SearchTool, ToolRegistry
from uirl.types import Action, ToolCall

SIZE, ITEMS = 1_000_000, 100_000

TEXTS: dict[str, str] = {
    "letters": "a" * SIZE,
    "blanks": " " * SIZE,
    "brackets": "[" * SIZE,
    "braces": '{"a":' * (SIZE // 5),
    "objects": '{"a":1}' * (SIZE // 7),
    "quotes": '"\\"' * (SIZE // 3),
    "calls": '<tool_call>{"name":"a"}</tool_call>' * (SIZE // 36),
    "openings": "<tool_call>\n" * (SIZE // 12),
    "thoughts": "<think></think>" * (SIZE // 15),
    "fences": "```json\n" * (SIZE // 8),
    "lines": "Action: a\nAction Input: b\n" * (SIZE // 26),
    "one value": json.dumps({"action": "click", "x": [0] * ITEMS}),
    "one text": json.dumps({"action": "type", "text": "x" * SIZE}),
}
CALLS: dict[str, ToolCall] = {
    "a long name": ToolCall("x" * SIZE),
    "many arguments": ToolCall("click", {f"a{i}": i for i in range(ITEMS)}),
    "a long list": ToolCall("click", {"x": [0] * ITEMS, "expression": [0] * ITEMS}),
    "a long text": ToolCall("calculator", {"expression": "1+" * (SIZE // 2), "text": "x" * SIZE}),
    "a long key": ToolCall("click", {"x" * SIZE: 1}),
}
BODIES: dict[str, Any] = {
    "calls": {"action": {"tool_calls": [{"name": "a"}] * ITEMS}},
    "arguments": {"action": {"tool_calls": [{"name": "click", "arguments": {f"a{i}": 1 for i in range(ITEMS)}}]}},
    "fields": {f"a{i}": 1 for i in range(ITEMS)},
    "a long name": {"action": {"tool_calls": [{"name": "x" * SIZE}]}},
    "a long field": {"x" * SIZE: 1},
    "a long text": {"action": {"text": "x" * SIZE}},
    "messages": {"model": "m", "messages": [{"role": "x" * 9, "content": "y"}] * ITEMS},
    "one message": {"model": "m", "messages": [{"role": "user", "content": "x" * SIZE}]},
    "ids": {"model": "m", "prompt": list(range(ITEMS))},
    "stops": {"model": "m", "prompt": "a", "stop": ["x"] * ITEMS},
    "a list": list(range(ITEMS)),
}


REFUSED = (UirlError, ValueError)


def assert_within(entry: str, what: str, work: Callable[[], Any]) -> None:
    """Runs work that may refuse its input and must not keep the thread."""

    def run() -> None:
        with contextlib.suppress(*REFUSED):
            work()

    call_within(entry, what, run)


@pytest.fixture(scope="module", autouse=True)
def _printed() -> Iterator[None]:
    yield
    print(table())


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", sorted(set(PARSERS) - {"hermes", "function_calling"}))
def test_parsers(name: str, text: str) -> None:
    parser = create_parser(name)
    assert_within(f"parser {name}", text, lambda: parser.parse(TEXTS[text]))


@pytest.mark.parametrize("text", TEXTS)
def test_action_strings(text: str) -> None:
    assert_within("actions of BrowserGym", text, lambda: read_actions(TEXTS[text]))
    assert_within("JSON of the environment server", text, lambda: loads(TEXTS[text]))
    assert_within("JSON of the model endpoint", text, lambda: read_json(TEXTS[text].encode()))


@pytest.mark.parametrize("call", CALLS)
def test_calls(call: str) -> None:
    space = ActionSpace(100, 100)
    tools = ToolRegistry([CalculatorTool(), SearchTool(["a b"]), LookupTool({"a": "b"})])
    given = CALLS[call]
    assert_within("actions of a user interface", call, lambda: space.read(Action(tool_calls=(given,))))
    for tool in tools:
        name = given.name if call == "a long name" else tool.name

        def execute(name: str = name) -> None:
            success, text = tools.execute_tool(name, **given.arguments)
            assert success or len(str(text)) < 10_000

        assert_within(f"tool {tool.name}", call, execute)


READERS: dict[str, Callable[[Any], Any]] = {
    "action": lambda value: wire.WireAction.read(value["action"], "action"),
    "task": lambda value: wire.WireTask.read(value, "task"),
    "observation": lambda value: wire.WireObservation.read(value, "observation"),
    "chat": read_chat_call,
    "completion": read_completion_call,
}


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("reader", READERS)
def test_readers(reader: str, body: str) -> None:
    def read() -> None:
        with contextlib.suppress(KeyError, TypeError):
            READERS[reader](BODIES[body])

    assert_within(f"reader of {reader}", body, read)


@pytest.mark.parametrize("body", BODIES)
async def test_every_route_that_takes_a_body(body: str) -> None:
    app = create_app(ServerSettings("screen", sessions=64))
    paths = [path for path in _posts(app) if path != "/session"]
    assert len(paths) >= 5
    written = json.dumps(BODIES[body]).encode()
    transport = httpx.ASGITransport(app, raise_app_exceptions=True)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        made = (await client.post("/v1/sessions", json={"seed": 3})).json()
        for path in paths:
            best = float("inf")
            for _ in range(TRIES):
                with watching() as seen:
                    task = client.post(path.format(id=made["session"]), content=written)
                    answer = await asyncio.create_task(task)
                note(f"environment server: POST {path}", seen.loop)
                best = min(best, units(seen.loop))
                if best <= BOUND:
                    break
            assert best <= BOUND, f"{path} kept the loop for {best:.1f} units"
            assert answer.status_code < 500 or answer.status_code == 503
            assert len(answer.content) < 100_000
    await app.state.sessions.close_all()


def _posts(app: Any) -> list[str]:
    found, stack = [], list(app.routes)
    while stack:
        route = stack.pop()
        inner = getattr(route, "original_router", None) or getattr(route, "router", None)
        if inner is not None:
            stack += inner.routes
        elif "POST" in (getattr(route, "methods", None) or ()):
            found.append(route.path)
    return found
