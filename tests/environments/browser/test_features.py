"""What pages of the web do, each on a small page of its own: it works by an action, or the policy is told.

The table in docs/pages.md is made of what is seen here; where it is stale, `python -m
tests.environments.browser.test_features` writes it anew.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import uirl
from tests.patience import PATIENCE
from uirl.environments.browser.process import Chromium
from uirl.environments.browser.web import WebEnvironment
from uirl.environments.ui.actions import ACTIONS
from uirl.types import Action, StepResult

PAGES = Path(__file__).parent / "pages"
GUIDE = Path(uirl.__file__).parent.parent / "docs" / "pages.md"
BEGIN, END = "<!-- features: made by a test -->", "<!-- end of features -->"


class FeaturePage(WebEnvironment):
    """One of the small pages: solved where its title says 'done'."""

    folder = PAGES
    goal = "Get it done."
    state = "({title: document.title})"
    actions = tuple(ACTIONS)
    page_size = (240, 160)
    max_turns = 1000
    uploads = {"mine.txt": "of mine", "yours.txt": "of yours"}  # noqa: RUF012
    keeps_downloads = True

    def __init__(self, page: str, **options: Any) -> None:
        super().__init__(**options)
        self.files = {"/": (PAGES / page).read_text()}

    def outcome(self, state: Mapping[str, Any]) -> bool | None:
        return True if state["title"] == "done" else None


@dataclass(frozen=True)
class Feature:
    """What a page does, what a policy does, and what comes of it."""

    name: str
    page: str
    play: tuple[Mapping[str, Any], ...]
    """Actions as a policy writes them."""
    told: str = ""
    """Part of the last text, for what the policy is told; empty: the actions solve the page."""
    options: Mapping[str, Any] = field(default_factory=dict)


def do(name: str, **arguments: Any) -> Mapping[str, Any]:
    return {"action": name, **arguments}


def click(y: int, **more: Any) -> Mapping[str, Any]:
    """On the button of a page at that height."""
    return do("click", x=20, y=y, **more)


FIRST, SECOND, THIRD = 20, 50, 80
MARKS = {"marks": True}
TREE = {"marks": True, "tree": 800}
FEATURES = [
    Feature("a link with `target=_blank`", "tab_link.html", (click(FIRST), click(FIRST))),
    Feature("a window with an opener, which closes itself", "tab_opener.html", (click(FIRST), click(FIRST))),
    Feature("back from a tab that was opened", "tab_back.html", (click(FIRST), do("back"), click(SECOND))),
    Feature("closing a tab", "tab_back.html", (click(FIRST), do("close_tab"), click(SECOND))),
    Feature("changing between tabs", "tab_back.html", (click(FIRST), do("switch_tab", tab=1), click(SECOND))),
    Feature(
        "a tab of one's own",
        "tab_link.html",
        (do("new_tab"), do("goto", url="http://app.localhost/tab_second.html"), click(FIRST)),
    ),
    Feature("twelve windows at once", "tab_flood.html", (click(SECOND),), "no more than 8 tabs are open at a time"),
    Feature("a thousand windows at once", "tab_flood.html", (click(FIRST),), "the page opened more than 64 windows"),
    Feature("a frame of the same origin", "frame_same.html", (do("click", mark=1),), options=MARKS),
    Feature("a frame of another origin", "frame_apart.html", (do("click", mark=1),), options=MARKS),
    Feature("a frame in a frame", "frame_nested.html", (do("click", mark=1),), options=MARKS),
    Feature("a field in a frame", "frame_field.html", (do("fill", mark=1, value="Ada"),), options=MARKS),
    Feature("typing into a frame", "frame_field.html", (click(SECOND), do("type", text="Ada"))),
    Feature("an open shadow root", "shadow_open.html", (do("click", mark=1),), options=MARKS),
    Feature("a closed shadow root", "shadow_closed.html", (do("click", mark=1),), options=MARKS),
    Feature("by its number in the tree: in a frame", "frame_apart.html", (do("click", mark=1),), options=TREE),
    Feature("by its number in the tree: below the fold", "below.html", (do("click", mark=1),), options=TREE),
    Feature("what appears under the pointer", "hover.html", (do("move", mark=1), do("click", mark=2)), options=MARKS),
    Feature(
        "fields of many kinds",
        "fields.html",
        (
            do("fill", x=20, y=15, value="one\ntwo"),
            do("fill", x=20, y=55, value="2024-05-06"),
            do("select", x=20, y=80, options="bee"),
            do("select", x=120, y=80, options=["x", "z"]),
            do("fill", x=20, y=110, value="bold"),
        ),
    ),
    Feature("several of a list", "multiple.html", (click(15), click(75, modifiers="ctrl"))),
    Feature("a button that is held", "mouse.html", (do("mouse_down", x=20, y=50), do("mouse_up", x=120, y=50))),
    Feature(
        "a key that is held",
        "keys.html",
        (
            do("key_down", key="shift"),
            *(do("keys", keys="right") for _ in range(2)),
            do("key_up", key="shift"),
            do("keys", keys="enter"),
        ),
    ),
    Feature("`alert`", "confirm.html", (click(THIRD),)),
    Feature("refusing a `confirm`", "confirm.html", (click(FIRST), do("dialog", choice="cancel"))),
    Feature("the same with a key", "confirm.html", (click(FIRST), do("keys", keys="escape"))),
    Feature("answering a `prompt`", "confirm.html", (click(SECOND), do("dialog", choice="ok", text="12"))),
    Feature(
        "another action while a dialog is open", "confirm.html", (click(SECOND), click(FIRST)), "click did nothing"
    ),
    Feature(
        "staying on a page that asks before it is left",
        "leaving.html",
        (click(FIRST), do("type", text="a"), click(SECOND), do("dialog", choice="cancel"), click(THIRD)),
    ),
    Feature("`input type=file`", "upload.html", (click(FIRST), do("upload", files=["mine.txt", "yours.txt"]))),
    Feature("the same in one action", "upload.html", (do("upload", x=20, y=20, files=["mine.txt", "yours.txt"]),)),
    Feature("a download", "download.html", (click(FIRST),), "downloaded: report.csv, 3 bytes"),
    Feature(
        "a download in a window of its own", "download_window.html", (click(FIRST),), "downloaded: report.bin, 3 bytes"
    ),
    Feature(
        "what a field suggests (`datalist`)", "datalist.html", (click(FIRST),), "suggests: Arendal, Bergen, Drammen"
    ),
    Feature(
        "choosing what a field suggests (`datalist`)", "datalist.html", (do("select", x=20, y=20, options="Bergen"),)
    ),
    Feature("leaving the full screen", "fullscreen.html", (click(FIRST), do("keys", keys="escape"))),
    Feature("dragging and dropping", "drop.html", (do("drag", x=40, y=30, to_x=160, to_y=100),)),
    Feature("the same from mark to mark", "drop.html", (do("drag", mark=1, to_mark=2),), options=MARKS),
    Feature("a page that asks for the pointer alone", "pointer_lock.html", (click(FIRST), click(SECOND))),
    Feature("a button that copies", "copy_button.html", (click(FIRST), click(SECOND), do("keys", keys="ctrl+v"))),
    Feature("dragging by pointer events", "slide.html", (do("drag", x=30, y=30, to_x=180, to_y=30),)),
    Feature("back and forward", "history.html", (click(FIRST), do("back"), do("forward"))),
]


async def played(feature: Feature) -> StepResult:
    """The last answer to the actions of a feature, on its page. TimeoutError: it does not work, and nothing is told."""
    env, texts = FeaturePage(feature.page, **feature.options), []
    actions = [dict(action) for action in feature.play]
    try:
        await env.reset(seed=1)
        async with asyncio.timeout(PATIENCE):  # what another process has to do is done when it finds the time
            while True:
                written = actions.pop(0) if actions else {"action": "wait", "seconds": 0.1}
                result = await env.step(Action.of(written.pop("action"), **written))
                texts.append(result.observation.text)
                said = feature.told and feature.told in "\n".join(texts)
                if not actions and (said or result.done):
                    return result
    finally:
        await env.close()


def row(feature: Feature, result: StepResult) -> str:
    """The line of the table."""
    did = ", then ".join(f"`{json.dumps(action, separators=(',', ':'))}`" for action in feature.play)
    solved = result.observation.info["success"] is True
    return f"| {feature.name} | {did} | {'works' if solved else f'told: “{feature.told}”'} |"


@pytest.mark.parametrize("feature", FEATURES, ids=[feature.name for feature in FEATURES])
async def test_a_feature_works_or_is_told_and_the_guide_says_so(feature: Feature) -> None:
    Chromium.shared().timeout = 100.0  # the pages have time, however busy the machine is
    result = await played(feature)
    assert (result.observation.info["success"] is True) == (not feature.told), result.observation.text
    assert row(feature, result) in GUIDE.read_text().splitlines(), "stale: run this module"


def test_the_table_of_the_guide_holds_these_features_and_no_others() -> None:
    table = GUIDE.read_text().split(BEGIN)[1].split(END)[0].strip().splitlines()
    assert [line.split("|")[1].strip() for line in table[2:]] == [feature.name for feature in FEATURES]


def test_every_page_of_the_set_is_used() -> None:
    linked = "".join(path.read_text() for path in PAGES.glob("*.html"))
    named = {feature.page for feature in FEATURES}
    assert [
        path.name for path in PAGES.glob("*.html") if path.name not in named and f"/{path.name}" not in linked
    ] == []


def write_table() -> None:
    """Writes the table of docs/pages.md."""
    rows = [row(feature, asyncio.run(played(feature))) for feature in FEATURES]
    before, _, rest = GUIDE.read_text().partition(BEGIN)
    table = "\n".join(["| what the page does | what the policy does | |", "|---|---|---|", *rows])
    GUIDE.write_text(f"{before}{BEGIN}\n{table}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    write_table()
