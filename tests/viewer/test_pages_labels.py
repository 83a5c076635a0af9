"""Labels written fast, late, by two tabs, and while the page is left, in real Chromium: the last word counts."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.viewer.browsing import OpenTab, Tab, stored, stores
from tests.viewer.runs import make_run, trajectory, turn
from uirl.types import Observation

pytestmark = pytest.mark.asyncio(loop_scope="session")

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


@pytest.fixture(scope="module", autouse=True)
def run(folder: Path) -> Path:
    ids = ("a", "b", "c", "d", "e", "f1", "f2", "f3", "g", "h", "i")
    end = Observation("the end")
    return make_run(folder / "first", [trajectory(id, [turn("one"), turn("two")], final=end) for id in ids])


async def opened(tab: Tab, id: str) -> None:
    await tab.goto(f"#/run/first/t/{id}/1")
    await tab.until("document.querySelector('.labels textarea')")


async def write_note(tab: Tab, text: str) -> None:
    await tab.click(".labels textarea")
    await tab.page.type(text)


async def test_a_note_that_is_typed_stays_when_a_button_is_clicked(tab: Tab, address: str) -> None:
    await opened(tab, "a")
    await write_note(tab, "wrong row")
    await tab.click(".labels .good")
    await stores(address, "a", passed=True, note="wrong row")
    await tab.until(f"{NOTE} === 'wrong row' && document.querySelector('.labels .good').ariaPressed === 'true'")
    assert {"passed": True, "note": "wrong row"}.items() <= stored(address, "a").items()


async def test_keys_label_and_the_error_is_marked_in_the_strip(tab: Tab, address: str) -> None:
    await opened(tab, "i")
    await tab.press("l")
    await stores(address, "i", passed=True)
    await tab.press("e")
    await stores(address, "i", passed=False, error_step=1)
    await tab.goto("#/run/first/t/i/0")
    await tab.shows(".labels", "error in turn 1")
    assert await tab.ask("document.querySelectorAll('.strip li')[1].className") == "error"
    await tab.press("u")
    await tab.until("!document.querySelector('.labels').innerText.includes('error in turn 1')")
    await tab.until("document.querySelector('.labels [role=status]').innerText !== 'storing'")
    assert stored(address, "i") is None


async def test_the_last_key_wins(tab: Tab, address: str) -> None:
    await opened(tab, "b")
    await tab.ask(f"{SHUFFLED};1")
    await tab.press("e", "l", "f")
    await tab.until("document.querySelector('.labels [role=status]').innerText.match(/\\d\\d:\\d\\d/)")
    assert {"passed": False, "error_step": None}.items() <= stored(address, "b").items()
    await tab.press("e", "e")
    await tab.until("document.querySelector('.labels [role=status]').innerText.match(/\\d\\d:\\d\\d/)")
    assert stored(address, "b")["error_step"] is None


async def test_a_label_that_comes_late_is_shown_with_its_own_episode(tab: Tab, address: str) -> None:
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


async def test_two_tabs_keep_each_others_words(open_tab: OpenTab, address: str) -> None:
    mine, theirs = await open_tab(), await open_tab()
    await opened(mine, "e")
    await opened(theirs, "e")
    await write_note(mine, "my note")
    await mine.press("escape")
    await stores(address, "e", note="my note")
    await theirs.press("f")
    await stores(address, "e", passed=False, note="my note")
    await theirs.until(f"{NOTE} === 'my note'")


@pytest.mark.parametrize(
    ("id", "leave"),
    [("f1", "location.reload()"), ("f2", "location.href = 'about:blank'"), ("f3", "location.hash = ''")],
)
async def test_a_note_that_is_being_typed_is_kept_when_the_page_is_left(
    tab: Tab, address: str, id: str, leave: str
) -> None:
    await opened(tab, id)
    await tab.ask(f"{SLOW};1")
    await tab.press("l")
    await write_note(tab, f"typed before {leave}")
    await tab.ask(f"setTimeout(() => {{ {leave} }}, 0);1")
    await stores(address, id, passed=True, note=f"typed before {leave}")


async def test_what_could_not_be_stored_is_said_and_tried_again(tab: Tab, address: str) -> None:
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


async def test_no_error_is_offered_where_nothing_was_done(tab: Tab) -> None:
    offered = "document.querySelector('.labels').innerText.includes('Error in turn')"
    await opened(tab, "h")
    assert await tab.ask(offered)
    await tab.press("end")
    await tab.until("location.hash.endsWith('/2') && document.querySelector('.strip li:last-child [aria-current]')")
    assert not await tab.ask(offered)


async def chosen(tab: Tab, content: str) -> None:
    """Choose a file of labels; `content`: what is in it, as JavaScript."""
    await tab.ask(
        "((input, data) => {"
        f"data.items.add(new File([{content}], 'labels.csv', {{type: 'text/csv'}}));"
        "input.files = data.files; input.dispatchEvent(new Event('change', {bubbles: true}));"
        "})(document.querySelector('input[type=file]'), new DataTransfer())"
    )


async def test_a_sheet_of_labels_is_read_and_one_of_other_letters_is_refused(tab: Tab, address: str) -> None:
    await tab.goto("#/run/first/trajectories")
    await chosen(tab, f"new Uint8Array({[*'id,passed,note;c,yes,über'.encode('latin-1')]})")
    await tab.until("document.body.innerText.includes('the sheet is no UTF-8')")
    await chosen(tab, json.dumps("id,passed,error_step,note\nc,no,1,too early\nnobody,yes,,\n"))
    await tab.until("document.body.innerText.includes('1 labels read, 1 ids are not of this run')")
    await tab.until("document.querySelector('tbody').innerText.includes('✗ failed')")
    await stores(address, "c", passed=False, error_step=1, note="too early")
