"""Charts of a run that grows while they are looked at: what is drawn, not only what is known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.viewer.browsing import Tab, browsing, viewer
from tests.viewer.runs import make_run
from uirl.viewer import live

DRAWN = "(({from, to}) => [Number(from), Number(to)])(document.querySelector('.uplot').dataset)"


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "EVERY", 0.05)


def grow(run: Path, first: int, last: int) -> None:
    """Add the rows of some steps."""
    with (run / "metrics.jsonl").open("a") as file:
        rows = [{"step": n, "time": 1e9 + n, "success": 0.5, "reward": 0.1 * n} for n in range(first, last + 1)]
        file.writelines(json.dumps(row) + "\n" for row in rows)


async def drawn(tab: Tab, first: float, last: float) -> None:
    """Wait until the first chart is drawn from one place to another."""
    await tab.until("document.querySelector('.uplot')?.dataset.to")
    await tab.until(f"{DRAWN}[0] === {first} && {DRAWN}[1] === {last}")


async def zoomed_in(tab: Tab) -> None:
    """Drag over the middle of the first chart, again where it was drawn anew meanwhile."""
    left, top, width, height = await tab.box(".u-over")
    events = "".join(
        f"over.dispatchEvent(new MouseEvent('{kind}', {{bubbles: true, button: 0, view: window, movementX: 5, "
        f"clientX: {left + share * width}, clientY: {top + height / 2}}}));"
        for kind, share in (("mousemove", 0.3), ("mousedown", 0.3), ("mousemove", 0.6), ("mouseup", 0.6))
    )
    drag = f"((over) => {{ {events} }})(document.querySelector('.u-over'))"
    await tab.until(f"({drag}, {DRAWN}[1] < 19)")


@pytest.mark.parametrize("smoothing", [0, 0.5])
async def test_a_chart_is_drawn_to_its_newest_step(tmp_path: Path, smoothing: float) -> None:
    run = make_run(tmp_path / "run", rows=6)
    with viewer(run) as address:
        async with browsing(address) as tab:
            await tab.goto("#/run/run")
            await drawn(tab, 1, 6)
            await tab.ask(
                f"(range => (range.value = {smoothing}, range.dispatchEvent(new Event('input', {{bubbles: true}}))))"
                "(document.querySelector('input[type=range]'))"
            )
            grow(run, 7, 24)
            await drawn(tab, 1, 24)
            grow(run, 25, 25)
            await drawn(tab, 1, 25)
            assert "25 points" in await tab.ask("document.querySelector('.plot').ariaLabel")


async def test_a_chart_that_was_zoomed_in_stays_there_while_it_grows(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rows=0)
    grow(run, 1, 20)
    with viewer(run) as address:
        async with browsing(address) as tab:
            await tab.goto("#/run/run")
            await drawn(tab, 1, 20)
            await zoomed_in(tab)
            before = await tab.ask(DRAWN)
            grow(run, 21, 30)
            await tab.until("document.querySelector('.plot').ariaLabel.includes('30 points')")
            assert await tab.ask(DRAWN) == before


async def test_many_tabs_do_not_keep_each_other_waiting(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / "runs" / name, rows=3) for name in ("one", "two", "three")]
    everywhere = "[...Array(7).keys()].every((n) => tabs[n].document.querySelector('.uplot')?.dataset.to === '{}')"
    with viewer(tmp_path / "runs") as address:
        async with browsing(address) as tab:
            await tab.goto("#/")
            # opened by a page, they share its connections, as the tabs of one window do
            await tab.ask("window.tabs = [...Array(7).keys()].map(() => open('/#/compare?runs=one%2Ctwo%2Cthree'));1")
            await tab.until(everywhere.format(3))
            grow(runs[2], 4, 9)
            await tab.until(everywhere.format(9))
            assert await tab.ask("tabs.every((one) => !one.closed)")


SHOWN = "Object.defineProperty(document, 'hidden', {{configurable: true, get: () => {}}})"
TURNED = "document.dispatchEvent(new Event('visibilitychange'))"


async def test_a_tab_that_nobody_sees_holds_no_stream_and_catches_up(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rows=3)
    with viewer(run) as address:
        async with browsing(address) as tab:
            await tab.goto("#/")
            await tab.ask(
                "window.streams = []; window.EventSource = class extends EventSource {"
                " constructor(path) { super(path); window.streams.push(this); } };"
                "location.hash = '#/run/run'"
            )
            await drawn(tab, 1, 3)
            await tab.until("streams.at(-1)?.readyState === EventSource.OPEN")
            await tab.ask(f"{SHOWN.format('true')}; {TURNED}")
            assert await tab.ask("streams.every((one) => one.readyState === EventSource.CLOSED)")
            grow(run, 4, 6)
            count = await tab.ask("streams.length")
            await tab.ask(f"{SHOWN.format('false')}; {TURNED}")
            await drawn(tab, 1, 6)
            await tab.until(f"streams.length === {count + 1} && streams.at(-1).readyState === EventSource.OPEN")


async def test_where_no_stream_opens_the_rows_come_by_asking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MOST_STREAMS", 0)
    run = make_run(tmp_path / "run", rows=3)
    with viewer(run) as address:
        async with browsing(address) as tab:
            await tab.goto("#/run/run")
            await drawn(tab, 1, 3)
            grow(run, 4, 6)
            await drawn(tab, 1, 6)
            assert "6 points" in await tab.ask("document.querySelector('.plot').ariaLabel")
