"""Who may write where, what a resume keeps, and files that are whole."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from uirl.errors import StorageError
from uirl.storage import RunDirectory, RunTaken, free_run_name, run_of

ROOT = Path(__file__).parents[2]


def test_a_new_run_has_its_config_and_its_places(tmp_path):
    with RunDirectory.create(tmp_path / "runs" / "first", "training: {}\n") as run:
        assert (run.name, (run.path / ".lock").read_text()) == ("first", str(os.getpid()))
        assert run.config_path.read_text() == "training: {}\n"
        assert run.checkpoints.is_dir()
        places = (run.metrics_path, run.trajectories_path, run.summary_path, run.plot_path("curve"), run.tensorboard)
        names = ["metrics.jsonl", "trajectories.sqlite", "summary.json", "curve.png", "tensorboard"]
        assert places == tuple(run.path / name for name in names)
    assert RunDirectory.open(tmp_path / "runs" / "first").config_path.is_file()


def test_another_run_is_not_overwritten_and_not_left_locked(tmp_path):
    RunDirectory.create(tmp_path / "a", "first").close()
    with pytest.raises(RunTaken, match="already holds a run; continue it with --resume"):
        RunDirectory.create(tmp_path / "a", "second")
    assert (tmp_path / "a" / "config.yaml").read_text() == "first"
    RunDirectory.create(tmp_path / "a", "first", resume=True).close()


def test_foreign_files_are_not_written_among_even_with_resume(tmp_path):
    for name in ("thesis.tex", "a", "z", "b", ".hidden"):
        (tmp_path / name).write_text("years of work")
    for resume in (False, True):
        with pytest.raises(StorageError, match=r"no run directory \(it holds a, b, thesis.tex\)"):
            RunDirectory.create(tmp_path, "x", resume=resume)
    assert not (tmp_path / "config.yaml").exists()


def test_a_resume_keeps_the_configs_that_held_before(tmp_path):
    for config in ("one", "one", "two", "three"):
        RunDirectory.create(tmp_path / "a", config, resume=True).close()
    kept = {p.name: p.read_text() for p in (tmp_path / "a").glob("*.yaml")}
    assert kept == {"config.yaml": "three", "config.1.yaml": "one", "config.2.yaml": "two"}


def test_a_run_that_died_before_its_config_can_be_begun(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / ".lock").write_text("123")
    (tmp_path / "a" / ".config.yaml.x.tmp").write_text("half")
    with RunDirectory.create(tmp_path / "a", "x") as run:
        assert run.config_path.read_text() == "x"


HOLDER = """
import sys, time
from uirl.storage import RunDirectory
run = RunDirectory.create(sys.argv[1], "x")
print("held", flush=True)
time.sleep(60)
"""


def test_two_writers_of_one_run_are_refused_until_the_first_ends_or_is_killed(tmp_path):
    command = [sys.executable, "-c", HOLDER, tmp_path / "a"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(RunTaken, match=f"is being written by process {holder.pid};"):
            RunDirectory.create(tmp_path / "a", "x", resume=True)
        holder.send_signal(signal.SIGKILL)
    first = RunDirectory.create(tmp_path / "a", "x", resume=True)
    for _ in range(2):
        with pytest.raises(RunTaken, match=f"is being written by process {os.getpid()};"):
            RunDirectory.create(tmp_path / "a", "x", resume=True)
    first.close()
    first.close()
    RunDirectory.create(tmp_path / "a", "x", resume=True).close()


def test_json_files_come_back_and_refuse_what_json_lacks(tmp_path):
    with RunDirectory.create(tmp_path / "a", "x") as run:
        path = run.write_json("summary.json", {"success_after": 0.9, "none": None})
        assert path == run.summary_path
        assert run.read_json("summary.json") == json.loads(path.read_text()) == {"success_after": 0.9, "none": None}
        for bad in (float("nan"), object()):
            with pytest.raises(StorageError, match=r"summary\.json cannot be written as JSON"):
                run.write_json("summary.json", {"x": bad})
        assert run.read_json("summary.json")["success_after"] == 0.9
        with pytest.raises(StorageError, match="cannot read"):
            run.read_json("none.json")
        run.write_text("broken.json", "{")
        with pytest.raises(StorageError, match="is not JSON"):
            run.read_json("broken.json")


def test_a_place_where_no_run_can_be_is_a_clear_error(tmp_path):
    with pytest.raises(StorageError, match=r"it has no config\.yaml"):
        RunDirectory.open(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot create the run directory"):
        RunDirectory.create(tmp_path / "file" / "a", "x")


def test_free_names_and_the_run_of_a_checkpoint(tmp_path):
    assert free_run_name(tmp_path, "screen") == "screen"
    for taken in ("screen", "screen-2", "judged.jsonl"):
        (tmp_path / taken / "checkpoints" / "step_000001").mkdir(parents=True)
    assert free_run_name(tmp_path, "screen") == "screen-3"
    assert free_run_name(tmp_path, "judged", ".jsonl") == "judged-2"
    assert free_run_name(tmp_path, "my_env.module:Class Name/") == "my_env.module-Class-Name"
    assert free_run_name(tmp_path, "///") == "run"
    run = tmp_path / "screen"
    assert run_of(run) == run_of(run / "checkpoints" / "step_000001") == run
    assert run_of(tmp_path) is None
