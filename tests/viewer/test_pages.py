"""The pages of `uirl view` in real Chromium, over runs that are on disk as a run leaves them."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from tests.viewer.browsing import OpenTab, Tab, violations
from tests.viewer.runs import make_run, passed, trajectory, turn
from tests.viewer.screens import PHONE, SMALL, TARGET, WIDE, acted, clicked
from uirl.types import PictureTransform, Trajectory, Verdict

pytestmark = pytest.mark.asyncio(loop_scope="session")

HOSTILE = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'


CLICKS = {
    "phone/0": (PHONE, (901, 2203)),
    "wide/0": (WIDE, (20, 780)),
    "wide/1": (WIDE, (1270, 9)),
    "strange/0": (SMALL, (3, 50)),
}


FED = {
    "phone/0": PictureTransform(PHONE, resized=(504, 1120)),
    "wide/1": PictureTransform(WIDE, resized=(640, 400), window=(308, 0, 336, 196)),
}
"""What became of the pictures of these turns: made smaller, and smaller with only a window of it fed."""
SECOND_SIZE = """(({naturalWidth, naturalHeight}) => [naturalWidth, naturalHeight])
    (document.querySelector('.picture:nth-child(2) img'))"""


def episodes() -> list[Trajectory]:
    phone = [
        replace(clicked(PHONE, 901, 2203), pictures=(FED["phone/0"],)),
        acted("drag", PHONE, (540, 1800), x=540, y=1800, to_x=540, to_y=600),
        acted("type", PHONE, (200, 300), text="Zürich"),
    ]
    wide = [clicked(WIDE, 20, 780), replace(clicked(WIDE, 1270, 9), pictures=(FED["wide/1"],))]
    failed = Verdict(0.0, False, "the switch is still on", "judge", 1)
    strange = [clicked(SMALL, 3, 50, reply=HOSTILE)]
    return [
        trajectory("phone", phone, verdict=passed()),
        trajectory("wide", wide, success=False, verdict=failed),
        trajectory("strange", strange, task=HOSTILE, success=False, stop_reason="max_turns"),
        *[trajectory(f"more-{i}", [turn(f"reply {i}")], success=bool(i % 2)) for i in range(12)],
    ]


@pytest.fixture(scope="module", autouse=True)
def run(folder: Path) -> Path:
    return make_run(folder / "first", episodes())


def row(id: str) -> str:
    """JavaScript: the row of an episode in the list."""
    return f"[...document.querySelectorAll('tbody a')].find((a) => a.hash.includes('/t/{id}/'))"


async def test_trajectories_are_filtered_searched_and_sorted_and_the_address_says_so(tab: Tab) -> None:
    await tab.goto("#/run/first/trajectories")
    await tab.until("document.querySelectorAll('tbody tr').length === 15")
    await tab.ask(
        "(() => {const s = document.querySelector('select[name=success]'); s.value = 'false';"
        "s.dispatchEvent(new Event('change', {bubbles: true}))})()"
    )
    await tab.until("document.querySelectorAll('tbody tr').length === 8")
    assert "success=false" in await tab.ask("location.hash")
    await tab.page.type("/")
    await tab.page.type("reply 4")
    await tab.until("document.querySelectorAll('tbody tr').length === 1")
    assert await tab.ask(f"{row('more-4')} !== undefined")
    await tab.goto("#/run/first/trajectories?sort=reward&order=asc&success=true")
    assert await tab.ask("document.querySelector('[aria-sort=ascending]').innerText") == "reward ↑"
    assert await tab.ask("document.querySelectorAll('tbody tr').length") == 7


async def test_keys_open_an_episode_and_go_through_turns_and_neighbours(tab: Tab) -> None:
    await tab.goto("#/run/first/trajectories?sort=number&order=asc")
    await tab.press("j", "enter")
    await tab.until("document.querySelector('.said h2')?.innerText === 'Turn 0'")
    assert await tab.ask("location.hash") == "#/run/first/t/wide/0"
    first = await tab.ask("document.querySelector('.picture img').src")
    await tab.press("right")
    await tab.until("document.querySelector('.said h2')?.innerText === 'Turn 1'")
    assert await tab.ask("location.hash") == "#/run/first/t/wide/1"
    assert await tab.ask("document.querySelector('.picture img').src") != first
    await tab.press("left", "k")
    await tab.until("location.hash === '#/run/first/t/phone/0'")
    await tab.press("j", "j")
    await tab.until("location.hash === '#/run/first/t/strange/0'")
    await tab.page.type("?")
    await tab.until("document.querySelector('dialog[open] .keys') !== null")
    await tab.shows("dialog[open]", "label: passed")


async def check_mark(tab: Tab, picture: str, size: tuple[int, int], place: tuple[float, float]) -> None:
    """The cross on that picture stands in the middle of the pixel `place`, and the square of `TARGET` is under it."""
    await tab.until(f"document.querySelector('{picture} img')?.naturalWidth > 0")
    await tab.until(f"document.querySelector('{picture} .mark') !== null")
    await tab.ask(f"document.querySelector('{picture}').scrollIntoView({{block: 'center'}})")
    left, top, width, height = await tab.box(f"{picture} img")
    x, y, w, h = await tab.box(f"{picture} .mark .ring")
    middle = x + w / 2, y + h / 2
    assert middle[0] == pytest.approx(left + (place[0] + 0.5) * width / size[0], abs=0.6)
    assert middle[1] == pytest.approx(top + (place[1] + 0.5) * height / size[1], abs=0.6)
    await tab.ask(f"document.querySelector('{picture} svg').style.visibility = 'hidden'")
    shown = Image.open(io.BytesIO(await tab.page.screenshot())).convert("RGB")
    assert shown.getpixel((int(middle[0]), int(middle[1]))) == pytest.approx(TARGET, abs=12)


@pytest.mark.parametrize("width", [1280, 390])
async def test_a_click_is_drawn_at_its_pixel_also_of_what_the_model_was_fed(open_tab: OpenTab, width: int) -> None:
    tab = await open_tab(width, 1400)
    for id, (size, (x, y)) in CLICKS.items():
        await tab.goto(f"#/run/first/t/{id}")
        await check_mark(tab, ".picture", size, (x, y))
        if id in FED:
            fed = FED[id]
            at = fed.to_fed(x + 0.5, y + 0.5)
            await check_mark(tab, ".picture:nth-child(2)", fed.fed_size, (at[0] - 0.5, at[1] - 0.5))
            assert tuple(await tab.ask(SECOND_SIZE)) == fed.fed_size


async def test_a_drag_is_an_arrow_and_what_was_typed_is_written(tab: Tab) -> None:
    await tab.goto("#/run/first/t/phone/1")
    await tab.until("document.querySelector('.mark[data-kind=drag]') !== null")
    ends = await tab.ask(
        "['x1', 'y1', 'x2', 'y2'].map((name) => Number(document.querySelector('.mark line').getAttribute(name)))"
    )
    assert ends == [540.5, 1800.5, 540.5, 600.5]
    await tab.press("right")
    await tab.until("document.querySelector('.picture svg text')?.textContent === '⌨ Zürich'")


async def test_what_a_run_says_is_shown_as_text(tab: Tab) -> None:
    for route in ("/trajectories", "/t/strange/0", "/trajectories?q=onerror"):
        await tab.goto(f"#/run/first{route}")
        await tab.until(f"document.body.innerText.includes({json.dumps(HOSTILE)})")
        assert await tab.ask("window.hacked") is None
        assert await tab.ask("document.querySelectorAll('img[src=x], main script').length") == 0


async def test_the_pictures_of_the_next_turn_are_at_hand(tab: Tab) -> None:
    asked = (
        "performance.getEntriesByType('resource').map((e) => e.name)"
        ".filter((name) => name.includes('/images/') && !name.endsWith('/small'))"
    )
    await tab.goto("#/run/first/t/phone/0")
    await tab.until(f"{asked}.length >= 3")
    before = await tab.ask(f"{asked}.length")
    await tab.press("right")
    await tab.until("document.querySelector('.said h2')?.innerText === 'Turn 1'")
    assert await tab.ask(f"{asked}.length") == before


ROUTES = (
    *("", "#/run/first", "#/run/first/trajectories", "#/run/first/t/wide/1", "#/run/first/g/g", "#/compare?runs=first"),
)


async def test_the_pages_can_be_used_by_everyone(tab: Tab) -> None:
    for route in ROUTES:
        for theme in ("light", "dark"):
            await tab.goto(route, theme)
            assert await violations(tab) == [], f"{route} in {theme}"


async def test_a_page_that_is_only_looked_at_draws_nothing(tab: Tab, run: Path) -> None:
    """What moves without end is drawn sixty times a second: it takes the processor from the run beside it."""
    for route in ("#/", "#/run/first"):
        (run / "metrics.jsonl").touch()  # written just now: live
        await tab.goto(route)
        await tab.until("document.querySelector('.live')")
        assert await tab.ask("document.getAnimations().length") == 0, route


async def test_an_address_that_leads_nowhere_says_so_and_where_to_go_on(tab: Tab) -> None:
    for route, words in (("#/what", "There is no such page. All runs"), ("#/compare", "No run is named. All runs")):
        await tab.goto(route)
        assert (await tab.text("main")).strip() == words
        assert await violations(tab) == []
    await tab.click("main a")
    await tab.until("document.querySelector('h1')?.innerText === 'Runs'")


async def test_a_narrow_page_is_not_wider_than_the_screen(open_tab: OpenTab) -> None:
    tab = await open_tab(390, 844)
    for route in ROUTES:
        await tab.goto(route)
        assert await tab.ask("document.documentElement.scrollWidth") <= 390, route
