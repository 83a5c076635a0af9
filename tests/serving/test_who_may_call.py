"""Keys, addresses and sizes: who is answered and who is not."""

from __future__ import annotations

import re
import socket
import sys
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

import uirl
from tests.serving.worlds import ask, client_of, says, user
from uirl.errors import ConfigError
from uirl.inference import LoadedModel
from uirl.serving import EndpointOptions, ModelEndpoint
from uirl.serving.server import build_app

HI = [user("hi")]
JSON = {"content-type": "application/json"}


async def test_a_public_address_with_a_key_is_served(lm: LoadedModel) -> None:
    async with ModelEndpoint(says(lm, "yes"), lm, host="0.0.0.0", api_key="secret", any_model=True) as endpoint:
        assert endpoint.url.startswith("http://127.0.0.1:")
        assert (await ask(client_of(endpoint), HI)).message.content == "yes"


async def test_an_empty_key_is_no_key(lm: LoadedModel) -> None:
    with pytest.raises(ConfigError, match="empty"):
        ModelEndpoint(says(lm, "x"), lm, api_key="")


async def test_a_key_is_asked_for(lm: LoadedModel) -> None:
    async with ModelEndpoint(says(lm, "yes"), lm, api_key="secret", any_model=True) as endpoint:
        for wrong in ("guess", "secre", "sécret"):
            async with httpx.AsyncClient() as plain:
                headers = {"authorization": f"Bearer {wrong}".encode()} | JSON
                answer = await plain.get(f"{endpoint.base_url}/models", headers=headers)
            assert answer.status_code == 401
        with pytest.raises(openai.AuthenticationError) as told:
            await ask(client_of(endpoint, api_key="guess"), HI)
        assert (told.value.code, told.value.type) == ("invalid_api_key", "authentication_error")
        async with httpx.AsyncClient() as plain:
            assert (await plain.post(f"{endpoint.base_url}/chat/completions", json={})).status_code == 401
            assert (await plain.get(f"{endpoint.url}/health")).status_code == 200
        assert (await ask(client_of(endpoint), HI)).message.content == "yes"


async def test_a_session_has_a_key_of_its_own_that_opens_nothing_else(lm: LoadedModel) -> None:
    async with ModelEndpoint(says(lm, "yes"), lm, api_key="secret", any_model=True) as endpoint:
        one, other = endpoint.session(), endpoint.session()
        assert one.api_key != "secret"
        assert (await ask(client_of(one), HI)).message.content == "yes"
        assert (await ask(client_of(one, api_key="secret"), HI)).message.content == "yes"
        for place in (other, endpoint):
            with pytest.raises(openai.AuthenticationError):
                await ask(client_of(place, api_key=one.api_key), HI)
        # without a key nobody learns whether a session exists
        with pytest.raises(openai.AuthenticationError):
            await ask(client_of(f"{endpoint.url}/sessions/nobody/v1"), HI)


async def test_addresses_of_sessions_cannot_be_guessed(lm: LoadedModel) -> None:
    async with ModelEndpoint(says(lm, "yes"), lm) as endpoint:
        sessions = [endpoint.session("same name") for _ in range(20)]
        assert len({session.token for session in sessions}) == 20
        assert all(len(session.token) >= 22 and "same" not in session.base_url for session in sessions)
        with pytest.raises(openai.NotFoundError, match="over or never was"):
            await ask(client_of(f"{endpoint.url}/sessions/same name/v1"), HI)


async def test_a_page_elsewhere_cannot_send_a_form(lm: LoadedModel) -> None:
    body = b'{"model": "uirl/tiny-lm", "messages": [{"role": "user", "content": "hi"}]}'
    async with ModelEndpoint(says(lm, "yes"), lm) as endpoint, httpx.AsyncClient() as plain:
        url = f"{endpoint.base_url}/chat/completions"
        # what a page may send without asking first
        answer = await plain.post(url, content=body, headers={"content-type": "text/plain"})
        assert answer.json()["error"]["code"] == "invalid_content_type"
        assert "access-control-allow-origin" not in answer.headers
        answer = await plain.post(url, content=body, headers=JSON | {"host": "evil.example"})
        assert answer.json()["error"]["code"] == "wrong_host"


