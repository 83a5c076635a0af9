"""Links and paths in the pages exist, so that a page follows when a file moves."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.imports import exists, names_of_modules

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("benchmarks/**/*.md")])
FOLDERS = "uirl|tests|configs|examples|scripts|benchmarks|docs"
PATH = re.compile(rf"(?<![\w/.-])((?:{FOLDERS})/[\w./-]*\w)(?![\w<*{{])")
TODAY = [page for page in PAGES if page.name != "CHANGELOG.md" and page.parent.name != "history"]
"""Pages about the code as it is."""
BUILT_IN = re.compile(r"uirl/[\w-]+")
"""A model, Gymnasium environment or metric of ours, as `uirl/tiny-lm`."""
LINK = re.compile(r"\]\(([^)\s]+)\)")


def heading_ids(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for link in LINK.findall(page.read_text()):
        target, _, anchor = link.partition("#")
        if re.match(r"\w+:", link):
            continue
        file = (page.parent / target).resolve() if target else page
        if not file.exists() or (anchor and anchor not in heading_ids(file)):
            broken.append(link)
    assert not broken


@pytest.mark.parametrize("page", TODAY, ids=lambda page: page.name)
def test_paths_and_modules_exist(page: Path) -> None:
    text = page.read_text()
    gone = {path for path in PATH.findall(text) if not BUILT_IN.fullmatch(path) and not (ROOT / path).exists()}
    assert not gone
    unknown = {name for name in names_of_modules(text) if not exists(name)}
    assert not unknown
