"""Clicks beside the picture, in real Chromium: said at its edge, and nothing is drawn over the page around it."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from PIL import Image, ImageChops
from tokenizers import Tokenizer

from tests.viewer.browsing import Tab, browsing, viewer
from tests.viewer.runs import make_run, picture, trajectory, turn
from uirl.types import Action, PictureTransform, ToolCall


async def screen(tab: Tab) -> Image.Image:
    return Image.open(io.BytesIO(await tab.page.screenshot())).convert("RGB")


def clicked(folder: Path, tokenizer: Tokenizer, x: int, y: int, color: str, log_prob: float = -1.0) -> Path:
    """A run with one unsure click on a picture of 56 x 56 that was fed as 28 x 28."""
    reply = f'{{"x":{x},"y":{y}}}'
    ids = tuple(tokenizer.encode(reply).ids)
    told = Action(reply, (ToolCall("click", {"x": x, "y": y}),))
    one = turn(
        shot=picture(color, (56, 56)),
        action=told,
        response_ids=ids,
        rollout_log_probs=(log_prob,) * len(ids),
        pictures=(PictureTransform((56, 56), (28, 28)),),
    )
    run = make_run(folder / "odd", [trajectory("t", [one])])
    place = run / "checkpoints" / "step_000001" / "policy"
    place.mkdir(parents=True)
    tokenizer.save(str(place / "tokenizer.json"))
    return run


async def without_heat(tab: Tab) -> Image.Image:
    """How the page changes when the heat patch is taken away."""
    shown = await screen(tab)
    await tab.ask("document.querySelectorAll('.heat').forEach((one) => one.remove())")
    return ImageChops.difference(shown, await screen(tab))


@pytest.mark.parametrize("color", ["#ff8a00", "black", "white", "#1b1200"])
async def test_how_sure_it_was_is_seen_on_a_picture_of_any_colour(
    tmp_path: Path, tokenizer: Tokenizer, color: str
) -> None:
    with viewer(clicked(tmp_path, tokenizer, 28, 28, color)) as address:
        async with browsing(address) as tab:
            await tab.goto("#/run/odd/t/t/0")
            await tab.until("document.querySelector('.heat') !== null")
            changed = await without_heat(tab)
            assert max(high for _, high in changed.getextrema()) > 90


async def test_an_enlarged_picture_stays_inside_its_window(tmp_path: Path, tokenizer: Tokenizer) -> None:
    with viewer(clicked(tmp_path, tokenizer, 28, 28, "gray")) as address:
        for size in ((390, 844), (1280, 500)):
            async with browsing(address, *size) as tab:
                await tab.goto("#/run/odd/t/t/0")
                await tab.until("document.querySelector('.heat') !== null")
                await tab.ask("document.querySelector('.zoom').click()")
                await tab.until("document.querySelector('dialog.large[open] img')")
                left, top, width, height = await tab.box("dialog.large")
                x, y, w, h = await tab.box("dialog.large img")
                assert left < x < x + w < left + width
                assert top < y < y + h < top + height


async def test_a_click_beside_the_picture_is_said_at_its_edge(tmp_path: Path, tokenizer: Tokenizer) -> None:
    run = clicked(tmp_path, tokenizer, 40, 80, "gray", -3.0)
    with viewer(run) as address:
        async with browsing(address) as tab:
            await tab.goto("#/run/odd/t/t/0")
            await tab.until("document.querySelector('.heat') !== null")
            said = await tab.ask("[...document.querySelectorAll('.picture svg text')].map((one) => one.textContent)")
            assert said == ["outside: 40, 80", "outside: 20, 40"]
            _, top, _, height = await tab.box(".picture:nth-child(2) img")
            _, y, _, h = await tab.box(".picture:nth-child(2) .mark path")
            assert abs(y + h / 2 - (top + height)) < 1
            changed = (await without_heat(tab)).getbbox()
            assert changed is not None
            assert changed[3] <= top + height + 1