async def test_a_body_that_is_too_long_is_refused_while_it_comes(lm: LoadedModel) -> None:
    async with ModelEndpoint(says(lm, "yes"), lm, max_body=2000, any_model=True) as endpoint:
        assert (await ask(client_of(endpoint), [user("word " * 100)])).message.content == "yes"
        with pytest.raises(openai.APIStatusError) as told:
            await ask(client_of(endpoint), [user("word " * 1000)])
        assert (told.value.status_code, told.value.code) == (413, "body_too_large")


async def test_an_address_that_is_taken_says_so(lm: LoadedModel) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ConfigError, match="choose another port"):
        await ModelEndpoint(says(lm, "x"), lm, port=taken.getsockname()[1]).start()


async def test_sessions_over_http_are_there_where_they_are_wanted(lm: LoadedModel) -> None:
    heard = []
    async with httpx.AsyncClient() as plain:
        async with ModelEndpoint(says(lm, "yes"), lm) as closed:
            assert (await plain.post(f"{closed.url}/sessions", json={})).status_code == 404
        async with ModelEndpoint(
            says(lm, "yes"), lm, api_key="secret", remote_sessions=True, on_finished=heard.append
        ) as endpoint:
            assert (await plain.post(f"{endpoint.url}/sessions", json={})).status_code == 401
            key = {"authorization": "Bearer secret"}
            asked = {"task": "greet", "group_id": "g", "seed": 4}
            opened = (await plain.post(f"{endpoint.url}/sessions", json=asked, headers=key)).json()
            client = client_of(opened["base_url"], api_key=opened["api_key"])
            await ask(client, HI)
            grader = {"authorization": f"Bearer {opened['grader_key']}"}
            ended = await plain.post(opened["finish_url"], json={"reward": 0.5, "success": True}, headers=grader)
            assert ended.json() == {"id": opened["id"], "turns": 1, "stop_reason": "terminated", "failure": None}
            assert (await plain.post(opened["finish_url"], json={}, headers=grader)).status_code == 404
            answer = await plain.post(f"{endpoint.url}/sessions", json={"taks": "x"}, headers=key)
            assert "did you mean 'task'" in answer.json()["error"]["message"]
    (record,) = heard
    assert (record.task.id, record.group_id, record.rewards, record.success) == ("greet", "g", [0.5], True)


async def test_remote_sessions_without_a_key_are_refused(lm: LoadedModel) -> None:
    with pytest.raises(ConfigError, match="an agent could do so itself"):
        ModelEndpoint(says(lm, "x"), lm, remote_sessions=True)


GUIDE = (Path(uirl.__file__).parents[1] / "docs" / "endpoint.md").read_text()
WHO = ("nobody", "agent", "grader", "operator")


def told_in_the_guide() -> dict[tuple[str, str], dict[str, str]]:
    """(method, path) -> who -> yes, no or its own."""
    rows = re.findall(r"^\| `(GET|POST) (\S+)` \|(.*)\|$", GUIDE, re.MULTILINE)
    return {
        (m, path): dict(zip(WHO, [cell.strip() for cell in cells.split("|")], strict=True)) for m, path, cells in rows
    }


