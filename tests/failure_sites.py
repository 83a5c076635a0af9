"""Where the package makes failures, read from its source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import uirl

PACKAGE = Path(uirl.__file__).parent
ROOT = "RolloutFailure"


def failure_sites() -> dict[tuple[str, str], list[str]]:
    """(file under uirl/, function) -> names of the failures it makes, sorted: every call of a failure's class, and
    every such class that is chosen there by name."""
    trees = {path: ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}
    names = _kinds(trees.values())
    sites: dict[tuple[str, str], set[str]] = {}
    for path, tree in trees.items():
        for scope, name in _made(tree, names, ()):
            sites.setdefault((path.relative_to(PACKAGE).as_posix(), ".".join(scope) or "the module"), set()).add(name)
    return {site: sorted(found) for site, found in sites.items()}


def _kinds(trees: object) -> frozenset[str]:
    """Every class that is a failure, by its bases."""
    classes = [
        (node.name, {ast.unparse(base) for base in node.bases})
        for tree in trees  # type: ignore[attr-defined]
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    ]
    found = {ROOT}
    while True:
        more = {name for name, bases in classes if bases & found} - found
        if not more:
            return frozenset(found)
        found |= more


def _made(node: ast.AST, names: frozenset[str], scope: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    for child in ast.iter_child_nodes(node):
        named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        inner = (*scope, child.name) if named else scope  # type: ignore[attr-defined]
        if isinstance(child, ast.Call):
            for choice in [child.func, *child.args]:
                if isinstance(choice, ast.Name) and choice.id in names and not _asks(child):
                    yield scope, choice.id
        if isinstance(child, ast.IfExp):
            yield from ((scope, n.id) for n in (child.body, child.orelse) if isinstance(n, ast.Name) and n.id in names)
        yield from _made(child, names, inner)


def _asks(call: ast.Call) -> bool:
    """isinstance(...), suppress(...): a class that is looked for, not made."""
    return isinstance(call.func, ast.Name | ast.Attribute) and ast.unparse(call.func).split(".")[-1] in (
        "isinstance",
        "issubclass",
        "suppress",
        "add_exception_handler",
    )
