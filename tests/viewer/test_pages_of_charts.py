"""Charts in real Chromium: what is drawn, not only what is known, of runs that grow, end, begin early, or are long."""

from __future__ import annotations

import asyncio
import io
import json
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.viewer.browsing import SECONDS, OpenTab, Tab
from tests.viewer.runs import make_run, trajectory
from uirl.viewer import metrics

pytestmark = pytest.mark.asyncio(loop_scope="session")

DRAWN = "(({from, to}) => [Number(from), Number(to)])(document.querySelector('.uplot').dataset)"


def grow(run: Path, first: int, last: int) -> None:
    """Add the rows of some steps."""
    rows = [{"step": n, "time": 1e9 + n, "success": 0.5, "reward": 0.1 * n} for n in range(first, last + 1)]
    log(run, *rows)


def log(run: Path, *rows: dict[str, Any]) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps({"time": 1e9 + n, **row}) + "\n" for n, row in enumerate(rows))


async def drawn(tab: Tab, first: float, last: float) -> None:
    """Wait until the first chart is drawn from one place to another."""
    await tab.until("document.querySelector('.uplot')?.dataset.to")
    await tab.until(f"{DRAWN}[0] === {first} && {DRAWN}[1] === {last}")


def chart(title: str) -> str:
    """The card of a chart, as JavaScript."""
    return f"[...document.querySelectorAll('.chart')].find((one) => one.querySelector('h2').innerText === '{title}')"


async def ends(tab: Tab, title: str) -> list[float]:
    """From where to where a chart is drawn, once it is."""
    await tab.ask(f"{chart(title)}.scrollIntoView()")
    await tab.until(f"{chart(title)}?.querySelector('.uplot')?.dataset.to")
    return await tab.ask(DRAWN.replace("document", chart(title)))


async def test_a_run_is_opened_from_the_list_and_draws_its_metrics(tab: Tab, folder: Path) -> None:
    make_run(folder / "first")
    await tab.goto()
    await tab.click("tbody th a")
    await tab.until("document.querySelectorAll('.chart canvas').length > 1")
    titles = await tab.ask("[...document.querySelectorAll('.chart h2')].map((h) => h.innerText)")
    assert {"Success", "Reward"} <= set(titles)
    assert await tab.ask("document.querySelector('.plot').ariaLabel") == "Success, 3 points"
    assert await tab.text(".legend b") == "0.5"


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


async def test_a_chart_is_drawn_to_its_newest_step_and_stays_where_it_was_zoomed_to(tab: Tab, folder: Path) -> None:
    run = make_run(folder / "grows", rows=6)
    await tab.goto("#/run/grows")
    await drawn(tab, 1, 6)
    grow(run, 7, 24)
    await drawn(tab, 1, 24)
    await tab.ask(
        "(range => (range.value = 0.5, range.dispatchEvent(new Event('input', {bubbles: true}))))"
        "(document.querySelector('input[type=range]'))"
    )
    log(run, {"step": 25, "success": 0.875})
    await drawn(tab, 1, 25)
    assert "25 points" in await tab.ask("document.querySelector('.plot').ariaLabel")
    assert await tab.text(".legend b") == "0.6875"  # half of 0.5, half of 0.875
    await zoomed_in(tab)
    before = await tab.ask(DRAWN)
    grow(run, 26, 30)
    await tab.until("document.querySelector('.plot').ariaLabel.includes('30 points')")
    assert await tab.ask(DRAWN) == before


async def test_many_tabs_do_not_keep_each_other_waiting(tab: Tab, folder: Path) -> None:
    """Opened by a page, they share its connections, as the tabs of one window do."""
    runs = [make_run(folder / name, rows=3) for name in ("one", "two", "three")]
    await tab.goto("#/")
    await tab.ask("window.tabs = [];1")
    for count in range(1, 8):  # one after the other: a browser that is short of time opens no seven at once
        await tab.ask("tabs.push(open('/#/compare?runs=one%2Ctwo%2Cthree'));1")
        await tab.until(f"tabs[{count - 1}].document.querySelector('.uplot')?.dataset.to === '3'")
    grow(runs[2], 4, 9)
    await tab.until("tabs.every((one) => one.document.querySelector('.uplot')?.dataset.to === '9')")
    assert await tab.ask("tabs.every((one) => !one.closed)")
    await tab.ask("tabs.forEach((one) => one.close());1")


