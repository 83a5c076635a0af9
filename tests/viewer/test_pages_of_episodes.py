"""One trajectory and the siblings of a group in real Chromium: tokens, odd clicks, very many turns, forks, replay."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageChops
from tokenizers import Tokenizer

from tests.viewer.browsing import OpenTab, Tab, stores, violations
from tests.viewer.runs import make_run, picture, trajectory, turn
from tests.viewer.screens import WIDE, acted, clicked
from uirl.errors import StorageError
from uirl.storage import LearnedTokens, RunDirectory, TrajectoryStore
from uirl.types import Action, PictureTransform, ToolCall, Trajectory, Turn

pytestmark = pytest.mark.asyncio(loop_scope="session")

TOKENS: dict[str, Any] = {"response_ids": (71, 72, 73), "rollout_log_probs": (-0.5, -4.0, -0.25)}


def sibling(id: str, x: int, success: bool) -> Trajectory:
    """Two turns before two screens, the first answered alike by all; the second is pressed at `x`."""
    first = replace(clicked(WIDE, 300, 300, reply="open"), **TOKENS)
    second: Turn = acted("click", WIDE, (900, 500), reply=f"press {x}", x=x, y=500)
    second = replace(second, **TOKENS, terminated=True)
    return trajectory(id, [first, second], success=success, group_id="siblings")


@pytest.fixture(scope="module", autouse=True)
def run(folder: Path) -> Path:
    siblings = [sibling("good", 900, True), sibling("bad", 40, False), sibling("worse", 7, False)]
    path = make_run(folder / "first", siblings)
    with TrajectoryStore(RunDirectory.open(path).trajectories_path) as store:
        advantages = np.array([0.5, -1.5, 0.0, 0.5, -1.5, 0.0], np.float32)
        store.add_learned([LearnedTokens("good", advantages)], step=1, version=0)
    return path


async def test_tokens_are_shown_with_their_ids_and_the_figure_that_was_chosen(tab: Tab) -> None:
    await tab.goto("#/run/first/t/good/0")
    await tab.until("document.querySelectorAll('.token').length === 3")
    assert await tab.ask("[...document.querySelectorAll('.token')].map((t) => t.innerText)") == ["71", "72", "73"]
    await tab.ask("document.querySelector('.token').focus()")
    await tab.press("right")
    await tab.until("document.querySelector('.detail dl') !== null")
    said = (await tab.text(".detail")).split()
    assert {"72", "−4", "−1.5"} <= set(said)
    assert await tab.ask("location.hash") == "#/run/first/t/good/0", "arrows on a token do not change the turn"
    await tab.click(".choice button:nth-child(3)")
    await tab.until("document.querySelector('.choice button:nth-child(3)').ariaPressed === 'true'")
    colours = await tab.ask("[...document.querySelectorAll('.token')].map((t) => t.style.background)")
    assert ["--good" in colours[0], "--bad" in colours[1], colours[2]] == [True, True, ""]
    await tab.click(".choice button:nth-child(6)")
    await tab.until("document.querySelector('.about').innerText.includes('Not recorded for this turn')")
    await tab.click("section.card input[type=checkbox]")
    await tab.until("document.querySelectorAll('.token.context').length === 2")


async def test_siblings_are_aligned_and_one_key_labels_the_error(tab: Tab, address: str) -> None:
    await tab.goto("#/run/first/g/siblings")
    await tab.until("document.querySelectorAll('tbody tr').length === 3")
    heads = await tab.ask("[...document.querySelectorAll('thead th')].map((th) => th.innerText.trim())")
    assert heads == ["episode", "0", "fork"]
    firsts = "[...document.querySelectorAll('tbody tr')].map((tr) => tr.children[1].querySelector('b').innerText)"
    assert await tab.ask(firsts) == ["0", "0", "0"]
    await tab.until("document.querySelectorAll('.forked .mark').length === 2")
    sides = await tab.ask("[...document.querySelectorAll('.forked .side')].map((s) => s.innerText)")
    assert "solved" in sides[0]
    assert "900" in sides[0]
    assert "not solved" in sides[1]
    chosen = await tab.ask("document.querySelector('td[aria-selected=true]').parentElement.innerText")
    assert "bad" in chosen
    await tab.press("e")
    await tab.until("document.querySelector('td[aria-selected=true]').innerText.includes('error')")
    await stores(address, "bad", passed=False, error_step=1)
    await tab.press("down", "enter")
    await tab.until("location.hash === '#/run/first/t/worse/1'")


async def test_the_arrows_go_over_screens_that_an_episode_never_saw(tab: Tab, folder: Path) -> None:
    def member(id: str, *places: int) -> Trajectory:
        return trajectory(id, [clicked(WIDE, x, 400) for x in places], group_id="apart")

    make_run(folder / "apart", [member("one", 100, 1200), member("two", 100, 500, 800, 1200)])
    await tab.goto("#/run/apart/g/apart")
    await tab.until("document.querySelectorAll('tbody tr').length === 2")
    at = "document.querySelector('td[aria-selected=true]').cellIndex - 1"
    seen = [await tab.ask(at)]
    for key in ("right", "right", "left"):
        await tab.press(key)
        seen.append(await tab.ask(at))
    assert seen == [0, 3, 3, 0]


# -- many turns ------------------------------------------------------------------------------------------------------

FRAMES = "document.querySelectorAll('.strip li button').length"
IN_SIGHT = """(({left, right}) => left >= 0 && right <= innerWidth)
    (document.querySelector('.strip [aria-current]')?.getBoundingClientRect() ?? {left: -1})"""


async def test_a_strip_of_hundreds_of_turns_draws_those_in_sight(open_tab: OpenTab, folder: Path) -> None:
    shots = [picture("red", (400, 100)), picture("blue")]
    make_run(folder / "long", [trajectory("t", [turn(f"reply {i}", shots[i % 2]) for i in range(301)])])
    tab = await open_tab()
    await tab.goto("#/run/long/t/t/250")
    await tab.until(IN_SIGHT)
    assert await tab.text(".said h2") == "Turn 250"
    assert await tab.text(".strip [aria-current] b") == "250"
    assert 20 < await tab.ask(FRAMES) <= 100
    await tab.press("right")
    await tab.until("document.querySelector('.said h2').innerText === 'Turn 251'")
    await tab.shows(".said", "reply 251")
    await tab.press("end")
    await tab.until("document.querySelector('.strip [aria-current] b')?.innerText === '300'")
    await tab.until(IN_SIGHT)
    await tab.press("home")
    await tab.until("document.querySelector('.said h2').innerText === 'Turn 0'")
    await tab.until(IN_SIGHT)
    assert await tab.ask(FRAMES) <= 100
    await tab.until("document.querySelector('.strip img')?.naturalWidth > 0")
    over = (
        "[...document.querySelectorAll('.strip :is(img, .noimage)')].some((img) =>"
        " img.getBoundingClientRect().right > img.closest('button').getBoundingClientRect().right)"
    )
    assert not await tab.ask(over), "pictures stay in their frames"
    for theme in ("light", "dark"):
        await tab.goto("#/run/long/t/t/150", theme)
        assert await violations(tab) == []
    narrow = await open_tab(390, 844)
    await narrow.goto("#/run/long/t/t/150")
    await narrow.until(IN_SIGHT)
    assert await narrow.ask("document.documentElement.scrollWidth") <= 390


async def test_a_turn_that_cannot_be_read_says_so_and_is_asked_for_again(tab: Tab, folder: Path, monkeypatch) -> None:
    read, damaged = TrajectoryStore.turn, {1}

    def turn_of(self: TrajectoryStore, id: str, index: int) -> Any:
        if index in damaged:
            raise StorageError("the disk does not answer")
        return read(self, id, index)

    monkeypatch.setattr(TrajectoryStore, "turn", turn_of)
    make_run(folder / "damaged", [trajectory("t", [turn(f"reply {i}") for i in range(3)])])
    await tab.goto("#/run/damaged/t/t/0")
    await tab.press("right")
    await tab.until("document.querySelector('.problem:not([hidden])')?.innerText.includes('the disk does not answer')")
    damaged.clear()
    await tab.click(".problem button")
    await tab.until("document.querySelector('.said h2').innerText === 'Turn 1'")
    assert await tab.text(".problem:not([hidden])") is None


async def test_replay_goes_on_to_the_last_turn(tab: Tab, folder: Path) -> None:
    turns = [turn(f"reply {i}", picture(color)) for i, color in enumerate(("red", "blue", "green"))]
    make_run(folder / "replayed", [trajectory("a", turns)])
    await tab.goto("#/run/replayed/t/a/0")
    await tab.ask(
        "((s) => {s.value = '4'; s.dispatchEvent(new Event('change', {bubbles: true}))})"
        "(document.querySelector('select[aria-label=speed]'))"
    )
    await tab.page.type("p")
    await tab.until("document.querySelector('.said h2').innerText === 'Turn 2'")
    await tab.until("document.querySelector('.top .main').ariaPressed === 'false'")
    assert await tab.ask("location.hash") == "#/run/replayed/t/a/2"


# -- clicks: how sure, and beside the picture ------------------------------------------------------------------------


async def screen(tab: Tab) -> Image.Image:
    return Image.open(io.BytesIO(await tab.page.screenshot())).convert("RGB")


def unsure(path: Path, tokenizer: Tokenizer, x: int, y: int, color: str, log_prob: float = -1.0) -> str:
    """Make a run with one unsure click on a picture of 56 x 56, fed as 28 x 28; return the route of its page."""
    reply = f'{{"x":{x},"y":{y}}}'
    ids = tuple(tokenizer.encode(reply).ids)
    one = turn(
        shot=picture(color, (56, 56)),
        action=Action(reply, (ToolCall("click", {"x": x, "y": y}),)),
        response_ids=ids,
        rollout_log_probs=(log_prob,) * len(ids),
        pictures=(PictureTransform((56, 56), (28, 28)),),
    )
    place = make_run(path, [trajectory("t", [one])]) / "checkpoints" / "step_000001" / "policy"
    place.mkdir(parents=True)
    tokenizer.save(str(place / "tokenizer.json"))
    return f"#/run/{path.name}/t/t/0"


async def shown(tab: Tab, route: str) -> None:
    await tab.goto(route)
    await tab.until("document.querySelector('.heat') !== null")


async def without_heat(tab: Tab) -> Image.Image:
    """How the page changes when the heat patch is taken away."""
    before = await screen(tab)
    await tab.ask("document.querySelectorAll('.heat').forEach((one) => one.remove())")
    return ImageChops.difference(before, await screen(tab))


@pytest.mark.parametrize("color", ["#ff8a00", "black", "white"])
async def test_how_sure_it_was_is_seen_on_a_picture_of_any_colour(
    tab: Tab, folder: Path, tokenizer: Tokenizer, color: str
) -> None:
    await shown(tab, unsure(folder / f"sure-{color.strip('#')}", tokenizer, 28, 28, color))
    changed = await without_heat(tab)
    assert max(high for _, high in changed.getextrema()) > 90


async def test_an_enlarged_picture_stays_inside_its_window(
    open_tab: OpenTab, folder: Path, tokenizer: Tokenizer
) -> None:
    route = unsure(folder / "enlarged", tokenizer, 28, 28, "gray")
    for size in ((390, 844), (1280, 500)):
        tab = await open_tab(*size)
        await shown(tab, route)
        await tab.ask("document.querySelector('.zoom').click()")
        await tab.until("document.querySelector('dialog.large[open] img')")
        left, top, width, height = await tab.box("dialog.large")
        x, y, w, h = await tab.box("dialog.large img")
        assert left < x < x + w < left + width
        assert top < y < y + h < top + height


async def test_a_click_beside_the_picture_is_said_at_its_edge(tab: Tab, folder: Path, tokenizer: Tokenizer) -> None:
    await shown(tab, unsure(folder / "beside", tokenizer, 40, 80, "gray", -3.0))
    said = await tab.ask("[...document.querySelectorAll('.picture svg text')].map((one) => one.textContent)")
    assert said == ["outside: 40, 80", "outside: 20, 40"]
    _, top, _, height = await tab.box(".picture:nth-child(2) img")
    _, y, _, h = await tab.box(".picture:nth-child(2) .mark path")
    assert abs(y + h / 2 - (top + height)) < 1
    changed = (await without_heat(tab)).getbbox()
    assert changed is not None
    assert changed[3] <= top + height + 1
