"""Every block of docs/endpoint.md runs, as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import uirl
from tests.cli.test_serve_model import serving
from uirl.storage import TrajectoryStore

GUIDE = (Path(uirl.__file__).parents[1] / "docs" / "endpoint.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
(COMMANDS,) = re.findall(r"```sh\n(.*?)```", GUIDE, re.DOTALL)


def test_no_block_is_forgotten() -> None:
    assert len(PROGRAMS) == 3
    assert GUIDE.count("```") == 2 * (len(PROGRAMS) + 1)


@pytest.mark.parametrize("number", [0, 1])
def test_a_program_of_the_guide_runs(number: int) -> None:
    exec(compile(PROGRAMS[number], f"docs/endpoint.md, program {number}", "exec"), {"__name__": "guide"})


def test_the_command_of_the_guide_serves_its_last_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export, command = COMMANDS.strip().splitlines()
    name, _, key = export.removeprefix("export ").partition("=")
    _, _, *arguments = command.split()
    assert "--port 8000" in command
    where = arguments.index("8000")
    monkeypatch.chdir(tmp_path)
    with serving(*arguments[: where - 1], *arguments[where + 1 :], **{name: key}) as url:
        program = PROGRAMS[2].replace("http://127.0.0.1:8000", url)
        assert program != PROGRAMS[2]
        exec(compile(program, "docs/endpoint.md, program 2", "exec"), {"__name__": "guide"})
    with TrajectoryStore(tmp_path / "served" / "trajectories.sqlite", read_only=True) as store:
        assert [record.rewards for record in store] == [[1.0]]
