"""`torchrun -m uirl train`: one run, the same figures as one process makes, and one end for all processes."""

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import uirl

pytestmark = pytest.mark.actors
ROOT = Path(uirl.__file__).parents[1]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
SMALL = [
    *("training.num_epochs=1", "training.num_iters_per_epoch=2", "training.eval_episodes=8", "training.threads=1"),
    *("training.batch_size=64", "training.warm_start.steps=30", "training.warm_start.evaluate_every=null"),
]
LONG = "training.num_iters_per_epoch=500"


def started(launcher: list[str], runs: Path, *changes: str) -> subprocess.Popen[str]:
    command = [sys.executable, *launcher, "-m", "uirl", "train", "guess_number", f"logging.runs_dir={runs}"]
    return subprocess.Popen(
        [*command, "logging.run_name=run", *SMALL, *changes],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def processes(runs: Path) -> dict[int, str]:
    """Those of a run: process id -> what RANK it was started with."""
    found = {}
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and str(runs).encode() in (folder / "cmdline").read_bytes():
                variables = (folder / "environ").read_bytes().split(b"\0")
                found[int(folder.name)] = next((v[5:].decode() for v in variables if v.startswith(b"RANK=")), "")
        except OSError:  # it has ended
            continue
    return found


def until_updates(run: subprocess.Popen[str]) -> Iterator[str]:
    """The lines of a run up to that of its third update."""
    assert run.stdout is not None
    for line in run.stdout:
        yield line
        if line.startswith("step    3/"):
            return
    pytest.fail("the run ended before its third update")


def rows(runs: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (runs / "run" / "metrics.jsonl").read_text().splitlines()]


def test_two_processes_make_one_run_with_the_figures_of_one(tmp_path):
    printed = []
    for name, launcher in (("one", []), ("two", TORCHRUN)):
        run = started(launcher, tmp_path / name)
        printed.append(run.communicate(timeout=300)[0])
        assert run.returncode == 0, printed[-1]
    assert os.listdir(tmp_path / "two") == ["run"]
    assert printed[1].count("run directory") == 1
    assert "2 processes learn together; this one plays" in printed[1]
    one, two = rows(tmp_path / "one"), rows(tmp_path / "two")
    assert len(one) == len(two) > 30
    for expected, got in zip(one, two, strict=True):
        assert expected.keys() == got.keys()
        for key, value in expected.items():
            if isinstance(value, float) and "time" not in key and "per_second" not in key and "limit" not in key:
                assert math.isclose(value, got[key], rel_tol=1e-5, abs_tol=1e-5), (key, value, got[key])
    assert not processes(tmp_path)


def test_a_process_that_is_killed_ends_the_run_which_names_it(tmp_path):
    run = started(TORCHRUN, tmp_path, LONG)
    lines = list(until_updates(run))
    follower = next(pid for pid, rank in processes(tmp_path).items() if rank == "1")
    os.kill(follower, signal.SIGKILL)
    lines.append(run.communicate(timeout=60)[0])
    assert run.returncode != 0
    assert f"uirl: process 1 of 2 that learn together (pid {follower}) is gone" in "".join(lines)
    assert not processes(tmp_path)


def test_the_run_that_is_killed_ends_the_others(tmp_path):
    run = started(TORCHRUN, tmp_path, LONG)
    list(until_updates(run))
    os.kill(next(pid for pid, rank in processes(tmp_path).items() if rank == "0"), signal.SIGKILL)
    run.communicate(timeout=60)
    assert run.returncode != 0
    assert not processes(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_stopped_saves_and_nothing_is_left(number, tmp_path):
    run = started(TORCHRUN, tmp_path, LONG)
    lines = list(until_updates(run))
    begun = time.monotonic()
    run.send_signal(number)
    said = "".join(lines) + run.communicate(timeout=60)[0]
    assert "interrupted at step" in said
    assert re.search("`torchrun --nproc-per-node 2 -m uirl train .*--resume` continues from", said)
    assert time.monotonic() - begun < 30  # torchrun kills what is left by then
    assert max((tmp_path / "run" / "checkpoints").glob("step_*")).name >= "step_000003"
    assert not processes(tmp_path)
