"""What pages of the web do, each on a small page of its own: it works by an action, or the policy is told.

The table in docs/pages.md is made of what is seen here; where it is stale, `python -m
tests.environments.test_browser_features` writes it anew.
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
from uirl.environments.browser.web import WebEnvironment
from uirl.environments.ui_actions import ACTIONS
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
    max_turns = 100

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
]


async def played(feature: Feature) -> StepResult:
    """The last answer to the actions of a feature, on its page."""
    env = FeaturePage(feature.page, **feature.options)
    try:
        await env.reset(seed=1)
        for written in feature.play:
            arguments = {name: value for name, value in written.items() if name != "action"}
            result = await env.step(Action.of(written["action"], **arguments))
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
    result = await played(feature)
    assert (result.observation.info["success"] is True) == (not feature.told), result.observation.text
    assert feature.told in result.observation.text
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
