"""The pages as files: nothing from elsewhere, nothing made into HTML, every import used, vendored parts unchanged."""

from __future__ import annotations

import graphlib
import hashlib
import re
from pathlib import Path

import pytest

import uirl.viewer

STATIC = Path(uirl.viewer.__file__).parent / "static"
VENDOR = STATIC / "vendor"
OURS = sorted(path for path in STATIC.rglob("*") if path.is_file() and VENDOR not in path.parents)
MODULES = [path for path in OURS if path.suffix == ".js"]
IMPORT = re.compile(r'^import (?:(\w+)|\{([^}]*)\}) from "([^"]+)";', re.MULTILINE)


MAKES_HTML = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "srcdoc", "eval(", "new Function")


def named(path: Path) -> str:
    return str(path.relative_to(STATIC))


def imports(path: Path) -> dict[Path, set[str]]:
    """The files that a module imports, and which of their names."""
    found = {}
    for default, names, target in IMPORT.findall(path.read_text()):
        wanted = {"default"} if default else {name.strip() for name in names.split(",") if name.strip()}
        found[(path.parent / target).resolve()] = wanted
    return found


@pytest.mark.parametrize("path", MODULES, ids=named)
def test_what_a_module_imports_is_used(path: Path) -> None:
    text = IMPORT.sub("", path.read_text())
    for names in imports(path).values():
        for name in {name.split(" as ")[-1] for name in names - {"default"}}:
            assert re.search(rf"\b{re.escape(name)}\b", text), f"{named(path)} imports {name} and does not use it"


def test_no_modules_import_each_other_in_a_ring() -> None:
    order = [*graphlib.TopologicalSorter({path: imports(path) for path in MODULES}).static_order()]
    assert set(order) >= set(MODULES)


@pytest.mark.parametrize("path", MODULES, ids=named)
def test_nothing_is_made_into_html_or_code(path: Path) -> None:
    text = path.read_text()
    assert not [way for way in (*MAKES_HTML, "dangerouslySet") if way in text]


@pytest.mark.parametrize("path", [path for path in MODULES if path.name != "html.js"], ids=named)
def test_html_is_made_where_characters_that_cannot_be_seen_are_shown(path: Path) -> None:
    assert "html" not in imports(path).get(VENDOR / "htm-preact.js", set())
    assert "h" not in imports(path).get(VENDOR / "htm-preact.js", set())


@pytest.mark.parametrize("path", OURS, ids=named)
def test_nothing_comes_from_elsewhere(path: Path) -> None:
    addresses = re.findall(r"""https?://[^\s"'`)]+|["'(]//[a-z][^\s"'`)]+""", path.read_text())
    assert set(addresses) <= {"http://www.w3.org/2000/svg"}


@pytest.mark.parametrize("path", OURS, ids=named)
def test_files_are_short_and_lines_fit(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert len(lines) <= 400
    if path.suffix == ".js":
        assert max(map(len, lines)) <= 120


def test_the_parts_of_others_are_those_that_the_table_names() -> None:
    table = (VENDOR / "README.md").read_text()
    rows = dict(re.findall(r"^\| `([^`]+)` \|.*`([0-9a-f]{64})`", table, re.MULTILINE))
    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in VENDOR.iterdir()
        if path.suffix in (".js", ".css")
    }
    assert rows == found
    assert all((VENDOR / f"LICENSE.{name}").is_file() for name in ("htm", "preact", "uplot"))
