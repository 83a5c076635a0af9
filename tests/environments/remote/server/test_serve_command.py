"""`uirl serve` as a person starts it."""

from __future__ import annotations

import signal
import socket
import sys
from urllib.parse import urlsplit

import httpx
import pytest

from tests.environments.remote.running import serve_process
from tests.patience import PATIENCE
from uirl.cli.main import main
from uirl.environments.remote.server import app as server_app
from uirl.environments.remote.server.settings import ServerSettings


def test_it_serves_until_it_is_told_to_stop() -> None:
    """One process for all that only a process shows: options, tokens, a client that goes, the end."""
    leaving = "tests.environments.remote.clicking:Leaving"
    arguments = ["--env", leaving, "--option", "words=no", "--option", "number=7", "--sessions", "2", "--idle", "500"]
    arguments += ["--token-env", "A_TOKEN", "--grader-token-env", "G_TOKEN", "--host", "0.0.0.0"]
    tokens = {"A_TOKEN": "a-secret", "G_TOKEN": "g-secret"}
    with serve_process(*arguments, env=tokens) as (url, process):
        address = urlsplit(url.replace("0.0.0.0", "127.0.0.1"))
        with socket.create_connection((str(address.hostname), address.port or 80)) as door:
            head = f"POST /v1/sessions HTTP/1.1\r\nHost: {address.netloc}\r\nAuthorization: Bearer a-secret\r\n"
            door.sendall(f"{head}Content-Length: 100\r\n\r\n{{".encode())
        with httpx.Client(base_url=address.geturl(), timeout=PATIENCE) as http:
            assert http.get("/v1/environment").status_code == 401
            for token, grades in (("a-secret", False), ("g-secret", True)):
                http.headers["authorization"] = f"Bearer {token}"
                assert http.get("/v1/environment").json()["grades"] is grades
            assert http.get("/v1/sessions").json() == {"sessions": []}, "of the client that went"
            made = [http.post("/v1/sessions", json={"reset": True}).json() for _ in range(2)]
            # options are read as YAML means them: 'no' is a word, 7 is a number; a server loads no torch
            assert [one["observation"]["text"] for one in made] == ["no 7 torch=False"] * 2
            assert [one["idle_seconds"] for one in made] == [500.0, 500.0]
            assert http.post("/v1/sessions").status_code == 503
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0
        assert out.count("closed") == 3, "two sessions and the template"
        assert "secret" not in out
        assert errors == "", "a client that goes is no failure of the server"


def test_one_process_one_session(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[ServerSettings] = []
    monkeypatch.setattr(server_app, "serve", lambda settings, announce: given.append(settings))
    assert main(["serve", "--env", "screen", "--single", "--seed", "3"]) == 0
    assert given == [ServerSettings("screen", sessions=1, seed=3, single=True)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--env", "scren"], "did you mean 'screen'?"),
        (["--env", "screen", "--option", "levle=2"], "did you mean 'level'?"),
        (["--env", "screen", "--option", "level"], "expected key=value"),
        (["--env", "screen", "--option", "level=[1"], "the value of level"),
        (["--env", "screen", "--option", "level=9"], "level: got 9, expected 1 or 2 or 3"),
        (["--env", "screen", "--sessions", "0"], "sessions must be a positive int"),
        (["--env", "screen", "--token-env", "NO_SUCH_VARIABLE"], "NO_SUCH_VARIABLE is not set"),
    ],
)
def test_mistakes_are_named(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--port", "0", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_a_port_that_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert main(["serve", "--env", "screen", "--port", str(port)]) == 2
    assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "uirl.environments.remote.server.app", raising=False)
    assert main(["serve", "--env", "screen", "--port", "0"]) == 2
    assert "pip install 'uirl[server]'" in capsys.readouterr().err
