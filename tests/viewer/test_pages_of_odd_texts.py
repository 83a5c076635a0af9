"""Texts that are very long, cannot be seen, or turn round what stands beside them, in real Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.viewer.browsing import Tab, browsing, viewer, violations
from tests.viewer.runs import make_run, picture, turn
from uirl.types import Action, Failure, Observation, Task, ToolCall, Trajectory

TURNED = "\u202eexe.gnp\u202c and \x1b[2J\x00"
"""An editor shows 'png.exe', and where the sequence stands nothing."""
SEEN = "\\u202eexe.gnp\\u202c and \\u001b[2J\\u0000"
LONG = "word " * 600
LARGE = "x" * 1_000_000
NAME = "a name of an argument that is far longer than any that a tool has " * 4


def acted(id: str, reply: str, arguments: dict[str, object], goal: str = "a goal") -> Trajectory:
    seen = Observation(reply, (picture(),))
    one = turn(reply, observation=seen, action=Action(reply, (ToolCall("note", arguments),), reply), tool_results=())
    failure = Failure("environment", LONG, 0) if reply == LONG else None
    return Trajectory(
        id=id, task=Task(f"task {reply[:5000]}", goal=goal), turns=[one], group_id="g", failure=failure, metrics={}
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    episodes = [
        acted("turned", TURNED, {"text": TURNED}),
        acted("long", LONG, {"text": LONG, NAME: "here it is"}, goal=LONG),
        acted("large", LARGE, {"text": LARGE}, goal=LARGE),
    ]
    return make_run(tmp_path_factory.mktemp("runs") / "first", episodes)


@pytest.fixture
def address(run: Path) -> Iterator[str]:
    with viewer(run) as served:
        yield served


async def opened(tab: Tab, id: str, theme: str = "light") -> None:
    await tab.goto(f"#/run/first/t/{id}/0", theme)
    await tab.until("document.querySelector('.said .call')")


async def test_characters_that_cannot_be_seen_are_shown_as_their_codes(address: str) -> None:
    async with browsing(address) as tab:
        await opened(tab, "turned")
        texts = await tab.ask("[...document.querySelectorAll('.said pre')].map((pre) => pre.innerText)")
        assert texts == [SEEN] * 4  # thought, reply, argument, what it read
        assert await tab.text("h1") == f"task {SEEN}"


@pytest.mark.parametrize("id", ["long", "large"])
async def test_long_texts_are_scrolled_by_keys_and_not_wider_than_the_page(address: str, id: str) -> None:
    async with browsing(address, 390, 844) as tab:
        for theme in ("light", "dark"):
            await opened(tab, id, theme)
            assert await violations(tab) == []
            await tab.click(".said .folded button")
            await tab.until("document.querySelector('.said pre.tall')?.scrollHeight > 900")
            assert await violations(tab) == []
            assert await tab.ask("document.documentElement.scrollWidth") <= 390
        top = await tab.ask("document.querySelector('.strip').getBoundingClientRect().top + scrollY")
        assert top < 2 * 844, "what was asked takes no more than two screens"


async def test_the_name_of_an_argument_leaves_room_for_its_value(address: str) -> None:
    async with browsing(address) as tab:
        await opened(tab, "long")
        wide = "(w) => document.querySelector(w).getBoundingClientRect().width"
        assert await tab.ask(f"({wide})('.arguments > div:last-child dd') > ({wide})('.arguments') / 2")
