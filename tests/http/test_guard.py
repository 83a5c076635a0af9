"""What every server of ours refuses, and how: names, origins, secrets and sizes. One suite over all of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.serving.worlds import says
from tests.viewer.runs import make_run, trajectory
from uirl.environments.remote.server.app import create_app
from uirl.environments.remote.server.settings import ServerSettings
from uirl.errors import ConfigError
from uirl.http.server import is_loopback
from uirl.inference import LoadedModel
from uirl.serving import ModelEndpoint
from uirl.serving.server import build_app
from uirl.viewer import server as viewer_server
from uirl.viewer.access import Access
from uirl.viewer.app import SHEET
from uirl.viewer.app import create_app as viewer_app
from uirl.viewer.runs import Runs

SECRET, LIMIT, PORT = "a-secret-of-4711-words", 20_000, 8123
KINDS = ["environments", "endpoint", "viewer"]


@dataclass
class Case:
    """A server: what may be read there, and where a body may be sent."""

    app: Any
    read: str
    write: tuple[str, str]
    limit: int = LIMIT

    def client(self, host: str = f"127.0.0.1:{PORT}", **headers: str) -> TestClient:
        return TestClient(self.app, base_url=f"http://{host}", headers=headers, raise_server_exceptions=False)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def case(kind: str, secret: str | None, lm: LoadedModel, tmp_path: Any, patch: pytest.MonkeyPatch) -> Case:
    if kind == "environments":
        patch.setenv("ENV_TOKEN", SECRET)
        settings = ServerSettings("screen", token_env="ENV_TOKEN" if secret else None, body_limit=LIMIT)
        return Case(create_app(settings), "/v1/environment", ("POST", "/v1/sessions"))
    if kind == "endpoint":
        endpoint = ModelEndpoint(says(lm, "yes"), lm, api_key=secret, max_body=LIMIT, any_model=True)
        app = build_app(endpoint.service, endpoint.sessions, endpoint.options)
        return Case(app, "/v1/models", ("POST", "/v1/completions"))
    run = make_run(tmp_path / str(secret) / "first", [trajectory("a")])
    app = viewer_app(Runs([run.parent]), Access("127.0.0.1", PORT, secret))
    return Case(app, "/api/runs", ("POST", "/api/runs/first/labels.csv"), SHEET)


@pytest.fixture
def trusting(kind: str, lm: LoadedModel, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Case:
    """A server that no secret protects."""
    return case(kind, None, lm, tmp_path, monkeypatch)


@pytest.fixture
def guarded(kind: str, lm: LoadedModel, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Case:
    """A server that wants a secret."""
    return case(kind, SECRET, lm, tmp_path, monkeypatch)


def test_this_machine_is_answered_under_its_own_names(trusting: Case) -> None:
    for host in ("127.0.0.1", "localhost", "[::1]", "127.0.0.2", "agent.localhost"):
        assert trusting.client(f"{host}:{PORT}").get(trusting.read).status_code == 200, host


def test_a_name_that_was_bound_to_this_machine_later_is_refused(trusting: Case) -> None:
    for host in ("evil.example:8123", "127.0.0.1.evil.example:8123", "localhost.evil.example:8123", "[::1", "10.0.0.7"):
        answer = trusting.client().get(trusting.read, headers={"host": host})
        assert (answer.status_code, answer.headers["connection"]) == (403, "close"), host
        assert "this machine alone" in answer.text


def test_pages_of_other_sites_are_refused(trusting: Case, guarded: Case) -> None:
    foreign = [{"origin": at} for at in ("https://evil.example", "null", "http://127.0.0.1:9", "http://[")]
    for sent in [*foreign, {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}]:
        for one in (trusting, guarded):
            client = one.client(authorization=f"Bearer {SECRET}")
            assert client.get(one.read, headers=sent).status_code == 403, sent
            assert client.request(*one.write, headers=sent).status_code == 403, sent
    own = {"origin": f"http://127.0.0.1:{PORT}", "sec-fetch-site": "same-origin"}
    assert trusting.client().get(trusting.read, headers=own).status_code == 200


def test_without_its_secret_nothing_is_told(guarded: Case) -> None:
    for wrong in (None, "", "wrong", SECRET[:-1], SECRET + "x", SECRET.upper(), "\u00e4"):
        headers = {} if wrong is None else {"authorization": f"Bearer {wrong}".encode()}
        for method, path in (("GET", guarded.read), guarded.write, ("GET", "/no/such/page")):
            answer = guarded.client().request(method, path, headers=headers)  # type: ignore[arg-type]
            assert (answer.status_code, answer.headers["connection"]) == (401, "close"), (method, path)
            assert SECRET not in answer.text
    for host in ("box.example:8123", f"127.0.0.1:{PORT}"):  # a proxy may call it by another name
        assert guarded.client(host, authorization=f"Bearer {SECRET}").get(guarded.read).status_code == 200


def test_what_is_too_large_is_refused_announced_or_not(guarded: Case) -> None:
    client = guarded.client(authorization=f"Bearer {SECRET}")
    kind = {"content-type": "application/json"}
    for length in (str(guarded.limit + 1), "9" * 5000, "-1", "x"):
        answer = client.request(*guarded.write, headers={**kind, "content-length": length})
        assert answer.status_code == 413, length

    def pieces() -> Iterator[bytes]:
        for _ in range(guarded.limit // 4000 + 2):
            yield b"x" * 4000

    assert client.request(*guarded.write, headers=kind, content=pieces()).status_code == 413
    assert client.get(guarded.read, headers={"x-filler": "x" * 17_000}).status_code == 431
    assert client.get(guarded.read, params={"q": "x" * 17_000}).status_code == 431
    assert client.get(guarded.read).status_code == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "example.com"])
async def test_an_address_that_others_reach_needs_a_secret(lm: LoadedModel, host: str) -> None:
    assert not is_loopback(host)
    with pytest.raises(ConfigError, match="without a token"):
        ServerSettings("screen", host=host)
    with pytest.raises(ConfigError, match="no API key is set"):
        await ModelEndpoint(says(lm, "x"), lm, host=host).start()
    with pytest.raises(ConfigError, match="--token"):
        viewer_server.serve([], host=host)


def test_names_of_this_machine() -> None:
    assert all(map(is_loopback, ["127.0.0.1", "localhost", "::1", "[::1]", "127.8.8.8"]))
    assert not any(map(is_loopback, ["", "0.0.0.0", "::", "192.168.1.2", "box.example", "localhost.evil.example"]))
