"""`make mutants` in a small project: what no test notices is printed, what one notices is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "mutants.py"

CODE = '''
LIMIT = 3


def watched(x: int) -> int:
    """A text that is no code."""
    if x > LIMIT:
        raise ValueError(f"{x} is more than 3")
    return x


def unwatched(x: int, y: int = 2) -> int:
    return x * y


def never(x: int) -> int:
    return -x
'''

TESTS = """
import pytest
from pack.code import unwatched, watched


@pytest.mark.parametrize("x", [0, 3])
def test_watched(x):
    assert watched(x) == x


async def test_refused():
    with pytest.raises(ValueError):
        watched(4)


def test_unwatched():
    unwatched(1)
"""


def run(folder: Path, *options: str) -> tuple[str, dict[str, str]]:
    """What the script prints on the small project, and the outcome of every mutant by its change."""
    for name, text in {"pack/__init__.py": "", "pack/code.py": CODE, "tests/test_code.py": TESTS}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    command = [sys.executable, str(SCRIPT), "pack", "--log", "log.jsonl", *options]
    (folder / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n")
    plugins = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "pytest_asyncio.plugin"}
    done = subprocess.run(command, cwd=folder, env=os.environ | plugins, capture_output=True, text=True, check=True)
    rows = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return done.stdout, {row["mutant"].partition(" ")[2]: row["outcome"] for row in rows}


def test_what_is_planted_is_found(tmp_path: Path) -> None:
    known = tmp_path / "equivalent.yaml"
    known.write_text("- mutant: 'pack/code.py unwatched: 2 -> 3'\n  why: planted\n")
    said, outcomes = run(tmp_path, "--equivalent", str(known))
    assert outcomes == {
        ": 3 -> 4": "killed",
        "watched: x > LIMIT -> x >= LIMIT": "killed",
        "watched: x > LIMIT -> x <= LIMIT": "killed",
        "watched: no: raise ValueError(f'{x} is more than 3')": "killed",
        "watched: return x -> return None": "killed",
        "unwatched: 2 -> 3": "equivalent",
        "unwatched: return x * y -> return None": "survived",
        "unwatched: x * y -> x / y": "survived",
        "never: return -x -> return None": "unreached",
        "never: -x -> x": "unreached",
    }
    assert "survived: pack/code.py:13 unwatched: x * y -> x / y" in said
    assert "watched: x > LIMIT" not in said
    # 4 of the 9 that are not said to change nothing
    assert said.endswith("surviving share of the 9 that change behaviour: 44.4%\n")


def test_a_sample_is_drawn_by_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    from mutants import sample_of

    file = str(SCRIPT.parent / "torchvision_on_cpu.py")
    drawn = [[mutant.key for mutant in sample_of([file], 4, seed)] for seed in (0, 0, 1)]
    assert len(drawn[0]) == 4
    assert drawn[0] == drawn[1] != drawn[2]
