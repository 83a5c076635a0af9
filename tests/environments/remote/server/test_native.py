"""The native API over real HTTP: sessions, leases, limits, and what each call says."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.environments.remote.running import Served, serving, until
from uirl.environments import BaseEnvironment, ScreenEnvironment
from uirl.types import Observation, StepResult, Task, ToolResult

HUNG = 1.0
"""Seconds that a step of `Moody` may take."""
CLICK = {"action": {"tool_calls": [{"name": "click", "arguments": {"x": 1, "y": 1}}]}}


@pytest.fixture(scope="module")
def screen() -> Iterator[Served]:
    with serving("screen", options={"retries": 2}, sessions=4) as served:
        yield served


@pytest.fixture
def http(screen: Served) -> Iterator[httpx.Client]:
    with screen.http() as client:
        yield client
        for one in client.get("/v1/sessions").json()["sessions"]:
            client.delete(f"/v1/sessions/{one['session']}")
    assert screen.active == 0


def error_of(answer: httpx.Response) -> tuple[int, str, str]:
    said = answer.json()["error"]
    return answer.status_code, said["kind"], said["message"]


def test_an_episode(http: httpx.Client) -> None:
    made = http.post("/v1/sessions", json={"seed": 3})
    assert made.status_code == 201
    session = made.json()["session"]
    local = ScreenEnvironment(retries=2)
    first = local.reset(seed=3)
    assert made.json()["observation"]["text"] == first.text
    at = f"/v1/sessions/{session}"
    assert http.get(at + "/observation").json()["observation"] == made.json()["observation"]
    assert http.get(at + "/state").json() == {"text": local.get_state_description()}
    action = http.post(at + "/expert").json()["action"]
    stepped = http.post(at + "/step", json={"action": action, "turn": 0}).json()
    assert (stepped["reward"], stepped["turn"]) == (0.5, 1)
    assert stepped["observation"]["info"] == {"success": False, "stage": 1, "stages": 2}
    verdict = http.get(at + "/verdict").json()
    assert (verdict["total_reward"], verdict["success"], verdict["seed"]) == (0.5, False, 3)
    assert http.delete(at).json() == {"closed": session}
    assert error_of(http.get(at + "/state")) == (410, "lease", "the session is over: client")


def test_pictures_as_base64_and_as_bytes_are_the_same(http: httpx.Client) -> None:
    session = http.post("/v1/sessions", json={"seed": 3}).json()["session"]
    at = f"/v1/sessions/{session}"
    inline = http.get(at + "/observation").json()["observation"]["images"][0]
    named = http.get(at + "/observation?images=hash").json()["observation"]["images"][0]
    assert named == {"hash": inline["hash"], "media_type": "image/png"}
    raw = http.get(f"{at}/images/{named['hash']}")
    assert raw.headers["content-type"] == "image/png"
    assert raw.content == base64.b64decode(inline["base64"])
    assert http.get(f"{at}/images/{'0' * 32}").status_code == 404
    assert error_of(http.get(at + "/observation?images=jpeg"))[0] == 400


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("step", b"{", (400, "request", "not JSON")),
        ("step", b"[]", (400, "request", "expected an object")),
        ("step", b"{}", (400, "request", "body.action is missing")),
        ("step", b'{"action":{"tool_cals":[]}}', (400, "request", "did you mean 'tool_calls'?")),
        ("step", b'{"action":{"tool_calls":[{"name":3}]}}', (400, "request", "body.action.tool_calls[0].name is 3")),
        ("step", b"[" * 100_000, (400, "request", "too deep")),
        ("step", b'{"action":{},"turn":true}', (400, "request", "body.turn is True")),
        ("step", b'{"action":{},"turn":7}', (409, "order", "step 7 of the episode was asked for, but 0 were taken")),
        ("step", b'{"action":{},"close":"soon"}', (400, "request", "expected 'never', 'done' or 'after'")),
        ("reset", b'{"seed":"x"}', (400, "request", "body.seed is 'x'; expected a whole number")),
        ("reset", b'{"task":{"id":""}}', (400, "request", "Task.id is empty")),
        ("reset", b'{"sed":1}', (400, "request", "did you mean 'seed'?")),
    ],
)
def test_wrong_requests_are_named(http: httpx.Client, path: str, body: bytes, expected: tuple[int, str, str]) -> None:
    session = http.post("/v1/sessions", json={"seed": 3}).json()["session"]
    status, kind, message = error_of(http.post(f"/v1/sessions/{session}/{path}", content=body))
    assert (status, kind) == expected[:2]
    assert expected[2] in message
    # the session is none the worse for it
    assert http.post(f"/v1/sessions/{session}/step", json=CLICK).status_code == 200


def test_calls_out_of_order(http: httpx.Client) -> None:
    session = http.post("/v1/sessions").json()["session"]
    at = f"/v1/sessions/{session}"
    assert error_of(http.post(at + "/step", json=CLICK))[:2] == (409, "order")
    assert error_of(http.get(at + "/observation"))[:2] == (409, "order")
    http.post(at + "/reset", json={"seed": 1})
    for _ in range(3):
        ended = http.post(at + "/step", json=CLICK).json()
    assert ended["terminated"] is True
    status, kind, message = error_of(http.post(at + "/step", json=CLICK))
    assert (status, kind) == (409, "order")
    assert "after the end of the episode" in message
    assert http.post(at + "/reset", json={}).status_code == 200


def test_a_step_that_is_sent_twice_is_taken_once(http: httpx.Client) -> None:
    session = http.post("/v1/sessions", json={"seed": 3}).json()["session"]
    body = {**CLICK, "turn": 0}
    assert http.post(f"/v1/sessions/{session}/step", json=body).status_code == 200
    assert error_of(http.post(f"/v1/sessions/{session}/step", json=body))[:2] == (409, "order")
    assert http.get(f"/v1/sessions/{session}/observation").json()["turn"] == 1


def test_the_limit_of_sessions(http: httpx.Client) -> None:
    for _ in range(4):
        assert http.post("/v1/sessions").status_code == 201
    refused = http.post("/v1/sessions")
    assert error_of(refused)[:2] == (503, "capacity")
    assert 1 <= int(refused.headers["retry-after"]) <= 30
    first = http.get("/v1/sessions").json()["sessions"][0]["session"]
    http.delete(f"/v1/sessions/{first}")
    assert http.post("/v1/sessions").status_code == 201


def test_a_variant_that_there_is_not(http: httpx.Client) -> None:
    status, kind, message = error_of(http.post("/v1/sessions", json={"seed": 3, "variant": "constant_click"}))
    assert (status, kind) == (400, "request")
    assert "no variant 'constant_click'" in message


def test_metrics_count(http: httpx.Client, screen: Served) -> None:
    counters = screen.sessions.counters
    before = counters.count("uirl_calls_total", method="step")
    session = http.post("/v1/sessions", json={"seed": 3}).json()["session"]
    http.post(f"/v1/sessions/{session}/step", json=CLICK)
    lines = http.get("/metrics").text.splitlines()
    assert f'uirl_calls_total{{method="step"}} {before + 1}' in lines
    assert f'uirl_call_seconds_count{{method="step"}} {before + 1}' in lines
    assert f'uirl_call_seconds_bucket{{method="step",le="+Inf"}} {before + 1}' in lines
    assert "uirl_sessions_active 1" in lines
    assert "uirl_sessions_capacity 4" in lines


# -- environments that break ------------------------------------------------------------------------------------------


class Moody(BaseEnvironment):
    """Does what the action says: raises, hangs, shows nonsense, or answers with everything an observation may hold."""

    made = 0
    closed = 0

    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    def spawn(self) -> BaseEnvironment:
        other = type(self)()
        Moody.made += 1
        other.number = Moody.made
        return other

    def reset(self, task: Task | None = None, seed: int | None = None) -> Any:
        text = f"instance {self.number}, task {task.id if task else None}, seed {seed}"
        return (text, {"odd": object()}) if task is not None and task.id == "odd" else text

    def step(self, action: str) -> Any:
        if action == "raise":
            raise OSError("the cable was pulled")
        if action == "hang":
            threading.Event().wait(20 * HUNG)  # on a thread that ends with the process
        if action == "object":
            return "odd", 0.0, False, {"odd": object()}
        results = (ToolResult("add", {"a": 1}, False, {"sum": [1, 2.5, None, "\ud800"]}, "call-1", 0.25),)
        seen = Observation("half \ud800 a pair", (), {"success": True, "list": (1, 2)}, results)
        return StepResult(seen, 0.1 + 0.2, False, action == "cut")

    def get_state_description(self) -> str:
        return str(self.number)

    def close(self) -> None:
        type(self).closed += 1

    def tasks(self) -> list[Task]:
        return [Task("one", goal="do", checks={"answer": 42}, tags=("a",), seed=1), Task("two")]


@pytest.fixture
def moody() -> Iterator[tuple[Served, httpx.Client]]:
    with serving(Moody(), step_timeout=HUNG) as served, served.http() as client:
        yield served, client


def test_a_session_that_breaks_is_typed_and_replaced(moody: tuple[Served, httpx.Client]) -> None:
    served, http = moody
    at = f"/v1/sessions/{http.post('/v1/sessions').json()['session']}"
    first = http.post(at + "/reset", json={"seed": 1}).json()["observation"]["text"]
    status, kind, message = error_of(http.post(at + "/step", json={"action": {"text": "raise"}}))
    assert (status, kind) == (500, "environment")
    assert "the cable was pulled" in message
    assert error_of(http.post(at + "/step", json={"action": {"text": "go on"}}))[:2] == (500, "environment")
    second = http.post(at + "/reset", json={"seed": 1}).json()["observation"]["text"]
    assert first != second
    assert second.endswith("task None, seed 1")
    status, kind, message = error_of(http.post(at + "/step", json={"action": {"text": "hang"}}))
    assert (status, kind) == (504, "timeout")
    assert "did not return within 1 s" in message
    assert http.post(at + "/reset", json={}).status_code == 200
    assert served.active == 1
    counters = served.sessions.counters
    assert counters.count("uirl_sessions_replaced_total") == 2
    assert counters.count("uirl_failures_total", kind="timeout") == 1


def test_what_cannot_travel_is_a_failure_of_the_environment(moody: tuple[Served, httpx.Client]) -> None:
    served, http = moody
    # a first observation that cannot travel leaves no session
    assert error_of(http.post("/v1/sessions", json={"task": {"id": "odd"}}))[:2] == (500, "environment")
    assert served.active == 0
    at = f"/v1/sessions/{http.post('/v1/sessions', json={'seed': 1}).json()['session']}"
    status, kind, message = error_of(http.post(at + "/step", json={"action": {"text": "object"}}))
    assert (status, kind) == (500, "environment")
    assert "info.odd is <object object" in message


def test_leases_run_out_without_calls_and_heartbeats_renew_them() -> None:
    with serving("screen", lease=1.5) as served, served.http() as http:
        kept, left = (http.post("/v1/sessions", json={"seed": 1}).json()["session"] for _ in range(2))

        def one_left() -> bool:
            assert http.post(f"/v1/sessions/{kept}/heartbeat").json() == {"lease_seconds": 1.5}
            served.pass_time(0.8)
            return served.active == 1

        until(one_left)
        status, kind, message = error_of(http.post(f"/v1/sessions/{left}/step", json=CLICK))
        assert (status, kind) == (410, "lease")
        assert "lease: no call for 1.5 s" in message
        served.pass_time(1.6)
        until(lambda: served.active == 0)
        assert served.sessions.counters.count("uirl_sessions_closed_total", reason="lease") == 2


def test_heartbeats_do_not_keep_a_session_that_nobody_plays() -> None:
    with serving("screen", idle=0.4) as served, served.http() as http:
        session = http.post("/v1/sessions", json={"seed": 1}).json()["session"]

        def gone() -> bool:
            served.pass_time(0.1)
            return http.post(f"/v1/sessions/{session}/heartbeat").status_code == 410

        until(gone)
        until(lambda: served.active == 0)
        assert served.sessions.counters.count("uirl_sessions_closed_total", reason="idle") == 1


# -- the end of a session ---------------------------------------------------------------------------------------------


def test_an_instance_is_taken_over_by_the_next_session(moody: tuple[Served, httpx.Client]) -> None:
    served, http = moody
    first = http.post("/v1/sessions", json={"seed": 1}).json()
    http.delete(f"/v1/sessions/{first['session']}")
    assert (served.active, served.sessions.warm) == (0, 1)
    made = http.post("/v1/sessions").json()
    assert (served.active, served.sessions.warm) == (1, 0)
    at = f"/v1/sessions/{made['session']}"
    # it still stands in the episode of somebody else: nobody may see or play that
    for method, path, body in (
        ("POST", "/step", {"action": {"text": "on"}}),
        ("POST", "/expert", {}),
        ("POST", "/score", {}),
        ("GET", "/state", None),
        ("GET", "/observation", None),
    ):
        assert error_of(http.request(method, at + path, json=body))[:2] == (409, "order"), path
    instance = http.post(at + "/reset", json={"seed": 1}).json()["observation"]["text"]
    assert instance == first["observation"]["text"]


def test_instances_that_broke_or_are_variants_are_not_kept(screen: Served, moody: tuple[Served, httpx.Client]) -> None:
    served, http = moody
    at = f"/v1/sessions/{http.post('/v1/sessions', json={'seed': 1}).json()['session']}"
    http.post(at + "/step", json={"action": {"text": "raise"}})
    http.delete(at)
    assert served.sessions.warm == 0
    before = screen.sessions.warm
    with screen.http() as other:
        session = other.post("/v1/sessions", json={"seed": 1, "variant": "blank_image"}).json()["session"]
        other.delete(f"/v1/sessions/{session}")
    assert screen.sessions.warm <= before


def test_instances_that_nobody_takes_over_are_closed() -> None:
    class Counted(Moody):
        """Of this test alone: instances that an earlier server left may be closed late."""

        closed = 0

    with serving(Counted(), idle=1.0) as served, served.http() as http:
        session = http.post("/v1/sessions", json={"seed": 1}).json()["session"]
        http.delete(f"/v1/sessions/{session}")
        assert (served.sessions.warm, Counted.closed) == (1, 0)
        served.pass_time(1.1)
        until(lambda: served.sessions.warm == 0)
        until(lambda: Counted.closed == 1)
        for _ in range(2):  # one that is warm and one that is played, as the server ends
            session = http.post("/v1/sessions", json={"seed": 1}).json()["session"]
        http.delete(f"/v1/sessions/{session}")
    assert Counted.closed == 4, "three instances and the template"


@pytest.mark.parametrize(
    ("close", "words", "over"),
    [("never", "cut", False), ("done", "on", False), ("done", "cut", True), ("after", "on", True)],
)
def test_a_step_may_end_its_session(moody: tuple[Served, httpx.Client], close: str, words: str, over: bool) -> None:
    served, http = moody
    at = f"/v1/sessions/{http.post('/v1/sessions', json={'seed': 1}).json()['session']}"
    said = http.post(at + "/step", json={"action": {"text": words}, "close": close}).json()
    assert ("state" in said) is over
    assert served.active == (0 if over else 1)
