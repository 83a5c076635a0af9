"""What the pages say a run came to, in real Chromium: in the list, at the top of its page, and of evaluations."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.viewer.browsing import OpenTab, Tab, violations
from tests.viewer.runs import make_run, trajectory
from uirl.storage import TrajectoryStore

pytestmark = pytest.mark.asyncio(loop_scope="session")

SUMMARY = {
    "success_before": 0.55,
    "success_after": 0.73,
    "success_after_interval": [0.673, 0.781],
    "reward_before": 0.5,
    "reward_after": 0.75,
    "controls": {"constant_guess": 0.12},
    "episodes": 704,
    "ledger": {"trained": 208},
    "steps": 3,
    "train_seconds": 95.0,
    "stopped_because": "all epochs are done",
    "meter": {
        "machine": {"device": "cpu, 2 threads", "precision": "float32", "operations": 9e10, "bytes": 1.5e10},
        "screenshots_per_second": 80.5,
        "parts": {
            "waiting": {"seconds_per_step": 0.5, "share_of_time": 0.1},
            "update": {"seconds_per_step": 4.5, "share_of_time": 0.9, "share_of_limit": 0.61},
        },
    },
}


@pytest.fixture(scope="module", autouse=True)
def runs(folder: Path) -> None:
    made = folder
    for name in ("finished", "stopped"):
        make_run(made / name, [trajectory("a")], config="training:\n  num_epochs: 4\n  num_iters_per_epoch: 100\n")
    (made / "finished" / "summary.json").write_text(json.dumps(SUMMARY))
    with (made / "stopped" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "time": 1.0, "success": 0.9961, "eval/success": 0.9961, "policy_loss": null}\n')
    for step in (4, 8):
        with TrajectoryStore(made / "finished" / "evaluations" / f"step_{step:06d}.sqlite") as store:
            store.add_many([trajectory("a"), trajectory("b", success=False)], step=step, split="test")
    for n in range(40):
        make_run(made / f"z{n:02d}", rows=1)
    for file in made.rglob("*.*"):
        os.utime(file, (1e9, 1e9))


def row(name: str) -> str:
    return f"[...document.querySelectorAll('.runs tbody tr')].find((tr) => tr.innerText.includes('{name}'))"


async def test_the_list_tells_held_out_success_from_that_of_training(tab: Tab) -> None:
    await tab.goto("#/")
    heads = await tab.ask("[...document.querySelectorAll('thead th')].map((th) => th.innerText)")
    cells = f"[...{row('finished')}.children].map((td) => td.innerText.trim())"
    found = dict(zip(heads, await tab.ask(cells), strict=True))
    assert {
        "state": "finished",
        "step": "3 of 400",
        "success in evaluations": "73 %",
        "training success": "50 %",
    }.items() <= (found.items())
    assert await tab.ask(f"{row('finished')}.querySelector('.share').title") == (
        "95 % interval 67 % to 78 %, at step 3"
    )
    stopped = await tab.ask(f"{row('stopped')}.innerText")
    assert all(words in stopped for words in ("stopped", "4 of 400", "not finite", "99.6 %")), stopped
    names = await tab.ask("[...document.querySelectorAll('tbody th a')].map((a) => a.innerText)")
    assert [name for name in names if "eval" in name] == [
        "finished/evaluations/step_000004",
        "finished/evaluations/step_000008",
    ]


@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (400, "dark")])
async def test_the_page_of_a_finished_run_begins_with_its_result(open_tab: OpenTab, width: int, theme: str) -> None:
    tab = await open_tab(width)
    await tab.goto("#/run/finished", theme)
    await tab.until("document.querySelector('.result') && document.querySelector('.figures dd')")
    said = (await tab.text(".result")).replace("\u2009", "")
    words = ("55 % → 73 %", "[67.3, 78.1]", "constant_guess", "12 %", "208 of 704 episodes", "all epochs are done")
    assert [word for word in words if word not in said] == []
    assert await tab.ask("document.documentElement.scrollWidth") <= width
    assert await violations(tab) == []


async def test_the_page_of_a_finished_run_says_where_its_time_went(tab: Tab) -> None:
    await tab.goto("#/run/finished")
    await tab.until("document.querySelector('.meter table')")
    await tab.shows(".meter", "90 GFLOP/s in float32")
    await tab.shows(".meter", "80.5 screenshots/s")
    rows = await tab.ask(
        "[...document.querySelectorAll('.meter tbody tr')].map((tr) => tr.innerText.split(/\\s*\\t\\s*/))"
    )
    assert rows == [["update", "4.5", "90 %", "61 %"], ["waiting", "0.5", "10 %", "–"]], "what was not measured is no 0"


async def test_the_page_of_an_evaluation_says_its_result(tab: Tab) -> None:
    await tab.goto("#/run/finished.evaluations.step_000004.sqlite")
    await tab.until("document.querySelector('.result')")
    await tab.shows(".result", "50 %")
    await tab.shows(".result", "2 of 1 instance")
    await tab.shows(".empty", "without training")
    assert await tab.text("h1") == "finished/evaluations/step_000004"


async def test_the_mark_of_the_list_stays_in_sight(open_tab: OpenTab) -> None:
    tab = await open_tab(1280, 600)
    await tab.goto("#/")
    await tab.press(*["j"] * 30)
    await tab.until("document.querySelector('tr[aria-current]')?.innerText.includes('z2')")
    top = "document.querySelector('tr[aria-current]').getBoundingClientRect()"
    assert await tab.ask(f"{top}.top >= 0 && {top}.bottom <= innerHeight")


PERCENT = {
    **{"0": "0 %", "1": "100 %", "0.9961": "99.6 %", "0.99996": "> 99.9 %", "0.0451": "4.5 %"},
    **{"1e-5": "< 0.1 %", "0.5": "50 %", "0.95": "95 %", "null": "–"},
}


async def test_what_is_not_all_is_never_called_all(tab: Tab) -> None:
    await tab.goto("#/run/z00")
    await tab.ask("import('/static/lib/format.js').then((module) => { window.format = module; return 1; })")
    said = {share: await tab.ask(f"format.percent({share})") for share in PERCENT}
    assert said == PERCENT


async def test_of_a_run_that_is_not_there_nothing_but_that_is_shown(tab: Tab) -> None:
    for page in ("#/run/none", "#/run/none/trajectories"):
        await tab.goto(page)
        await tab.until("document.querySelector('main .problem')")
        await tab.shows("main", "there is no run")
        assert await tab.ask("document.querySelectorAll('main input, main select, main h1').length") == 0


async def test_a_list_of_a_run_that_was_made_anew_says_so(tab: Tab, folder: Path) -> None:
    run = make_run(folder / "anew", [trajectory(id) for id in "abc"])
    await tab.goto("#/")
    await tab.ask("window.setInterval = ((set) => (act, time) => set(act, Math.min(time, 500)))(setInterval);1")
    await tab.ask("location.hash = '#/run/anew/trajectories'")
    await tab.until("document.querySelectorAll('.trajectories tbody tr').length === 3")
    shutil.rmtree(run)
    make_run(run, [trajectory("d")])
    await tab.until("document.body.innerText.includes('2 fewer now') && !document.body.innerText.includes('so far')")
    await tab.click(".bar button.main")
    await tab.until("document.querySelectorAll('.trajectories tbody tr').length === 1")
    await tab.until("!document.querySelector('main').innerText.includes('fewer now')")
    assert await tab.ask("document.querySelectorAll('.trajectories tbody tr').length") == 1
