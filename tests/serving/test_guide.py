"""Every block of docs/endpoint.md runs, as it stands."""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
import time
from pathlib import Path

import pytest

import uirl
from tests.patience import PATIENCE
from uirl.cli.main import main
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
    _, *arguments = command.split()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(name, key)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    arguments[arguments.index("8000")] = port
    program = PROGRAMS[2].replace("127.0.0.1:8000", f"127.0.0.1:{port}")
    assert program != PROGRAMS[2]
    raised: list[BaseException] = []

    def client() -> None:
        """The program of the guide, once the command answers, and then the Ctrl-C that ends it."""
        try:
            deadline = time.monotonic() + PATIENCE
            while socket.socket().connect_ex(("127.0.0.1", int(port))) and time.monotonic() < deadline:
                time.sleep(0.05)
            exec(compile(program, "docs/endpoint.md, program 2", "exec"), {"__name__": "guide"})
        except BaseException as error:
            raised.append(error)
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=client, daemon=True)
    thread.start()
    assert main(arguments) == 0
    thread.join(PATIENCE)
    assert raised == []
    with TrajectoryStore(tmp_path / "served" / "trajectories.sqlite", read_only=True) as store:
        assert [record.rewards for record in store] == [[1.0]]
