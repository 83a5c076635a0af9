"""Dialogs, file choosers and downloads beyond the small pages: who answers, what is refused, what is left over."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from tests.environments.browser.test_features import FeaturePage
from tests.patience import PATIENCE
from uirl.environments.browser import files
from uirl.environments.browser.page import Page
from uirl.environments.browser.process import Chromium
from uirl.errors import ConfigError
from uirl.types import Action, StepResult

ASK, ORDER = Action.of("click", x=20, y=20), Action.of("click", x=20, y=50)


async def told(env: FeaturePage, words: str, result: StepResult) -> None:
    """Returns when the policy has been told; a download is when the browser finds the time."""
    async with asyncio.timeout(PATIENCE):
        while words not in result.observation.text:
            result = await env.step(Action.of("wait", seconds=0.05))


async def test_a_dialog_is_shown_with_the_last_picture_and_waits() -> None:
    env = FeaturePage("confirm.html")
    first = await env.reset(seed=1)
    asked = await env.step(ORDER)
    assert asked.observation.text == (
        'the page asks: how many?, and proposes \'1\'; answer with the action dialog, "ok" or "cancel"'
    )
    assert asked.observation.images == first.images
    typed = await env.step(Action.of("type", text="1"))
    assert typed.observation.text.startswith("'1' stands in the dialog\nthe page asks: how many?")
    await env.step(Action.of("type", text="2"))
    result = await env.step(Action.of("keys", keys="enter"))
    assert result.observation.info["success"] is True
    await env.reset(seed=1)
    nothing = await env.step(Action.of("dialog", choice="ok"))
    assert nothing.observation.info["mistake"] == "no dialog is open"
    await env.close()


@pytest.mark.parametrize("last", [{"max_turns": 1}, {"actions": ["click", "keys", "answer"]}])
async def test_an_episode_that_ends_under_a_dialog_is_judged_as_if_it_was_refused(last: Mapping[str, Any]) -> None:
    env = FeaturePage("confirm.html", **last)
    await env.reset(seed=1)
    result = await env.step(ASK)
    if "actions" in last:
        assert not result.done
        result = await env.step(Action.of("answer", text="x"))
        assert env.answer == "x"
    assert (result.terminated, result.observation.info["success"]) == (True, True)
    await env.close()


async def test_the_next_episode_begins_without_the_dialog_and_what_was_held() -> None:
    class Kept(FeaturePage):
        keeps_page = True

    env = Kept("confirm.html")
    await env.reset(seed=1)
    page = env._page
    await env.step(Action.of("key_down", key="shift"))
    await env.step(Action.of("mouse_down", x=150, y=100))
    await env.step(Action.of("mouse_up", x=150, y=100))
    await env.step(Action.of("mouse_down", x=150, y=100))
    await env.step(ASK)
    await env.reset(seed=1)
    assert env._page is page
    assert (page.held, page._pressed, page.shown.dialog) == ([], set(), None)
    assert (await env.step(Action.of("click", x=20, y=80))).observation.info["success"] is True
    await env.close()


async def test_files_are_chosen_by_name_from_those_of_the_task() -> None:
    env = FeaturePage("upload.html")
    await env.reset(seed=1)
    none = await env.step(Action.of("upload", files="mine.txt"))
    assert none.observation.info["mistake"] == "no file chooser is open"
    asked = await env.step(ASK)
    assert asked.observation.text == ("the page asks for files: answer with the action upload, of: mine.txt, yours.txt")
    for name in ("/etc/passwd", "../mine.txt", "other.txt"):
        wrong = await env.step(Action.of("upload", files=name))
        assert wrong.observation.info["mistake"] == f"there is no file {name!r}; expected of: mine.txt, yours.txt"
    await env._page.evaluate("void (document.querySelector('input').multiple = false)")
    await env.step(ASK)
    wrong = await env.step(Action.of("upload", files=["mine.txt", "yours.txt"]))
    assert wrong.observation.info["mistake"] == "the page takes one file; got 2"
    await env.step(Action.of("upload", files=["yours.txt"]))
    assert await env._page.evaluate("document.querySelector('input').files[0].text()") == "of yours"
    await env.close()


async def test_a_page_that_asks_for_a_file_where_there_is_none_is_told_of() -> None:
    class Bare(FeaturePage):
        uploads: ClassVar[Mapping[str, bytes]] = {}

    env = Bare("upload.html")
    await env.reset(seed=1)
    asked = await env.step(ASK)
    assert asked.observation.text == "the page asks for a file, and there is none to choose"
    env.uploads = {"a/b": b""}
    with pytest.raises(ConfigError, match="named as files without a folder"):
        await env.reset(seed=1)
    await env.close()


async def test_a_download_is_kept_for_the_episode_and_gone_with_the_next() -> None:
    env = FeaturePage("download.html")
    await env.reset(seed=1)
    await told(env, "downloaded: report.csv, 3 bytes", await env.step(ASK))
    kept = env.downloads["report.csv"]
    assert kept.read_text() == "a,b"
    await env.reset(seed=1)
    assert (dict(env.downloads), kept.exists()) == ({}, False)
    await env.close()


async def test_downloads_of_one_name_are_all_kept_and_all_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_DOWNLOADS", 3)
    env = FeaturePage("download.html")
    await env.reset(seed=1)
    for name in ("report.csv", "report (1).csv", "report (2).csv"):
        await told(env, f"downloaded: {name}, 3 bytes", await env.step(ASK))
    await told(env, "a download was refused: report.csv, after 3 others", await env.step(ASK))
    assert [(name, path.read_text()) for name, path in env.downloads.items()] == [
        ("report.csv", "a,b"),
        ("report (1).csv", "a,b"),
        ("report (2).csv", "a,b"),
    ]
    await env.close()


async def test_a_download_that_goes_on_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    let_go = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readline()).split()[1]
        kind = "application/octet-stream" if path == b"/slow.bin" else "text/html"
        body = (
            b"abc" * 3000
            if path == b"/slow.bin"
            else b"<a href=/slow.bin download style='position:fixed;inset:0'>slow</a>"
        )
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n" % (kind.encode(), len(body)))
        if path == b"/slow.bin":
            writer.write(body[:6000])
            await let_go.wait()
            body = body[6000:]
        writer.write(body)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:

        class Slow(FeaturePage):
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            folder = ""

        env = Slow("download.html")
        env.files = {}
        await env.reset(seed=1)
        monkeypatch.setattr(Page.settle, "__kwdefaults__", {"drawn": False, "timeout": 0.3})
        await told(env, "a download is still under way", await env.step(ASK))
        assert not env._page.files.busy
        assert (await env.step(Action.of("wait", seconds=0))).observation.text == ""
        let_go.set()
        await told(env, "downloaded: slow.bin, 9000 bytes", await env.step(Action.of("wait", seconds=0)))
        await env.close()


async def test_a_download_that_is_not_wanted_too_large_or_one_too_many_is_refused_and_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Strict(FeaturePage):
        keeps_downloads = False

    env = Strict("download.html")
    await env.reset(seed=1)
    await told(env, "a download was refused: report.csv", await env.step(ASK))
    await env.close()
    env = FeaturePage("download.html")
    monkeypatch.setattr(files, "MOST_DOWNLOADS", 1)
    await env.reset(seed=1)
    await told(env, "downloaded: report.csv", await env.step(ASK))
    await told(env, "a download was refused: report.csv, after 1 others", await env.step(ASK))
    monkeypatch.setattr(files, "LARGEST_DOWNLOAD", 1)
    await env.reset(seed=1)
    page = env._page
    await page.evaluate("void (document.links[0].href = URL.createObjectURL(new Blob(['x'.repeat(2**22)])))")
    await told(env, "a download was ended: report.csv", await env.step(ASK))
    assert dict(env.downloads) == {}
    await env.close()
    assert Chromium.shared().starts == 1