async def test_a_tab_that_nobody_sees_asks_nothing_and_catches_up(tab: Tab, folder: Path) -> None:
    run = make_run(folder / "hidden", rows=3)
    await tab.goto("#/run/hidden")
    await drawn(tab, 1, 3)
    await tab.ask("window.setTimeout = ((set) => (act, time) => set(act, Math.min(time, 200)))(setTimeout);1")
    grow(run, 4, 4)
    await drawn(tab, 1, 4)  # from here on it asks five times a second
    hide = "Object.defineProperty(document, 'hidden', {{configurable: true, get: () => {}}});"
    turn = "document.dispatchEvent(new Event('visibilitychange'))"
    asked = "performance.getEntriesByType('resource').filter((one) => one.name.includes('/metrics')).length"
    await tab.ask(f"{hide.format('true')} {turn};1")
    grow(run, 5, 6)
    await asyncio.sleep(0.5)  # what was under way has come
    before = await tab.ask(asked)
    await asyncio.sleep(1)
    assert await tab.ask(asked) == before
    await tab.ask(f"{hide.format('false')} {turn};1")
    await drawn(tab, 1, 6)


async def test_a_curve_that_ends_in_nan_is_not_said_to_be_where_it_was(tab: Tab, folder: Path) -> None:
    run = make_run(folder / "nan", rows=0)
    losses: list[float | None] = [0.5, 0.25, None, None]
    log(run, *({"step": n, "policy_loss": loss, "entropy": 0.5} for n, loss in enumerate(losses, 1)))
    await tab.goto("#/run/nan")
    assert await ends(tab, "Losses") == [1, 4]
    said = await tab.ask(f"{chart('Losses')}.querySelector('.legend').innerText")
    assert "not finite since step 3" in said
    assert "0.25" not in said
    await tab.until("document.querySelector('main .bar')?.innerText.includes('not finite: policy_loss')")
    log(run, {"step": 5, "policy_loss": 0.125, "entropy": 0.5})
    await tab.until(f"{chart('Losses')}.querySelector('.legend').innerText.includes('0.125')")


async def test_a_warm_start_is_drawn_along_its_own_steps(tab: Tab, folder: Path) -> None:
    run = make_run(folder / "warm", rows=0)
    early = ({"warm_start/step": n, "warm_start/loss": 1 / n, "warm_start/tokens": 9} for n in range(1, 31))
    log(run, *({"step": 0, **row} for row in early))
    log(run, *({"step": n, "policy_loss": 0.1, "success": 0.5} for n in range(1, 4)))
    await tab.goto("#/run/warm")
    assert await ends(tab, "Warm start, loss") == [1, 30]
    assert await ends(tab, "Losses") == [1, 3]
    assert await tab.ask(f"{chart('Warm start, loss')}.querySelector('.plot').ariaLabel.includes('30 points')")
    await tab.click("button.section")
    await tab.until(chart("warm_start/tokens"))
    assert await ends(tab, "warm_start/tokens") == [1, 30]


async def coloured(tab: Tab) -> tuple[int, int]:
    """How many pixels of the chart of the success are rather blue, and how many rather orange."""
    await tab.ask(f"{chart('Success')}.querySelector('.u-over').id = 'over'")
    await tab.ask(f"{chart('Success')}.scrollIntoView()")
    x, y, width, height = map(int, await tab.box("#over"))
    screen = np.asarray(Image.open(io.BytesIO(await tab.page.screenshot())).convert("RGB")).astype(int)
    red, blue = screen[y : y + height, x : x + width, 0], screen[y : y + height, x : x + width, 2]
    return int((blue - red > 15).sum()), int((red - blue > 15).sum())


async def test_a_band_has_the_colour_of_its_line_and_goes_with_it(tab: Tab, folder: Path) -> None:
    run = make_run(folder / "band", rows=0)
    row = {"eval/success": 0.5, "success": 0.5, "success_low": 0.2, "success_high": 0.8}
    log(run, *({"step": n, **row} for n in range(1, 9)))
    await tab.goto("#/run/band")
    await ends(tab, "Success")
    names = f"[...{chart('Success')}.querySelectorAll('.legend span')].map((one) => one.innerText)"
    at = (await tab.ask(names)).index("success")
    blue, orange = await coloured(tab)
    wide = max(blue, orange)
    assert wide > 5000
    assert (orange if at == 1 else blue) == wide, "the second line is orange"
    await tab.ask(f"{chart('Success')}.querySelectorAll('.legend button')[{at}].click()")
    await tab.until(f"{chart('Success')}.querySelectorAll('.legend button')[{at}].ariaPressed === 'false'")
    assert max(await coloured(tab)) < 2000


