"""Who may ask what: tokens, rights, other web sites, sizes, paths, addresses."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

import uirl
from tests.environments.remote.running import Served, serving
from tests.patience import PATIENCE
from uirl.cli.main import main
from uirl.environments.remote.server.settings import ServerSettings
from uirl.errors import ConfigError

AGENT, GRADER = "agent-token-4711", "grader-token-0815"
CLICK = {"action": {"tool_calls": [{"name": "click", "arguments": {"x": 1, "y": 1}}]}}
GUIDE = (Path(uirl.__file__).parents[1] / "docs" / "env_servers.md").read_text()
WHO = ("nobody", "agent", "agent, in a grader's session", "grader")


@pytest.fixture(scope="module")
def guarded() -> Iterator[Served]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ENV_TOKEN", AGENT)
        patch.setenv("ENV_GRADER", GRADER)
        with serving(
            "screen",
            options={"retries": 3},
            token_env="ENV_TOKEN",
            grader_token_env="ENV_GRADER",
            body_limit=20_000,
            sessions=64,
        ) as served:
            yield served


@pytest.fixture(scope="module")
def trusting() -> Iterator[Served]:
    with serving("screen", body_limit=20_000) as served:
        yield served


def routes(served: Served) -> list[tuple[str, str]]:
    """(method, path) of every route of the application, those of sockets included."""
    found = []
    stack = list(served.app.routes)
    while stack:
        route = stack.pop()
        inner = getattr(route, "original_router", None) or getattr(route, "router", None)
        if inner is not None:
            stack += inner.routes
        else:
            found += [(method, route.path) for method in getattr(route, "methods", None) or {"GET"}]
    return found


def told_in_the_guide() -> dict[tuple[str, str], dict[str, bool]]:
    """(method, path) -> who -> whether it is opened, as docs/env_servers.md says."""
    rows = re.findall(r"^\| `(GET|POST|PUT|DELETE) (/\S*)`[^|]*\|(.*)\|$", GUIDE, re.MULTILINE)
    table = {}
    for method, path, cells in rows:
        said = [{"yes": True, "no": False}[cell.strip()] for cell in cells.split("|")]
        table[method, path] = dict(zip(WHO, said, strict=True))
    return table


@pytest.mark.parametrize("single", [False, True])
def test_a_token_opens_the_doors_of_its_holder_alone(single: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every route of the application x everybody who may ask, against the table of the guide."""
    monkeypatch.setenv("ENV_TOKEN", AGENT)
    monkeypatch.setenv("ENV_GRADER", GRADER)
    options = {"options": {"retries": 3}, "sessions": 256}
    with serving("screen", token_env="ENV_TOKEN", grader_token_env="ENV_GRADER", single=single, **options) as served:
        table = told_in_the_guide()
        if single:
            table = {key: value for key, value in table.items() if not re.match("/(session|status|vnc|proxy)", key[1])}
            table["GET", "/act"], table["GET", "/progress"] = (
                dict(zip(WHO, (False, True, True, True), strict=True)),
                dict(zip(WHO, (False, False, False, True), strict=True)),
            )
        assert sorted(routes(served)) == sorted(table)
        with served.http(AGENT) as agent, served.http(GRADER) as grader, served.http() as nobody:
            for (method, path), expected in table.items():
                for who in WHO:
                    opener = agent if who in ("nobody", "agent") else grader
                    client = {"nobody": nobody, "grader": grader}.get(who, agent)
                    assert opened(client, opener, method, path) == expected[who], (method, path, who)
            assert agent.post("/v1/sessions").status_code == 201


def opened(client: httpx.Client, opener: httpx.Client, method: str, path: str) -> bool:
    """Whether `client` gets through a route that is about a session of `opener`."""
    address = path
    if path.startswith(("/v1/sessions/", "/view/screens")):
        made = opener.post("/v1/sessions", json={"seed": 3}).json()
        shot = made["observation"]["images"][0]["hash"]
        address = path.format(id=made["session"], hash=shot, number=made["number"])
    elif "{" in path:
        address = path.format(id=opener.post("/session").json()["session_ids"][0])
    if path == "/ws":
        key = {name: client.headers[name] for name in ("authorization",) if name in client.headers}
        url = str(client.base_url).rstrip("/").replace("http", "ws") + "/ws"
        with contextlib.suppress(InvalidStatus), connect(url, additional_headers=key):
            return True
        return False
    body = CLICK if path.endswith("/step") else None
    params = {"action_type": "screenshot"} if path.endswith("/act") else {}
    status = client.request(method, address, json=body, params=params).status_code
    assert status < 300 or status in (401, 403), (status, method, path)
    return status < 300


@pytest.mark.parametrize("token", [None, "wrong"])
def test_without_its_token_there_is_nothing(guarded: Served, token: str | None) -> None:
    with guarded.http(token) as http:
        for path in ("/v1/sessions", "/", "/no/such/route"):
            answer = http.get(path)
            assert (answer.status_code, answer.json()["error"]["kind"]) == (401, "token")
        assert http.get("/health").json() == {"status": "healthy"}


