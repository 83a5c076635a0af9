"""The imports of the package, read from its source: also those inside functions, for type checkers and by text."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import uirl

ROOT = Path(uirl.__file__).parent
SOURCES = sorted(path for path in ROOT.rglob("*.py") if ROOT / "configs" not in path.parents)
TARGET = re.compile(r"(uirl(?:\.\w+)*)(?::\w+)?")
"""A module, or 'module:Name', as a text."""


def module_name(path: Path) -> str:
    """Return the dotted name of a file; that of a folder for its `__init__.py`."""
    dotted = ".".join(("uirl", *path.relative_to(ROOT).with_suffix("").parts))
    return dotted.removesuffix(".__init__")


MODULES = {module_name(path): path for path in SOURCES}


How = Literal["statement", "loaded by text", "named for others"]
"""A statement; 'uirl.x:Name' or `import_module("uirl.x")`; 'uirl.x' as a text, which another program imports."""


@dataclass(frozen=True, slots=True)
class Import:
    """One import of one file."""

    source: str
    """Module that imports."""
    target: str
    """What is imported: a module of ours, or 'package.name' as it is written for others."""
    line: int
    how: How = "statement"

    def __str__(self) -> str:
        return f"{MODULES[self.source].relative_to(ROOT.parent)}:{self.line}: imports {self.target}"


@cache
def parsed(path: Path) -> ast.Module:
    """Return the syntax tree of a file, parsed once for all that read it."""
    return ast.parse(path.read_text())


@cache
def imports_of(module: str) -> tuple[Import, ...]:
    """Return every import of a module of ours."""
    return tuple(Import(module, *target) for target in _targets(parsed(MODULES[module])))


def all_imports() -> Iterator[Import]:
    """Yield every import of the package."""
    for module in MODULES:
        yield from imports_of(module)


def _targets(tree: ast.Module) -> Iterator[tuple[str, int, How]]:
    """Yield (target, line, how)."""
    nodes = list(ast.walk(tree))
    calls = [node for node in nodes if isinstance(node, ast.Call) and mentions(node.func, "import")]
    loaded = {id(argument) for call in calls for argument in call.args}
    statements = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}  # docstrings
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno, "statement") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute"
            full = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from ((name if name in MODULES else resolved(name), node.lineno, "statement") for name in full)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in statements:
            named = TARGET.fullmatch(node.value)
            if named and named[1] in MODULES and named[1] != "uirl":
                by_text = id(node) in loaded or ":" in node.value
                yield named[1], node.lineno, "loaded by text" if by_text else "named for others"


def mentions(expression: ast.AST, word: str) -> bool:
    """Whether a name or a text within an expression contains `word`."""
    words = ("id", "attr", "value")
    return any(word in str(getattr(node, key, "")) for node in ast.walk(expression) for key in words)


LAYERS = "|".join(sorted({module.split(".")[1] for module in MODULES if "." in module}))
OURS = re.compile(rf"(?<![\w.])uirl\.(?:{LAYERS})(?:\.\w+)+")


def names_of_modules(text: str) -> list[str]:
    """Return what looks like 'uirl.folder.module' or 'uirl.folder.module.name' in a text."""
    return OURS.findall(text)


def exists(dotted: str) -> bool:
    """Whether 'uirl.folder.module' is a module, or 'uirl.folder.module.name' is defined or listed in one."""
    parts = dotted.split(".")
    inner = next(depth for depth in range(len(parts), 0, -1) if ".".join(parts[:depth]) in MODULES)
    return inner == len(parts) or parts[inner] in names_in(".".join(parts[:inner]))


@cache
def names_in(module: str) -> frozenset[str]:
    """Names that a module defines, imports or lists as texts."""
    names = set()
    for node in ast.walk(parsed(MODULES[module])):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.ImportFrom | ast.Import):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names |= {node.value, *node.value.split()}
    return frozenset(names)


def resolved(name: str) -> str:
    """Return the module of ours that 'uirl.folder.module.Name' is found in; other names as they are."""
    module = name.rpartition(".")[0]
    return module if module in MODULES else name


def rings(edges: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Return the strongly connected components of more than one node, each sorted (Tarjan 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in edges.get(node, ()):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            ring = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(ring) > 1:
                found.append(sorted(ring))

    for node in edges:
        if node not in index:
            visit(node)
    return found
