"""The plan of the house (docs/architecture.md) holds: who imports whom, how long functions are, what loads torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import uirl

ROOT = Path(uirl.__file__).parent
SOURCES = sorted(ROOT.rglob("*.py"))

GROUND = {"types", "errors", "images", "runtime"}
SHARED = {"config", "metrics"}
PARTS = {
    "environments", "tools", "parsers", "inference", "verification", "algorithms", "curriculum", "storage"
}  # fmt: skip
BETWEEN_PARTS = {("environments", "tools"), ("verification", "inference")}
UPPER = [{"rollout", "learner"}, {"serving", "training"}, {"integrations"}, {"pipelines"}, {"cli"}]
OPTIONAL: dict[str, str | tuple[str, ...]] = {
    "gymnasium": "environments/adapters",
    "websockets": ("environments/remote",),
    "miniwob": "environments/browser",
    "wandb": "metrics",
    "peft": "learner",
    "vllm": "inference",
    "openai": "inference",
    "httpx": ("runtime", "inference", "serving", "environments/remote"),
    "mcp": "tools",
    "httpx2": "tools",
    "sglang": "inference",
    "ray": ("training", "integrations"),
    "verl": "integrations",
    "fastapi": ("environments/remote", "serving"),
    "uvicorn": ("environments/remote", "serving"),
}
LONGEST, ALMOST_ALL, FILE = 80, 40, 400


def allowed(room: str) -> set[str]:
    """The rooms that `room` may import."""
    if room in GROUND:
        return GROUND
    if room in SHARED:
        return GROUND | SHARED
    if room == "algorithms":
        return set()
    if room in PARTS:
        return GROUND | SHARED | {b for a, b in BETWEEN_PARTS if a == room}
    if room == "viewer":
        return GROUND | SHARED | {"storage"}
    below = GROUND | SHARED | PARTS
    for storey in UPPER:
        if room in storey:
            return below
        below = below | storey
    raise AssertionError(f"{room} is no room of the house; add it to docs/architecture.md and here")


def imports_of(path: Path) -> list[tuple[str, int]]:
    """(module, line) of every import in a file, those inside functions and for type checkers included."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute in this house"
            found += [(f"{node.module}.{alias.name}", node.lineno) for alias in node.names]
    return found


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def test_rooms_import_only_what_they_may() -> None:
    wrong = []
    for path in SOURCES:
        room = room_of(path)
        if room in {"__init__", "__main__"}:
            continue
        for module, line in imports_of(path):
            if module.startswith("uirl."):
                target = module.split(".")[1]
                if target != room and target not in allowed(room):
                    wrong.append(f"{path.relative_to(ROOT)}:{line}: {room} imports {target}")
    assert not wrong, "\n".join(wrong)


def test_optional_packages_stay_in_their_adapters() -> None:
    wrong = []
    for path in SOURCES:
        where = path.relative_to(ROOT).as_posix()
        for module, line in imports_of(path):
            home = OPTIONAL.get(module.split(".")[0])
            if home is not None and not where.startswith(home):
                wrong.append(f"{where}:{line} imports {module}; it belongs in {home}")
    assert not wrong, "\n".join(wrong)


def test_functions_and_files_stay_short() -> None:
    lengths = []
    for path in SOURCES:
        text = path.read_text()
        assert text.count("\n") <= FILE, f"{path} has {text.count(chr(10))} lines: a room that wants splitting"
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                lengths.append((node.end_lineno - node.lineno + 1, f"{path}:{node.lineno} {node.name}"))
    lengths.sort()
    assert lengths[-1][0] <= LONGEST, f"{lengths[-1][1]} has {lengths[-1][0]} lines"
    assert lengths[int(0.9 * len(lengths))][0] <= ALMOST_ALL


def test_rooms_have_telling_names() -> None:
    vague = {"utils", "common", "helpers", "misc", "util", "helper"}
    assert not [p for p in ROOT.rglob("*") if p.stem in vague]


def test_the_map_agrees_with_the_folders() -> None:
    text = (ROOT.parent / "docs" / "architecture.md").read_text()
    listing = text.split("```")[1]
    for name in sorted({room_of(path) for path in SOURCES} - {"__init__", "__main__"}):
        assert name + "/" in listing or name + ".py" in listing, f"docs/architecture.md does not show {name}"


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_the_package_loads_no_torch() -> None:
    light = "import sys, uirl; from uirl import ConfigStore, BaseEnvironment, Trajectory, JSONActionParser; "
    assert run(light + "print('torch' in sys.modules, 'transformers' in sys.modules)") == "False False"


def test_every_public_name_exists() -> None:
    code = "import uirl; print(len([getattr(uirl, name) for name in uirl.__all__]))"
    assert int(run(code)) == len(uirl.__all__)