@pytest.mark.parametrize("host", ["x/health?", "x/health#", "x@y/health;", "["])
def test_a_host_header_names_no_path(guarded: Served, host: str) -> None:
    status, said = _raw(guarded.url, f"GET /v1/sessions HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    assert status == 401, said


def test_an_agent_plays_and_sees_no_grades(guarded: Served) -> None:
    with guarded.http(AGENT) as agent, guarded.http(GRADER) as grader:
        made = agent.post("/v1/sessions", json={"seed": 3}).json()
        session = made["session"]
        stepped = agent.post(f"/v1/sessions/{session}/step", json=CLICK).json()
        assert stepped["reward"] is None
        assert stepped["observation"]["images"][0]["base64"]
        for observation in (made["observation"], stepped["observation"]):
            assert "info" not in observation
        assert agent.get("/v1/environment").json()["grades"] is False
        refused = agent.get(f"/v1/sessions/{session}/verdict")
        assert (refused.status_code, refused.json()["error"]["kind"]) == (403, "rights")
        stepped = grader.post(f"/v1/sessions/{session}/step", json=CLICK).json()
        assert stepped["reward"] == 0.0
        assert stepped["observation"]["info"]["success"] is False
        agent.delete(f"/v1/sessions/{session}")


def test_an_agent_sends_no_checks_and_finds_no_sessions_of_others(guarded: Served) -> None:
    with guarded.http(AGENT) as agent, guarded.http(GRADER) as grader:
        session = agent.post("/v1/sessions").json()["session"]
        task = {"id": "mine", "checks": {"answer": "anything"}}
        refused = agent.post(f"/v1/sessions/{session}/reset", json={"task": task})
        assert (refused.status_code, refused.json()["error"]["kind"]) == (403, "rights")
        assert grader.post(f"/v1/sessions/{session}/reset", json={"task": task}).status_code == 200
        assert session not in agent.get("/v1/sessions").text
        assert session in grader.get("/v1/sessions").text
        assert session not in grader.get("/view/sessions").text
        assert "total_reward" not in agent.get("/view/sessions").text
        agent.delete(f"/v1/sessions/{session}")


def test_agents_without_a_grader_on_the_server_see_no_grades(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENV_TOKEN", AGENT)
    with serving("screen", token_env="ENV_TOKEN") as served, served.http(AGENT) as agent:
        session = agent.post("/v1/sessions", json={"seed": 3}).json()["session"]
        assert agent.post(f"/v1/sessions/{session}/step", json=CLICK).json()["reward"] is None
        assert agent.get(f"/v1/sessions/{session}/verdict").status_code == 403


def test_sockets_need_the_token_too(guarded: Served) -> None:
    address = guarded.url.replace("http", "ws") + "/ws"
    for headers in ({}, {"authorization": "Bearer wrong"}):
        with pytest.raises(InvalidStatus) as refused:
            connect(address, additional_headers=headers)
        assert refused.value.response.status_code == 401
    before = guarded.active
    with connect(address, additional_headers={"authorization": f"Bearer {AGENT}"}) as agent:
        agent.send(json.dumps({"type": "reset", "data": {"seed": 3}}))
        said = json.loads(agent.recv())["data"]
        assert "metadata" not in said
        agent.send(json.dumps({"type": "step", "data": {"name": "click", "arguments": {"x": 1, "y": 1}}}))
        assert json.loads(agent.recv())["data"]["reward"] is None
        agent.send(json.dumps({"type": "reset", "data": {"task": {"id": "mine", "checks": {"a": 1}}}}))
        assert json.loads(agent.recv())["data"]["kind"] == "rights"
        assert guarded.active == before + 1


@pytest.mark.parametrize(
    "path",
    [
        "/v1/sessions/../../etc/passwd",
        "/v1/sessions/%2e%2e%2f%2e%2e%2fetc%2fpasswd/observation",
        "/view/screens/../../../etc/passwd",
        "/view/screens/%2fetc%2fpasswd",
        "/proxy/..%2f..%2fetc/act?action_type=screenshot",
        "/v1/sessions/1/images/..%2f..%2f..%2fetc%2fpasswd",
    ],
)
def test_paths_lead_nowhere(guarded: Served, path: str) -> None:
    # a raw socket: clients tidy such paths up before they send them
    address = urlsplit(guarded.url)
    head = f"GET {path} HTTP/1.1\r\nHost: {address.netloc}\r\nAuthorization: Bearer {GRADER}\r\n\r\n"
    status, said = _raw(guarded.url, head.encode())
    assert status in (404, 422)
    assert b"root:" not in said


def test_bodies_that_are_too_large(guarded: Served) -> None:
    def pieces() -> Iterator[bytes]:
        yield b'{"action": {"text": "'
        for _ in range(10):
            yield b"x" * 4000
        yield b'"}}'

    with guarded.http(AGENT) as http:
        session = http.post("/v1/sessions", json={"seed": 3}).json()["session"]
        at = f"/v1/sessions/{session}/step"
        announced = http.post(at, content=b"x" * 20_001)
        assert (announced.status_code, announced.json()["error"]["kind"]) == (413, "size")
        streamed = http.post(at, content=pieces())
        assert "content-length" not in streamed.request.headers
        assert (streamed.status_code, streamed.json()["error"]["kind"]) == (413, "size")
        for length in ("9" * 5000, "-1", "x"):
            head = f"POST {at} HTTP/1.1\r\nHost: {urlsplit(guarded.url).netloc}\r\nContent-Length: {length}\r\n\r\n"
            assert _raw(guarded.url, head.encode())[0] in (400, 413)
        assert http.post(at, json=CLICK).json()["turn"] == 1
        http.delete(f"/v1/sessions/{session}")


def test_messages_on_a_socket_that_are_too_large(trusting: Served) -> None:
    with connect(trusting.url.replace("http", "ws") + "/ws") as client:
        client.send(json.dumps({"type": "step", "data": {"text": "x" * 20_001}}))
        with pytest.raises(ConnectionClosed) as closed:
            client.recv()
    assert closed.value.rcvd.code == 1009


@pytest.mark.parametrize("origin", ["https://evil.example", "http://127.0.0.1:1", "null", "http://["])
def test_pages_of_other_web_sites_open_no_socket(trusting: Served, origin: str) -> None:
    with pytest.raises(InvalidStatus) as refused:
        connect(trusting.url.replace("http", "ws") + "/ws", additional_headers={"origin": origin})
    assert refused.value.response.status_code == 403
    assert trusting.active == 0


def test_a_person_opens_the_live_view_with_the_token_as_password(guarded: Served) -> None:
    with guarded.http() as http:
        asked = http.get("/view")
        assert (asked.status_code, asked.headers["www-authenticate"].split()[0]) == (401, "Basic")
        assert http.get("/view", auth=("me", "wrong")).status_code == 401
        page = http.get("/view", auth=("me", AGENT))
        assert page.status_code == 200
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        nonce = policy.split("script-src 'nonce-")[1].split("'")[0]
        assert page.text.count(f'nonce="{nonce}"') == 2
        broken = {"authorization": "Basic " + base64.b64encode(b"\xff:").decode()[:-1]}
        assert http.get("/view", headers=broken).status_code == 401


def test_a_public_address_needs_a_token(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--env", "screen", "--host", "0.0.0.0", "--port", "0"]) == 2
    assert "--token-env" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "variables", "words"),
    [
        ({"token_env": "T"}, {}, "the environment variable T is not set"),
        ({"token_env": "T"}, {"T": "  "}, "is not set"),
        ({"token_env": "T"}, {"T": "two words"}, "printable ASCII without spaces"),
        ({"token_env": "T", "grader_token_env": "G"}, {"T": "same", "G": "same"}, "hold the same token"),
        ({"sessions": 0}, {}, "sessions must be a positive int, got 0"),
        ({"lease": 0.0}, {}, "lease must be positive seconds"),
        ({"port": 70_000}, {}, "port must be 0 to 65535"),
    ],
)
def test_settings_that_do_not_fit(
    settings: dict[str, object], variables: dict[str, str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=words):
        ServerSettings("screen", **settings)  # type: ignore[arg-type]


def _raw(url: str, request: bytes) -> tuple[int, bytes]:
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port or 80), timeout=PATIENCE) as door:
        door.sendall(request)
        door.shutdown(socket.SHUT_WR)
        said = b""
        while piece := door.recv(65536):
            said += piece
    return int(said.split(b" ")[1]), said


