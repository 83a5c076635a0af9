"""The small changes of mutation testing: one expression or one statement of a file, and what may stand in its place."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from types import CodeType
from typing import Any

ROOT = Path.cwd()
LONGEST_WORDS = 100
Variants = Iterator[ast.AST]

COMPARED: dict[type, tuple[type, ...]] = {
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE), ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,), ast.NotIn: (ast.In,),
}  # fmt: skip
COMPUTED: dict[type, type] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
    ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip
RENAMED = {
    "min": "max", "max": "min", "any": "all", "all": "any", "amin": "amax", "amax": "amin", "minimum": "maximum",
    "maximum": "minimum", "floor": "ceil", "ceil": "floor", "argmin": "argmax", "argmax": "argmin",
}  # fmt: skip


def variants(node: ast.AST) -> Variants:
    """What may stand in the place of `node`: each a small change that compiles."""
    match node:
        case ast.Compare(ops=[op]):
            for other in COMPARED[type(op)]:
                yield ast.Compare(node.left, [other()], node.comparators)
        case ast.BoolOp(op, values):
            yield ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
            for i in range(len(values)):
                rest = values[:i] + values[i + 1 :]
                yield rest[0] if len(rest) == 1 else ast.BoolOp(op, rest)
        case ast.BinOp(left, op, right) if type(op) in COMPUTED:
            yield ast.BinOp(left, COMPUTED[type(op)](), right)
        case ast.AugAssign(target, op, value):
            if type(op) in COMPUTED:
                yield ast.AugAssign(target, COMPUTED[type(op)](), value)
            yield ast.Pass()
        case ast.UnaryOp(operand=operand):
            yield operand
        case ast.Constant(value):
            yield from (ast.Constant(other) for other in _constants(value))
        case ast.If(test, body, orelse) if not isinstance(test, ast.Compare | ast.BoolOp | ast.UnaryOp):
            yield ast.If(_not(test), body, orelse)
        case ast.While(test, body, orelse) if not isinstance(test, ast.Constant):
            yield ast.While(ast.Constant(False), body, orelse)
        case ast.IfExp(test, body, orelse):
            yield ast.IfExp(test, orelse, body)
        case ast.comprehension(ifs=ifs) if ifs:
            for i in range(len(ifs)):
                yield ast.comprehension(node.target, node.iter, ifs[:i] + ifs[i + 1 :], node.is_async)
        case ast.Expr(ast.Call() | ast.Await()) | ast.Raise() | ast.Delete():
            yield ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield ast.Pass()
        case ast.Return(value) if value is not None and not isinstance(value, ast.Constant):
            yield ast.Return(ast.Constant(None))
        case ast.Break():
            yield ast.Continue()
        case ast.Continue():
            yield ast.Break()
        case ast.Slice(lower, upper, step):
            yield from (ast.Slice(None, upper, step) for _ in [0] if lower is not None)
            yield from (ast.Slice(lower, None, step) for _ in [0] if upper is not None)
        case ast.Call(function, given, named):
            yield from _calls(function, given, named)


def _constants(value: Any) -> Iterator[Any]:
    match value:
        case bool():
            yield not value
        case int() | float():
            yield value + 1 if value in (0, 1) or isinstance(value, int) else value * 2
            if value == 1:
                yield 0 * value
        case str() if " " not in value.strip():  # a text with blanks is words for people
            yield value + "_"


def _calls(function: ast.expr, given: list[ast.expr], named: list[ast.keyword]) -> Variants:
    name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
    if name in RENAMED:
        other = RENAMED[name]
        renamed = ast.Name(other, ast.Load()) if isinstance(function, ast.Name) else None
        yield ast.Call(renamed or ast.Attribute(function.value, other, ast.Load()), given, named)  # type: ignore[attr-defined]
    if (
        len(given) > 1
        and name not in ("isinstance", "getattr", "min", "max", "minimum", "maximum")
        and not any(isinstance(one, ast.Starred) for one in given[:2])
    ):
        yield ast.Call(function, [given[1], given[0], *given[2:]], named)
    for i, word in enumerate(named):
        if word.arg not in (None, "strict"):
            yield ast.Call(function, given, named[:i] + named[i + 1 :])


def _not(test: ast.expr) -> ast.expr:
    return ast.UnaryOp(ast.Not(), test)


@dataclass(frozen=True)
class Mutant:
    """One change to one file."""

    path: str
    """Of the file, from the root of the repository."""
    scope: str
    """Qualified name of the function or class; '' in the module."""
    line: int
    change: str
    """`before -> after`, in one line each."""
    lines: range
    """Where to look for tests: the lines of the expression."""
    wider: range
    """The same, of the statement or, for what runs at import, of the definition around it."""
    inside: bool
    """In the body of a function."""
    source: str = field(repr=False)
    at: tuple[int, int]
    """(number of the place in the file, number of the variant there)."""

    @property
    def key(self) -> str:
        """A name that stays while other lines of the file move."""
        return f"{self.path} {self.scope}: {self.change}"

    def code(self) -> CodeType:
        """The changed file, compiled."""
        tree = ast.parse(self.source)
        place = next(islice(_places(tree), self.at[0], None))
        new = next(islice(variants(place.node), self.at[1], None))
        place.put(ast.copy_location(new, place.node))
        return compile(ast.fix_missing_locations(tree), str(ROOT / self.path), "exec")


def mutants_of(path: str, source: str) -> list[Mutant]:
    """Every change to the file, in the order of its text."""
    found: list[Mutant] = []
    for index, place in enumerate(_places(ast.parse(source))):
        for number, new in enumerate(variants(place.node)):
            node: Any = place.node if hasattr(place.node, "lineno") else place.statement
            end = node.end_lineno if isinstance(node, ast.expr) else node.lineno
            lines = range(node.lineno, end + 1)
            change = _change(place.node, new)
            at = (index, number)
            found.append(Mutant(path, place.scope, node.lineno, change, lines, place.wider, place.inside, source, at))
    return found


@dataclass
class _Place:
    node: ast.AST
    put: Callable[[ast.AST], None]
    scope: str
    statement: Any
    wider: range
    inside: bool
    """In the body of a function: it runs when the function is called, not at import."""


def _places(tree: ast.Module) -> Iterator[_Place]:
    """Every node that may be changed. Left out: texts of errors, docstrings, annotations, imports, assertions, and
    `strict`, which is an assertion too."""
    whole = range(1, 1 << 20)

    def visit(node: ast.AST, scope: str, statement: Any, wider: range, inside: bool) -> Iterator[_Place]:
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "keywords") and not isinstance(node, ast.Call):
                continue
            several = value if isinstance(value, list) else [value]
            for i, child in enumerate(several):
                if not isinstance(child, ast.AST) or _left_alone(child):
                    continue
                put = partial(value.__setitem__, i) if isinstance(value, list) else partial(setattr, node, name)
                here, around, within = scope, wider, statement
                called = inside or (name == "body" and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
                if isinstance(child, ast.stmt):
                    within = child
                    if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                        here = f"{scope}.{child.name}".lstrip(".")
                        around = range(child.lineno, (child.end_lineno or 0) + 1)
                    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.stmt) and scope:
                        around = range(child.lineno, (child.end_lineno or 0) + 1)
                yield _Place(child, put, here, within, around, called)
                if not isinstance(child, ast.Raise | ast.JoinedStr):
                    yield from visit(child, here, within, around, called)

    yield from visit(tree, "", None, whole, False)


def _left_alone(node: ast.AST) -> bool:
    match node:
        case ast.Import() | ast.ImportFrom() | ast.Assert() | ast.JoinedStr() | ast.Expr(ast.Constant()):
            return True
        case ast.Assign(targets=[ast.Name("__all__")]) | ast.keyword(arg="strict"):
            return True
        case ast.Call(ast.Name("TypeVar")) | ast.Subscript(ast.Name("Literal")):  # they are annotations too
            return True
    return False


def _change(before: ast.AST, after: ast.AST) -> str:
    """What is changed, on one line: `x < y -> x <= y`, `f(...) without key`, `no: self.close()`."""
    if isinstance(after, ast.Pass):
        return f"no: {_words(before)}"
    if isinstance(before, ast.Call) and isinstance(after, ast.Call) and len(after.keywords) < len(before.keywords):
        gone = next(word.arg for word in before.keywords if word not in after.keywords)
        return f"{ast.unparse(before.func)}(...) without {gone}"
    return f"{_words(before)} -> {_words(after)}"


def _words(node: ast.AST) -> str:
    """One line: of a compound statement its head."""
    if isinstance(node, ast.Slice):
        return ":".join(ast.unparse(part) if part else "" for part in (node.lower, node.upper))
    line = ast.unparse(ast.fix_missing_locations(node)).splitlines()[0].strip()
    return line if len(line) <= LONGEST_WORDS else f"{line[: LONGEST_WORDS - 4]} ..."
