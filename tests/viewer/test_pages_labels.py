"""Labels written fast, late, by two tabs, and while the page is left, in real Chromium: the last word counts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.viewer.browsing import Tab, browsing, stored, stores, viewer
from tests.viewer.runs import make_run, trajectory, turn
from uirl.types import Observation

SLOW = (
    "window.fetch = ((ask) => async (path, options) => { const answer = await ask(path, options);"
    " if (options?.method === 'PUT') await new Promise((go) => setTimeout(go, 700)); return answer; })(window.fetch)"
)
SHUFFLED = (  # the first change is sent last
    "window.fetch = ((ask, n = 0) => async (path, options) => { if (options?.method === 'PUT' && n++ === 0)"
    " await new Promise((go) => setTimeout(go, 500)); return ask(path, options); })(window.fetch)"
)
REFUSED = (
    "window.asked = window.fetch; window.fetch = async (path, options) => {"
    " if (options?.method === 'PUT') throw new TypeError('no network'); return window.asked(path, options); }"
)
NOTE = "document.querySelector('.labels textarea').value"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    end = Observation("the end")
    episodes = [
        trajectory(id, [turn("one"), turn("two")], final=end)
        for id in ("a", "b", "c", "d", "e", "f1", "f2", "f3", "g", "h")
    ]
    return make_run(tmp_path_factory.mktemp("runs") / "first", episodes)


@pytest.fixture
def address(run: Path) -> Iterator[str]:
    with viewer(run) as served:
        yield served


async def opened(tab: Tab, id: str) -> None:
    await tab.goto(f"#/run/first/t/{id}/1")
    await tab.until("document.querySelector('.labels textarea')")


async def write_note(tab: Tab, text: str) -> None:
    await tab.click(".labels textarea")
    await tab.page.type(text)


async def test_a_note_that_is_typed_stays_when_a_button_is_clicked(address: str) -> None:
    async with browsing(address) as tab:
        await opened(tab, "a")
        await write_note(tab, "wrong row")
        await tab.click(".labels .good")
        await stores(address, "a", passed=True, note="wrong row")
        await tab.until(f"{NOTE} === 'wrong row' && document.querySelector('.labels .good').ariaPressed === 'true'")
        assert {"passed": True, "note": "wrong row"}.items() <= stored(address, "a").items()


async def test_the_last_key_wins(address: str) -> None:
    async with browsing(address) as tab:
        await opened(tab, "b")
        await tab.ask(f"{SHUFFLED};1")
        await tab.press("e", "l", "f")
        await tab.until("document.querySelector('.labels [role=status]').innerText.match(/\\d\\d:\\d\\d/)")
        assert {"passed": False, "error_step": None}.items() <= stored(address, "b").items()
        await tab.press("e", "e")
        await tab.until("document.querySelector('.labels [role=status]').innerText.match(/\\d\\d:\\d\\d/)")
        assert stored(address, "b")["error_step"] is None


async def test_a_label_that_comes_late_is_shown_with_its_own_episode(address: str) -> None:
    async with browsing(address) as tab:
        await opened(tab, "d")
        await write_note(tab, "of d")
        await tab.press("escape")
        await stores(address, "d", note="of d")
        await tab.ask(f"{SLOW};1")
        await tab.press("f", "k")
        await tab.until("location.hash.includes('/t/c/') && document.querySelector('.labels')")
        await stores(address, "d", passed=False)
        await asyncio.sleep(1)
        assert await tab.ask(f"[{NOTE}, document.querySelector('.labels .bad').ariaPressed]") == ["", "false"]
        await tab.press("l")
        await stores(address, "c", passed=True, note="")
        assert stored(address, "d")["note"] == "of d"


async def test_two_tabs_keep_each_others_words(address: str) -> None:
    async with browsing(address) as mine, browsing(address) as theirs:
        await opened(mine, "e")
        await opened(theirs, "e")
        await write_note(mine, "my note")
        await mine.press("escape")
        await stores(address, "e", note="my note")
        await theirs.press("f")
        await stores(address, "e", passed=False, note="my note")
        await theirs.until(f"{NOTE} === 'my note'")
        assert {"passed": False, "note": "my note"}.items() <= stored(address, "e").items()


@pytest.mark.parametrize(
    ("id", "leave"),
    [("f1", "location.reload()"), ("f2", "location.href = 'about:blank'"), ("f3", "location.hash = ''")],
)
async def test_a_note_that_is_being_typed_is_kept_when_the_page_is_left(address: str, id: str, leave: str) -> None:
    async with browsing(address) as tab:
        await opened(tab, id)
        await tab.ask(f"{SLOW};1")
        await tab.press("l")
        await write_note(tab, f"typed before {leave}")
        await tab.ask(f"setTimeout(() => {{ {leave} }}, 0);1")
        await stores(address, id, passed=True, note=f"typed before {leave}")
    assert stored(address, id)["note"] == f"typed before {leave}"


async def test_what_could_not_be_stored_is_said_and_tried_again(address: str) -> None:
    async with browsing(address) as tab:
        await opened(tab, "g")
        await tab.ask(f"{REFUSED};1")
        await write_note(tab, "kept")
        await tab.press("escape", "f")
        await tab.until("document.querySelector('.labels .problem').innerText.includes('Not stored')")
        assert await tab.ask(NOTE) == "kept"
        await tab.ask("window.fetch = window.asked;1")
        await tab.click(".labels .problem button")
        await stores(address, "g", passed=False, note="kept")
        await tab.until("document.querySelector('.labels .problem').hidden")


async def test_no_error_is_offered_where_nothing_was_done(address: str) -> None:
    offered = "document.querySelector('.labels').innerText.includes('Error in turn')"
    async with browsing(address) as tab:
        await opened(tab, "h")
        assert await tab.ask(offered)
        await tab.press("end")
        await tab.until("location.hash.endsWith('/2') && document.querySelector('.strip li:last-child [aria-current]')")
        assert not await tab.ask(offered)
