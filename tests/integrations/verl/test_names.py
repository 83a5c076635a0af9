"""Modules that verl is told of by name, and the lazy names of the package, exist; verl need not be installed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import uirl.integrations.verl as package

FOLDER = Path(package.__file__).parent
ROOT = FOLDER.parents[2]
WRITTEN = [*FOLDER.rglob("*.py"), *(ROOT / "docs").glob("*.md"), *(ROOT / "configs").glob("*.yaml")]
MODULE = re.compile(r"(?<![\w.])(?:pkg://)?(uirl\.integrations\.verl(?:\.[a-z_0-9]+)+)")


def modules_named() -> Iterator[tuple[Path, str]]:
    for path in WRITTEN:
        for match in MODULE.finditer(path.read_text()):
            yield path, match[1]


def exists(name: str) -> bool:
    """Whether `name` is a module, a lazy name of the package, or something that a module defines."""
    with suppress(ModuleNotFoundError):
        if find_spec(name) is not None:
            return True
    home, _, attribute = name.rpartition(".")
    if home == package.__name__:
        return attribute in package.__all__
    spec = find_spec(home)
    if spec is None or spec.origin is None:
        return False
    defined = rf"^(?:(?:async )?def |class )?{attribute}\b"
    return re.search(defined, Path(spec.origin).read_text(), re.MULTILINE) is not None


def test_every_module_that_is_named_exists() -> None:
    named = list(modules_named())
    assert len(named) > 50
    assert not [f"{path.relative_to(ROOT)}: {module}" for path, module in named if not exists(module)]


def test_nothing_is_imported_from_the_package_but_its_lazy_names() -> None:
    wrong = []
    for path in FOLDER.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == package.__name__:
                wrong += [f"{path.name}: {one.name}" for one in node.names if one.name not in package.__all__]
    assert not wrong
