"""A command that is told to end clears up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.patience import PATIENCE

WORLD = """
from uirl.environments import GuessNumberEnvironment
from uirl.runtime.scratch import ScratchFolder

class World(GuessNumberEnvironment):
    def __init__(self, config=None):
        super().__init__(config)
        self.folder = ScratchFolder("uirl-test-")
"""


def test_a_server_that_is_told_to_end_leaves_no_folder(tmp_path: Path) -> None:
    (tmp_path / "world_of_test.py").write_text(WORLD)
    (tmp_path / "temporary").mkdir()
    paths = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    server = subprocess.Popen(
        [sys.executable, "-m", "uirl.cli.main", "serve", "--env", "world_of_test:World", "--port", "0"],
        env={**os.environ, "PYTHONPATH": paths, "TMPDIR": str(tmp_path / "temporary")},
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    assert "serving" in server.stdout.readline()
    assert len(list((tmp_path / "temporary").iterdir())) > 0
    server.send_signal(signal.SIGTERM)
    server.communicate(timeout=PATIENCE)
    assert list((tmp_path / "temporary").iterdir()) == []
