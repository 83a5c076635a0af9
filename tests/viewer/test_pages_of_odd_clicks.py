"""Clicks beside the picture, in real Chromium: said at its edge, and nothing is drawn over the page around it."""

from __future__ import annotations

import io
from pathlib import Path

from PIL import Image, ImageChops
from tokenizers import Tokenizer

from tests.viewer.browsing import Tab, browsing, viewer
from tests.viewer.runs import make_run, picture, trajectory, turn
from uirl.types import Action, PictureTransform, ToolCall


async def screen(tab: Tab) -> Image.Image:
    return Image.open(io.BytesIO(await tab.page.screenshot())).convert("RGB")


async def test_a_click_beside_the_picture_is_said_at_its_edge(tmp_path: Path, tokenizer: Tokenizer) -> None:
    reply = '{"x":40,"y":80}'
    ids = tuple(tokenizer.encode(reply).ids)
    told = Action(reply, (ToolCall("click", {"x": 40, "y": 80}),))
    fed = PictureTransform((56, 56), (28, 28))
    wild = turn(
        shot=picture("gray", (56, 56)),
        action=told,
        response_ids=ids,
        rollout_log_probs=(-3.0,) * len(ids),
        pictures=(fed,),
    )
    run = make_run(tmp_path / "odd", [trajectory("t", [wild])])
    place = run / "checkpoints" / "step_000001" / "policy"
    place.mkdir(parents=True)
    tokenizer.save(str(place / "tokenizer.json"))
    with viewer(run) as address:
        async with browsing(address) as tab:
            await tab.goto("#/run/odd/t/t/0")
            await tab.until("document.querySelector('.heat') !== null")
            said = await tab.ask("[...document.querySelectorAll('.picture svg text')].map((one) => one.textContent)")
            assert said == ["outside: 40, 80", "outside: 20, 40"]
            _, top, _, height = await tab.box(".picture:nth-child(2) img")
            _, y, _, h = await tab.box(".picture:nth-child(2) .mark path")
            assert abs(y + h / 2 - (top + height)) < 1
            shown = await screen(tab)
            await tab.ask("document.querySelectorAll('.heat').forEach((one) => one.remove())")
            changed = ImageChops.difference(shown, await screen(tab)).getbbox()
            assert changed is not None
            assert changed[3] <= top + height + 1
