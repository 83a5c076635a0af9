"""OpenEnv over `/ws` as `uirl serve` speaks it, and the routes beside it."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from socket import SHUT_RDWR
from typing import Any

import pytest
from PIL import Image
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.environments.remote.running import Served, serving, until
from tests.environments.remote.server.test_native import HUNG, Moody
from tests.patience import PATIENCE
from uirl.environments import ScreenEnvironment

MISS = {"name": "click", "arguments": {"x": 1, "y": 1}}


def open_socket(served: Served) -> ClientConnection:
    return connect(served.url.replace("http", "ws") + "/ws", max_size=None)


def ask(socket: ClientConnection, kind: str, data: Any = None) -> dict[str, Any]:
    socket.send(json.dumps({"type": kind} if data is None else {"type": kind, "data": data}))
    said: dict[str, Any] = json.loads(socket.recv(timeout=PATIENCE))
    return said


@pytest.fixture(scope="module")
def screen() -> Iterator[Served]:
    with serving("screen", options={"retries": 1}, sessions=2) as served:
        yield served


def test_an_episode(screen: Served) -> None:
    local = ScreenEnvironment(retries=1)
    first = local.reset(seed=5)
    with open_socket(screen) as socket:
        said = ask(socket, "reset", {"seed": 5, "episode_id": "mine", "unknown": 1})
        assert said["type"] == "observation"
        data = said["data"]
        assert (data["reward"], data["done"], data["terminated"], data["truncated"]) == (None, False, False, False)
        assert data["observation"]["text"] == first.text
        picture = Image.open(io.BytesIO(base64.b64decode(data["observation"]["images"][0])))
        assert picture.tobytes() == first.images[0].tobytes()
        expert = local.expert_action()
        call = {"name": expert.call.name, "arguments": dict(expert.call.arguments)}
        data = ask(socket, "step", {"tool_calls": [call]})["data"]
        assert (data["reward"], data["done"]) == (0.5, False)
        assert data["metadata"] == {"success": False, "stage": 1, "stages": 2}
        assert ask(socket, "state") == {"type": "state", "data": {"episode_id": "mine", "step_count": 1}}
        assert ask(socket, "step", MISS)["data"]["done"] is False
        data = ask(socket, "step", MISS)["data"]
        assert (data["done"], data["terminated"], data["truncated"]) == (True, True, False)
        assert data["observation"]["terminated"] is True
        said = ask(socket, "step", MISS)
        assert (said["type"], said["data"]["code"]) == ("error", "EXECUTION_ERROR")
        assert ask(socket, "reset", {})["type"] == "observation"
        socket.send('{"type": "close"}')
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(timeout=PATIENCE)
        assert closed.value.rcvd.code == 1000
    until(lambda: screen.active == 0)


@pytest.mark.parametrize(
    ("frame", "code", "words"),
    [
        ("{bad", "INVALID_JSON", "not JSON"),
        ("[" * 50_000, "INVALID_JSON", "too deep"),
        ('{"type":"nope"}', "UNKNOWN_TYPE", "unknown message type 'nope'"),
        ("[]", "UNKNOWN_TYPE", "unknown message type None"),
        ('{"type":"step","data":{"zzz":1}}', "VALIDATION_ERROR", "data.zzz is not known here"),
        ('{"type":"step","data":[1]}', "VALIDATION_ERROR", "expected an object"),
        ('{"type":"step","data":{"arguments":{"x":1}}}', "VALIDATION_ERROR", "without data.name"),
        (
            '{"type":"step","data":{"name":"a","tool_calls":[{"name":"b"}]}}',
            "VALIDATION_ERROR",
            "two ways to say one thing",
        ),
        ('{"type":"reset","data":{"seed":"x"}}', "VALIDATION_ERROR", "data.seed is 'x'"),
        ('{"type":"reset","data":{"task_name":"shopping"}}', "VALIDATION_ERROR", "no task 'shopping'"),
        ('{"type":"step"}', "EXECUTION_ERROR", "no episode yet; reset it first"),
    ],
)
def test_errors_leave_the_session_as_it_was(screen: Served, frame: str, code: str, words: str) -> None:
    with open_socket(screen) as socket:
        socket.send(frame)
        said = json.loads(socket.recv(timeout=PATIENCE))
        assert (said["type"], said["data"]["code"]) == ("error", code)
        assert words in said["data"]["message"]
        assert ask(socket, "reset", {"seed": 1})["type"] == "observation"
    until(lambda: screen.active == 0)


def test_capacity(screen: Served) -> None:
    with open_socket(screen) as one, open_socket(screen) as two, open_socket(screen) as third:
        said = json.loads(third.recv(timeout=PATIENCE))
        assert said["type"] == "error"
        data = said["data"]
        assert (data["code"], data["active_sessions"], data["max_sessions"]) == ("CAPACITY_REACHED", 2, 2)
        with pytest.raises(ConnectionClosed) as closed:
            third.recv(timeout=PATIENCE)
        assert closed.value.rcvd.code == 1000
        assert ask(one, "reset", {})["type"] == ask(two, "reset", {})["type"] == "observation"
    until(lambda: screen.active == 0)


def test_a_client_that_vanishes_frees_its_session(screen: Served) -> None:
    with open_socket(screen) as socket:
        ask(socket, "reset", {})
        assert screen.active == 1
        socket.socket.shutdown(SHUT_RDWR)
        until(lambda: screen.active == 0)


def test_the_reaper_takes_the_socket_with_it() -> None:
    with serving("screen", idle=1.0) as served, open_socket(served) as socket:
        ask(socket, "reset", {})
        served.pass_time(1.1)
        said = json.loads(socket.recv(timeout=PATIENCE))
        assert said["data"]["code"] == "SESSION_ERROR"
        assert "idle: not played for 1 s" in said["data"]["message"]
        with pytest.raises(ConnectionClosed):
            socket.recv(timeout=PATIENCE)
        assert served.active == 0


def test_failures_are_typed_and_reset_mends_them() -> None:
    with serving(Moody(), step_timeout=HUNG) as served, open_socket(served) as socket:
        ask(socket, "reset", {})
        said = ask(socket, "step", {"text": "raise"})["data"]
        assert (said["code"], said["kind"]) == ("EXECUTION_ERROR", "environment")
        assert "the cable was pulled" in said["message"]
        assert "task one" in ask(socket, "reset", {"task_id": "one"})["data"]["observation"]["text"]
        said = ask(socket, "reset", {"task": {"id": "own"}, "seed": 4})["data"]
        assert said["observation"]["text"].endswith("task own, seed 4")
        said = ask(socket, "step", {"text": "cut"})["data"]
        assert (said["done"], said["terminated"], said["truncated"]) == (True, False, True)
        assert said["observation"]["tool_results"][0]["name"] == "add"


def test_there_are_no_tools_over_mcp(screen: Served) -> None:
    with open_socket(screen) as socket:
        said = ask(socket, "mcp", {"jsonrpc": "2.0", "id": 7, "method": "tools/list"})
        assert (said["type"], said["data"]["id"], said["data"]["error"]["code"]) == ("mcp", 7, -32601)
    until(lambda: screen.active == 0)


def test_the_routes_beside_the_socket(screen: Served) -> None:
    with screen.http() as http:
        assert http.get("/health").json() == {"status": "healthy"}
        assert http.get("/metadata").json()["name"] == "screen"
        schema = http.get("/schema").json()
        assert set(schema) == {"action", "observation", "state"}
        assert "tool_calls" in schema["action"]["properties"]
        for path in ("/reset", "/step"):
            assert http.post(path, json={}).status_code == 404