def test_a_graders_session_is_the_graders(guarded: Served) -> None:
    """An agent plays it, and neither chooses its instance nor ends it before the verdict."""
    with guarded.http(AGENT) as agent, guarded.http(GRADER) as grader:
        session = grader.post("/v1/sessions", json={"seed": 3}).json()["session"]
        at = f"/v1/sessions/{session}"
        refused = [
            agent.post(at + "/reset", json={"seed": 4}),
            agent.post(at + "/step", json={**CLICK, "close": "after"}),
            agent.delete(at),
        ]
        assert [answer.status_code for answer in refused] == [403, 403, 403]
        assert "open a session of your own" in refused[0].json()["error"]["message"]
        assert agent.post(at + "/step", json=CLICK).json()["turn"] == 1
        verdict = grader.get(at + "/verdict").json()
        assert (verdict["seed"], verdict["turns"], verdict["opened_by"]) == (3, 1, "grader")
        assert [one["seed"] for one in agent.get("/v1/sessions").json()["sessions"]] == [None]
        grader.delete(at)
        mine = agent.post("/v1/sessions", json={"seed": 5}).json()["session"]
        assert grader.get(f"/v1/sessions/{mine}/verdict").json()["opened_by"] == "agent"
        agent.delete(f"/v1/sessions/{mine}")