POINTS = "Number(document.querySelector('[aria-label^=\"Reward,\"]')?.ariaLabel.match(/(\\d+) points/)[1])"


async def test_a_sample_is_replaced_by_the_whole_run(tab: Tab, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(folder / "long")
    log(run, *({"step": step, "reward": 1.0 + 5000.0 * (step == 1234)} for step in range(4, 3001)))
    may_read = threading.Event()
    read = metrics.Curves.catch_up

    def catch_up(self: metrics.Curves, seconds: float = 0.0) -> bool:
        self.begun = True
        return read(self, 60.0) if may_read.is_set() else True

    monkeypatch.setattr(metrics, "SHORT", 100)
    monkeypatch.setattr(metrics, "SAMPLE", 50)
    monkeypatch.setattr(metrics.Curves, "catch_up", catch_up)
    await tab.goto("#/run/long")
    await tab.until(f"{POINTS} > 40")
    assert await tab.ask(POINTS) < 60
    may_read.set()
    await tab.until(f"{POINTS} > 500")


KEEP = (
    "URL.createObjectURL = (blob) => ((window.kept = blob), 'blob:kept'); HTMLAnchorElement.prototype.click = () => {}"
)
"""What a page would save is kept in `window.kept` instead."""


async def test_a_chart_is_taken_away_as_numbers_and_as_a_picture(tab: Tab, folder: Path) -> None:
    async def kept(expression: str) -> Any:
        await tab.until("window.kept")
        return await tab.ask(f"(async (blob) => {expression})(window.kept)", SECONDS)

    make_run(folder / "taken", [trajectory("a")])
    await tab.goto("#/run/taken")
    await tab.until("document.querySelector('[aria-label^=\"Reward,\"]')?.ariaLabel === 'Reward, 3 points'")
    await tab.ask(f"{KEEP};1")
    await tab.click("[aria-label='Reward as CSV']")
    lines = (await kept("blob.text()")).splitlines()
    assert lines[0].split(",") == ["step", "reward"]
    assert [float(value) for value in lines[3].split(",")] == [3, pytest.approx(0.3)]
    wild = "import('/static/lib/series.js').then((lib) => lib.csv(['=1+1', '@x,', 'b'], [[-1], [2], [3]]))"
    assert await tab.ask(wild, SECONDS) == "'=1+1,\"'@x,\",b\r\n-1,2,3\r\n"  # no spreadsheet computes a name
    await tab.ask("window.kept = null")
    await tab.click("[aria-label='Reward as PNG']")
    kind, width, height = await kept("createImageBitmap(blob).then((map) => [blob.type, map.width, map.height])")
    assert kind == "image/png"
    assert min(width, height) > 100


SMALL = (
    *("model.tiny.hidden_size=16", "model.tiny.num_layers=1", "training.batch_size=32", "training.warm_start.steps=5"),
    *("training.num_epochs=1", "training.num_iters_per_epoch=500", "training.eval_every=500"),
    "training.stop_at_success=null",
)


@pytest.mark.actors
async def test_a_run_is_watched_while_it_trains(open_tab: OpenTab, folder: Path) -> None:
    run = folder / "trains"
    command = ["train", "configs/guess_number.yaml", *SMALL, f"logging.runs_dir={folder}", "logging.run_name=trains"]
    training = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "uirl", *command, stdout=asyncio.subprocess.DEVNULL
    )
    try:
        while not (run / "metrics.jsonl").exists():
            assert training.returncode is None, "the training ended before its first update"
            await asyncio.sleep(0.2)
        tab = await open_tab()
        await tab.goto("#/run/trains")
        points = "Number(document.querySelector('.plot')?.ariaLabel.match(/(\\d+) points/)[1])"
        await tab.until(f"{points} >= 3")
        drawn = "Number(document.querySelector('.uplot').dataset.to)"
        last = await tab.ask(drawn)
        await tab.until(f"{drawn} >= {last} + 3")  # drawn, not only known
        await tab.shows(".figures", "live")
        await tab.goto("#/run/trains/trajectories")
        await tab.until("document.querySelectorAll('tbody tr').length > 10")
        assert training.returncode is None, "the training went on beside the viewer"
    finally:
        training.terminate()
        await training.wait()
