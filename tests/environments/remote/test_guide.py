"""docs/env_servers.md: its programs run, its configs load, its commands parse."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from tests.environments.remote.running import serving
from uirl.cli.main import command_parser
from uirl.config import load_config
from uirl.environments import create_environment
from uirl.environments.remote.server.settings import ServerSettings

PAGE = Path(__file__).parents[3] / "docs" / "env_servers.md"
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", PAGE.read_text(), re.DOTALL)


def blocks(kind: str) -> list[str]:
    return [body for language, body in BLOCKS if language == kind]


def test_every_block_is_of_a_kind_that_is_checked() -> None:
    assert {language for language, _ in BLOCKS} == {"console", "python", "yaml", "dockerfile"}


def test_programs_run(capsys: pytest.CaptureFixture[str]) -> None:
    with serving("screen", options={"level": 2}) as served:
        names: dict[str, object] = {}
        for program in blocks("python"):
            exec(compile(program.replace("http://127.0.0.1:8000", served.url), str(PAGE), "exec"), names)
        assert "Collected " in capsys.readouterr().out
        assert served.active == 0


def test_configs_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UIRL_ENV_GRADER_TOKEN", "any")
    names = []
    for text in blocks("yaml"):
        path = tmp_path / "config.yaml"
        path.write_text(text)
        section = load_config(str(path)).environment
        create_environment(section.name, section.options, section)
        names.append(section.name)
    assert names == ["remote", "remote", "ui_verifiers", "openenv"]


def parsed(command: str) -> ServerSettings:
    """What a command line of `uirl serve` asks for; exits where it does not parse."""
    words = shlex.split(command.replace("%i", "8000"))
    assert words[0].endswith("uirl")
    options = command_parser().parse_args(words[1:])
    given = dict(text.split("=", 1) for text in options.options)
    create_environment(options.environment, {key: int(v) if v.isdecimal() else v for key, v in given.items()})
    return ServerSettings(
        options.environment, {}, options.host, options.port, options.sessions, token_env=options.token_env
    )


def test_commands_parse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UIRL_ENV_TOKEN", "a")
    container = dict(re.findall(r"^(ENTRYPOINT|CMD) (\[.*\])$", blocks("dockerfile")[0], re.MULTILINE))
    service = parsed(shlex.join([*json.loads(container["ENTRYPOINT"]), *json.loads(container["CMD"])]))
    assert (service.host, service.sessions, service.token_env) == ("0.0.0.0", 16, "UIRL_ENV_TOKEN")
    (health,) = re.findall(r"HEALTHCHECK .* CMD (\[.*\])$", blocks("dockerfile")[0], re.MULTILINE)
    compile(json.loads(health)[2], "health check", "exec")
    (serve,) = [line for line in "".join(blocks("console")).splitlines() if line.startswith("uirl")]
    assert parsed(serve).environment == "screen"


def test_requests_are_answered() -> None:
    text = "".join(blocks("console"))
    requests = re.findall(r"curl -X (\w+) http://127\.0\.0\.1:8000(\S+)(?: -d '(.*)')?", text)
    assert len(requests) == 4
    with serving("screen") as served, served.http() as http:
        session = ""
        for method, path, body in requests:
            answer = http.request(method, path.replace("ID", session), content=body or None)
            assert answer.status_code in (200, 201), (path, answer.text)
            session = answer.json().get("session", session)
