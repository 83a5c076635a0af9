"""Writes `sglang_surface.json`: what a released SGLang takes and answers, read from the source in its wheel.

    pip download --no-deps sglang==0.5.23 && unzip sglang-*.whl -d sglang
    python tests/inference/sglang/read_sglang_surface.py sglang tests/inference/sglang/sglang_surface.json

Nothing of SGLang is imported or installed: signatures come from the syntax tree.
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from typing import Any

ENGINE = "srt/entrypoints/engine.py"
SERVER = "srt/entrypoints/http_server.py"
MANAGER = ("srt/managers/tokenizer_manager.py", "srt/managers/tokenizer_control_mixin.py")
REQUESTS = "srt/managers/io_struct.py"
CONTRACT = "api/v1/api_types.py"
FIELDS = "srt/arg_groups/fields"

FRONT = ("get_model_info", "shutdown")
METHODS = ("generate_request", "update_weights_from_disk", "load_lora_adapter", "unload_lora_adapter")
CLASSES = (
    "GenerateReqInput",
    "UpdateWeightFromDiskReqInput",
    "LoadLoRAAdapterReqInput",
    "UnloadLoRAAdapterReqInput",
    "LoRAUpdateOutput",
)
ROUTES = (
    "/generate",
    "/model_info",
    "/server_info",
    "/update_weights_from_disk",
    "/load_lora_adapter",
    "/unload_lora_adapter",
)
BODIES = ("GenerateRequest", "SamplingParams", "GenerateResponse", "GenerateMetaInfo")


def read(root: Path) -> dict[str, Any]:
    """The surface, as plain data."""
    package = root / "sglang"
    version = next(v for n, v in _assignments(_tree(package / "_version.py")) if n == "__version__")
    manager = [m for path in MANAGER for m in _functions(_tree(package / path))]
    return {
        "version": version,
        "engine": {f.name: _parameters(f) for f in _functions(_tree(package / ENGINE), "Engine") if f.name in FRONT},
        "server_args": sorted({n for p in (package / FIELDS).glob("*.py") for n in _class_fields(_tree(p))}),
        "manager": {f.name: _parameters(f) for f in manager if f.name in METHODS},
        "requests": {name: _fields(_tree(package / REQUESTS), name) for name in CLASSES},
        "bodies": {name: _fields(_tree(package / CONTRACT), name) for name in BODIES},
        "routes": _routes(_tree(package / SERVER)),
    }


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _functions(tree: ast.AST, owner: str | None = None) -> list[Any]:
    classes = [n for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and owner in (None, n.name)]
    return [n for c in classes for n in c.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]


def _parameters(function: Any) -> list[str]:
    given = function.args
    names = [a.arg for a in (*given.posonlyargs, *given.args) if a.arg not in ("self", "cls")]
    names += [a.arg for a in given.kwonlyargs]
    return names + ([f"**{given.kwarg.arg}"] if given.kwarg else [])


def _class(tree: ast.AST, name: str) -> ast.ClassDef:
    return next(n for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n.name == name)


def _fields(tree: ast.AST, name: str) -> dict[str, bool]:
    """Field -> whether it must be given."""
    own = [n for n in _class(tree, name).body if isinstance(n, ast.AnnAssign)]
    return {n.target.id: n.value is None for n in own if isinstance(n.target, ast.Name)}


def _class_fields(tree: ast.AST) -> list[str]:
    classes = [n for n in ast.walk(tree) if isinstance(n, ast.ClassDef)]
    return [
        n.target.id
        for c in classes
        for n in c.body
        if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name) and n.target.id[0] != "_"
    ]


def _routes(tree: ast.AST) -> dict[str, list[str]]:
    """Path -> methods."""
    found: dict[str, list[str]] = {}
    for function in ast.walk(tree):
        for call in getattr(function, "decorator_list", []):
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.args):
                continue
            path = getattr(call.args[0], "value", None)
            if path in ROUTES:
                named = next((k.value for k in call.keywords if k.arg == "methods"), None)
                verbs = ast.literal_eval(named) if named is not None else [call.func.attr.upper()]
                found[path] = sorted({*found.get(path, []), *verbs})
    return found


def _assignments(tree: ast.Module) -> list[tuple[str, Any]]:
    return [
        (target.id, node.value.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    ]


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(read(Path(sys.argv[1])), indent=1) + "\n", encoding="utf-8")
