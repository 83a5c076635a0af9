"""Texts that are very long, cannot be seen, or turn round what stands beside them, in real Chromium."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.viewer.browsing import OpenTab, Tab, violations
from tests.viewer.runs import make_run, picture, turn
from uirl.types import Action, Failure, Observation, Task, ToolCall, ToolResult, Trajectory, Verdict
from uirl.viewer.export import UNSEEN as UNSEEN_IN
from uirl.viewer.export import visible
from uirl.viewer.runs import Runs

pytestmark = pytest.mark.asyncio(loop_scope="session")

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


@pytest.fixture(scope="module", autouse=True)
def run(folder: Path) -> Path:
    episodes = [
        acted("turned", TURNED, {"text": TURNED}),
        acted("long", LONG, {"text": LONG, NAME: "here it is"}, goal=LONG),
        acted("large", LARGE, {"text": LARGE}, goal=LARGE),
    ]
    return make_run(folder / "first", episodes)


async def opened(tab: Tab, id: str, theme: str = "light") -> None:
    await tab.goto(f"#/run/first/t/{id}/0", theme)
    await tab.until("document.querySelector('.said .call')")


async def test_characters_that_cannot_be_seen_are_shown_as_their_codes(tab: Tab) -> None:
    await opened(tab, "turned")
    texts = await tab.ask("[...document.querySelectorAll('.said pre')].map((pre) => pre.innerText)")
    assert texts == [SEEN] * 4  # thought, reply, argument, what it read
    assert await tab.text("h1") == f"task {SEEN}"


@pytest.mark.parametrize("id", ["long", "large"])
async def test_long_texts_are_scrolled_by_keys_and_not_wider_than_the_page(open_tab: OpenTab, id: str) -> None:
    tab = await open_tab(390, 844)
    for theme in ("light", "dark"):
        await opened(tab, id, theme)
        assert await violations(tab) == []
        await tab.click(".said .folded button")
        await tab.until("document.querySelector('.said pre.tall')?.scrollHeight > 900")
        assert await violations(tab) == []
        assert await tab.ask("document.documentElement.scrollWidth") <= 390
    top = await tab.ask("document.querySelector('.strip').getBoundingClientRect().top + scrollY")
    assert top < 2 * 844, "what was asked takes no more than two screens"


async def test_the_name_of_an_argument_leaves_room_for_its_value(tab: Tab) -> None:
    await opened(tab, "long")
    wide = "(w) => document.querySelector(w).getBoundingClientRect().width"
    assert await tab.ask(f"({wide})('.arguments > div:last-child dd') > ({wide})('.arguments') / 2")


UNSEEN = "\u202eturned\u202c \u200f\u061c\u200b\u2060\ufeff\u00ad\u2028\u2029\u3164 \U000e0041 a\u200db \ufe0f"
"""A character of every kind that has no glyph."""
KEPT = "👩\u200d💻 ❤\ufe0f می\u200cخواهم क\u200dष Ünï\tcode\nline"
"""Joiners and selectors where they belong."""
CODES = (
    "\\u202eturned\\u202c \\u200f\\u061c\\u200b\\u2060\\ufeff\\u00ad\\u2028\\u2029\\u3164 \\u{e0041} a\\u200db \\ufe0f"
)


async def test_pages_and_files_agree_on_what_cannot_be_seen(tab: Tab) -> None:
    assert (visible(UNSEEN), visible(KEPT)) == (CODES, KEPT)
    assert not UNSEEN_IN.search(visible(UNSEEN))
    every = "".join(
        map(chr, [*range(0x20, 0x3000), *range(0xE000, 0x11000), 0x1BCA1, 0x1D175, *range(0xE0000, 0xE0200)])
    )
    spaced = f"{' '.join(every)} x{'x'.join(every)}x"
    await tab.goto("#/")
    await tab.ask("import('/static/lib/format.js').then((module) => { window.format = module; return 1; })")
    for text in (UNSEEN, KEPT, spaced):
        assert await tab.ask(f"format.visible({json.dumps(text)})") == visible(text)


async def test_no_page_shows_such_a_character_anywhere(tab: Tab, folder: Path) -> None:
    """Whatever a run names: tasks, calls, arguments, verifiers, ends, levels, groups, metrics, folders."""
    odd = UNSEEN
    seen = Observation(odd, (picture(),), tool_results=(ToolResult(odd, {odd: odd}, True, odd),), info={odd: odd})
    called = Action(f"{odd} reply", (ToolCall(odd, {odd: odd}),), odd)
    one = turn(
        observation=seen, action=called, tool_results=(ToolResult(odd, {odd: odd}, False, odd),), info={odd: odd}
    )
    episodes = [
        Trajectory(
            id=f"{n} {odd}",
            task=Task(odd, goal=odd, checks={odd: odd}),
            turns=[one, one],
            group_id=odd,
            stop_reason=odd,
            level=odd,
            verdict=Verdict(1.0 * n, n == 1, odd, odd, 1),
            failure=Failure("environment", odd, 0) if n == 2 else None,
            metrics={"success": float(n == 1), odd: 1.0},
            sampling={odd: 1.0},
            final=seen,
        )
        for n in range(3)
    ]
    run = make_run(folder / f"a {odd.replace('/', '')}", episodes, config=f"a: {odd!r}\n# {odd}\n")
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 4, "time": 1.0, odd: 1.0, f"stop/{odd}": None}) + "\n")
    (run / "summary.json").write_text(
        json.dumps({"success_after": 0.5, "stopped_because": odd, "controls": {odd: 0.5}})
    )
    (key,) = [one.key for one in Runs([folder]).all() if one.key != "first"]
    ids = [quote(one.id, safe="") for one in episodes]
    group = quote(odd, safe="")
    pages = ["#/", f"#/run/{key}", f"#/run/{key}/trajectories?q={group}", f"#/run/{key}/trajectories"]
    pages += [f"#/run/{key}/t/{id}/{turn}" for id in ids for turn in (0, 2)] + [f"#/run/{key}/g/{group}"]
    words = (
        "[document.title, document.body.innerText, ...[...document.querySelectorAll('*')].flatMap((one) =>"
        " ['title', 'aria-label', 'alt', 'placeholder', 'label'].map((name) => one.getAttribute(name) ?? ''))]"
        ".join('|')"
    )
    for page in pages:
        await tab.goto(page)
        await tab.ask("for (const one of document.querySelectorAll('details')) one.open = true;1")
        await tab.ask("for (const one of document.querySelectorAll('button.section')) one.click();1")
        await asyncio.sleep(0.3)
        said = await tab.ask(words)
        assert "\\u202e" in said or "q=" in page, page
        found = UNSEEN_IN.search(said)
        assert not found, (page, said[max(0, found.start() - 80) : found.end() + 20])