async def test_a_secret_opens_the_doors_of_its_holder_alone(lm: LoadedModel) -> None:
    """Every route of the application x every secret there is, against the table of the guide."""
    table = told_in_the_guide()
    async with (
        ModelEndpoint(says(lm, "yes"), lm, api_key="secret", remote_sessions=True, any_model=True) as endpoint,
        httpx.AsyncClient(base_url=endpoint.url) as plain,
    ):
        routes = {
            (m, r.path)
            for r in build_app(endpoint.service, endpoint.sessions, endpoint.options).routes
            for m in r.methods
        }  # type: ignore[attr-defined]
        assert routes == set(table)

        async def opened(method: str, path: str, who: str, foreign: bool) -> bool:
            """Whether a secret of `who`, of another session where `foreign`, opens the route."""
            made = await plain.post("/sessions", json={}, headers={"authorization": "Bearer secret"})
            mine, other = made.json(), endpoint.session()
            keys = {"agent": mine["api_key"], "grader": mine["grader_key"], "operator": "secret", "nobody": None}
            token = other.token if foreign else mine["base_url"].split("/")[-2]
            headers = {"authorization": f"Bearer {keys[who]}"} if keys[who] else {}
            path = path.replace("{token}", token).replace("{name:path}", "x")
            return (await plain.request(method, path, json={}, headers=headers)).status_code not in (401, 403)

        for (method, path), cells in table.items():
            for who in WHO:
                own, foreign = [await opened(method, path, who, other) for other in (False, True)]
                expected = {"yes": (True, True), "no": (False, False), "its own": (True, False)}[cells[who]]
                assert (own, foreign) == expected, (method, path, who)


async def test_an_agent_cannot_reward_itself(lm: LoadedModel) -> None:
    heard = []
    async with (
        ModelEndpoint(
            says(lm, "yes"), lm, api_key="secret", remote_sessions=True, on_finished=heard.append
        ) as endpoint,
        httpx.AsyncClient() as plain,
    ):
        made = (
            await plain.post(f"{endpoint.url}/sessions", json={}, headers={"authorization": "Bearer secret"})
        ).json()
        await ask(client_of(made["base_url"], api_key=made["api_key"]), HI)
        for key in (made["api_key"], "secret", endpoint.sessions.grader_key("another session"), made["id"]):
            refused = await plain.post(
                made["finish_url"], json={"reward": 1.0}, headers={"authorization": f"Bearer {key}"}
            )
            assert refused.status_code == 401
        assert not heard
        grader = {"authorization": f"Bearer {made['grader_key']}"}
        assert (await plain.post(made["finish_url"], json={"reward": 0.0}, headers=grader)).status_code == 200
    (record,) = heard
    assert record.rewards == [0.0]


async def test_a_package_that_is_missing_is_named(lm: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    import uirl.serving

    monkeypatch.delitem(sys.modules, "uirl.serving.server")
    monkeypatch.delattr(uirl.serving, "server")
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "fastapi", None)
        with pytest.raises(ConfigError, match="the endpoint needs fastapi: pip install"):
            await ModelEndpoint(says(lm, "x"), lm).start()
    monkeypatch.setitem(sys.modules, "uirl.serving.rendering", None)
    with pytest.raises(ModuleNotFoundError, match=r"uirl\.serving\.rendering"):
        await ModelEndpoint(says(lm, "x"), lm).start()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"max_bdy": 1}, "did you mean 'max_body'"),
        ({"port": "8000"}, "expected whole number"),
        ({"idle_seconds": 0.0}, "expected number > 0"),
        ({"api_key": ["s3cret"]}, "api_key: got a list that is not shown, expected text or null"),
    ],
)
def test_an_option_that_is_none_is_named(lm: LoadedModel, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as told:
        ModelEndpoint(says(lm, "x"), lm, **options)
    assert "s3cret" not in str(told.value)


def test_options_come_as_an_object_or_by_name(lm: LoadedModel) -> None:
    shared = EndpointOptions(port=8000, any_model=True)
    endpoint = ModelEndpoint(says(lm, "x"), lm, shared, port=8001, model_name="mine")
    assert (endpoint.options.port, endpoint.options.any_model, endpoint.model_name) == (8001, True, "mine")
    assert ModelEndpoint(says(lm, "x"), lm, shared).model_name == lm.name
    assert "secret" not in repr(EndpointOptions(api_key="secret"))
