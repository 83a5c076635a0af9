"""One trajectory of many turns in real Chromium: only what is in sight is drawn, and steps go on without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.viewer.browsing import browsing, viewer
from tests.viewer.runs import make_run, picture, trajectory, turn
from tests.viewer.test_pages import violations
from uirl.errors import StorageError
from uirl.storage import TrajectoryStore

FRAMES = "document.querySelectorAll('.strip li button').length"
IN_SIGHT = """(({left, right}) => left >= 0 && right <= innerWidth)
    (document.querySelector('.strip [aria-current]')?.getBoundingClientRect() ?? {left: -1})"""


async def test_a_strip_of_hundreds_of_turns_draws_those_in_sight(tmp_path: Path) -> None:
    shots = [picture(color) for color in ("red", "blue")]
    turns = [turn(f"reply {i}", shots[i % 2]) for i in range(301)]
    with viewer(make_run(tmp_path / "long", [trajectory("t", turns)])) as address:
        async with browsing(address) as tab:
            await tab.goto("#/run/long/t/t/250")
            await tab.until(IN_SIGHT)
            assert await tab.text(".said h2") == "Turn 250"
            assert await tab.text(".strip [aria-current] b") == "250"
            assert 20 < await tab.ask(FRAMES) <= 100
            await tab.press("right")
            await tab.until("document.querySelector('.said h2').innerText === 'Turn 251'")
            assert "reply 251" in await tab.text(".said")
            await tab.press("end")
            await tab.until("document.querySelector('.strip [aria-current] b')?.innerText === '300'")
            await tab.until(IN_SIGHT)
            await tab.press("home")
            await tab.until("document.querySelector('.said h2').innerText === 'Turn 0'")
            await tab.until(IN_SIGHT)
            assert await tab.ask(FRAMES) <= 100
            for theme in ("light", "dark"):
                await tab.goto("#/run/long/t/t/150", theme)
                assert await violations(tab) == []
        async with browsing(address, 390, 844) as tab:
            await tab.goto("#/run/long/t/t/150")
            await tab.until(IN_SIGHT)
            assert await tab.ask("document.documentElement.scrollWidth") <= 390


async def test_a_turn_that_cannot_be_read_says_so_and_is_asked_for_again(tmp_path: Path, monkeypatch) -> None:
    read, damaged = TrajectoryStore.turn, {1}

    def turn_of(self: TrajectoryStore, id: str, index: int) -> Any:
        if index in damaged:
            raise StorageError("the disk does not answer")
        return read(self, id, index)

    monkeypatch.setattr(TrajectoryStore, "turn", turn_of)
    with viewer(make_run(tmp_path / "run", [trajectory("t", [turn(f"reply {i}") for i in range(3)])])) as address:
        async with browsing(address) as tab:
            await tab.goto("#/run/run/t/t/0")
            await tab.press("right")
            await tab.until(
                "document.querySelector('.problem:not([hidden])')?.innerText.includes('the disk does not answer')"
            )
            damaged.clear()
            await tab.click(".problem button")
            await tab.until("document.querySelector('.said h2').innerText === 'Turn 1'")
            assert await tab.text(".problem:not([hidden])") is None
