"""Who may ask the viewer: names, origins, tokens, and what cannot be named at all."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from tests.viewer.browsing import Tab, viewer
from tests.viewer.conftest import ADDRESS
from uirl.cli.main import main
from uirl.errors import ConfigError
from uirl.viewer.access import Access
from uirl.viewer.app import create_app
from uirl.viewer.runs import Runs
from uirl.viewer.server import serve

TOKEN = "0123456789abcdef"


@pytest.fixture
def guarded(run):
    app = create_app(Runs([run]), Access("0.0.0.0", 8123, TOKEN))
    with TestClient(app, base_url="http://box.example:8123") as opened:
        yield opened


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:8124", "localhost", ""])
def test_other_names_are_refused_as_a_rebound_name_sends_its_own(client, host):
    answer = client.get("/api/runs", headers={"host": host})
    assert answer.status_code == 403
    assert "127.0.0.1:8123" in answer.json()["error"]


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:9", "http://localhost:8123"])
def test_pages_of_other_sites_are_refused(client, origin):
    assert client.get("/api/runs", headers={"origin": origin}).status_code == 403
    put = client.put("/api/runs/first/trajectories/b/label", json={"passed": True}, headers={"origin": origin})
    assert put.status_code == 403
    assert client.get("/api/runs/first/trajectories/b").json()["label"] is None


def test_the_viewer_itself_may_write(client):
    headers = {"origin": ADDRESS, "sec-fetch-site": "same-origin"}
    put = client.put("/api/runs/first/trajectories/b/label", json={"passed": True}, headers=headers)
    assert put.status_code == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_pictures_are_not_shown_in_pages_of_other_sites(client, site):
    sent = {"sec-fetch-site": site, "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"}
    assert client.get("/api/runs/first/images/x", headers=sent).status_code == 403
    sent = {"sec-fetch-site": site, "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"}
    assert client.get("/", headers=sent).status_code == 403


def test_a_permalink_in_another_site_may_be_followed_but_not_to_data(client):
    sent = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert client.get("/", headers=sent).status_code != 403
    assert client.get("/api/runs", headers=sent).status_code == 403


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_a_form_of_another_page_cannot_write(client, kind):
    answer = client.put(
        "/api/runs/first/trajectories/b/label", content=b'{"passed": true}', headers={"content-type": kind}
    )
    assert answer.status_code == 400


def test_every_answer_forbids_scripts_from_elsewhere(client):
    for path in ("/api/runs", "/api/nothing", "/static/nothing.js"):
        headers = client.get(path).headers
        assert "default-src 'self'" in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize(
    "path",
    [
        "/api/runs/..%2f..%2fetc",
        "/api/runs/first/images/..%2f..%2fconfig.yaml",
        "/static/..%2f..%2fserver.py",
        "/static/%2e%2e/app.py",
        "/api/runs/%2e%2e%2ffirst/metrics",
        "/api/runs/first/fed/..%2fb/0/0.png",
        "/api/runs/first/trajectories/..%2f..%2f..%2fetc%2fpasswd",
    ],
)
def test_no_path_of_a_file_comes_from_a_request(client, path):
    answer = client.get(path)
    assert answer.status_code == 404
    assert "environment:" not in answer.text
    assert "import" not in answer.text


def test_without_a_token_nothing_is_told(guarded):
    for path in ("/", "/api/runs", "/api/runs/run/events", "/static/app.js", "/?token=wrong", f"/?token={TOKEN}x"):
        assert guarded.get(path).status_code == 401
    assert guarded.put("/api/runs/first/trajectories/b/label", json={}).status_code == 401
    assert guarded.get("/api/runs", headers={"authorization": "Bearer wrong"}).status_code == 401
    assert guarded.get("/api/runs", headers={"cookie": "uirl_view_8123=wrong"}).status_code == 401


def test_a_token_opens_by_header_or_once_by_address(guarded):
    assert guarded.get("/api/runs", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200
    first = guarded.get(f"/?token={TOKEN}")
    cookie = first.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert TOKEN not in first.text + cookie
    assert guarded.get("/api/runs").status_code == 200


@pytest.mark.asyncio(loop_scope="session")
async def test_a_link_with_the_token_leads_to_the_page_it_names(run, browser):
    with viewer(run, token=TOKEN) as address:
        tab = Tab(await browser.new_page(1280, 900), address)
        await tab.page.goto(f"{address}/")
        await tab.shows("body", "wants a token")
        link = f"{address}/?token={TOKEN}#/run/first/t/b/0"
        await tab.ask(f"setTimeout(() => location.assign('{link}')) && 1")
        await tab.until("document.querySelector('h1')?.innerText === 'other'")
        assert await tab.ask("location.href") == f"{address}/#/run/first/t/b/0"
        await tab.page.close()


def test_the_token_may_stand_where_other_users_do_not_see_it(run, monkeypatch, capsys):
    served = []
    monkeypatch.setattr("uirl.viewer.server.serve", lambda paths, **options: served.append(options["token"]))
    monkeypatch.setenv("VIEW_TOKEN", TOKEN)
    assert main(["view", str(run), "--token-env", "VIEW_TOKEN"]) == 0
    assert main(["view", str(run), "--token", "another"]) == 0
    assert served == [TOKEN, "another"]
    assert main(["view", str(run), "--token-env", "NOBODY_SET_IT"]) == 2
    assert main(["view", str(run), "--token-env", "VIEW_TOKEN", "--token", TOKEN]) == 2
    assert main(["view", str(run / "nothing")]) == 2
    assert TOKEN not in "".join(capsys.readouterr())


def test_a_token_that_can_be_guessed_is_refused():
    with pytest.raises(ConfigError, match="guessed"):
        serve([], host="0.0.0.0", token="short")
