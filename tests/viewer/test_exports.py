"""A trajectory as a page and in a terminal: whole, and harmless."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import re
import sqlite3
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.viewer.browsing import SECONDS, browsing
from tests.viewer.runs import make_run, passed, picture, trajectory, turn
from uirl.cli.main import main
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


async def test_the_page_is_shown_without_a_viewer_and_no_wider_than_the_screen(client, run, tmp_path):
    """Opened as a file that was sent, from a place that says nothing of scripts."""
    long = "x" * 50_000
    wild = turn(long, picture(size=(300, 200)), action=Action(long, (ToolCall(long, {"x": 3, "y": 4}),), long))
    make_run(run.parent / "wide", [trajectory("t" * 300, [wild], task=long)])
    (tmp_path / "one.html").write_bytes(client.get(f"/api/runs/wide/trajectories/{'t' * 300}/export.html").content)
    with files(tmp_path) as address:
        async with browsing(address, 390, 844) as tab:
            await tab.page.goto(f"{address}/one.html")
            assert await tab.ask("document.documentElement.scrollWidth") <= 390
            assert await tab.ask("document.querySelector('image').getBoundingClientRect().width") > 200
            drawn = (
                "Object.assign(new Image(), {src: document.querySelector('image').href.baseVal}).decode().then(() => 1)"
            )
            assert await tab.ask(drawn, SECONDS) == 1


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


def test_a_terminal_obeys_nothing_that_is_printed(hostile, capsys):
    assert main(["view", str(hostile), "--text"]) == 0
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert "\u202e" not in printed
    assert "\\x1b[2J" in printed
    assert "verdict:" in printed


def test_a_terminal_obeys_no_id_either(tmp_path, capsys):
    path = make_run(tmp_path / "run", [trajectory("one\x1b[2J\ntwo\u2028\u061c\u202e", task="\x9b2J\n")])
    assert main(["view", str(path), "--text"]) == 0
    assert main(["view", str(path), "--export", str(tmp_path / "one.html")]) == 0
    printed = capsys.readouterr().out
    assert not set(printed) & set("\x1b\x9b\u2028\u061c\u202e")
    assert printed.startswith("one\\x1b[2J\\x0atwo")


def test_a_terminal_without_a_letter_is_shown_its_number(tmp_path, monkeypatch):
    path = make_run(tmp_path / "run", [trajectory("one", [turn("Zürich \u6f22")])])
    narrow = io.TextIOWrapper(io.BytesIO(), "ascii")
    monkeypatch.setattr("sys.stdout", narrow)
    assert main(["view", str(path), "--text"]) == 0
    narrow.flush()
    assert b"Z\\xfcrich \\u6f22" in narrow.buffer.getvalue()


def test_of_several_runs_the_one_that_was_written_last_has_the_newest(tmp_path, capsys):
    for name, moment in (("a-long-ago", 1000), ("just-now", 3000), ("some-time-ago", 2000)):
        path = make_run(tmp_path / name, [trajectory(f"of {name}")])
        for file in path.iterdir():
            os.utime(file, (moment, moment))
    assert main(["view", str(tmp_path), "--text"]) == 0
    assert capsys.readouterr().out.startswith("of just-now  ")


def test_a_run_that_cannot_be_read_hides_no_other(tmp_path, capsys):
    broken = make_run(tmp_path / "broken", [trajectory("x")]) / "trajectories.sqlite"
    with sqlite3.connect(broken) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    make_run(tmp_path / "whole", [trajectory("y")])
    assert main(["view", str(tmp_path), "--text", "y"]) == 0
    assert capsys.readouterr().out.startswith("y  task task")
    assert main(["view", str(tmp_path), "--text", "z"]) == 2
    assert "schema version 99" in capsys.readouterr().err


def test_the_command_prints_the_newest_or_the_one_named(run, capsys):
    assert main(["view", str(run.parent), "--text", "a/1"]) == 0
    printed = capsys.readouterr().out
    assert "press red" in printed
    assert "I think" in printed
    assert "passed (1) by rules, right up to turn 1: all there" in printed
    assert main(["view", str(run), "--text"]) == 0
    assert capsys.readouterr().out.startswith("c  task task")
    assert main(["view", str(run), "--text", "none"]) == 2
    assert "no trajectory 'none'" in capsys.readouterr().err
    assert main(["view", str(run / "nothing")]) == 2


def test_the_command_writes_pages(run, tmp_path, capsys):
    assert main(["view", str(run), "--id", "a/1", "--export", str(tmp_path / "one.html")]) == 0
    assert (tmp_path / "one.html").read_text().startswith("<!doctype html>")
    assert main(["view", str(run), "--export", str(tmp_path / "one.pdf")]) == 2
    assert "one.pdf" in capsys.readouterr().err
