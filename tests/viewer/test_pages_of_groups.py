"""The tokens of a turn and the siblings of a group, in real Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.viewer.browsing import browsing, stores, viewer
from tests.viewer.runs import make_run, trajectory
from tests.viewer.screens import WIDE, acted, clicked
from uirl.storage import LearnedTokens, RunDirectory, TrajectoryStore
from uirl.types import Trajectory, Turn

TOKENS: dict[str, Any] = {"response_ids": (71, 72, 73), "rollout_log_probs": (-0.5, -4.0, -0.25)}


def sibling(id: str, x: int, success: bool) -> Trajectory:
    """Two turns before two screens, the first answered alike by all; the second is pressed at `x`."""
    first = replace(clicked(WIDE, 300, 300, reply="open"), **TOKENS)
    second: Turn = acted("click", WIDE, (900, 500), reply=f"press {x}", x=x, y=500)
    second = replace(second, **TOKENS, terminated=True)
    return trajectory(id, [first, second], success=success, group_id="siblings")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    siblings = [sibling("good", 900, True), sibling("bad", 40, False), sibling("worse", 7, False)]
    path = make_run(tmp_path_factory.mktemp("runs") / "first", siblings)
    with TrajectoryStore(RunDirectory.open(path).trajectories_path) as store:
        advantages = np.array([0.5, -1.5, 0.0, 0.5, -1.5, 0.0], np.float32)
        store.add_learned([LearnedTokens("good", advantages)], step=1, version=0)
    return path


@pytest.fixture
def address(run: Path) -> Iterator[str]:
    with viewer(run) as served:
        yield served


async def test_tokens_are_shown_with_their_ids_and_the_figure_that_was_chosen(address: str) -> None:
    async with browsing(address) as tab:
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


async def test_siblings_are_aligned_and_one_key_labels_the_error(address: str) -> None:
    async with browsing(address) as tab:
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


async def test_the_arrows_go_over_screens_that_an_episode_never_saw(tmp_path: Path) -> None:
    def member(id: str, *places: int) -> Trajectory:
        return trajectory(id, [clicked(WIDE, x, 400) for x in places], group_id="apart")

    path = make_run(tmp_path / "apart", [member("one", 100, 1200), member("two", 100, 500, 800, 1200)])
    with viewer(path) as address:
        async with browsing(address) as tab:
            await tab.goto("#/run/apart/g/apart")
            await tab.until("document.querySelectorAll('tbody tr').length === 2")
            at = "document.querySelector('td[aria-selected=true]').cellIndex - 1"
            seen = [await tab.ask(at)]
            for _ in range(2):
                await tab.press("right")
                seen.append(await tab.ask(at))
            assert seen == [0, 3, 3]
            await tab.press("left")
            assert await tab.ask(at) == 0
