"""What charts say of curves that end, that stand on an axis of their own, and that have a band, in real Chromium."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
from PIL import Image

from tests.viewer.browsing import Tab, browsing, viewer
from tests.viewer.runs import make_run


def log(folder: Path, *rows: dict[str, object]) -> None:
    with (folder / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps({"time": 1e9 + n, **row}) + "\n" for n, row in enumerate(rows))


def chart(title: str) -> str:
    """The card of a chart, as JavaScript."""
    return f"[...document.querySelectorAll('.chart')].find((one) => one.querySelector('h2').innerText === '{title}')"


async def drawn(tab: Tab, title: str) -> list[float]:
    """From where to where a chart is drawn, once it is."""
    await tab.ask(f"{chart(title)}.scrollIntoView()")
    await tab.until(f"{chart(title)}?.querySelector('.uplot')?.dataset.to")
    return await tab.ask(
        f"(({{from, to}}) => [Number(from), Number(to)])({chart(title)}.querySelector('.uplot').dataset)"
    )


async def test_a_curve_that_ends_in_nan_is_not_said_to_be_where_it_was(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rows=0)
    losses: list[float | None] = [0.5, 0.25, None, None]
    log(run, *({"step": n, "policy_loss": loss, "entropy": 0.5} for n, loss in enumerate(losses, 1)))
    with viewer(run) as address:
        async with browsing(address) as tab:
            await tab.goto("#/run/run")
            assert await drawn(tab, "Losses") == [1, 4]
            said = await tab.ask(f"{chart('Losses')}.querySelector('.legend').innerText")
            assert "not finite since step 3" in said
            assert "0.25" not in said
            assert "not finite: policy_loss" in await tab.text("main .bar")
            log(run, {"step": 5, "policy_loss": 0.125, "entropy": 0.5})
            await tab.until(f"{chart('Losses')}.querySelector('.legend').innerText.includes('0.125')")


async def test_a_warm_start_is_drawn_along_its_own_steps(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rows=0)
    log(
        run,
        *({"step": 0, "warm_start/step": n, "warm_start/loss": 1 / n, "warm_start/tokens": 9} for n in range(1, 31)),
    )
    log(run, *({"step": n, "policy_loss": 0.1, "success": 0.5} for n in range(1, 4)))
    with viewer(run) as address:
        async with browsing(address) as tab:
            await tab.goto("#/run/run")
            assert await drawn(tab, "Warm start, loss") == [1, 30]
            assert await drawn(tab, "Losses") == [1, 3]
            assert await tab.ask(f"{chart('Warm start, loss')}.querySelector('.plot').ariaLabel.includes('30 points')")
            await tab.click("button.section")
            await tab.until(chart("warm_start/tokens"))
            assert await drawn(tab, "warm_start/tokens") == [1, 30]


async def coloured(tab: Tab) -> tuple[int, int]:
    """How many pixels of the chart of the success are rather blue, and how many rather orange."""
    await tab.ask(f"{chart('Success')}.querySelector('.u-over').id = 'over'")
    await tab.ask(f"{chart('Success')}.scrollIntoView()")
    x, y, width, height = map(int, await tab.box("#over"))
    screen = np.asarray(Image.open(io.BytesIO(await tab.page.screenshot())).convert("RGB")).astype(int)
    red, blue = screen[y : y + height, x : x + width, 0], screen[y : y + height, x : x + width, 2]
    return int((blue - red > 15).sum()), int((red - blue > 15).sum())


async def test_a_band_has_the_colour_of_its_line_and_goes_with_it(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rows=0)
    log(
        run,
        *(
            {"step": n, "eval/success": 0.5, "success": 0.5, "success_low": 0.2, "success_high": 0.8}
            for n in range(1, 9)
        ),
    )
    with viewer(run) as address:
        async with browsing(address) as tab:
            await tab.goto("#/run/run")
            await drawn(tab, "Success")
            names = f"[...{chart('Success')}.querySelectorAll('.legend span')].map((one) => one.innerText)"
            at = (await tab.ask(names)).index("success")
            blue, orange = await coloured(tab)
            wide = max(blue, orange)
            assert wide > 5000
            assert (orange if at == 1 else blue) == wide, "the second line is orange"
            await tab.ask(f"{chart('Success')}.querySelectorAll('.legend button')[{at}].click()")
            await tab.until(f"{chart('Success')}.querySelectorAll('.legend button')[{at}].ariaPressed === 'false'")
            assert max(await coloured(tab)) < 2000
