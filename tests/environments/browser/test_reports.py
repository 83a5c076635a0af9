"""Element actions that went wrong in other tools, as their users reported: here they work, or the policy is told.

Each page of `reports.yaml` is the smallest that shows what the report is about. What is expected is what a person at
the page would get, or a tool that can be relied on. `report`: an issue or a pull request on GitHub, or W1 to W7, which
are our own. `play`: actions as a policy writes them; a mark in words is the number that the tree gives to them. `told`:
a pattern in what the policy is told, while nothing must change; without it the actions solve the page. `frame`: the
page at /frame.html.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Any

import pytest
import yaml

from uirl.environments.browser.web import WebEnvironment
from uirl.environments.ui.actions import ACTIONS
from uirl.types import Action

HEAD = """<!doctype html><style>body { margin: 0; font: 13px/20px monospace } p { margin: 0 }</style><script>
function done() { document.title = 'done'; }
function changed() { document.title = 'changed'; }
function came(event) { if (event.clientX > 1) changed(); }
</script>"""
"""Of every page: `done` solves it, `changed` is for what must not happen, and `came` for a pointer that must not come,
other than to the corner, where it is at first."""
TABLE = yaml.safe_load(Path(__file__).with_name("reports.yaml").read_text())
UNLISTED = 9999
"""The number of what the tree does not number."""
MOST_WAITS = 40
"""Of a tenth of a second, for a page that is to be solved."""
FEW_WAITS = 3
"""For one that must not change."""


class ReportPage(WebEnvironment):
    """One of the pages: solved where its title says 'done', failed where it says 'changed'."""

    goal = "Get it done."
    state = "({title: document.title})"
    actions = tuple(ACTIONS)
    page_size = (240, 160)
    max_turns = 1000
    uploads = {"mine.txt": "of mine"}  # noqa: RUF012

    def __init__(self, report: Mapping[str, Any]) -> None:
        super().__init__(marks=True, tree=1500)
        page, frame = (HEAD + Template(report.get(key, "")).substitute(TABLE["shared"]) for key in ("html", "frame"))
        self.html, self.files = page, {"/frame.html": frame}

    def outcome(self, state: Mapping[str, Any]) -> bool | None:
        return {"done": True, "changed": False}.get(state["title"])


def numbered(written: Mapping[str, Any], tree: str) -> dict[str, Any]:
    """The arguments, with the number from the tree for what is named in words."""
    found = {
        name: re.search(rf"{re.escape(words)}[^\n]*\[(\d+)\]", tree)
        for name, words in written.items()
        if name in ("mark", "to_mark")
    }
    return {**written, **{name: int(one[1]) if one else UNLISTED for name, one in found.items()}}


async def played(report: Mapping[str, Any]) -> tuple[bool | None, str]:
    """Play a report: whether the page is solved (False: it changed, None: neither), and all that was told."""
    env = ReportPage(report)
    waits = [{"action": "wait", "seconds": 0.1}] * (FEW_WAITS if "told" in report else MOST_WAITS)
    told = []
    try:
        await env.reset(seed=1)
        for action in (*report["play"], *waits):
            written = numbered(action, env.accessibility)
            result = await env.step(Action.of(written.pop("action"), **written))
            told.append(result.observation.text.removesuffix(env.accessibility).strip())
            if result.done:
                return bool(result.observation.info["success"]), "\n".join(filter(None, told))
        return None, "\n".join(filter(None, told))
    finally:
        await env.close()


@pytest.mark.parametrize("report", TABLE["reports"], ids=lambda report: f"{report['report']}: {report['name']}")
async def test_what_went_wrong_elsewhere_works_or_is_told(report: Mapping[str, Any]) -> None:
    solved, told = await played(report)
    if "told" in report:
        assert solved is None, f"it changed; told: {told!r}"
        assert re.search(report["told"], told), f"told: {told!r}"
    else:
        assert solved is True, f"{'it changed' if solved is False else 'nothing came of it'}; told: {told!r}"


def test_no_two_reports_have_one_name() -> None:
    names = [report["name"] for report in TABLE["reports"]]
    assert sorted(set(names)) == sorted(names)
    assert {key for report in TABLE["reports"] for key in report} == {"name", "report", "html", "frame", "play", "told"}
