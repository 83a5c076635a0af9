"""1 MB and 100 000 items over every protocol: no stretch on the event loop takes more than 0.2 s of CPU.

The routes are those of the applications, so that a new one is asked too. `pytest -s` prints the table of
benchmarks/history/cost.md.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from tests.serving.worlds import says, with_tools
from tests.stretches import BOUND, TRIES, note, table, watching
from uirl.environments.remote.server.app import create_app
from uirl.environments.remote.server.settings import ServerSettings
from uirl.inference import LoadedModel
from uirl.serving import ModelEndpoint
from uirl.serving.server import build_app

SIZE, ITEMS = 1_000_000, 100_000
BESIDE = 2.0
"""CPU seconds of one piece of work on a thread: linear in its input, and nothing waits for it but its caller."""
CALL = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
TOOL = {"type": "function", "function": {"name": "f", "description": "d"}}
USER = {"role": "user", "content": "a"}
DATA_URL = f"data:image/png;base64,{base64.b64encode(bytes(SIZE * 3 // 4)).decode()}"
MANY = {f"a{i}": i for i in range(ITEMS)}


def _said(*parts: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(parts)}]}


def _called(*calls: Any) -> dict[str, Any]:
    return {"messages": [{"role": "assistant", "tool_calls": list(calls)}, USER]}


def _arguments(text: str) -> dict[str, Any]:
    return _called({"id": "a", "type": "function", "function": {"name": "f", "arguments": text}})


FIELDS: dict[str, dict[str, Any]] = {
    "100 000 messages": {"messages": [USER] * ITEMS},
    "16 000 messages": {"messages": [USER] * 16_000},
    "one message": {"messages": [{"role": "user", "content": "x" * SIZE}]},
    "openings in a reply": {"messages": [{"role": "assistant", "content": "<tool_call>\n" * (SIZE // 12)}, USER]},
    "parts": _said(*[{"type": "text", "text": "a"}] * ITEMS),
    "a kind of part": _said({"type": "x" * SIZE}),
    "a picture that is none": _said({"type": "image_url", "image_url": {"url": DATA_URL}}),
    "calls": _called(*({**CALL, "id": f"c{i}"} for i in range(ITEMS // 3))),
    "arguments": _arguments(json.dumps(MANY)),
    "deep arguments": _arguments('{"a":' * 50_000),
    "a role": {"messages": [{"role": "x" * SIZE, "content": "a"}]},
    "the id of a result": {"messages": [{"role": "tool", "tool_call_id": "x" * SIZE, "content": "a"}]},
    "tools": {"messages": [USER], "tools": [TOOL] * (ITEMS // 3)},
    "1000 tools": {"messages": [USER], "tools": [TOOL] * 1000},
    "the name of a tool": {"messages": [USER], "tools": [{"type": "function", "function": {"name": "f" * SIZE}}]},
    "stop ids": {"messages": [USER], "prompt": "a", "stop_token_ids": [1] * ITEMS},
    "stops": {"messages": [USER], "prompt": "a", "stop": ["x"] * ITEMS},
    "fields": {"messages": [USER], "prompt": "a", **MANY},
    "a field": {"messages": [USER], "prompt": "a", "x" * SIZE: 1},
    "a model": {"messages": [USER], "model": "x" * SIZE},
    "digits": {"messages": [USER], "prompt": "a", "seed": 10**4000, "reward": 10**4000},
    "a prompt": {"prompt": "x" * SIZE},
    "a prompt of ids": {"prompt": [5] * ITEMS},
    "texts": {"task": "x" * SIZE, "group_id": "x" * SIZE, "reward": "x" * SIZE},
}
BODIES: dict[str, bytes] = {name: json.dumps({"model": "m", **fields}).encode() for name, fields in FIELDS.items()} | {
    "a list": json.dumps([1] * ITEMS).encode(),
    "brackets": b"[" * SIZE,
    "a deep list": b"[" * (SIZE // 2) + b"]" * (SIZE // 2),
    "quotes": b'"\\"' * (SIZE // 3),
    "a number": b"1" * SIZE,
    "no UTF-8": b"\xff" * SIZE,
}
FRAMES = {
    "letters": "a" * SIZE,
    "brackets": "[" * SIZE,
    "a kind": json.dumps({"type": "x" * SIZE}),
    "a name": json.dumps({"type": "step", "data": {"name": "x" * SIZE}}),
    "arguments": json.dumps({"type": "step", "data": {"name": "click", "arguments": MANY}}),
    "calls": json.dumps({"type": "step", "data": {"tool_calls": [{"name": "a"}] * ITEMS}}),
    "text": json.dumps({"type": "step", "data": {"text": "x" * SIZE}}),
    "fields": json.dumps({"type": "step", "data": MANY}),
    "a task": json.dumps({"type": "reset", "data": {"task": {"id": "x" * SIZE, "checks": MANY}}}),
    "an episode": json.dumps({"type": "reset", "data": {"episode_id": "x" * SIZE, "seed": 1}}),
    "mcp": json.dumps({"type": "mcp", "data": MANY}),
}
QUERIES = {
    "digits": f"action_type=left_click&x={'1' * SIZE}&y=1&number={'1' * SIZE}",
    "parameters": "&".join(f"a{i}=1" for i in range(ITEMS)),
    "a text that is allowed": f"action_type=type&text={'%41' * 5000}",
    "digits that are allowed": f"action_type=left_click&x={'1' * 4000}&y={'1' * 4000}",
}


@pytest.fixture(scope="module", autouse=True)
def _printed() -> Iterator[None]:
    yield
    print(table())


@pytest.mark.parametrize("body", BODIES)
async def test_every_route_of_the_model_endpoint(lm: LoadedModel, body: str) -> None:
    loaded = with_tools(lm)
    endpoint = ModelEndpoint(says(loaded, "yes"), loaded, api_key="k", remote_sessions=True)
    endpoint.sessions.address = "http://127.0.0.1:1"  # nothing listens: the application is called as it is
    app = build_app(endpoint.service, endpoint.sessions, endpoint.options)
    paths = sorted(route.path for route in app.routes if "POST" in (getattr(route, "methods", None) or ()))
    assert len(paths) >= 6
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
        for path in paths:
            session = endpoint.session()
            key = endpoint.sessions.grader_key(session.token) if path.endswith("finish") else "k"
            headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
            answer = await _asked(
                client, "POST", path.format(token=session.token), f"endpoint: POST {path}", body, headers
            )
            assert answer.status_code < 500, answer.text[:300]
            assert len(answer.content) < 10_000


async def _asked(client: httpx.AsyncClient, method: str, path: str, entry: str, what: str, headers: Any = None) -> Any:
    """The answer, whose stretches were found short; `what` names the body, or the query of a GET."""
    loop = beside = float("inf")
    for _ in range(TRIES):
        with watching() as seen:
            content = BODIES[what] if method == "POST" else None
            answer = await asyncio.create_task(client.request(method, path, content=content, headers=headers))
        loop, beside = min(loop, seen.loop), min(beside, seen.beside)
        if loop <= BOUND:
            break
    note(entry, loop)
    assert loop <= BOUND, f"{entry} kept the loop for {loop:.2f} s on {what}"
    assert beside <= BESIDE, f"{entry} worked for {beside:.2f} s on {what}"
    return answer


@pytest.mark.parametrize("frame", FRAMES)
def test_the_socket_of_openenv(frame: str) -> None:
    with TestClient(create_app(ServerSettings("screen")), base_url="http://127.0.0.1") as client:
        best = float("inf")
        for _ in range(TRIES):
            with client.websocket_connect("/ws", headers={"host": "127.0.0.1"}) as socket, watching() as seen:
                socket.send_text('{"type":"reset","data":{"seed":1}}')
                assert json.loads(socket.receive_text())["type"] == "observation"
                socket.send_text(FRAMES[frame])
                assert len(socket.receive_text()) < 10_000 or frame in ("an episode", "text", "a name", "arguments")
            best = min(best, seen.loop)
            if best <= BOUND:
                break
    note("OpenEnv: /ws", best)
    assert best <= BOUND, f"{frame} kept the loop for {best:.2f} s"


@pytest.mark.parametrize("query", QUERIES)
async def test_every_get_of_the_environment_server(query: str) -> None:
    app = create_app(ServerSettings("screen", sessions=4))
    paths = sorted(_gets(app))
    assert "/session/{id}/act" in paths
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
        made = (await client.post("/v1/sessions", json={"seed": 3})).json()["session"]
        await client.post("/session")
        for path in paths:
            values = {"id": made if path.startswith("/v1") else "1", "hash": "0", "number": "1"}
            # the query of the ASGI scope, past the limits of httpx on an address
            transport = httpx.ASGITransport(_with_query(app, QUERIES[query].encode()))
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as other:
                entry = f"environment server: GET {path}"
                answer = await _asked(other, "GET", path.format(**values), entry, query)
            assert answer.status_code < 500, answer.text[:300]
            if answer.status_code >= 400:
                assert len(answer.content) < 30_000
    await app.state.sessions.close_all()


def _with_query(app: Any, query: bytes) -> Any:
    async def called(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "query_string": query}, receive, send)

    return called


def _gets(app: Any) -> Iterator[str]:
    stack = list(app.routes)
    while stack:
        route = stack.pop()
        inner = getattr(route, "original_router", None) or getattr(route, "router", None)
        if inner is not None:
            stack += inner.routes
        elif "GET" in (getattr(route, "methods", None) or ()):
            yield route.path
