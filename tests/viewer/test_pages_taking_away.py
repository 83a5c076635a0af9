"""What the pages give to keep and take back, in real Chromium: charts as PNG and CSV, sheets of labels; and replay."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.viewer.browsing import SECONDS, Tab, browsing, viewer
from tests.viewer.runs import make_run, picture, trajectory, turn

KEEP = (
    "URL.createObjectURL = (blob) => ((window.kept = blob), 'blob:kept'); HTMLAnchorElement.prototype.click = () => {}"
)
"""What a page would save is kept in `window.kept` instead."""


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    turns = [turn(f"reply {i}", picture(color)) for i, color in enumerate(("red", "blue", "green"))]
    with viewer(make_run(tmp_path / "first", [trajectory("a", turns), trajectory("b")])) as served:
        yield served


async def kept(tab: Tab, expression: str) -> Any:
    await tab.until("window.kept")
    return await tab.ask(f"(async (blob) => {expression})(window.kept)", SECONDS)


async def test_a_chart_is_taken_away_as_numbers_and_as_a_picture(address: str) -> None:
    async with browsing(address) as tab:
        await tab.goto("#/run/first")
        await tab.until("document.querySelector('[aria-label^=\"Reward,\"]')?.ariaLabel === 'Reward, 3 points'")
        await tab.ask(f"{KEEP};1")
        await tab.click("[aria-label='Reward as CSV']")
        lines = (await kept(tab, "blob.text()")).splitlines()
        assert lines[0].split(",") == ["step", "reward"]
        assert [float(value) for value in lines[3].split(",")] == [3, pytest.approx(0.3)]
        wild = "import('/static/lib/series.js').then((lib) => lib.csv(['=1+1', '@x,', 'b'], [[-1], [2], [3]]))"
        assert await tab.ask(wild, SECONDS) == "'=1+1,\"'@x,\",b\r\n-1,2,3\r\n"  # no spreadsheet computes a name
        await tab.ask("window.kept = null")
        await tab.click("[aria-label='Reward as PNG']")
        size = "createImageBitmap(blob).then(({width, height}) => [blob.type, width, height])"
        kind, width, height = await kept(tab, size)
        assert kind == "image/png"
        assert min(width, height) > 100


async def chosen(tab: Tab, content: str) -> None:
    """Choose a file of labels; `content`: what is in it, as JavaScript."""
    await tab.ask(
        "((input, data) => {"
        f"data.items.add(new File([{content}], 'labels.csv', {{type: 'text/csv'}}));"
        "input.files = data.files; input.dispatchEvent(new Event('change', {bubbles: true}));"
        "})(document.querySelector('input[type=file]'), new DataTransfer())"
    )


async def test_a_sheet_of_other_letters_is_refused_and_none_is_lost(address: str) -> None:
    sheet = list("id,passed,note\na,yes,über\n".encode("latin-1"))
    async with browsing(address) as tab, httpx.AsyncClient(timeout=SECONDS) as client:
        await tab.goto("#/run/first/trajectories")
        await chosen(tab, f"new Uint8Array({sheet})")
        await tab.until("document.body.innerText.includes('the sheet is no UTF-8')")
        assert len((await client.get(f"{address}/api/runs/first/labels.csv")).text.splitlines()) == 1


async def test_a_sheet_of_labels_is_read_and_given_back(address: str) -> None:
    sheet = "id,passed,error_step,note\na,no,1,too early\nnobody,yes,,\n"
    async with browsing(address) as tab, httpx.AsyncClient(timeout=SECONDS) as client:
        await tab.goto("#/run/first/trajectories")
        await chosen(tab, json.dumps(sheet))
        await tab.until("document.body.innerText.includes('1 labels read, 1 ids are not of this run')")
        await tab.until("document.querySelector('tbody').innerText.includes('✗ failed')")
        given = (await client.get(f"{address}/api/runs/first/labels.csv")).text.splitlines()
        assert given[1].startswith("a,false,1,too early")
        await tab.goto("#/run/first/t/a/1")
        assert await tab.ask("document.querySelectorAll('.strip li')[1].className") == "error"


async def test_replay_goes_on_to_the_last_turn(address: str) -> None:
    async with browsing(address) as tab:
        await tab.goto("#/run/first/t/a/0")
        await tab.ask(
            "((s) => {s.value = '4'; s.dispatchEvent(new Event('change', {bubbles: true}))})"
            "(document.querySelector('select[aria-label=speed]'))"
        )
        await tab.page.type("p")
        await tab.until("document.querySelector('.said h2').innerText === 'Turn 2'")
        await tab.until("document.querySelector('.top .main').ariaPressed === 'false'")
        assert await tab.ask("location.hash") == "#/run/first/t/a/2"
