"""A trajectory as a page: whole, and harmless."""

from __future__ import annotations

import contextlib
import functools
import re
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.viewer.browsing import SECONDS, Tab
from tests.viewer.runs import make_run, passed, picture, trajectory, turn
from uirl.types import Action, Observation, ToolCall, ToolResult

HOSTILE = "</pre></title><script>alert(1)</script>\"'><img src=x onerror=alert(1)>\ud800\x1b[2J\x07\u202e"


@pytest.fixture
def hostile(run):
    wild = turn(shot=picture(), observation=Observation(HOSTILE, (picture(),)),
                action=Action(HOSTILE, (ToolCall(HOSTILE, {"x": 3, "y": 4, "text": HOSTILE}),), HOSTILE, HOSTILE),
                tool_results=(ToolResult(HOSTILE, {}, False, HOSTILE),))  # fmt: skip
    return make_run(run.parent / "wild", [trajectory("t", [wild], verdict=passed(), final=Observation(HOSTILE))])


def test_the_page_is_one_file_that_runs_nothing(client, hostile):
    answer = client.get("/api/runs/wild/trajectories/t/export.html")
    assert answer.status_code == 200
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert answer.headers["content-disposition"] == 'attachment; filename="t.html"'
    page = answer.text
    assert "<script" not in page
    assert "<img" not in page
    assert page.count("&lt;script&gt;") >= 4
    assert set(re.findall(r'(?:href|src)="([^"]{0,10})', page)) == {"data:image"}
    assert '<circle cx="3.5" cy="4.5"' in page
    assert not set(page) & set("\u202e\x1b\x07"), "what cannot be seen is shown as its code"
    assert "\\u001b[2J\\u0007\\u202e" in page


@pytest.mark.asyncio(loop_scope="session")
async def test_the_page_is_shown_without_a_viewer_and_no_wider_than_the_screen(client, run, tmp_path, browser):
    """Opened as a file that was sent, from a place that says nothing of scripts."""
    long = "x" * 50_000
    wild = turn(long, picture(size=(300, 200)), action=Action(long, (ToolCall(long, {"x": 3, "y": 4}),), long))
    make_run(run.parent / "wide", [trajectory("t" * 300, [wild], task=long)])
    (tmp_path / "one.html").write_bytes(client.get(f"/api/runs/wide/trajectories/{'t' * 300}/export.html").content)
    with files(tmp_path) as address:
        tab = Tab(await browser.new_page(390, 844), address)
        await tab.page.goto(f"{address}/one.html")
        assert await tab.ask("document.documentElement.scrollWidth") <= 390
        assert await tab.ask("document.querySelector('image').getBoundingClientRect().width") > 200
        drawn = "Object.assign(new Image(), {src: document.querySelector('image').href.baseVal}).decode().then(() => 1)"
        assert await tab.ask(drawn, SECONDS) == 1
        await tab.page.close()


@contextlib.contextmanager
def files(folder: Path) -> Iterator[str]:
    """Serve a folder as it is; yields the address."""
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
