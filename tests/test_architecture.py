"""The structure that docs/architecture.md describes: layers, rings, maps, sizes, parameters, and what loads torch.

Each rule names its offenders. A rule that does not hold everywhere yet has a list of the places that are left
(`*_LEFT`): a new offender fails the test, and so does a listed place that has been mended, until it is taken off.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache

import pytest

import uirl
from tests.imports import (
    MODULES,
    ROOT,
    SOURCES,
    Import,
    all_imports,
    exists,
    mentions,
    names_of_modules,
    parsed,
    rings,
)  # fmt: skip
from tests.patience import PATIENCE

GROUND = {"types", "success", "errors", "images", "thoughts", "results", "runtime", "http", "workers"}
SHARED = {"config", "metrics"}
PARTS = {
    "environments", "tools", "parsers", "inference", "verification", "algorithms", "curriculum", "storage"
}  # fmt: skip
BETWEEN_PARTS = {("environments", "tools"), ("environments", "parsers"), ("verification", "inference")}
UPPER = [{"rollout", "learner"}, {"serving", "training"}, {"integrations"}, {"pipelines", "viewer"}, {"cli"}]
FACADES = {"__init__", "__main__"}
"""Files of `uirl/` itself that belong to no layer: the public names and the command."""
OPTIONAL: dict[str, str | tuple[str, ...]] = {
    "gymnasium": "environments/adapters",
    "websockets": ("environments/remote", "cli/serve"),
    "miniwob": "environments/browser",
    "django": "environments/apps",
    "time_machine": "environments/apps",
    "pyarrow": "storage",
    "datasets": "storage",
    "wandb": "metrics",
    "trackio": "metrics",
    "mlflow": "metrics",
    "peft": "learner",
    "bitsandbytes": ("learner", "inference/models"),
    "vllm": "inference",
    "openai": "inference",
    "httpx": "http",
    "mcp": "tools",
    "httpx2": "tools",
    "sglang": "inference",
    "ray": ("workers/ray", "integrations"),
    "verl": "integrations",
    "fastapi": ("environments/remote", "serving"),
    "uvicorn": ("http", "environments/remote", "serving", "viewer"),
}
"""Optional package -> where it may be imported."""
LONGEST, ALMOST_ALL, FILE, PARAMETERS, HOLDERS = 80, 40, 800, 10, 25

RINGS_LEFT: set[str] = set()
FOLDER_RINGS_LEFT: set[str] = set()
SHAPES_LEFT: set[str] = set()


def allowed(layer: str) -> set[str]:
    """The parts that `layer` may import."""
    if layer in GROUND:
        return GROUND
    if layer in SHARED:
        return GROUND | SHARED
    if layer == "algorithms":
        return set()
    if layer in PARTS:
        return GROUND | SHARED | {b for a, b in BETWEEN_PARTS if a == layer}
    if layer == "viewer":
        return GROUND | SHARED | {"storage", "verification"}
    below = GROUND | SHARED | PARTS
    for level in UPPER:
        if layer in level:
            return below
        below = below | level
    raise AssertionError(f"{layer} belongs to no layer; add it to docs/architecture.md and to the lists above")


def layer_of(module: str) -> str:
    """The name below `uirl` that a module belongs to: 'rollout' for 'uirl.rollout.episode'."""
    return module.split(".")[1] if "." in module else "__init__"


def where(module: str) -> str:
    return MODULES[module].relative_to(ROOT).as_posix()


def is_facade(module: str) -> bool:
    return MODULES[module].name == "__init__.py"


def is_declared(one: Import) -> bool:
    """Whether a registry or a facade says what it would load when asked: a load of that file alone."""
    return one.how != "statement" and (is_facade(one.source) or one.source.endswith(".registry"))


@cache
def functions() -> tuple[tuple[str, str, ast.FunctionDef | ast.AsyncFunctionDef], ...]:
    """(file, 'Class.name', function) of every function, nested ones included."""

    def below(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield prefix + child.name, child
                yield from below(child, f"{prefix}{child.name}.<locals>.")
            else:
                yield from below(child, f"{prefix}{child.name}." if isinstance(child, ast.ClassDef) else prefix)

    return tuple((path.relative_to(ROOT).as_posix(), *one) for path in SOURCES for one in below(parsed(path), ""))


@pytest.fixture(scope="module", autouse=True)
def trees() -> Iterator[None]:
    """They are many megabytes, which no other test needs."""
    yield
    parsed.cache_clear()
    functions.cache_clear()


def arguments(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.arg]:
    """The parameters of a function, without `self` and `cls`."""
    spec = function.args
    every = [*spec.posonlyargs, *spec.args, *spec.kwonlyargs]
    return every[1:] if every and every[0].arg in ("self", "cls") else every


def assert_only(found: set[str], left: set[str], remedy: str) -> None:
    """Passes where the offenders are exactly those of the list, which so can only shrink."""
    assert not found - left, f"{remedy}:\n" + "\n".join(sorted(found - left))
    assert not left - found, "these are mended; take them off the list:\n" + "\n".join(sorted(left - found))


def test_parts_import_only_what_their_layer_may() -> None:
    wrong = []
    for one in all_imports():
        source = layer_of(one.source)
        if source in FACADES or not one.target.startswith("uirl."):
            continue
        target = layer_of(one.target)
        if target != source and target not in allowed(source):
            wrong.append(f"{one}: {source} may import {', '.join(sorted(allowed(source)))}")
    assert not wrong, "\n".join(wrong)


def test_modules_are_loaded_by_text_in_registries_alone() -> None:
    # elsewhere `import_module("uirl.x")` would hide an import; an ordinary one inside a function is as lazy
    wrong = [str(one) for one in all_imports() if one.how == "loaded by text" and not is_declared(one)]
    assert not wrong, "\n".join(wrong)


def test_names_of_modules_in_texts_exist() -> None:
    # also those that other programs load, as 'pkg://uirl.integrations.verl.tasks', and those in docstrings
    stale = []
    for path in SOURCES:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                stale += [f"{path}:{node.lineno}: {name}" for name in names_of_modules(node.value) if not exists(name)]
    assert not stale, "\n".join(stale)


def imported_files() -> dict[str, set[str]]:
    """File -> files that it imports when it is loaded or later, except those that it declares by name."""
    edges: dict[str, set[str]] = {module: set() for module in MODULES}
    for one in all_imports():
        if one.target in MODULES and one.target not in (one.source, "uirl") and not is_declared(one):
            edges[one.source].add(one.target)
    return edges


def imported_neighbours(folder: str) -> dict[str, set[str]]:
    """The same between what lies directly in `folder`: its files, and its folders as wholes. Its own `__init__.py`, the
    list of what the folder offers, is left out."""
    depth = folder.count(".") + 2
    edges: dict[str, set[str]] = {}
    for source, targets in imported_files().items():
        if source.startswith(folder + "."):
            child = ".".join(source.split(".")[:depth])
            others = {".".join(t.split(".")[:depth]) for t in targets if t.startswith(folder + ".")}
            edges.setdefault(child, set()).update(others - {child})
    return edges


def test_no_files_import_each_other_in_a_ring() -> None:
    found = {" - ".join(ring) for ring in rings(imported_files())}
    assert_only(found, RINGS_LEFT, "these files import each other (type-only imports count)")


def test_no_folders_import_each_other_in_a_ring() -> None:
    folders = [module for module in MODULES if is_facade(module)]
    found = {" - ".join(ring) for folder in folders for ring in rings(imported_neighbours(folder))}
    assert_only(found, FOLDER_RINGS_LEFT, "these folders (or files beside them) import each other")


def test_rings_are_found() -> None:
    assert rings({"a": ["b"], "b": ["c"], "c": ["a", "d"], "d": []}) == [["a", "b", "c"]]
    assert not rings({"a": ["b", "c"], "b": ["c"], "c": []})


def test_optional_packages_stay_in_their_adapters() -> None:
    wrong = []
    for one in all_imports():
        home = OPTIONAL.get(one.target.split(".")[0])
        if home is not None and not where(one.source).startswith(home):
            wrong.append(f"{one}; it belongs in {home}")
    assert not wrong, "\n".join(wrong)


def test_functions_and_files_stay_short() -> None:
    for path in SOURCES:
        lines = path.read_text().count("\n")
        assert lines <= FILE, f"{path} has {lines} lines; split it by what it does"
    lengths = sorted((f.end_lineno - f.lineno + 1, f"{path}:{name}") for path, name, f in functions() if f.end_lineno)
    assert lengths[-1][0] <= LONGEST, f"{lengths[-1][1]} has {lengths[-1][0]} lines"
    assert lengths[int(0.9 * len(lengths))][0] <= ALMOST_ALL


def test_functions_have_at_most_ten_parameters() -> None:
    many = {f"{path}:{name}" for path, name, f in functions() if len(arguments(f)) > PARAMETERS}
    assert not many, f"more than {PARAMETERS} parameters; group them in an options object"


def test_few_parts_hold_the_whole_config() -> None:
    """Functions and fields annotated with `ConfigStore`: the config is resolved where a run is assembled, stored or
    continued, and a part is handed the sections that it reads."""
    holders = [f"{path}:{name}" for path, name, f in functions() for a in arguments(f) if holds_config(a.annotation)]
    for path in SOURCES:
        fields = [node for node in ast.walk(parsed(path)) if isinstance(node, ast.AnnAssign)]
        holders += [f"{path}:{ast.unparse(node.target)}" for node in fields if holds_config(node.annotation)]
    assert len(holders) <= HOLDERS, "hand over `config.rollout`, ... instead:\n" + "\n".join(sorted(holders))


def holds_config(annotation: ast.expr | None) -> bool:
    return annotation is not None and mentions(annotation, "ConfigStore")


SHAPE = re.compile(r"(?<![\w\]])\[(?:\.\.\.|(?:[A-Za-z]\w*|\d+)(?:, ?[\w.*+/ -]+)*)?\]")
"""[B, T], [N], [tokens], [...] for any shape and [] for one number, but neither `x[t]` nor `x[i][j]`."""
NAMED_TENSORS = re.compile(r"(?:dict|Mapping|Iterator|Iterable)\[.*Tensor")
"""Weights by name and the like, which have no common shape."""


def takes_or_returns_tensors(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    kinds = [arg.annotation for arg in arguments(function) if arg.annotation]
    texts = [ast.unparse(kind) for kind in [*kinds, *([function.returns] if function.returns else [])]]
    return any(re.search(r"\bTensor\b", text) and not NAMED_TENSORS.search(text) for text in texts)


def test_public_tensor_functions_name_shapes() -> None:
    silent = set()
    for path, name, function in functions():
        public = not any(part.startswith(("_", "<")) for part in name.split("."))
        if public and not SHAPE.search(ast.get_docstring(function) or "") and takes_or_returns_tensors(function):
            silent.add(f"{path}:{name}")
    assert_only(silent, SHAPES_LEFT, "the docstring names no shape such as [B, T]")


@pytest.mark.parametrize(
    ("text", "is_shape"),
    [("the mask [B, T]", 1), ("`[B, T, V]` logits", 1), ("any shape [...]", 1), ("A[t] = r", 0), ("one of (0, 1)", 0)],
)
def test_what_counts_as_a_shape(text: str, is_shape: int) -> None:
    assert bool(SHAPE.search(text)) == is_shape


def test_names_say_what_is_inside() -> None:
    vague = {"utils", "common", "helpers", "misc", "util", "helper"}
    assert not [path for path in ROOT.rglob("*") if path.stem in vague]


def folders(depth: int) -> set[str]:
    """The folders with code up to so many levels below `uirl/`, as 'environments/browser'."""
    inner = {path.parent.relative_to(ROOT) for path in SOURCES}
    return {folder.as_posix() for folder in inner if 1 <= len(folder.parts) <= depth}


def fenced(page: str, heading: str) -> str:
    """The first block of code below a heading."""
    text = (ROOT.parent / page).read_text()
    return text.split(f"\n## {heading}\n")[1].split("```")[1]


def maps_differ(listed: set[str], there: set[str]) -> str:
    return f"the map and the folders differ: add {sorted(there - listed)}, remove {sorted(listed - there)}"


def test_the_map_of_the_architecture_page_is_the_folders() -> None:
    listed, above = set(), ""
    for line in fenced("docs/architecture.md", "Map").splitlines():
        entry = re.match(r"(  |    )(\w+(?:/|\.py))(?:  |$)", line)
        if entry and entry[1] == "  ":
            above = entry[2].rstrip("/")
            listed.add(above)
        elif entry:
            listed.add(f"{above}/{entry[2].rstrip('/')}")
    files = {path.name for path in ROOT.glob("*.py")} - {"__main__.py"}
    assert listed == folders(2) | files, maps_differ(listed, folders(2) | files)


def test_the_map_of_the_readme_is_the_folders() -> None:
    listed = re.findall(r"\buirl/(\w+)", fenced("README.md", "Map"))
    assert sorted(listed) == sorted(folders(1)), maps_differ(set(listed), folders(1))


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_the_package_loads_no_torch() -> None:
    light = "import sys, uirl; from uirl import ConfigStore, BaseEnvironment, Trajectory, JSONActionParser; "
    assert run(light + "print('torch' in sys.modules, 'transformers' in sys.modules)") == "False False"


def test_every_public_name_exists() -> None:
    assert all(hasattr(uirl, name) for name in uirl.__all__)
