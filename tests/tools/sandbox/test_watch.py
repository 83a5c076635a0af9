"""How a process is watched."""

from __future__ import annotations

import subprocess
import time

from tests.tools.python_programs import PLENTY
from uirl.runtime.walls import end_tree
from uirl.tools.sandbox.watch import LOOK_SECONDS, Watch


def test_a_look_that_takes_long_leaves_time_between_two() -> None:
    began: list[float] = []
    ended: list[float] = []

    def look() -> None:
        began.append(time.monotonic())
        time.sleep(1.5 * LOOK_SECONDS)  # a folder of many files
        ended.append(time.monotonic())

    process = subprocess.Popen(["sleep", "0.5"], stdout=subprocess.PIPE, start_new_session=True)
    Watch(process, PLENTY, look).wait()
    end_tree(process)
    pauses = [after - before for before, after in zip(ended, began[1:], strict=False)]
    assert pauses
    assert min(pauses) > 0.9 * LOOK_SECONDS
