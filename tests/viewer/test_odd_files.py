"""Runs with files that cannot be read, are something else, or say what no run says: they hide none of the others."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.viewer.conftest import client_of
from tests.viewer.runs import make_run, trajectory
from uirl.viewer.runs import Runs

NOBODY = 65534
DEEP = "[" * 100_000


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that another user may look into, with a good run and one that the test spoils."""
    made = Path(tempfile.mkdtemp())
    made.chmod(0o755)
    for name in ("good", "odd"):
        make_run(made / name, [trajectory("a")])
    yield made
    shutil.rmtree(made)


@contextlib.contextmanager
def as_another_user() -> Iterator[None]:
    """Root may read everything, so what is closed is tested as somebody else."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(before)


def close(path: Path) -> None:
    path.chmod(0)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def line(text: str) -> Callable[[Path], None]:
    return lambda path: path.write_text(text + "\n")


CLOSED = [
    ("", close),
    ("", lambda path: path.chmod(0o744)),
    ("metrics.jsonl", close),
    ("metrics.jsonl", directory),
    ("metrics.jsonl", pipe),
    ("trajectories.sqlite", close),
    ("config.yaml", close),
]


@pytest.mark.parametrize(("name", "spoil"), CLOSED)
def test_what_cannot_be_read_is_said_of_its_run_alone(folder: Path, name: str, spoil: Callable[[Path], None]) -> None:
    spoil(folder / "odd" / name)
    with as_another_user(), client_of(Runs([folder])) as client:
        listed = {run["key"]: run for run in client.get("/api/runs").json()["runs"]}
        page = client.get("/api/runs/odd")
        metrics = client.get("/api/runs/odd/metrics")
    assert (listed["good"]["problem"], listed["good"]["steps"]) == (None, 3)
    assert (page.status_code, metrics.status_code) in ((200, 200), (200, 404))
    told = [page.json()["problem"], listed["odd"]["problem"] if name != "config.yaml" else page.json()["problem"]]
    assert all(str(folder / "odd" / name) in one for one in told), told
    (folder / "odd").chmod(0o755)


SAID = [
    ("metrics.jsonl", line(DEEP)),
    ("metrics.jsonl", line('{"step": 1, "time": 1.0, "x": ' + DEEP + "}")),
    ("metrics.jsonl", line('{"step": 1, "time": 1.0, "success": 0.5, "trajectories": 1e999}')),
    ("metrics.jsonl", line('{"step": true, "time": 1.0}')),
    ("serve.json", line(DEEP)),
    ("summary.json", line(DEEP)),
    ("summary.json", line('{"a": ' * 900 + "1" + "}" * 900)),
    ("config.yaml", line("a: " + DEEP)),
]


@pytest.mark.parametrize(("name", "spoil"), SAID)
def test_what_no_run_says_fails_no_page(folder: Path, name: str, spoil: Callable[[Path], None]) -> None:
    spoil(folder / "odd" / name)
    with client_of(Runs([folder])) as client:
        for path in (
            "",
            "/odd",
            "/odd/metrics",
            "/odd/metrics.csv",
            "/odd/trajectories/a",
            "/odd/trajectories/a/turns/0",
        ):
            answer = client.get(f"/api/runs{path}")
            assert answer.status_code == 200, (path, answer.text[:300])
        problem = client.get("/api/runs/odd").json()["problem"]
    assert (name == "summary.json") == bool(problem)


def test_a_number_that_is_none_is_null_everywhere(folder: Path) -> None:
    path = folder / "odd" / "metrics.jsonl"
    path.write_text('{"step": 1, "time": 1.0, "a": 1e999, "b": NaN, "c": -Infinity, "d": 2, "e": ' + "9" * 400 + "}\n")
    with client_of(Runs([folder])) as client:
        (row,) = client.get("/api/runs/odd/metrics").json()["rows"]
    assert row == {"step": 1, "time": 1.0, "a": None, "b": None, "c": None, "d": 2, "e": None}


def test_a_fault_of_the_viewer_hides_one_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from uirl.viewer.runs import Run

    ends = Run.ends
    monkeypatch.setattr(Run, "ends", lambda self: ends(self) if self.key == "good" else json.loads("1") / 0)
    with client_of(Runs([folder])) as client:
        listed = {run["key"]: run["problem"] for run in client.get("/api/runs").json()["runs"]}
    assert listed == {"good": None, "odd": "the viewer failed: ZeroDivisionError: division by zero"}
